"""From word pieces back to the words that a person reads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertlift.attribution import Attribution
from bertlift.reader.windows import PASSAGE, QUESTION, SPECIAL


@dataclass(frozen=True)
class Word:
    """A word (or special token, or punctuation mark) of the window and the tokens it consists of."""

    text: str  # as the user wrote it; a special token's own name
    tokens: tuple[int, ...]
    segment: int  # 0 question, 1 passage, -1 special
    glued: bool  # no white space before it


def words_of(attribution: Attribution) -> list[Word]:
    """The words of an attribution's window, in running order; every token belongs to exactly one."""
    texts = {QUESTION: attribution.question, PASSAGE: attribution.context}
    words: list[Word] = []
    reach: tuple[int, int, int] | None = None  # segment and characters of the word that is growing
    for position, (segment, word) in enumerate(zip(attribution.segments, attribution.words, strict=True)):
        if segment == SPECIAL:
            words.append(Word(attribution.tokens[position], (position,), SPECIAL, False))
            reach = None
            continue
        start, end = attribution.offsets[position]
        grows = position > 0 and (attribution.segments[position - 1], attribution.words[position - 1]) == (
            segment,
            word,
        )
        if grows and reach is not None:
            reach = (segment, reach[1], end)
            words[-1] = Word(texts[segment][reach[1] : end], (*words[-1].tokens, position), segment, words[-1].glued)
        else:
            glued = reach is not None and reach[0] == segment and reach[2] == start
            words.append(Word(texts[segment][start:end], (position,), segment, glued))
            reach = (segment, start, end)
    return words


def word_scores(words: list[Word], scores: NDArray[np.floating]) -> NDArray[np.float64]:
    """Scores of words, ``(..., words)``, from scores of tokens, ``(..., tokens)``: contributions add up."""
    values = np.asarray(scores, dtype=np.float64)
    return np.stack([values[..., list(word.tokens)].sum(-1) for word in words], axis=-1)
