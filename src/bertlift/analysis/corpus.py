"""What the embedded corpus promises beyond SQuAD's format, checked: balance, wording, splits, readable text."""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bertlift.analysis.groups import question_word_of
from bertlift.errors import InputError
from bertlift.squad.schema import Question, check_splits, read_squad

SPLITS = ("train", "dev")
# The kinds of unanswerable questions in Rajpurkar et al. (2018), table 1.
KINDS = ("negation", "antonym", "entity_swap", "mutual_exclusion", "impossible_condition", "other_neutral")
QUESTION_WORDS = ("who", "what", "when", "where", "which", "how many", "how", "why")
PASSAGE_WORDS = (60, 140)
UNANSWERABLE = (0.30, 0.40)  # of a split's questions
KIND_SHARE = (0.08, 0.28)  # of a split's unanswerable questions, each kind
WORD_SHARE = 0.02  # of a split's questions, each question word, at least
COPIED = 7  # words in a row that a question may not take from its passage
NEAR = 0.2  # of the five-word sequences of one passage that may stand in another split's passage
MOST_ANSWER_WORDS = 14


def words(text: str) -> list[str]:
    """Lower-case words of a text, without punctuation."""
    return re.findall(r"\w+(?:[.,'\u2019]\w+)*", text.lower())


def sequences(text: str, length: int) -> set[tuple[str, ...]]:
    """All sequences of ``length`` words in a row."""
    found = words(text)
    return {tuple(found[at : at + length]) for at in range(len(found) - length + 1)}


def question_word(text: str) -> str:
    """The word that a question counts under: :func:`question_word_of`, the forms of "who" and "how" together."""
    found = question_word_of(text)
    return {"whom": "who", "whose": "who", "how much": "how"}.get(found, found)


def unreadable(text: str) -> str | None:
    """The first character that is neither printable nor composed (NFC), or a doubled space; None if there is none."""
    normal = unicodedata.normalize("NFC", text)
    for at, character in enumerate(text):
        if not character.isprintable() or character == "�" or normal[at : at + 1] != character:
            return f"U+{ord(character):04X}"
    return "two spaces in a row" if "  " in text or text != text.strip() else None


def extra_keys(directory: Path) -> dict[str, dict[str, Any]]:
    """The entries of a directory's questions as they stand in the files, by id."""
    roots = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(directory.glob("*.json"))]
    paragraphs = [each for root in roots for article in root["data"] for each in article["paragraphs"]]
    return {entry["id"]: entry for paragraph in paragraphs for entry in paragraph["qas"]}


def question_faults(question: Question, entry: dict[str, Any]) -> Iterable[str]:
    """What is wrong with one question: its wording, its answers, and the keys of an unanswerable one."""
    text = question.question
    if bad := unreadable(text):
        yield f"the question holds {bad}"
    if not text.endswith("?"):
        yield f"a question ends with a question mark; found {text!r}"
    if copied := sequences(text, COPIED) & sequences(question.context, COPIED):
        yield f"the question copies {COPIED} words of its passage: {' '.join(min(copied))!r}"
    for answer in question.answers:
        if len(words(answer.text)) > MOST_ANSWER_WORDS:
            yield f"an answer has at most {MOST_ANSWER_WORDS} words; found {answer.text!r}"
        before, after = question.context[: answer.start][-1:], question.context[answer.start + len(answer.text) :][:1]
        if (before.isalnum() and answer.text[0].isalnum()) or (after.isalnum() and answer.text[-1].isalnum()):
            yield f"an answer takes whole words; found {answer.text!r} in {before + answer.text + after!r}"
    if question.is_impossible:
        kind, plausible = entry.get("kind"), entry.get("plausible_answers") or []
        if kind not in KINDS:
            yield f"'kind' is {kind!r}; allowed: {', '.join(KINDS)}"
        if not plausible:
            yield "an unanswerable question has 'plausible_answers'; found none"
        for each in plausible:
            start = each.get("answer_start", -1)
            if not each.get("text") or question.context[start : start + len(each["text"])] != each["text"]:
                yield f"plausible answer {each.get('text')!r} does not stand at {start}"


