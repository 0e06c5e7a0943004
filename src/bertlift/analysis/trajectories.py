"""Where the score of an answer sits, layer by layer: shares of token groups, spread, and the paths through a layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertlift.analysis.bootstrap import Array, mean_estimate
from bertlift.analysis.groups import GROUPS, token_groups
from bertlift.attribution import Attribution
from bertlift.squad.metrics import exact_match


@dataclass(frozen=True)
class Trajectory:
    """Measures of one answer at every row of scores (0: embedding output) and, for attention, at every layer."""

    question_id: str
    answerable: bool
    answered: bool
    right: bool
    positive: Array  # (rows, groups): scores above zero, as shares of the row's absolute score
    negative: Array  # (rows, groups): scores below zero, not positive
    tokens: Array  # (groups,): share of the window's tokens
    effective: Array  # (rows,): effective number of tokens
    gini: Array  # (rows,)
    answer_rank: Array  # (rows,): of the target's best token, by absolute score, 1 the first; NaN without an answer
    attention: Array  # (layers, groups): shares of the target's attention; no rows where there is none
    attention_effective: Array  # (layers,)
    paths: Array  # (layers, 3): share of value path, attention path and residual in their absolute sum
    gradient: float

    @property
    def absolute(self) -> Array:
        """``(rows, groups)``: absolute scores as shares of the row's; they add up to 1."""
        return self.positive - self.negative

    @property
    def fair(self) -> Array:
        """``(rows, groups)``: share of the score over share of the tokens; 1 is fair, NaN: no such token."""
        return _over(self.absolute, self.tokens)

    @property
    def attention_fair(self) -> Array:
        """``(layers, groups)``: the same for plain attention."""
        return _over(self.attention, self.tokens)


def _over(shares: Array, tokens: Array) -> Array:
    return np.asarray(np.divide(shares, tokens, out=np.full_like(shares, np.nan), where=tokens > 0))


def shares_of(rows: NDArray[np.floating]) -> Array:
    """Every row divided by the sum of its absolute values; a row of zeros stays one."""
    values = np.asarray(rows, dtype=np.float64)
    total = np.abs(values).sum(-1, keepdims=True)
    return np.asarray(values / np.where(total == 0, 1, total))


def effective_number(shares: Array) -> Array:
    """Over how many tokens the last axis is spread: ``exp(-sum p ln p)`` (Hill's number of order 1); NaN for zeros."""
    p = np.abs(shares)
    entropy = -(p * np.log(np.where(p > 0, p, 1))).sum(-1)
    return np.where(p.sum(-1) > 0, np.exp(entropy), np.nan)


def gini(shares: Array) -> Array:
    """Gini's coefficient of the last axis' absolute values: 0 all equal, towards 1 all on one; NaN for zeros."""
    p = np.sort(np.abs(shares), axis=-1)
    size = p.shape[-1]
    total = p.sum(-1)
    weighted = (p * (2 * np.arange(1, size + 1) - size - 1)).sum(-1)
    return np.asarray(np.divide(weighted, size * total, out=np.full_like(total, np.nan), where=total > 0))


def is_right(attribution: Attribution) -> bool:
    """Whether the answer is exactly one of the golds (the empty answer, where there is none)."""
    return any(exact_match(gold, attribution.answer) for gold in attribution.golds or [""])


def trajectory(attribution: Attribution) -> Trajectory:
    """The measures of one attribution."""
    groups = np.array([GROUPS.index(group) for group in token_groups(attribution)])
    member = (groups[:, None] == np.arange(len(GROUPS))).astype(np.float64)
    shares, attention = shares_of(attribution.scores), shares_of(_grid(attribution.attention, len(groups)))
    inside = np.arange(attribution.start, attribution.end + 1)
    ranks = 1 + (np.abs(shares)[:, None, :] > np.abs(shares)[:, inside, None]).sum(-1).min(1)
    parts = [np.abs(_grid(each, 1)).sum(-1) for each in (attribution.value_path, attribution.attention_path)]
    paths = np.stack([*parts, np.abs(np.asarray(attribution.residual, dtype=np.float64))], axis=-1)
    return Trajectory(
        question_id=attribution.question_id,
        answerable=not attribution.is_impossible,
        answered=attribution.answer != "",
        right=is_right(attribution),
        positive=np.clip(shares, 0, None) @ member,
        negative=np.clip(shares, None, 0) @ member,
        tokens=member.mean(0),
        effective=effective_number(shares),
        gini=gini(shares),
        answer_rank=ranks.astype(np.float64) if attribution.answer else np.full(len(shares), np.nan),
        attention=attention @ member,
        attention_effective=effective_number(attention),
        paths=shares_of(paths),
        gradient=attribution.gradient,
    )


def _grid(rows: NDArray[np.floating], width: int) -> Array:
    """Rows as floats; none of them, ``(0, width)``, where a method gives none."""
    values = np.asarray(rows, dtype=np.float64)
    return values if values.size else np.zeros((0, width))


MEASURES: dict[str, Callable[[Trajectory], Array]] = {
    "positive": lambda each: each.positive,
    "negative": lambda each: each.negative,
    "absolute": lambda each: each.absolute,
    "fair": lambda each: each.fair,
    "effective": lambda each: each.effective,
    "gini": lambda each: each.gini,
    "answer_rank": lambda each: each.answer_rank,
    "attention": lambda each: each.attention,
    "attention_fair": lambda each: each.attention_fair,
    "attention_effective": lambda each: each.attention_effective,
    "paths": lambda each: each.paths,
}
SUBSETS: dict[str, Callable[[Trajectory], bool]] = {
    "all": lambda each: True,
    "answered": lambda each: each.answered,
    "not answered": lambda each: not each.answered,
    "answered, right": lambda each: each.answered and each.right,
    "answered, wrong": lambda each: each.answered and not each.right,
    "answerable": lambda each: each.answerable,
    "unanswerable": lambda each: not each.answerable,
}


def summary(trajectories: Sequence[Trajectory], seed: int) -> dict[str, object]:
    """Means of all measures with their intervals, for every subset that has questions; NaN becomes None."""
    found: dict[str, object] = {}
    for name, chosen in SUBSETS.items():
        members = [each for each in trajectories if chosen(each)]
        if not members:
            continue
        measures = {}
        for measure, values in MEASURES.items():
            estimate = mean_estimate(np.stack([values(each) for each in members]), seed)
            measures[measure] = estimate.plain()
        found[name] = {"questions": len(members), "measures": measures}
    return found
