"""SQuAD 2.0's official evaluation: the same numbers as ``evaluate-v2.0.py``.

Rajpurkar, Jia, Liang, *Know What You Don't Know*, ACL 2018.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

from bertlift.errors import InputError
from bertlift.squad.schema import Question

_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(text: str) -> str:
    """Lower-case, without ASCII punctuation, English articles and surplus white space.

    >>> normalize("The  Beatles' 'White' album!")
    'beatles white album'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(gold: str, predicted: str) -> float:
    """1.0 where the two are the same after :func:`normalize`, else 0.0."""
    return float(normalize(gold) == normalize(predicted))


def f1(gold: str, predicted: str) -> float:
    """Harmonic mean of precision and recall over normalised words; two empty answers agree (1.0)."""
    gold_words, words = normalize(gold).split(), normalize(predicted).split()
    if not gold_words or not words:
        return float(gold_words == words)
    shared = sum((Counter(gold_words) & Counter(words)).values())
    return 2 * shared / (len(words) + len(gold_words))


def question_scores(question: Question, predicted: str) -> tuple[float, float]:
    """Exact match and F1 of one prediction: the best over the golds, an empty gold where there is none.

    A gold that is empty once normalised ("the") does not count, as in the official script.
    """
    golds = [gold for gold in question.golds if normalize(gold)] or [""]
    return max(exact_match(g, predicted) for g in golds), max(f1(g, predicted) for g in golds)


def best_threshold(
    scores: Mapping[str, float],
    predictions: Mapping[str, str],
    na_prob: Mapping[str, float],
    has_answer: Mapping[str, bool],
) -> tuple[float, float]:
    """The best total score (in percent) over all no-answer thresholds, and the first threshold that has it.

    A question counts as unanswered where its no-answer probability is above the threshold. Start with
    all unanswered; then let the questions be answered one after the other, the surest first.
    """
    total = best = float(sum(not has for has in has_answer.values()))
    threshold = 0.0
    for identity in sorted(na_prob, key=lambda each: na_prob[each]):
        if identity not in scores:
            continue
        if has_answer[identity]:
            total += scores[identity]
        elif predictions[identity]:
            total -= 1
        if total > best:
            best, threshold = total, na_prob[identity]
    return 100 * best / len(scores), threshold


def evaluate(
    questions: Sequence[Question],
    predictions: Mapping[str, str],
    na_prob: Mapping[str, float] | None = None,
) -> dict[str, float | int]:
    """The official numbers for ``predictions`` (question id -> answer text, empty for no answer).

    Args:
        questions: the data set.
        predictions: one text for each question.
        na_prob: for each question the probability that it has no answer; adds ``best_exact``,
            ``best_f1`` and their thresholds. Its threshold for the plain scores is the script's
            default of 1.0: a text stands unless its no-answer probability is above 1.

    Returns:
        ``exact, f1, total`` and, where there are such questions, ``HasAns_*`` and ``NoAns_*``;
        scores in percent.

    Raises:
        InputError: if a question has no prediction, or no ``na_prob`` while that is given.
    """
    for kind, given in (("prediction", predictions), ("no-answer probability", na_prob)):
        missing = [q.id for q in questions if given is not None and q.id not in given]
        if missing:
            raise InputError(f"{len(missing)} questions have no {kind}, the first is {missing[0]}")
    if not questions:
        raise InputError("there are no questions to evaluate")
    raw = {q.id: question_scores(q, predictions[q.id]) for q in questions}
    scores = dict(raw)
    for q in questions:
        if na_prob is not None and na_prob[q.id] > 1:
            scores[q.id] = (float(q.is_impossible),) * 2
    result: dict[str, float | int] = {}

    def add(prefix: str, ids: list[str]) -> None:
        result[f"{prefix}exact"] = 100 * sum(scores[i][0] for i in ids) / len(ids)
        result[f"{prefix}f1"] = 100 * sum(scores[i][1] for i in ids) / len(ids)
        result[f"{prefix}total"] = len(ids)

    add("", [q.id for q in questions])
    for prefix, impossible in (("HasAns_", False), ("NoAns_", True)):
        ids = [q.id for q in questions if q.is_impossible is impossible]
        if ids:
            add(prefix, ids)
    if na_prob is not None:
        has_answer = {q.id: not q.is_impossible for q in questions}
        for column, name in enumerate(("exact", "f1")):
            values = {identity: pair[column] for identity, pair in raw.items()}
            best = best_threshold(values, predictions, na_prob, has_answer)
            result[f"best_{name}"], result[f"best_{name}_thresh"] = best
    return result