def split_faults(questions: list[Question], kinds: Counter[str], asked: Counter[str]) -> Iterable[str]:
    """What is wrong with a split as a whole: its balance, and passages and questions that come twice."""
    unanswerable = sum(q.is_impossible for q in questions)
    share = unanswerable / len(questions)
    if not UNANSWERABLE[0] <= share <= UNANSWERABLE[1]:
        yield f"{share:.1%} of the questions are unanswerable; allowed: {UNANSWERABLE[0]:.0%} to {UNANSWERABLE[1]:.0%}"
    for kind in KINDS:
        part = kinds[kind] / max(unanswerable, 1)
        if not KIND_SHARE[0] <= part <= KIND_SHARE[1]:
            yield (
                f"{part:.1%} of the unanswerable questions are of kind {kind!r}; "
                f"allowed: {KIND_SHARE[0]:.0%} to {KIND_SHARE[1]:.0%}"
            )
    for word in QUESTION_WORDS:
        if asked[word] < WORD_SHARE * len(questions):
            yield f"{asked[word]} of {len(questions)} questions ask {word!r}; allowed: {WORD_SHARE:.0%} of them or more"
    for context in {q.context for q in questions}:
        low, high = PASSAGE_WORDS
        if not low <= len(context.split()) <= high:
            yield f"passage {context[:40]!r} has {len(context.split())} words; allowed: {low} to {high}"
        if bad := unreadable(context):
            yield f"passage {context[:40]!r} holds {bad}"
    twice = Counter((q.context, q.question.lower()) for q in questions)
    yield from (f"passage {c[:40]!r}: asked twice: {text!r}" for (c, text), count in twice.items() if count > 1)


def near_duplicates(one: Iterable[str], other: Iterable[str]) -> Iterable[str]:
    """Passages of ``other`` that share more than ``NEAR`` of their five-word sequences with one of ``one``."""
    where: dict[tuple[str, ...], list[str]] = {}
    for context in one:
        for sequence in sequences(context, 5):
            where.setdefault(sequence, []).append(context)
    for context in other:
        own = sequences(context, 5)
        shared = Counter(twin for sequence in own for twin in where.get(sequence, []))
        for twin, count in shared.items():
            if count > NEAR * len(own):
                yield f"passage {context[:40]!r} is nearly {twin[:40]!r} of the other split"


def check_corpus(directory: Path) -> dict[str, dict[str, Any]]:
    """Check the corpus in ``directory/train`` and ``directory/dev``; its size and balance, by split.

    Returns:
        for each split the numbers of articles, passages, words, questions, unanswerable questions, and questions by
        kind and by question word.

    Raises:
        InputError: one line a fault.
    """
    faults: list[str] = []
    found: dict[str, dict[str, Any]] = {}
    read = {name: read_squad(directory / name) for name in SPLITS}
    check_splits(read["train"], read["dev"], (str(directory / "train"), str(directory / "dev")))
    for name, questions in read.items():
        entries = extra_keys(directory / name)
        for question in questions:
            where = f"{directory / name}: article {question.title!r}: question {question.id}"
            faults += [f"{where}: {fault}" for fault in question_faults(question, entries[question.id])]
        kinds = Counter(str(entries[q.id].get("kind")) for q in questions if q.is_impossible)
        asked = Counter(question_word(q.question) for q in questions)
        faults += [f"{directory / name}: {fault}" for fault in split_faults(questions, kinds, asked)]
        passages = {q.context for q in questions}
        found[name] = {
            "articles": len({q.title for q in questions}),
            "passages": len(passages),
            "words": sum(len(context.split()) for context in passages),
            "questions": len(questions),
            "unanswerable": sum(q.is_impossible for q in questions),
            "kinds": dict(sorted(kinds.items())),
            "question_words": dict(asked.most_common()),
        }
    pair = [{q.context for q in questions} for questions in read.values()]
    faults += [f"{directory / 'dev'}: {fault}" for fault in near_duplicates(*pair)]
    if faults:
        raise InputError("\n".join(faults))
    return found
