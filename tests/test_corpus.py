"""The embedded corpus keeps its promises, and the checker refuses each fault by name."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

from bertlift.analysis import corpus
from bertlift.analysis.corpus import check_corpus, near_duplicates, question_word, unreadable
from bertlift.errors import InputError
from bertlift.squad.schema import read_squad
from conftest import ROOT

CORPUS = ROOT / "data/corpus"


@pytest.fixture(scope="module")
def found():
    """What the check says of the corpus that ships."""
    return check_corpus(CORPUS)


def test_the_corpus_is_sound_and_as_large_and_balanced_as_its_datasheet_says(found):
    sheet = (CORPUS / "README.md").read_text(encoding="utf-8")
    rows = {"articles": "articles", "passages": "passages", "words in passages": "words", "questions": "questions"}
    for label, key in (rows | {"unanswerable": "unanswerable"}).items():
        assert f"| {label} | {found['train'][key]:,} | {found['dev'][key]:,} |" in sheet
    flat = " ".join(sheet.split())
    for word, count in found["train"]["question_words"].items():
        assert f"{count} {word}" in flat or f"{count} questions ask {word}" in flat


def test_the_table_of_what_was_tried_is_that_of_the_metrics_file():
    trials = json.loads((ROOT / "reports/metrics/reader_trials.json").read_text(encoding="utf-8"))
    text = (ROOT / "docs/reader.md").read_text(encoding="utf-8")
    for run in trials["runs"]:
        measures = (f"{run[name]:.1f}" for name in ("f1", "HasAns_f1", "NoAns_f1", "set_aside_f1"))
        assert f"| {run['run']} | {' | '.join(measures)} |" in text
    assert f"{trials['train_questions']:,} training questions" in text


def test_the_table_of_seeds_is_that_of_the_metrics_file():
    seeds = json.loads((ROOT / "reports/metrics/reader_seeds.json").read_text(encoding="utf-8"))
    text = (ROOT / "docs/reader.md").read_text(encoding="utf-8")
    assert len(seeds["runs"]) == 5
    labels = {"exact": "exact", "f1": "F1", "HasAns_f1": "F1 with an answer", "NoAns_f1": "F1 without"}
    for key, label in (labels | {"showcase_right": "showcase questions right, of 9"}).items():
        values = [run[key] for run in seeds["runs"]]
        assert seeds["mean"][key] == pytest.approx(np.mean(values), abs=0.006)
        assert seeds["standard_deviation"][key] == pytest.approx(np.std(values, ddof=1), abs=0.006)
        assert f"| {label} | {seeds['mean'][key]:.1f} | {seeds['standard_deviation'][key]:.1f} |" in text
    assert f"{seeds['train_questions']:,} training questions" in text
    assert f"({seeds['mean']['minutes']:.1f} minutes)" in text


def test_the_table_of_readers_is_that_of_the_experiment():
    rows = json.loads((ROOT / "reports/blog/readers.json").read_text(encoding="utf-8"))
    text = (ROOT / "docs/reader.md").read_text(encoding="utf-8")
    assert len(rows) == 5
    for row in rows:
        counts = [row[name] for name in ("answered", "correct", "exact")]
        scores = [f"{row['dev'][name]:.1f}" for name in ("f1", "HasAns_f1", "NoAns_f1")]
        cells = [
            f"`{row['reader']}`",
            row["layers"],
            f"{row['parameters'] / 1e6:.1f}",
            f"{row['megabytes']:.0f}",
            *counts,
        ]
        cells += [f"{row['seconds_per_question']:.3f}", *scores, f"{row['explanations']['beats_random']['mean']:.2f}"]
        assert f"| {' | '.join(map(str, cells))} |" in text


def test_the_corpus_is_as_large_as_the_study_needs(found):
    assert sum(split["articles"] for split in found.values()) >= 60
    assert sum(split["passages"] for split in found.values()) >= 240
    assert sum(split["questions"] for split in found.values()) >= 2000
    assert found["dev"]["questions"] >= 500


def test_the_showcase_is_the_papers_question_and_eight_over_eight_passages():
    showcase = read_squad(CORPUS / "dev/showcase.json")
    assert len(showcase) == len({q.context for q in showcase}) == len({q.name for q in showcase}) == 9
    papers = next(q for q in showcase if q.name == "beyonce")
    assert papers.question.lower() == "when did beyonce start becoming popular?"
    assert papers.golds[0] == "late 1990s"
    assert 2 <= sum(q.is_impossible for q in showcase) <= 4


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A corpus of two articles a split that passes, but for its balance, which ``lenient`` leaves out."""
    place = tmp_path_factory.mktemp("corpus")
    for split, names in (("train", ("venice", "rubber")), ("dev", ("lego", "hokusai"))):
        (place / split).mkdir()
        for name in names:
            shutil.copy(CORPUS / split / f"{name}.json", place / split)
    return place


@pytest.fixture
def lenient(monkeypatch):
    monkeypatch.setattr(corpus, "KIND_SHARE", (0, 1))
    monkeypatch.setattr(corpus, "WORD_SHARE", 0)


