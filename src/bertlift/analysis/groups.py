"""Which group a token belongs to: every token to exactly one, the rules in one place.

In this order, the first that fits:

1. ``cls``: the first special token; ``separator``: every other special token.
2. ``answer``: passage tokens inside the predicted span (none where the answer is "no answer").
3. ``punctuation``: tokens without a letter or digit.
4. In the question: ``question_word`` (who, what, when, ...), ``question_keyword`` (a word that is no
   function word), ``question_function`` (the rest).
5. In the passage: ``keyword_in_passage`` (the same word as a question keyword), ``passage_function``
   (function words), ``passage_content`` (the rest).

Words are compared lower-case and without accents, whole words rather than word pieces.
"""

from __future__ import annotations

import unicodedata

from bertlift.analysis.words import words_of
from bertlift.attribution import Attribution
from bertlift.reader.windows import QUESTION, SPECIAL

GROUPS = (
    "cls",
    "separator",
    "punctuation",
    "question_word",
    "question_keyword",
    "question_function",
    "answer",
    "keyword_in_passage",
    "passage_content",
    "passage_function",
)
QUESTION_WORDS = frozenset("who whom whose what which when where why how".split())
FUNCTION_WORDS = frozenset(
    """a about above after again against all also am an and any are as at be because been before being below between
    both but by can could did do does doing down during each few for from further had has have having he her here hers
    herself him himself his i if in into is it its itself just me more most my myself no nor not now of off on once
    only or other our ours out over own same she should so some such than that the their theirs them themselves then
    there these they this those through to too under until up upon very was we were what when where which while who
    whom whose why will with within without would yet you your yours s t d ll m re ve""".split()
)


def plain(word: str) -> str:
    """Lower-case, accents taken off.

    >>> plain("Beyoncé")
    'beyonce'
    """
    return "".join(c for c in unicodedata.normalize("NFD", word.lower()) if not unicodedata.combining(c))


def question_word_of(question: str) -> str:
    """The first question word of a question, ``other`` if it has none; "how many" and "how much" are their own.

    >>> question_word_of("In which year did it open?")
    'which'
    >>> question_word_of("How many people live there?")
    'how many'
    """
    words = [plain(word.strip("?,.'\"")) for word in question.split()]
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == "how" and following in ("many", "much"):
            return f"how {following}"
        if word in QUESTION_WORDS:
            return word
    return "other"


def token_groups(attribution: Attribution) -> list[str]:
    """One of :data:`GROUPS` for every token."""
    words = words_of(attribution)
    keywords = {plain(word.text) for word in words if word.segment == QUESTION and _is_keyword(plain(word.text))}
    groups = [""] * len(attribution.tokens)
    for word in words:
        group = _word_group(plain(word.text), word.segment, keywords)
        for position in word.tokens:
            inside = attribution.start <= position <= attribution.end
            groups[position] = "answer" if inside and attribution.answer else group
    special = [position for position, segment in enumerate(attribution.segments) if segment == SPECIAL]
    groups[special[0]] = "cls"
    return groups


def _word_group(text: str, segment: int, keywords: set[str]) -> str:
    if segment == SPECIAL:
        return "separator"
    if not any(character.isalnum() for character in text):
        return "punctuation"
    if segment == QUESTION:
        if text in QUESTION_WORDS:
            return "question_word"
        return "question_keyword" if _is_keyword(text) else "question_function"
    if text in keywords:
        return "keyword_in_passage"
    return "passage_function" if text in FUNCTION_WORDS else "passage_content"


def _is_keyword(text: str) -> bool:
    return text not in FUNCTION_WORDS | QUESTION_WORDS and any(character.isalnum() for character in text)
