"""From start and end logits to answers: n-best spans, the null score over windows, its threshold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from bertlift.reader.load import Reader
from bertlift.reader.windows import PASSAGE, Window, batches, windows_of
from bertlift.squad.metrics import question_scores
from bertlift.squad.schema import Question

Logits = NDArray[np.float64]


@dataclass(frozen=True)
class Span:
    """A candidate answer: token positions (inclusive) in one window, its text and its score."""

    score: float  # start logit + end logit
    window: int
    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Prediction:
    """What the reader says to one question, before the null threshold is applied."""

    question: Question
    spans: list[Span]  # n-best, the best first; never empty
    null_score: float  # the smallest start + end logit of [CLS] over the windows
    null_window: int

    def to_json(self) -> dict[str, Any]:
        """Plain values, without the question itself; :meth:`from_json` reads them."""
        return {
            "spans": [asdict(span) for span in self.spans],
            "null_score": self.null_score,
            "null_window": self.null_window,
        }

    @classmethod
    def from_json(cls, question: Question, values: dict[str, Any]) -> Prediction:
        """What :meth:`to_json` wrote for this question."""
        return cls(question, [Span(**span) for span in values["spans"]], values["null_score"], values["null_window"])

    @property
    def null_margin(self) -> float:
        """Null score minus the score of the best span."""
        return self.null_score - self.spans[0].score

    @property
    def na_prob(self) -> float:
        """Probability of "no answer" against the best span: the logistic function of the margin."""
        return (1 + math.tanh(self.null_margin / 2)) / 2

    def answer(self, null_threshold: float | None) -> str:
        """The best span's text, or the empty string where the margin is above the threshold (None: never)."""
        refused = null_threshold is not None and self.null_margin > null_threshold
        return "" if refused else self.spans[0].text


def all_windows(questions: Iterable[Question], tokenizer: Any, max_length: int, doc_stride: int) -> list[Window]:
    """The windows of all questions, those of one question next to each other."""
    return [window for question in questions for window in windows_of(question, tokenizer, max_length, doc_stride)]


def collate(windows: Sequence[Window], tokenizer: Any) -> dict[str, torch.Tensor]:
    """Pad windows on the right to one batch of ``(batch, tokens)`` tensors."""
    longest = max(len(window.input_ids) for window in windows)

    def padded(rows: list[list[int]], value: int) -> torch.Tensor:
        return torch.tensor([row + [value] * (longest - len(row)) for row in rows])

    batch = {
        "input_ids": padded([window.input_ids for window in windows], tokenizer.pad_token_id),
        "attention_mask": padded([[1] * len(window.input_ids) for window in windows], 0),
    }
    if windows[0].token_type_ids is not None:
        batch["token_type_ids"] = padded([list(window.token_type_ids or []) for window in windows], 0)
    return batch


@torch.no_grad()
def span_logits(
    model: Any, tokenizer: Any, windows: Sequence[Window], batch_size: int, note: str = "predict"
) -> list[tuple[Logits, Logits]]:
    """Start and end logits, each ``(tokens,)``, for every window."""
    found: list[tuple[Logits, Logits] | None] = [None] * len(windows)
    with tqdm(total=len(windows), desc=note, unit="window", disable=None) as bar:
        for indices in batches(windows, batch_size):
            batch = collate([windows[index] for index in indices], tokenizer)
            output = model(**{key: value.to(model.device) for key, value in batch.items()})
            for row, index in enumerate(indices):
                size = len(windows[index].input_ids)
                start, end = (
                    logits[row, :size].double().cpu().numpy() for logits in (output.start_logits, output.end_logits)
                )
                found[index] = (start, end)
            bar.update(len(indices))
    return [pair for pair in found if pair is not None]


def best_spans(window: Window, start: Logits, end: Logits, n_best: int, max_answer_length: int) -> list[Span]:
    """The ``n_best`` spans of passage tokens with the highest start + end logit, of at most
    ``max_answer_length`` tokens each; ties go to the earlier span."""
    passage = np.flatnonzero(np.asarray(window.segments) == PASSAGE)
    starts, ends = passage[:, None], passage[None, :]
    allowed = (ends >= starts) & (ends - starts < max_answer_length)
    totals = np.where(allowed, start[starts] + end[ends], -np.inf)
    order = np.argsort(-totals, axis=None, kind="stable")[:n_best]
    spans = []
    for flat in order:
        row, column = divmod(int(flat), len(passage))
        if totals[row, column] == -np.inf:
            break
        first, last = int(passage[row]), int(passage[column])
        text = window.question.context[window.offsets[first][0] : window.offsets[last][1]]
        spans.append(Span(float(totals[row, column]), window.number, first, last, text))
    return spans


def decode(
    windows: Sequence[Window], logits: Sequence[tuple[Logits, Logits]], n_best: int, max_answer_length: int
) -> list[Prediction]:
    """One prediction a question from its windows' logits, in the order of the questions."""
    grouped: dict[str, list[int]] = {}
    for index, window in enumerate(windows):
        grouped.setdefault(window.question.id, []).append(index)
    predictions = []
    for indices in grouped.values():
        spans: list[Span] = []
        nulls = []
        for index in indices:
            start, end = logits[index]
            spans += best_spans(windows[index], start, end, n_best, max_answer_length)
            nulls.append(float(start[windows[index].cls] + end[windows[index].cls]))
        spans.sort(key=lambda span: (-span.score, span.window, span.start, span.end))
        null_window = int(np.argmin(nulls))
        predictions.append(Prediction(windows[indices[0]].question, spans[:n_best], nulls[null_window], null_window))
    return predictions


def predict(reader: Reader, questions: Sequence[Question], batch_size: int) -> list[Prediction]:
    """Read all questions, ``batch_size`` windows at a time; one prediction each, in their order."""
    description = reader.description
    windows = all_windows(questions, reader.tokenizer, description.max_length, description.doc_stride)
    logits = span_logits(reader.model, reader.tokenizer, windows, batch_size)
    return decode(windows, logits, description.n_best, description.max_answer_length)


def tune_null_threshold(predictions: Sequence[Prediction]) -> tuple[float, float]:
    """The null threshold with the best mean F1 over ``predictions``, and that F1 in percent.

    Candidates lie midway between neighbouring margins, so that the choice does not hang on one
    question's exact score; of equally good ones (to rounding) the one nearest to 0 is taken.
    """
    margins = sorted({p.null_margin for p in predictions})
    candidates = [0.0, margins[0] - 1, margins[-1] + 1]
    candidates += [(low + high) / 2 for low, high in pairwise(margins)]
    answered = np.array([question_scores(p.question, p.spans[0].text)[1] for p in predictions])
    unanswered = np.array([question_scores(p.question, "")[1] for p in predictions])
    margin = np.array([p.null_margin for p in predictions])
    scores = {c: 100 * float(np.where(margin > c, unanswered, answered).mean()) for c in candidates}
    best = min(candidates, key=lambda c: (-round(scores[c], 9), abs(c), c))
    return best, scores[best]
