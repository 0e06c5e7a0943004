"""A question's profile: how its positive and negative score is spread over token groups, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bertlift.analysis.groups import GROUPS, token_groups
from bertlift.attribution import Attribution

Profile = NDArray[np.float64]


def profile(attribution: Attribution) -> Profile:
    """Shares of the score, ``(2, rows, groups)``: positive then negative, each row adding up to 1 in size.

    ``profile[0, l, g]`` is the sum of the token scores above zero in group ``g`` at row ``l``, and
    ``profile[1, l, g]`` that of the scores below zero (so it is not positive), both divided by the sum of
    the row's absolute token scores: the question's length and the size of its logits drop out. A row
    of zeros stays a row of zeros.
    """
    scores = np.asarray(attribution.scores, dtype=np.float64)
    groups = np.array([GROUPS.index(group) for group in token_groups(attribution)])
    member = (groups[:, None] == np.arange(len(GROUPS))).astype(np.float64)
    total = np.abs(scores).sum(1, keepdims=True)
    shares = scores / np.where(total == 0, 1, total)
    return np.stack([np.clip(shares, 0, None) @ member, np.clip(shares, None, 0) @ member])


def representation(attributions: Sequence[Attribution]) -> NDArray[np.float64]:
    """All profiles as the rows of one matrix, ``(questions, 2 * rows * groups)``.

    The shares are left unscaled: one unit is the same part of a layer's score everywhere, and groups that
    never matter stay small instead of being blown up to the variance of the others.
    """
    return np.stack([profile(each).ravel() for each in attributions])
