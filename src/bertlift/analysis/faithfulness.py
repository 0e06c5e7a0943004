"""Whether an explanation is to be believed: what the span score ``f`` does when tokens go in the order that it gives.

Only tokens that the reference replaces can go: special tokens stay. A ranking is by decreasing signed score, the
earlier token first where scores are equal. Values of ``f`` are in logits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata

from bertlift.analysis.bootstrap import Array, mean_estimate
from bertlift.analysis.groups import token_groups
from bertlift.analysis.trajectories import shares_of
from bertlift.attribution import Attribution
from bertlift.methods.case import Case
from bertlift.squad.schema import sentence_spans

SHARES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9)  # of the tokens: where the curves are measured, beside 0 and 1
KEY_SHARES = (0.05, 0.1, 0.2, 0.5)  # of comprehensiveness and sufficiency
SIGNED = 3  # tokens whose sign is tested
STEPS = 5  # tokens that NAOPC takes away, one after the other
BEAM = 2
TOP = 10  # tokens that two methods may have in common
# Whether more is better.
MEASURES = {
    "deletion": True,
    "insertion": True,
    "comprehensiveness": True,
    "sufficiency": False,
    "naopc": True,
    "sign_violation": False,
    "sensitivity": False,
    "randomisation": False,
    "plausibility_sentence": True,
    "plausibility_keywords": True,
}
Masks = NDArray[np.bool_]  # (inputs, tokens): which tokens are there


@torch.no_grad()
def span_scores(case: Case, kept: Masks, batch_size: int) -> Array:
    """``f`` for one window with some of its tokens replaced by the reference's, ``(inputs,)``.

    Args:
        case: of a single window.
        kept: the tokens that stay.
        batch_size: inputs at a time.
    """
    found = []
    for some in torch.from_numpy(kept).split(batch_size):
        embedded = torch.where(some[..., None], case.embedded, case.reference_embedded)
        found.append(case.forward(embedded, *(each.expand(len(some), *each.shape[1:]) for each in case.arguments)))
    return np.asarray(torch.cat(found).double().cpu().numpy())


def order_of(scores: NDArray[np.floating], candidates: Masks) -> NDArray[np.int_]:
    """The tokens that can go, by decreasing score."""
    places = np.flatnonzero(candidates)
    return places[np.argsort(-np.asarray(scores, dtype=np.float64)[places], kind="stable")]


def _without(tokens: int, gone: Sequence[NDArray[np.int_]]) -> Masks:
    kept = np.ones((len(gone), tokens), dtype=bool)
    for row, places in enumerate(gone):
        kept[row, places] = False
    return kept


def judged(case: Case, scores: Mapping[str, NDArray[np.floating]], batch_size: int) -> dict[str, dict[str, Any]]:
    """How ``f`` of one window follows the scores of several methods.

    - ``deletion`` and ``insertion`` (Petsiuk et al. 2018): the area under ``f(x) - f(x without the first tokens)`` and
      under ``f(x with the first tokens alone) - f(x0)``, over the share of tokens.
    - ``comprehensiveness`` and ``sufficiency`` (DeYoung et al. 2020), in logits: the means over 5, 10, 20 and 50 % of
      ``f(x) - f(x without them)`` and of ``f(x) - f(x with them alone)``.
    - ``sign_violation`` (Liu et al. 2022): of the tokens of largest absolute score, the share whose sign is not that of
      what ``f`` loses with them.

    Args:
        case: of a single window.
        scores: method -> ``(tokens,)``.
        batch_size: inputs at a time.

    Returns:
        For every method the measures, and ``deleted`` and ``inserted``, the curves at 0, ``SHARES`` and 1.
    """
    candidates = case.replaced[0].cpu().numpy()
    tokens, number = len(candidates), int(candidates.sum())
    everything, nothing = np.flatnonzero(candidates), np.zeros(0, dtype=np.int_)
    counts = [min(max(1, round(share * number)), number) for share in SHARES]
    gone = [nothing, everything]
    for values in scores.values():
        order = order_of(values, candidates)
        largest = order_of(np.abs(values), candidates)[:SIGNED]
        gone += [order[:count] for count in counts] + [order[count:] for count in counts]
        gone += [largest[place : place + 1] for place in range(len(largest))]
    found = span_scores(case, _without(tokens, gone), batch_size)
    whole, empty = found[:2]
    signed = min(SIGNED, number)
    rows = found[2:].reshape(len(scores), 2 * len(counts) + signed)
    grid = np.array([0.0, *SHARES, 1.0])
    result = {}
    for (name, values), row in zip(scores.items(), rows, strict=True):
        deleted = np.array([whole, *row[: len(counts)], empty])
        inserted = np.array([empty, *row[len(counts) : 2 * len(counts)], whole])
        at = np.isin(grid, KEY_SHARES)
        lost = np.sign(whole - row[2 * len(counts) :])
        largest = order_of(np.abs(values), candidates)[:signed]
        result[name] = {
            "deletion": float(np.trapezoid(whole - deleted, grid)),
            "insertion": float(np.trapezoid(inserted - empty, grid)),
            "comprehensiveness": float((whole - deleted[at]).mean()),
            "sufficiency": float((whole - inserted[at]).mean()),
            "sign_violation": float(np.mean(np.sign(values[largest]) != lost)) if signed else float("nan"),
            "deleted": deleted - empty,
            "inserted": inserted - empty,
        }
    return result


def _aopc(whole: float, path: Array) -> float:
    """Area over the perturbation curve: the mean loss of ``f`` over the steps (Samek et al. 2017)."""
    return float((whole - path).mean())


def extreme_aopc(case: Case, sign: int, batch_size: int) -> float:
    """The AOPC over ``STEPS`` tokens of the best (``sign`` 1) or worst (-1) order that a beam search finds."""
    candidates = case.replaced[0].cpu().numpy()
    tokens, places = len(candidates), np.flatnonzero(candidates)
    whole = float(span_scores(case, np.ones((1, tokens), dtype=bool), batch_size)[0])
    beam: dict[frozenset[int], tuple[float, ...]] = {frozenset(): ()}  # tokens gone -> f after each step
    for _ in range(min(STEPS, len(places))):
        grown: dict[frozenset[int], frozenset[int]] = {}
        for gone in beam:  # the best first, so that of two ways to the same tokens the better stays
            for place in places:
                if place not in gone:
                    grown.setdefault(gone | {int(place)}, gone)
        values = span_scores(case, _without(tokens, [np.array(sorted(each)) for each in grown]), batch_size)
        paths = {new: (*beam[old], float(f)) for (new, old), f in zip(grown.items(), values, strict=True)}
        beam = dict(sorted(paths.items(), key=lambda each: sign * sum(each[1]))[:BEAM])
    best = next(iter(beam.values()))
    return _aopc(whole, np.array(best)) if best else float("nan")


def naopc(case: Case, scores: Mapping[str, NDArray[np.floating]], batch_size: int) -> dict[str, float]:
    """The AOPC of every method's first ``STEPS`` tokens: 0 for the worst order, 1 for the best (Edin et al. 2024).

    Best and worst are the extremes of what a beam search and the methods themselves find: where tokens interact, an
    order may be better than all that a beam keeps. NaN where all orders are as good.
    """
    candidates = case.replaced[0].cpu().numpy()
    tokens, steps = len(candidates), range(1, min(STEPS, int(candidates.sum())) + 1)
    gone = [np.zeros(0, dtype=np.int_)]
    gone += [order_of(values, candidates)[:step] for values in scores.values() for step in steps]
    whole, *lost = span_scores(case, _without(tokens, gone), batch_size)
    found = [_aopc(float(whole), path) for path in np.array(lost).reshape(len(scores), -1)]
    extremes = [*found, *(extreme_aopc(case, sign, batch_size) for sign in (1, -1))]
    worst, width = min(extremes), max(extremes) - min(extremes)
    return {
        name: (each - worst) / width if width > 0 else float("nan") for name, each in zip(scores, found, strict=True)
    }


def plausibility(attribution: Attribution) -> dict[str, float]:
    """The positive score's share on what a person would point at, over the share of tokens; 1 is fair.

    ``plausibility_sentence``: the sentence of the first gold answer; NaN where there is none in the window.
    ``plausibility_keywords``: the question's content words.
    """
    positive = shares_of(np.asarray(attribution.scores[0]).clip(min=0))
    keywords = np.array([group == "question_keyword" for group in token_groups(attribution)])
    sentence = np.zeros(len(positive), dtype=bool)
    if attribution.golds:
        spans = sentence_spans(attribution.context)
        first, last = next(each for each in spans if each[0] <= attribution.gold_starts[0] < each[1])
        for place, (start, end) in enumerate(attribution.offsets):
            sentence[place] = attribution.segments[place] == 1 and start < last and first < end
    return {
        f"plausibility_{name}": float(positive[member].sum() / member.mean()) if member.any() else float("nan")
        for name, member in (("sentence", sentence), ("keywords", keywords))
    }


def rank_correlation(a: NDArray[np.floating], b: NDArray[np.floating]) -> float:
    """Spearman's correlation of absolute scores; NaN where one of them ranks nothing."""
    ranks = [rankdata(np.abs(np.asarray(each, dtype=np.float64))) for each in (a, b)]
    if any(each.std() == 0 for each in ranks):
        return float("nan")
    return float(np.corrcoef(*ranks)[0, 1])


