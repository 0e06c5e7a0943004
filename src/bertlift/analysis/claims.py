"""The paper's and the blog's claims as statistics over questions, with intervals, controls and a verdict.

A claim has a value for every question that it speaks of, or compares two kinds of questions; its statistic is the mean
(or the difference of means), and it is read against ``null``, the value at which there would be nothing to claim.

Depth: of ``L`` layers the rows 1 to ``L - 1`` are cut into three thirds, early, middle and late. Row ``L`` is left out:
there the score stands on the two ends of the target by construction.

Verdicts:

- ``supported``: the 95 % interval lies above ``null``, and so does that of the difference to random weights, question
  by question, above 0: what the architecture gives without learning is not enough (the first alone without them).
- ``true by construction``: it holds, but for random weights as well, which give at least half of it and cannot be told
  apart; or it follows from how the score is made.
- ``not supported``: the interval does not reach above ``null``.
- ``undecided``: the interval holds ``null``, or there are too few questions, or random weights cannot be told apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertlift.analysis.bootstrap import Array, Estimate, difference_estimate, mean_estimate
from bertlift.analysis.groups import GROUPS
from bertlift.analysis.trajectories import Trajectory

CONTROLS = ("random_weights", "before_finetuning", "wrong_span")
ROUNDING = 1e-6
FEWEST = 8  # questions below which nothing is decided
SUPPORTED, NOT_SUPPORTED = "supported", "not supported"
CONSTRUCTION, UNDECIDED = "true by construction", "undecided"


def thirds(rows: int) -> tuple[NDArray[np.int_], NDArray[np.int_], NDArray[np.int_]]:
    """Early, middle and late rows of ``rows`` rows of scores; empty where there are fewer than five.

    >>> [each.tolist() for each in thirds(13)]
    [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11]]
    """
    inner = np.arange(1, rows - 1) if rows >= 5 else np.arange(0)
    early, middle, late = np.array_split(inner, 3)
    return early, middle, late


def group_values(values: Array, *names: str) -> Array:
    """The columns of the named groups added up, ``(rows,)``."""
    return np.asarray(values[:, [GROUPS.index(name) for name in names]].sum(1))


def fair_share(each: Trajectory, *names: str) -> Array:
    """Share of the score over share of the tokens of groups taken together, ``(rows,)``; NaN without such a token."""
    tokens = float(each.tokens[[GROUPS.index(name) for name in names]].sum())
    return group_values(each.absolute, *names) / tokens if tokens else np.full(len(each.absolute), np.nan)


def mean_over(values: Array, rows: NDArray[np.int_]) -> float:
    """The mean of some rows; NaN for none."""
    return float(values[rows].mean()) if len(rows) else float("nan")


SEPARATORS = ("first_separator", "last_separator")
KEYWORDS = ("question_keyword", "keyword_in_passage")
CONTENT = ("question_keyword", "keyword_in_passage", "answer_sentence", "passage_content")


def separators_early(each: Trajectory) -> float:
    """Fair share of the separators in the early layers."""
    return mean_over(fair_share(each, *SEPARATORS), thirds(len(each.absolute))[0])


def separators_fall(each: Trajectory) -> float:
    """Fair share of the separators, early minus late."""
    early, _, late = thirds(len(each.absolute))
    values = fair_share(each, *SEPARATORS)
    return mean_over(values, early) - mean_over(values, late)


def mean_layer(values: Array) -> float:
    """Where along the rows 1 to ``L - 1`` a share is found in the mean; NaN if it is nowhere."""
    inner = values[1:-1]
    total = float(inner.sum())
    return float((inner * np.arange(1, len(inner) + 1)).sum() / total) if total > 0 else float("nan")


def punctuation_after_separators(each: Trajectory) -> float:
    """Mean layer of punctuation minus that of the separators."""
    return mean_layer(fair_share(each, "punctuation")) - mean_layer(fair_share(each, *SEPARATORS))


def content_after_punctuation(each: Trajectory) -> float:
    """Mean layer of content words minus that of punctuation."""
    return mean_layer(fair_share(each, *CONTENT)) - mean_layer(fair_share(each, "punctuation"))


def keywords_early(each: Trajectory) -> float:
    """Fair share of the question's keywords, wherever they stand, in the early layers."""
    return mean_over(fair_share(each, *KEYWORDS), thirds(len(each.absolute))[0])


