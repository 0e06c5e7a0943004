"""What a question is, and SQuAD's JSON read into it, checked, and written from it."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from bertlift.errors import InputError
from bertlift.files import write_json

MOST_FAULTS_SHOWN = 20
LONE_SURROGATE = re.compile("[\ud800-\udfff]")
SENTENCE_END = re.compile(r"(?<=[.!?]) (?=\S)")


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Where sentences start and end: a sentence ends at a full stop, ! or ? with a space behind it.

    >>> sentence_spans("It rises. Who knows?")
    [(0, 10), (10, 20)]
    """
    cuts = [0, *(match.end() for match in SENTENCE_END.finditer(text)), len(text)]
    return list(pairwise(cuts))


@dataclass(frozen=True)
class Answer:
    """A gold answer and the character of the context at which it starts."""

    text: str
    start: int


@dataclass(frozen=True)
class Question:
    """One question over one passage (``context``) of one article (``title``)."""

    id: str
    question: str
    context: str
    title: str
    answers: tuple[Answer, ...]  # empty where the question has no answer
    name: str | None = None  # short name of a showcase question, for file names

    @property
    def is_impossible(self) -> bool:
        """True where the passage does not answer the question."""
        return not self.answers

    @property
    def golds(self) -> list[str]:
        """The gold answers' texts, in the file's order."""
        return [answer.text for answer in self.answers]


