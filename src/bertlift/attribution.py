"""The one result type: what a method says about one answer. Saved as a ``datasets`` directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, Features, Value, disable_progress_bars, load_from_disk
from datasets import List as ListOf
from numpy.typing import NDArray

from bertlift.errors import InputError
from bertlift.files import replacing

Row = NDArray[np.float32]  # (tokens,)
Grid = NDArray[np.float32]  # (rows, tokens)


@dataclass(frozen=True)
class Attribution:
    """Scores for the tokens of the window that holds the reader's answer to one question.

    A method that looks into the layers has ``layers + 1`` rows of scores (row 0: the embedding output,
    row ``l``: encoder layer ``l``), one that only scores the input has a single row. Scores are in logits
    where the method is complete (then ``delta`` says what was lost), else in the method's own unit.
    """

    question_id: str
    name: str | None  # short name of a showcase question
    split: str  # "dev", "showcase", or both: "dev+showcase"
    title: str
    question: str
    context: str
    golds: list[str]  # empty where the question has no answer
    gold_starts: list[int]  # characters of the context at which they start
    answer: str  # the reader's, empty for "no answer"
    best_span: str  # the reader's best span, also where it prefers "no answer"
    span_score: float  # start logit + end logit of the best span
    null_score: float  # the same of [CLS]; smallest over the question's windows
    method: str
    reference: str
    tokens: list[str]
    offsets: list[list[int]]  # (start, end) characters in the question or the context
    segments: list[int]  # 0 question, 1 passage, -1 special
    words: list[int]  # number of the token's word in its segment, -1 for special tokens
    start: int  # token positions of the target
    end: int
    target_value: float  # f(x): start logit at ``start`` + end logit at ``end``
    reference_value: float  # f(x0)
    start_logits: Row
    end_logits: Row
    reference_start_logits: Row
    reference_end_logits: Row
    scores: Grid
    positive: Grid
    negative: Grid
    delta: Row  # (rows,)
    # How every layer's score splits (see ``Contributions``); without rows for a method or model that has no such split.
    value_path: Grid  # (layers, heads)
    attention_path: Grid  # (layers, heads)
    residual: Row  # (layers,)
    attention: Grid  # (layers, tokens): mean attention weight over heads and the two ends of the target
    # What the layers hold, whatever the method.
    hidden: Grid  # (rows, units): mean of the hidden states, weighted by the tokens' absolute scores
    gradient: float  # length of the target's gradient with respect to the embedding output

    @property
    def is_impossible(self) -> bool:
        """True where the passage does not answer the question."""
        return not self.golds

    @property
    def layers(self) -> int:
        """Number of encoder layers that have a row of scores."""
        return len(self.scores) - 1

    @property
    def relative_delta(self) -> Row:
        """``|delta| / |f(x) - f(x0)|`` for each row; the divisor is at least 1e-6."""
        difference = abs(self.target_value - self.reference_value)
        return np.asarray(np.abs(self.delta) / max(difference, 1e-6), dtype=np.float32)


_ROW, _INTS = ListOf(Value("float32")), ListOf(Value("int32"))
_GRID = ListOf(_ROW)
_SPECIAL = {
    "golds": ListOf(Value("string")),
    "gold_starts": _INTS,
    "tokens": ListOf(Value("string")),
    "offsets": ListOf(_INTS),
    "segments": _INTS,
    "words": _INTS,
    "start": Value("int32"),
    "end": Value("int32"),
}
_BY_ANNOTATION = {
    "str": Value("string"),
    "str | None": Value("string"),
    "float": Value("float64"),
    "Row": _ROW,
    "Grid": _GRID,
}
FEATURES = Features({f.name: _SPECIAL.get(f.name) or _BY_ANNOTATION[str(f.type)] for f in fields(Attribution)})


def save_attributions(directory: Path | str, attributions: Sequence[Attribution]) -> None:
    """Write attributions as a ``datasets`` directory (Arrow), whole or not at all."""
    columns = {f.name: [getattr(each, f.name) for each in attributions] for f in fields(Attribution)}
    dataset = Dataset.from_dict(columns, features=FEATURES)
    # The library's fingerprint is made anew each time; ours stays the same for the same content.
    dataset._fingerprint = "bertlift"
    disable_progress_bars()  # for a write of a second
    with replacing(directory) as new:
        dataset.save_to_disk(new)


def load_attributions(directory: Path | str) -> list[Attribution]:
    """Read what :func:`save_attributions` wrote.

    Raises:
        InputError: if there is no such directory, or it holds something else.
    """
    try:
        dataset = load_from_disk(str(directory))
    except (FileNotFoundError, ValueError, OSError) as error:
        raise InputError(f"{directory}: no attributions here ({error}); the attribute stage writes them") from error
    if not isinstance(dataset, Dataset) or dataset.features != FEATURES:
        raise InputError(f"{directory}: not attributions of this version; run the attribute stage again")
    arrays = {f.name for f in fields(Attribution) if f.type in ("Row", "Grid")}

    def value_of(key: str, value: Any) -> Any:
        return np.asarray(value, dtype=np.float32) if key in arrays else value

    rows: list[dict[str, Any]] = list(dataset)
    return [Attribution(**{key: value_of(key, value) for key, value in row.items()}) for row in rows]
