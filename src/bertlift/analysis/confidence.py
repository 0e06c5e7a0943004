"""Whether the reader is right: told by its own probabilities, by the explanation of its answer, and by both.

The blog's question: would explanation scores, combined with the softmax of the span, make a better confidence? No
feature looks at a gold answer. What is fitted, a logistic model, is fitted on other articles than it is tried on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bertlift.analysis.bootstrap import LEVEL, Array
from bertlift.analysis.claims import KEYWORDS, group_values, mean_over, thirds
from bertlift.analysis.trajectories import is_right, trajectory
from bertlift.attribution import Attribution
from bertlift.config import Confidence as Settings

BINS = 10
TIMES = 1000  # bootstrap samples
# Whether there is an answer, with both margins to the null score, lets a linear model know the distance from the null
# threshold on whichever side of it.
SPAN = (
    *("start probability", "end probability", "margin to the next span", "answered", "margin over no answer"),
    *("margin for what was answered", "entropy"),
)
_WHERE = (
    *("largest share", "spread", "Gini", "on the keywords", "on the answer's sentence", "on the answer"),
    "negative share",
)
EXPLANATION = (*_WHERE, *(f"{name}, late" for name in _WHERE), "agreement with attention", "gradient")


def _softmax(logits: NDArray[np.floating]) -> Array:
    raised = np.exp(np.asarray(logits, dtype=np.float64) - np.max(logits))
    return np.asarray(raised / raised.sum())


def features(attribution: Attribution, runner_up: float | None) -> dict[str, float]:
    """:data:`SPAN` and :data:`EXPLANATION` of one answer, by name.

    The explanation's are those of the input (row 0), and of the last third of the rows ("late"); ``agreement with
    attention`` is the rank correlation of absolute scores and the answer's attention, mean over layers (0 where the
    method tells none).

    Args:
        attribution: of the answer.
        runner_up: score of the second best span; None where there is none.
    """
    blind = trajectory(replace(attribution, golds=[], gold_starts=[]))  # a missed gold answer must not stand out
    starts, ends = _softmax(attribution.start_logits), _softmax(attribution.end_logits)
    best = attribution.span_score
    agreement = 0.0
    attention = np.asarray(attribution.attention, dtype=np.float64)
    if attention.size:
        ranks = [rankdata(each) for each in (np.abs(attribution.scores[0]), attention.mean(0))]
        agreement = float(np.corrcoef(*ranks)[0, 1])
    sizes = np.abs(np.asarray(attribution.scores, dtype=np.float64))
    rows = {
        "largest share": sizes.max(1) / np.maximum(sizes.sum(1), 1e-12),
        "spread": blind.effective / len(attribution.tokens),
        "Gini": blind.gini,
        "on the keywords": group_values(blind.absolute, *KEYWORDS),
        "on the answer's sentence": group_values(blind.absolute, "answer_sentence"),
        "on the answer": group_values(blind.absolute, "answer"),
        "negative share": -blind.negative.sum(1),
    }
    late = thirds(len(attribution.scores))[2]
    margin = best - attribution.null_score
    found = {
        "start probability": starts[attribution.start],
        "end probability": ends[attribution.end],
        "margin to the next span": best - runner_up if runner_up is not None else 0.0,
        "answered": float(attribution.answer != ""),
        "margin over no answer": margin,
        "margin for what was answered": margin if attribution.answer else -margin,
        "entropy": -sum(float((p * np.log(np.maximum(p, 1e-12))).sum()) for p in (starts, ends)),
        **{name: values[0] for name, values in rows.items()},
        **{f"{name}, late": mean_over(values, late) for name, values in rows.items()},
        "agreement with attention": agreement,
        "gradient": np.log(max(attribution.gradient, 1e-12)),
    }
    return {name: float(np.nan_to_num(value)) for name, value in found.items()}


def area_under_roc(confidence: Array, right: NDArray[np.bool_]) -> float:
    """The chance that a right answer has more confidence than a wrong one; NaN unless there are both."""
    positive, negative = int(right.sum()), int((~right).sum())
    if not positive or not negative:
        return float("nan")
    return float((rankdata(confidence)[right].sum() - positive * (positive + 1) / 2) / (positive * negative))


def risk_coverage(confidence: Array, right: NDArray[np.bool_]) -> Array:
    """The share of wrong answers among the ``n`` most confident, for every ``n`` (Geifman and El-Yaniv 2017)."""
    wrong = ~right[np.argsort(-confidence, kind="stable")]
    return np.asarray(np.cumsum(wrong) / np.arange(1, len(wrong) + 1))


def calibration(confidence: Array, right: NDArray[np.bool_]) -> Array:
    """Mean confidence, share of right answers and size of :data:`BINS` bins of like size, ``(bins, 3)``."""
    order = np.argsort(confidence, kind="stable")
    bins = [each for each in np.array_split(order, BINS) if len(each)]
    return np.array([[confidence[each].mean(), right[each].mean(), len(each)] for each in bins])


def calibration_error(confidence: Array, right: NDArray[np.bool_]) -> float:
    """Mean distance of confidence and share of right answers over the bins (ECE, Naeini et al. 2015)."""
    means, shares, sizes = calibration(confidence, right).T
    return float((np.abs(means - shares) * sizes).sum() / sizes.sum())


def _precision(confidence: Array, right: NDArray[np.bool_]) -> float:
    return float(average_precision_score(right, confidence)) if right.any() else float("nan")


MEASURES = {
    "auroc": area_under_roc,
    "auprc": _precision,
    "aurc": lambda confidence, right: float(risk_coverage(confidence, right).mean()),
    "ece": calibration_error,
}


def out_of_fold(
    values: Array, right: NDArray[np.bool_], groups: Sequence[str], folds: int
) -> tuple[Array, Array] | None:
    """Probability of being right, ``(questions,)``, by models fitted on other groups, and their mean weights.

    None where a model would see right (or wrong) answers alone, or there are fewer than two groups.

    Args:
        values: ``(questions, features)``; standardised for each model.
        right: which answers are.
        groups: the article of each.
        folds: at most.
    """
    count = min(folds, len(set(groups)))
    if count < 2:
        return None
    found, weights = np.zeros(len(values)), []
    for train, test in GroupKFold(count).split(values, groups=groups):
        if right[train].all() or not right[train].any():
            return None
        model = make_pipeline(StandardScaler(), LogisticRegression(C=1.0, max_iter=1000))
        model.fit(values[train], right[train])
        found[test] = model.predict_proba(values[test])[:, 1]
        weights.append(model[-1].coef_[0])
    return found, np.mean(weights, axis=0)


def compare(
    attributions: Sequence[Attribution], runners_up: Sequence[float | None], settings: Settings
) -> dict[str, Any]:
    """How well each kind of feature tells right answers from wrong ones.

    Returns:
        ``features``: for ``softmax`` (start times end probability, nothing fitted), ``span``, ``explanation`` and
        ``both`` the area under the ROC curve (``auroc``), under precision and recall (``auprc``), under risk and
        coverage (``aurc``, less is better) and the calibration error (``ece``), with intervals from resampling
        articles; ``differences`` on the same samples; ``weights`` of the standardised features in ``both``; and the
        curves. Without right and wrong answers in enough articles ``features`` is empty.
    """
    right = np.array([is_right(each) for each in attributions])
    groups = [each.title for each in attributions]
    rows = [features(each, second) for each, second in zip(attributions, runners_up, strict=True)]
    table = {name: np.array([row[name] for row in rows]) for name in (*SPAN, *EXPLANATION)}
    result: dict[str, Any] = {"questions": len(right), "right": int(right.sum()), "articles": len(set(groups))}
    result |= {"features": {}, "differences": {}, "weights": {}, "risk_coverage": {}, "calibration": {}}
    result["span_features"] = list(SPAN)
    confidence = {"softmax": table["start probability"] * table["end probability"]}
    for name, names in (("span", SPAN), ("explanation", EXPLANATION), ("both", (*SPAN, *EXPLANATION))):
        fitted = out_of_fold(np.stack([table[each] for each in names], axis=1), right, groups, settings.folds)
        if fitted is None:
            return result
        confidence[name] = fitted[0]
        if name == "both":
            result["weights"] = dict(zip(names, np.round(fitted[1], 4).tolist(), strict=True))
    samples = _samples(groups, settings.seed)
    drawn = {
        name: {measure: np.array([of(each[some], right[some]) for some in samples]) for measure, of in MEASURES.items()}
        for name, each in confidence.items()
    }
    for name, each in confidence.items():
        found = {measure: _interval(of(each, right), drawn[name][measure]) for measure, of in MEASURES.items()}
        area = found.pop("auroc")
        result["features"][name] = {"auroc": area["mean"], "ci_low": area["ci_low"], "ci_high": area["ci_high"]} | found
        places = np.unique(np.linspace(1, len(right), 40).round().astype(int)) - 1
        curve = risk_coverage(each, right)
        result["risk_coverage"][name] = np.round(np.stack([(places + 1) / len(right), curve[places]]), 4).tolist()
        result["calibration"][name] = np.round(calibration(each, right), 4).tolist()
    for one, other in (("both", "span"), ("explanation", "span"), ("both", "softmax")):
        result["differences"][f"{one} - {other}"] = {
            measure: _interval(
                of(confidence[one], right) - of(confidence[other], right), drawn[one][measure] - drawn[other][measure]
            )
            for measure, of in MEASURES.items()
        }
    return result


def _samples(groups: Sequence[str], seed: int) -> list[NDArray[np.int_]]:
    """Questions of articles drawn with replacement: those of one article are not independent."""
    names = sorted(set(groups))
    members = [np.flatnonzero(np.array([group == name for group in groups])) for name in names]
    random = np.random.default_rng(seed)
    return [
        np.concatenate([members[each] for each in random.integers(0, len(names), len(names))]) for _ in range(TIMES)
    ]


def _interval(value: float, drawn: Array) -> dict[str, float | None]:
    known = drawn[np.isfinite(drawn)]
    sides = np.percentile(known, [50 * (1 - LEVEL), 50 * (1 + LEVEL)]) if len(known) else [np.nan, np.nan]
    named: Mapping[str, float] = {"mean": value, "ci_low": float(sides[0]), "ci_high": float(sides[1])}
    return {name: round(each, 6) if np.isfinite(each) else None for name, each in named.items()}
