"""Cutting a question and its passage into windows that fit the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bertlift.errors import InputError
from bertlift.squad.schema import Question

QUESTION, PASSAGE, SPECIAL = 0, 1, -1


@dataclass(frozen=True)
class Window:
    """``[CLS] question [SEP] part of the passage [SEP]`` as token ids, with where each token came from.

    All lists have one entry a token. ``offsets`` are character positions (start, end) in the question
    or in the whole passage, by ``segments`` (``QUESTION``, ``PASSAGE``, ``SPECIAL``); ``words`` number
    the words of a segment, -1 for special tokens.
    """

    question: Question
    number: int  # of the windows of one question, from 0
    input_ids: list[int]
    token_type_ids: list[int] | None  # None where the model knows none
    tokens: list[str]
    offsets: list[tuple[int, int]]
    segments: list[int]
    words: list[int]
    cls: int  # position of the token that stands for "no answer"

    def label(self) -> tuple[int, int]:
        """Start and end token of the first gold answer; ``cls`` twice where this window does not hold it."""
        if not self.question.answers:
            return self.cls, self.cls
        answer = self.question.answers[0]
        first, last = answer.start, answer.start + len(answer.text)
        inside = [
            position
            for position, (start, end) in enumerate(self.offsets)
            if self.segments[position] == PASSAGE and start < last and end > first
        ]
        passage = [position for position, segment in enumerate(self.segments) if segment == PASSAGE]
        # A window that cuts the answer off does not answer the question.
        if not inside or self.offsets[passage[0]][0] > first or self.offsets[passage[-1]][1] < last:
            return self.cls, self.cls
        return inside[0], inside[-1]


def windows_of(question: Question, tokenizer: Any, max_length: int, doc_stride: int) -> list[Window]:
    """All windows of one question.

    Args:
        question: text and passage.
        tokenizer: a fast tokenizer of ``transformers``.
        max_length: tokens a window, special ones included.
        doc_stride: tokens that two consecutive windows share.

    Raises:
        InputError: if the question leaves no room for more than ``doc_stride`` passage tokens, or the
            passage has no token at all.
    """
    where = f"article {question.title!r}: question {question.id}"
    text = " ".join(question.question.split())
    length = len(tokenizer(text, add_special_tokens=False)["input_ids"])
    room = max_length - length - tokenizer.num_special_tokens_to_add(pair=True)
    if room <= doc_stride:
        raise InputError(
            f"{where}: the question has {length} tokens, which leaves {max(room, 0)} for the passage in a window of "
            f"{max_length}; allowed: more than reader.doc_stride={doc_stride}; raise reader.max_length"
        )
    encoded = tokenizer(
        text,
        question.context,
        truncation="only_second",
        max_length=max_length,
        stride=doc_stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    windows = []
    for number, encoding in enumerate(encoded.encodings):
        segments = [SPECIAL if each is None else each for each in encoding.sequence_ids]
        if PASSAGE not in segments:
            raise InputError(f"{where}: the tokenizer finds no token in the passage {question.context[:40]!r}")
        ids = list(encoding.ids)
        windows.append(
            Window(
                question=question,
                number=number,
                input_ids=ids,
                token_type_ids=list(encoding.type_ids) if "token_type_ids" in encoded else None,
                tokens=list(encoding.tokens),
                offsets=[(int(start), int(end)) for start, end in encoding.offsets],
                segments=segments,
                words=[-1 if each is None else each for each in encoding.word_ids],
                cls=ids.index(tokenizer.cls_token_id),
            )
        )
    return windows


def batches(windows: Sequence[Window], size: int) -> Iterator[list[int]]:
    """Indices of ``windows`` in batches of ``size``, windows of like length together."""
    order = sorted(range(len(windows)), key=lambda index: (len(windows[index].input_ids), index))
    for start in range(0, len(order), size):
        yield order[start : start + size]