class _Reading:
    """One file being read: collects its questions and its faults."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.questions: list[Question] = []
        self.faults: list[str] = []

    def fault(self, what: str, *where: str) -> None:
        self.faults.append(": ".join([str(self.file), *where, what]))

    def take(self, node: Any, key: str, kind: type, *where: str) -> Any:
        """``node[key]`` if it is a ``kind``, else None and a fault."""
        if not isinstance(node, dict):
            self.fault(f"expected an object with {key!r}, found {type(node).__name__}", *where)
            return None
        if key not in node:
            self.fault(f"key {key!r} is missing", *where)
            return None
        value = node[key]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):  # Python counts True as an int
            self.fault(f"{key!r} must be {kind.__name__}, found {type(value).__name__}", *where)
            return None
        if isinstance(value, str) and LONE_SURROGATE.search(value):
            self.fault(f"{key!r} holds half a surrogate pair, which UTF-8 cannot; found {value[:40]!r}", *where)
            return None
        return value

    def read(self) -> None:
        try:
            root = json.loads(self.file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return self.fault("no such file; give a SQuAD JSON file or a directory of them")
        except (OSError, UnicodeDecodeError) as error:
            return self.fault(f"cannot be read: {error}")
        except json.JSONDecodeError as error:
            return self.fault(f"not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}")
        except RecursionError:
            return self.fault("not valid JSON for SQuAD: it is nested too deeply")
        except ValueError as error:  # a number of thousands of digits
            return self.fault(f"not valid JSON: {error}")
        for number, article in enumerate(self.take(root, "data", list) or []):
            title = self.take(article, "title", str, f"article {number}")
            if title is None:
                continue
            where = f"article {title!r}"
            for index, paragraph in enumerate(self.take(article, "paragraphs", list, where) or []):
                self.paragraph(paragraph, title, where, f"paragraph {index}")

    def paragraph(self, node: Any, title: str, *where: str) -> None:
        context = self.take(node, "context", str, *where)
        if context is None:
            return
        if not context.strip():
            return self.fault("the context is empty", *where)
        for entry in self.take(node, "qas", list, *where) or []:
            identity = self.take(entry, "id", str, *where)
            if identity is not None and not identity.isprintable():
                self.fault(f"'id' must be printable, found {identity!r}", *where)
            elif identity is not None:
                self.question(entry, identity, context, title)

    def question(self, node: dict[str, Any], identity: str, context: str, title: str) -> None:
        where = (f"article {title!r}", f"question {identity}")
        before = len(self.faults)
        text = self.take(node, "question", str, *where)
        if text is not None and not text.strip():
            self.fault("the question is empty", *where)
        impossible = node.get("is_impossible", False)  # SQuAD 1.1 has no such key
        if not isinstance(impossible, bool):
            self.fault(f"'is_impossible' must be true or false, found {impossible!r}", *where)
        name = node.get("name")
        if name is not None and not isinstance(name, str):
            self.fault(f"'name' must be a string, found {name!r}", *where)
        answers = []
        for entry in self.take(node, "answers", list, *where) or []:
            gold = self.take(entry, "text", str, *where)
            start = self.take(entry, "answer_start", int, *where)
            if gold is None or start is None:
                continue
            found = context[start : start + len(gold)] if start >= 0 else ""
            if not gold or found != gold:
                self.fault(f"answer_start {start} points at {found!r}, not at the answer {gold!r}", *where)
            answers.append(Answer(gold, start))
        if len(self.faults) > before:
            return
        if impossible and answers:
            return self.fault(f"is_impossible is true, but there are {len(answers)} answers", *where)
        if not impossible and not answers:
            return self.fault("there is no answer; set is_impossible to true if the passage has none", *where)
        self.questions.append(Question(identity, text, context, title, tuple(answers), name))


def read_squad(path: Path | str) -> list[Question]:
    """Read a SQuAD 1.1 or 2.0 JSON file, or all ``*.json`` of a directory in the order of their names.

    Every answer must stand in its context at ``answer_start``, ids must be unique, contexts and
    questions not empty, and unanswerable questions without answers.

    Raises:
        InputError: one line a fault, with file, article and question id (the first
            ``MOST_FAULTS_SHOWN`` of them).
    """
    place = Path(path)
    files = sorted(place.glob("*.json")) if place.is_dir() else [place]
    if not files:
        raise InputError(f"{place}: this directory holds no *.json file; put SQuAD JSON files there")
    questions: list[Question] = []
    faults: list[str] = []
    first_file: dict[str, Path] = {}
    for file in files:
        reading = _Reading(file)
        reading.read()
        for question in reading.questions:
            if question.id in first_file:
                reading.fault(
                    f"this id was used before, in {first_file[question.id]}; ids must be unique",
                    f"article {question.title!r}",
                    f"question {question.id}",
                )
            first_file.setdefault(question.id, file)
        questions += reading.questions
        faults += reading.faults
    _refuse(faults)
    if not questions:
        raise InputError(f"{place}: holds no question")
    return questions


def _refuse(faults: list[str]) -> None:
    """Raise if there are faults, with the first ``MOST_FAULTS_SHOWN`` of them."""
    more = len(faults) - MOST_FAULTS_SHOWN
    if faults:
        raise InputError("\n".join(faults[:MOST_FAULTS_SHOWN] + ([f"... and {more} more"] if more > 0 else [])))


def check_splits(train: Iterable[Question], dev: Iterable[Question], where: tuple[str, str]) -> None:
    """Refuse an article or a question id that stands in both splits; ``where`` names the two sources.

    Raises:
        InputError: one line for each such article or id.
    """
    train, dev = list(train), list(dev)
    faults = [
        f"{where[1]}: article {title!r}: is in {where[0]} too; split by article"
        for title in sorted({q.title for q in train} & {q.title for q in dev})
    ]
    trained = {q.id: q for q in train}
    faults += [
        f"{where[1]}: article {q.title!r}: question {q.id}: this id is in {where[0]} too"
        for q in dev
        if q.id in trained and trained[q.id].title != q.title
    ]
    _refuse(faults)


def spread(questions: list[Question], limit: int | None) -> list[Question]:
    """At most ``limit`` questions, taken in turn from every article, in the order they came.

    Which of an article's is decided by a hash of their ids, the same each time: files often list answerable questions
    before unanswerable ones, and the first would not stand for all.
    """
    if limit is None or limit >= len(questions):
        return questions
    mixed = sorted(range(len(questions)), key=lambda index: hashlib.sha256(questions[index].id.encode()).digest())
    taken: Counter[str] = Counter()
    turn = []
    for index in mixed:
        turn.append((taken[questions[index].title], index))
        taken[questions[index].title] += 1
    keep = {index for _, index in sorted(turn)[:limit]}
    return [question for index, question in enumerate(questions) if index in keep]


def write_squad(path: Path | str, questions: Iterable[Question]) -> None:
    """Write questions as SQuAD 2.0 JSON, grouped by article and passage in the order of first use."""
    articles: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for question in questions:
        entry: dict[str, Any] = {
            "id": question.id,
            "question": question.question,
            "answers": [{"text": a.text, "answer_start": a.start} for a in question.answers],
            "is_impossible": question.is_impossible,
        }
        if question.name is not None:
            entry["name"] = question.name
        articles.setdefault(question.title, {}).setdefault(question.context, []).append(entry)
    data = [
        {"title": title, "paragraphs": [{"context": c, "qas": qas} for c, qas in passages.items()]}
        for title, passages in articles.items()
    ]
    write_json(path, {"version": "v2.0", "data": data})