def keywords_lost(each: Trajectory) -> float:
    """Fair share of the question's keywords, early minus middle."""
    early, middle, _ = thirds(len(each.absolute))
    values = fair_share(each, *KEYWORDS)
    return mean_over(values, early) - mean_over(values, middle)


def keywords_return(each: Trajectory) -> float:
    """Fair share of the question's keywords, late minus middle."""
    _, middle, late = thirds(len(each.absolute))
    values = fair_share(each, *KEYWORDS)
    return mean_over(values, late) - mean_over(values, middle)


def spread_narrows(each: Trajectory) -> float:
    """Logarithm of how many times more tokens the score is spread over in the early layers than in the late ones."""
    early, _, late = thirds(len(each.absolute))
    values = np.log(each.effective)
    return mean_over(values, early) - mean_over(values, late)


def answer_grows(each: Trajectory) -> float:
    """Share of the score on the target's tokens, late minus early; NaN without an answer."""
    if not each.answered:
        return float("nan")
    early, _, late = thirds(len(each.absolute))
    values = group_values(each.absolute, "answer")
    return mean_over(values, late) - mean_over(values, early)


def output_on_target(each: Trajectory) -> float:
    """Share of the last layer's score on the target: the answer's tokens, or [CLS] for "no answer"."""
    return float(group_values(each.absolute, "answer" if each.answered else "cls")[-1])


def question_share(each: Trajectory) -> float:
    """Share of the embedding row's score on the question."""
    return float(group_values(each.absolute, "question_word", "question_keyword", "question_function")[0])


def log_gradient(each: Trajectory) -> float:
    """Logarithm of the length of the target's gradient."""
    return float(np.log(each.gradient)) if each.gradient > 0 else float("nan")


@dataclass(frozen=True)
class Claim:
    """A statement and how it is measured."""

    name: str
    statement: str
    measured: str  # in words, with its unit
    value: Callable[[Trajectory], float]
    null: float = 0.0
    first: Callable[[Trajectory], bool] | None = None  # of two kinds of questions: which count first
    among: Callable[[Trajectory], bool] = lambda each: True  # which questions it speaks of
    construction: str = ""  # why it cannot be otherwise


CLAIMS = (
    Claim(
        "separators_early",
        "Early layers put more than their fair share on the separators.",
        "share of the score over share of the tokens, early layers; 1 is fair",
        separators_early,
        null=1.0,
    ),
    Claim(
        "separators_fall",
        "The separators' share falls with depth.",
        "fair share of the separators, early minus late layers",
        separators_fall,
    ),
    Claim(
        "punctuation_after_separators",
        "Punctuation comes after the separators.",
        "mean layer of punctuation minus mean layer of the separators",
        punctuation_after_separators,
    ),
    Claim(
        "content_after_punctuation",
        "Content words come after punctuation.",
        "mean layer of content words minus mean layer of punctuation",
        content_after_punctuation,
    ),
    Claim(
        "keywords_early",
        "Early layers look at the question's keywords.",
        "fair share of the keywords, in question and passage, early layers; 1 is fair",
        keywords_early,
        null=1.0,
    ),
    Claim(
        "keywords_lost",
        "The middle layers let go of the keywords.",
        "fair share of the keywords, early minus middle layers",
        keywords_lost,
    ),
    Claim(
        "keywords_return",
        "The last layers come back to the keywords.",
        "fair share of the keywords, late minus middle layers",
        keywords_return,
    ),
    Claim(
        "spread_narrows",
        "The spread of the score narrows with depth.",
        "logarithm of the effective number of tokens, early minus late layers",
        spread_narrows,
    ),
    Claim(
        "answer_grows",
        "It narrows towards the answer.",
        "share of the score on the answer's tokens, late minus early layers, of the questions with an answer",
        answer_grows,
    ),
    Claim(
        "output_on_answer",
        "The output layer looks at the answer alone.",
        "share of the last layer's score on the answer's tokens ([CLS] for no answer)",
        output_on_target,
        null=1.0,
        construction="a start logit is a linear function of the last hidden state at the start token, and of no other; "
        "so is an end logit: whatever the weights, all of the last layer's score stands on those two tokens",
    ),
    Claim(
        "unanswerable_gradient",
        "Unanswerable questions have smaller gradients.",
        "logarithm of the gradient's length, answerable minus unanswerable questions",
        log_gradient,
        first=lambda each: each.answerable,
    ),
    Claim(
        "unanswerable_gradient_answered",
        "So they have where the reader gives an answer to both.",
        "logarithm of the gradient's length, answerable minus unanswerable questions, of those with an answer",
        log_gradient,
        first=lambda each: each.answerable,
        among=lambda each: each.answered,
    ),
    Claim(
        "unanswerable_question",
        "Unanswerable questions have their score in the question rather than in the passage.",
        "share of the embedding row's score on the question's words, unanswerable minus answerable questions",
        question_share,
        first=lambda each: not each.answerable,
    ),
)


