"""Which group a token belongs to: every token to exactly one, the rules in one place.

In this order, the first that fits:

1. ``cls``: the first special token; ``first_separator``: the last special token before the passage (RoBERTa has
   two there, both count); ``last_separator``: every special token after it.
2. ``answer``: passage tokens inside the target span (none where the answer is "no answer"); ``gold_answer``: those
   inside a gold answer.
3. ``punctuation``: tokens without a letter or digit.
4. In the question: ``question_word`` (who, what, when, ...), ``question_keyword`` (a word that is no
   function word), ``question_function`` (the rest).
5. In the passage: ``passage_function`` (function words), ``keyword_in_passage`` (a question keyword again, in
   whatever form), ``answer_sentence`` (words of the sentence of the target span), ``passage_content`` (the rest).

Words are compared lower-case, without accents and by their stems (Porter's English stemmer), whole words rather than
word pieces.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

import snowballstemmer

from bertlift.analysis.words import Word, words_of
from bertlift.attribution import Attribution
from bertlift.reader.windows import PASSAGE, QUESTION, SPECIAL
from bertlift.squad.schema import sentence_spans

GROUPS = (
    "cls",
    "first_separator",
    "last_separator",
    "punctuation",
    "question_word",
    "question_keyword",
    "question_function",
    "answer",
    "gold_answer",
    "keyword_in_passage",
    "answer_sentence",
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


@lru_cache(maxsize=100_000)
def stem(word: str) -> str:
    """The stem of a plain English word.

    >>> stem("rivers") == stem("river"), stem("painted") == stem("painting")
    (True, True)
    """
    return str(_STEMMER.stemWord(word))


_STEMMER = snowballstemmer.stemmer("english")


def token_groups(attribution: Attribution) -> list[str]:
    """One of :data:`GROUPS` for every token."""
    words = words_of(attribution)
    keywords = {stem(plain(word.text)) for word in words if word.segment == QUESTION and _is_keyword(plain(word.text))}
    passage = attribution.segments.index(PASSAGE)
    target = range(attribution.start, attribution.end + 1) if attribution.answer else range(0)
    golds = [(a, a + len(text)) for a, text in zip(attribution.gold_starts, attribution.golds, strict=True)]
    sentence = (0, 0)
    if target:
        at = attribution.offsets[attribution.start][0]
        sentence = next((a, b) for a, b in sentence_spans(attribution.context) if a <= at < b)

    def group_of(word: Word, position: int) -> str:
        first, last = attribution.offsets[position]
        if word.segment == SPECIAL:
            return "first_separator" if position < passage else "last_separator"
        if position in target:
            return "answer"
        if word.segment == PASSAGE and any(a < last and first < b for a, b in golds):
            return "gold_answer"
        text = plain(word.text)
        if not any(character.isalnum() for character in text):
            return "punctuation"
        if word.segment == QUESTION:
            if text in QUESTION_WORDS:
                return "question_word"
            return "question_keyword" if _is_keyword(text) else "question_function"
        if text in FUNCTION_WORDS:
            return "passage_function"
        if stem(text) in keywords:
            return "keyword_in_passage"
        return "answer_sentence" if sentence[0] <= first < sentence[1] else "passage_content"

    groups = [""] * len(attribution.tokens)
    for word in words:
        for position in word.tokens:
            groups[position] = group_of(word, position)
    groups[attribution.segments.index(SPECIAL)] = "cls"
    return groups


def _is_keyword(text: str) -> bool:
    return text not in FUNCTION_WORDS | QUESTION_WORDS and any(character.isalnum() for character in text)