def changed(small, tmp_path, change):
    """A copy of the small corpus in which ``change`` has altered the first passage of Lego (dev)."""
    place = shutil.copytree(small, tmp_path / "corpus")
    file = place / "dev/lego.json"
    root = json.loads(file.read_text(encoding="utf-8"))
    paragraph = root["data"][0]["paragraphs"][0]
    change(paragraph, next(q for q in paragraph["qas"] if not q["is_impossible"]), paragraph["qas"][-1])
    file.write_text(json.dumps(root), encoding="utf-8")
    return place


def test_a_sound_corpus_passes(small, lenient):
    assert check_corpus(small)["dev"]["articles"] == 2


FAULTS = {
    "mark": (lambda p, a, u: a.update(question=a["question"][:-1]), "a question ends with a question mark"),
    "spaces": (lambda p, a, u: a.update(question=a["question"].replace(" ", "  ", 1)), "two spaces in a row"),
    "control": (lambda p, a, u: a.update(question="\u0007" + a["question"]), "the question holds U+0007"),
    "copied": (
        lambda p, a, u: a.update(question=f"Is it true: {' '.join(p['context'].split()[:9])}?"),
        "copies 7 words",
    ),
    "twice": (lambda p, a, u: p["qas"].append(a | {"id": "other"}), "asked twice"),
    "kind": (lambda p, a, u: u.update(kind="hard"), "'kind' is 'hard'; allowed: negation, antonym"),
    "no plausible": (lambda p, a, u: u.pop("plausible_answers"), "has 'plausible_answers'; found none"),
    "plausible": (lambda p, a, u: u["plausible_answers"][0].update(answer_start=1), "does not stand at 1"),
    "part": (
        lambda p, a, u: a.update(answers=[{"text": "arpenter", "answer_start": p["context"].index("arpenter")}]),
        "an answer takes whole words; found 'arpenter'",
    ),
    "long": (
        lambda p, a, u: a.update(answers=[{"text": " ".join(p["context"].split()[:15]), "answer_start": 0}]),
        "at most 14 words",
    ),
    "short": (
        lambda p, a, u: p.update(context=" ".join(p["context"].split()[:50]), qas=[]) or p["qas"].append(u),
        "words;",
    ),
    "split": (
        lambda p, a, u: [q.update(is_impossible=True, answers=[], **extra(u)) for q in p["qas"]],
        "are unanswerable",
    ),
}


def extra(unanswerable):
    return {key: unanswerable[key] for key in ("kind", "plausible_answers")}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_refused_by_name(name, small, lenient, tmp_path):
    change, said = FAULTS[name]
    with pytest.raises(InputError) as refused:
        check_corpus(changed(small, tmp_path, change))
    assert any(said in line and "dev" in line for line in str(refused.value).splitlines())


def test_an_unbalanced_corpus_is_refused(small, monkeypatch):
    monkeypatch.setattr(corpus, "KIND_SHARE", (0.4, 1))
    monkeypatch.setattr(corpus, "WORD_SHARE", 0.5)
    with pytest.raises(InputError) as refused:
        check_corpus(small)
    said = str(refused.value)
    assert "of kind 'negation'; allowed: 40% to 100%" in said
    assert "questions ask 'why'; allowed: 50% of them or more" in said


def test_a_passage_that_comes_back_in_the_other_split_is_found():
    one = " ".join(f"word{n}" for n in range(40))
    assert list(near_duplicates([one], [one.replace("word20", "other")]))
    assert not list(near_duplicates([one], [" ".join(f"word{n}" for n in range(33, 73))]))  # 3 of 36 sequences


def test_characters_that_do_not_print_or_are_not_composed():
    assert unreadable("Søren Eilers \u2013 map") is None
    assert unreadable("e\u0301") == "U+0065"
    assert unreadable("a\u200bb") == "U+200B"
    assert unreadable("a\ufffdb") == "U+FFFD"


@pytest.mark.parametrize(
    ("question", "word"),
    [
        ("In which year was it?", "which"),
        ("How many were there?", "how many"),
        ("How much was it?", "how"),
        ("By whom was it built?", "who"),
        ("Name the river.", "other"),
    ],
)
def test_question_words(question, word):
    assert question_word(question) == word


def bertlift(*arguments, cwd=ROOT):
    command = [sys.executable, "-c", "from bertlift.cli import main; main()", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_the_command_prints_the_balance_or_the_faults(found, small, tmp_path):
    told = bertlift("corpus", "check")
    assert told.returncode == 0
    assert json.loads(told.stdout) == found
    told = bertlift("corpus", "check", str(small))
    assert told.returncode == 1
    assert all(line.startswith("bertlift corpus: ") for line in told.stderr.splitlines())
    told = bertlift("corpus", "check", str(tmp_path / "nothing"))
    assert (told.returncode, len(told.stderr.splitlines())) == (1, 1)
    assert "no such file" in told.stderr
    told = bertlift("corpus", "chek")
    assert (told.returncode, told.stderr) == (2, "bertlift corpus: given chek; allowed: check [directory]\n")