def top_overlap(a: NDArray[np.floating], b: NDArray[np.floating]) -> float:
    """The share of the ``TOP`` tokens of largest absolute score that two methods have in common."""
    everyone = np.ones(len(a), dtype=bool)
    tops = [set(order_of(np.abs(each), everyone)[:TOP].tolist()) for each in (a, b)]
    return len(tops[0] & tops[1]) / min(TOP, len(a))


def agreement(scores: Sequence[Mapping[str, NDArray[np.floating]]]) -> dict[str, Any]:
    """Mean over questions of how far every two methods agree; ``scores``: method -> ``(tokens,)``, a question each."""
    methods = list(scores[0])
    measures = {"rank_correlation": rank_correlation, "top_overlap": top_overlap}
    table: dict[str, Any] = {"methods": methods}
    for name, measure in measures.items():
        values = np.array([[[measure(each[a], each[b]) for b in methods] for a in methods] for each in scores])
        table[name] = mean_estimate(values, 0).plain()["mean"]
    return table


def estimated(values: Array, seed: int) -> dict[str, Any]:
    """``mean``, ``ci_low`` and ``ci_high`` over questions, ``(questions,)``; NaN counts as no value."""
    found = mean_estimate(values, seed).plain()
    return {"mean": found["mean"], "ci_low": found["low"], "ci_high": found["high"]}


def compared(
    values: Mapping[str, Mapping[str, Array]], others: Sequence[str], seed: int
) -> dict[str, dict[str, dict[str, Any]]]:
    """Every method's measures minus those of another, question by question: other -> method -> measure -> estimate.

    Args:
        values: method -> measure -> ``(questions,)``.
        others: methods to be compared with; those that ``values`` has not are left out.
        seed: of the bootstrap.
    """
    return {
        other: {
            name: {measure: estimated(each - values[other][measure], seed) for measure, each in measures.items()}
            for name, measures in values.items()
            if name != other
        }
        for other in others
        if other in values
    }