def _finite(value: float) -> float | None:
    return round(float(value), 6) if np.isfinite(value) else None


def estimate_of(claim: Claim, trajectories: Sequence[Trajectory], seed: int) -> tuple[Estimate, int]:
    """The claim's statistic with its interval, and on how many questions it stands."""
    members = [each for each in trajectories if claim.among(each)]
    values = np.array([claim.value(each) for each in members], dtype=np.float64)
    kept = np.isfinite(values)
    values = values[kept]
    nothing = Estimate(*(np.array(np.nan) for _ in range(3)))
    if not len(values):
        return nothing, 0
    if claim.first is None:
        return mean_estimate(values, seed), len(values)
    first = np.array([claim.first(each) for each, there in zip(members, kept, strict=True) if there])
    if first.all() or not first.any():
        return nothing, 0
    return difference_estimate(values, first, seed), int(min(first.sum(), (~first).sum()))


def above(claim: Claim, reader: Sequence[Trajectory], control: Sequence[Trajectory], seed: int) -> Estimate:
    """The reader's statistic minus the control's, on the questions that both have, resampled together."""
    by_id = {each.question_id: each for each in control}
    pairs = [(each, by_id[each.question_id]) for each in reader if each.question_id in by_id and claim.among(each)]
    values = np.array([claim.value(one) - claim.value(other) for one, other in pairs], dtype=np.float64)
    kept = np.isfinite(values)
    if not kept.any():
        return Estimate(*(np.array(np.nan) for _ in range(3)))
    if claim.first is None:
        return mean_estimate(values[kept], seed)
    first = np.array([claim.first(one) for one, _ in pairs])[kept]
    return difference_estimate(values[kept], first, seed)


def verdict_of(
    claim: Claim, estimate: Estimate, questions: int, random: Estimate | None, over_random: Estimate | None
) -> str:
    """Supported, not supported, true by construction or undecided; see the module's docstring."""
    if questions < FEWEST or not np.isfinite(estimate.mean):
        return UNDECIDED
    if claim.construction:
        return CONSTRUCTION if estimate.mean >= claim.null - ROUNDING else NOT_SUPPORTED
    if estimate.high <= claim.null:
        return NOT_SUPPORTED
    if estimate.low <= claim.null:
        return UNDECIDED
    if random is None or over_random is None or not np.isfinite(over_random.mean) or over_random.low > 0:
        return SUPPORTED
    half = random.mean - claim.null >= over_random.mean
    return CONSTRUCTION if random.low > claim.null and half else UNDECIDED


def judge(
    reader: Sequence[Trajectory],
    controls: Mapping[str, Sequence[Trajectory]],
    seed: int,
    example: str | None = None,
) -> list[dict[str, Any]]:
    """Every claim with its statistic, interval, controls and verdict.

    Args:
        reader: trajectories of the reader's answers.
        controls: those of :data:`CONTROLS` that there are, over the same questions or some of them.
        seed: of the bootstrap.
        example: id of the question whose own value is told as well (the paper's).
    """
    found = []
    for claim in CLAIMS:
        estimate, questions = estimate_of(claim, reader, seed)
        beside: dict[str, Any] = {}
        random = over_random = None
        for name in CONTROLS:
            beside[name] = None
            if controls.get(name):
                other, number = estimate_of(claim, controls[name], seed)
                beside[name] = _told(other) | {"questions": number}
                if name == "random_weights":
                    random, over_random = other, above(claim, reader, controls[name], seed)
        own = [claim.value(each) for each in reader if each.question_id == example and claim.first is None]
        found.append(
            {
                "claim": claim.name,
                "statement": claim.statement,
                "measured": claim.measured,
                "null": claim.null,
                "questions": questions,
                **_told(estimate),
                "example": _finite(own[0]) if own else None,
                "controls": beside,
                "over_random_weights": None if over_random is None else _told(over_random),
                "verdict": verdict_of(claim, estimate, questions, random, over_random),
                "because": claim.construction or None,
            }
        )
    found.append(right_and_wrong(reader, controls, seed))
    return found


def _told(estimate: Estimate) -> dict[str, float | None]:
    mean, low, high = estimate.plain().values()
    return {"statistic": mean, "ci_low": low, "ci_high": high}


def distances(profiles: Array, right: NDArray[np.bool_]) -> Array:
    """Half the sum of absolute differences between the mean shares of right and wrong answers, ``(rows,)``.

    0: the same shares; 1: no token group in common. ``profiles``: absolute shares, ``(questions, rows, groups)``.
    """
    return np.asarray(np.abs(profiles[right].mean(0) - profiles[~right].mean(0)).sum(-1) / 2)


def _without_gold(shares: Array) -> Array:
    """The missed gold answer counted as content: only wrong answers have such a group, and the reader knows of none."""
    folded = shares.copy()
    gold = GROUPS.index("gold_answer")
    folded[:, GROUPS.index("passage_content")] += folded[:, gold]
    folded[:, gold] = 0
    return folded


def right_and_wrong(
    reader: Sequence[Trajectory], controls: Mapping[str, Sequence[Trajectory]], seed: int, permutations: int = 2000
) -> dict[str, Any]:
    """Whether right and wrong answers go different ways, and from which layer on.

    Of the questions with an answer. Every layer's :func:`distances` is tested by shuffling which answers are right; the
    p-values are corrected for the number of layers by the distribution of the largest standardised distance (Westfall
    and Young 1993). Supported where some layer has p < 0.05. The statistic is the distance at the clearest layer.
    """
    told: dict[str, Any] = {}
    for name, trajectories in {"reader": reader, **{key: controls.get(key) or [] for key in CONTROLS}}.items():
        members = [each for each in trajectories if each.answered]
        right = np.array([each.right for each in members], dtype=bool)
        if min(right.sum(), (~right).sum()) < FEWEST:
            told[name] = None
            continue
        profiles = np.stack([_without_gold(each.absolute) for each in members])
        random = np.random.default_rng(seed)
        observed = distances(profiles, right)
        null = np.stack([distances(profiles, random.permutation(right)) for _ in range(permutations)])
        centre, width = null.mean(0), np.maximum(null.std(0), 1e-12)
        largest = ((null - centre) / width).max(1)
        p = (1 + (largest[:, None] >= (observed - centre) / width).sum(0)) / (1 + permutations)
        clearest = int(((observed - centre) / width).argmax())
        samples = []
        for _ in range(500):
            chosen = random.integers(0, len(members), len(members))
            if 0 < right[chosen].sum() < len(chosen):
                samples.append(distances(profiles[chosen], right[chosen])[clearest])
        low, high = np.percentile(samples, [2.5, 97.5])
        told[name] = {
            "statistic": _finite(observed[clearest]),
            "ci_low": _finite(low),
            "ci_high": _finite(high),
            "questions": int(min(right.sum(), (~right).sum())),
            "expected_by_chance": _finite(centre[clearest]),
            "clearest_layer": clearest,
            "distances": [_finite(value) for value in observed],
            "p_values": [_finite(value) for value in p],
            "first_layer": next((row for row, value in enumerate(p) if value < 0.05), None),
        }
    own = told.pop("reader") or {"statistic": None, "ci_low": None, "ci_high": None, "questions": 0}
    p_values = own.get("p_values", [])
    shown = ("statistic", "ci_low", "ci_high", "questions")
    decided = SUPPORTED if any(value < 0.05 for value in p_values) else NOT_SUPPORTED
    return {
        "claim": "right_and_wrong",
        "statement": "Right and wrong answers go different ways through the layers.",
        "measured": "distance of their mean shares (0: the same, 1: no group in common), at the clearest layer",
        "null": own.get("expected_by_chance"),
        **own,
        "example": None,
        "controls": {name: value and {key: value[key] for key in shown} for name, value in told.items()},
        "over_random_weights": None,
        "verdict": decided if p_values else UNDECIDED,
        "because": None,
    }
