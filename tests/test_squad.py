"""Reading and writing SQuAD JSON, its faults, splits, and the corpus that ships with the project."""

from __future__ import annotations

import copy
import errno
import json
import os
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertlift.errors import InputError
from bertlift.files import replacing, write_json, write_text
from bertlift.squad.schema import Answer, Question, check_splits, read_squad, spread, write_squad
from conftest import SHARED

GOOD = {
    "version": "v2.0",
    "data": [
        {
            "title": "Rivers",
            "paragraphs": [
                {
                    "context": "The Danube ends in the Black Sea.",
                    "qas": [
                        {
                            "id": "q1",
                            "question": "Where does it end?",
                            "answers": [{"text": "the Black Sea", "answer_start": 19}],
                            "is_impossible": False,
                        },
                        {"id": "q2", "question": "Who named it?", "answers": [], "is_impossible": True},
                    ],
                }
            ],
        }
    ],
}


def saved(path, data):
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return path


def changed(change):
    data = copy.deepcopy(GOOD)
    article = data["data"][0]
    change(data, article, article["paragraphs"][0], article["paragraphs"][0]["qas"])
    return data


def test_a_good_file_is_read(tmp_path):
    first, second = read_squad(saved(tmp_path / "good.json", GOOD))
    assert (first.id, first.title, first.golds, first.is_impossible) == ("q1", "Rivers", ["the Black Sea"], False)
    assert (second.golds, second.is_impossible) == ([], True)


def test_squad_1_1_has_no_is_impossible(tmp_path):
    data = changed(lambda d, a, p, q: (q.pop(1), q[0].pop("is_impossible"), d.pop("version")))
    assert read_squad(saved(tmp_path / "old.json", data))[0].golds == ["the Black Sea"]


QUESTION = ": article 'Rivers': question q1: "


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda d, a, p, q: q[0]["answers"][0].update(answer_start=4),
            QUESTION + "answer_start 4 points at 'Danube ends i'",
        ),
        (lambda d, a, p, q: q[0]["answers"][0].update(answer_start=-1), QUESTION + "answer_start -1 points at ''"),
        (
            lambda d, a, p, q: q[0]["answers"][0].update(answer_start="x"),
            QUESTION + "'answer_start' must be int, found str",
        ),
        (
            lambda d, a, p, q: q[0]["answers"][0].update(answer_start=True),
            QUESTION + "'answer_start' must be int, found bool",
        ),
        (lambda d, a, p, q: q[0].update(question="\ud800?"), QUESTION + "'question' holds half a surrogate pair"),
        (
            lambda d, a, p, q: q[0].update(id="a\nb"),
            ": article 'Rivers': paragraph 0: 'id' must be printable, found 'a\\nb'",
        ),
        (lambda d, a, p, q: q[0]["answers"][0].pop("text"), QUESTION + "key 'text' is missing"),
        (lambda d, a, p, q: q[0].update(answers=[]), QUESTION + "there is no answer; set is_impossible"),
        (
            lambda d, a, p, q: q[0].update(is_impossible=True),
            QUESTION + "is_impossible is true, but there are 1 answers",
        ),
        (
            lambda d, a, p, q: q[0].update(is_impossible="no"),
            QUESTION + "'is_impossible' must be true or false, found 'no'",
        ),
        (lambda d, a, p, q: q[0].update(question=" "), QUESTION + "the question is empty"),
        (lambda d, a, p, q: q[0].update(question=None), QUESTION + "'question' must be str, found NoneType"),
        (lambda d, a, p, q: q[0].update(name=3), QUESTION + "'name' must be a string, found 3"),
        (lambda d, a, p, q: q[0].pop("answers"), QUESTION + "key 'answers' is missing"),
        (lambda d, a, p, q: q[1].update(id="q1"), QUESTION + "this id was used before, in "),
        (lambda d, a, p, q: q[0].pop("id"), ": article 'Rivers': paragraph 0: key 'id' is missing"),
        (lambda d, a, p, q: p.update(context="  "), ": article 'Rivers': paragraph 0: the context is empty"),
        (lambda d, a, p, q: p.pop("context"), ": article 'Rivers': paragraph 0: key 'context' is missing"),
        (lambda d, a, p, q: p.update(qas={}), ": article 'Rivers': paragraph 0: 'qas' must be list, found dict"),
        (lambda d, a, p, q: a.pop("title"), ": article 0: key 'title' is missing"),
        (lambda d, a, p, q: d.update(data=[3]), ": article 0: expected an object with 'title', found int"),
        (lambda d, a, p, q: d.pop("data"), ": key 'data' is missing"),
        (lambda d, a, p, q: d.update(data=[]), ": holds no question"),
    ],
)
def test_a_fault_is_one_line_with_file_article_and_id(tmp_path, change, said):
    file = saved(tmp_path / "bad.json", changed(change))
    with pytest.raises(InputError) as refused:
        read_squad(file)
    assert str(refused.value).startswith(f"{file}{said}")
    assert len(str(refused.value).splitlines()) == 1


def test_all_faults_are_told_at_once(tmp_path):
    def change(d, a, p, q):
        q[0]["answers"][0]["answer_start"] = 1
        q[1]["is_impossible"] = False

    with pytest.raises(InputError) as refused:
        read_squad(saved(tmp_path / "bad.json", changed(change)))
    assert [line.split(": ")[2] for line in str(refused.value).splitlines()] == ["question q1", "question q2"]


def test_many_faults_are_counted_not_poured_out(tmp_path):
    qas = [{"id": f"q{number}", "question": "", "answers": [], "is_impossible": True} for number in range(50)]
    with pytest.raises(InputError) as refused:
        read_squad(saved(tmp_path / "bad.json", changed(lambda d, a, p, q: p.update(qas=qas))))
    lines = str(refused.value).splitlines()
    assert len(lines) == 21
    assert lines[-1] == "... and 30 more"


def test_broken_json_names_line_and_column(tmp_path):
    file = saved(tmp_path / "broken.json", '{"data": [\n  {"title": }\n]}')
    with pytest.raises(InputError, match=r"broken\.json: not valid JSON: Expecting value at line 2, column 13"):
        read_squad(file)


def test_json_that_is_nested_too_deeply_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"deep\.json: not valid JSON for SQuAD: it is nested too deeply"):
        read_squad(saved(tmp_path / "deep.json", "[" * 100_000))


def test_a_number_too_long_for_python_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"long\.json: not valid JSON: Exceeds the limit"):
        read_squad(saved(tmp_path / "long.json", "9" * 5000))


def test_missing_and_unreadable_files(tmp_path):
    with pytest.raises(InputError, match=r"none\.json: no such file; give a SQuAD JSON file or a directory"):
        read_squad(tmp_path / "none.json")
    with pytest.raises(InputError, match=r"holds no \*\.json file"):
        read_squad(tmp_path)
    (tmp_path / "latin.json").write_bytes(b'{"data": "\xe9"}')
    with pytest.raises(InputError, match=r"latin\.json: cannot be read"):
        read_squad(tmp_path / "latin.json")


def test_a_directory_is_read_in_the_order_of_names_and_ids_are_unique_over_its_files(tmp_path):
    saved(tmp_path / "b.json", changed(lambda d, a, p, q: [each.update(id=f"b{each['id']}") for each in q]))
    saved(tmp_path / "a.json", GOOD)
    assert [question.id for question in read_squad(tmp_path)] == ["q1", "q2", "bq1", "bq2"]
    saved(tmp_path / "c.json", GOOD)
    with pytest.raises(InputError) as refused:
        read_squad(tmp_path)
    assert str(refused.value).count(f"this id was used before, in {tmp_path / 'a.json'}") == 2


def make(title, identity):
    return Question(identity, "Who?", "Ann did.", title, (Answer("Ann", 0),))


def test_an_article_in_both_splits_is_refused():
    with pytest.raises(InputError, match=r"dev\.json: article 'A': is in train\.json too; split by article"):
        check_splits([make("A", "1"), make("B", "2")], [make("A", "3")], ("train.json", "dev.json"))
    with pytest.raises(InputError, match=r"dev\.json: article 'C': question 1: this id is in train\.json too"):
        check_splits([make("A", "1")], [make("C", "1")], ("train.json", "dev.json"))
    check_splits([make("A", "1")], [make("C", "2")], ("train.json", "dev.json"))


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(str.strip)


@st.composite
def data_sets(draw):
    questions = []
    for number in range(draw(st.integers(1, 6))):
        context = draw(TEXT)
        start = draw(st.integers(0, len(context) - 1))
        text = context[start : draw(st.integers(start + 1, len(context)))]
        answers = draw(st.sampled_from([(), (Answer(text, start),), (Answer(text, start), Answer(context, 0))]))
        name = draw(st.none() | TEXT)
        questions.append(Question(f"id{number}", draw(TEXT), context, draw(TEXT), answers, name))
    return questions


@given(questions=data_sets())
def test_what_is_written_is_read_back(tmp_path_factory, questions):
    file = tmp_path_factory.mktemp("round") / "data.json"
    write_squad(file, questions)
    assert sorted(read_squad(file), key=lambda q: q.id) == questions


@given(st.lists(st.sampled_from("ABCD"), min_size=1, max_size=40), st.integers(1, 50))
def test_a_limit_is_spread_over_the_articles_and_keeps_the_order(titles, limit):
    questions = [make(title, str(number)) for number, title in enumerate(titles)]
    kept = spread(questions, limit)
    assert len(kept) == min(limit, len(questions))
    assert [int(q.id) for q in kept] == sorted(int(q.id) for q in kept)
    taken, there = Counter(q.title for q in kept), Counter(titles)
    # No article has two more than another that still had questions to give.
    assert all(taken[a] <= taken[b] + 1 for a in taken for b in there if taken[b] < there[b])
    assert spread(questions, None) == questions


def test_a_limit_takes_questions_of_all_kinds_where_a_file_lists_one_kind_first():
    questions = [make("A", str(number)) for number in range(100)]
    kept = {int(q.id) for q in spread(questions, 40)}
    assert 10 <= len(kept & set(range(50))) <= 30


def test_a_failed_write_leaves_the_old_file(tmp_path):
    write_text(tmp_path / "file.txt", "old")
    with pytest.raises(RuntimeError), replacing(tmp_path / "file.txt") as new:
        new.write_text("half")
        raise RuntimeError
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "file.txt", float("nan"))
    assert (tmp_path / "file.txt").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file.txt"]


def test_a_directory_is_replaced_whole_or_not_at_all(tmp_path):
    for content in ("old", "new"):
        with replacing(tmp_path / "folder") as new:
            write_text(new / "deep" / content, content)
    assert [path.name for path in (tmp_path / "folder/deep").iterdir()] == ["new"]
    with pytest.raises(RuntimeError), replacing(tmp_path / "folder") as new:
        write_text(new / "other", "half")
        raise RuntimeError
    assert [path.name for path in tmp_path.rglob("*")] == ["folder", "deep", "new"]


def test_if_the_last_step_fails_the_old_directory_is_back(tmp_path, monkeypatch):
    write_text(tmp_path / "old/file", "old")
    replace = os.replace

    def full(source, target):
        if str(target) == str(tmp_path / "old"):
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"), replacing(tmp_path / "old") as new:
        write_text(new / "file", "new")
    assert (tmp_path / "old/file").read_text() == "old"
    monkeypatch.undo()
    with replacing(tmp_path / "old") as new:
        write_text(new / "file", "new")
    assert [path.name for path in tmp_path.rglob("*")] == ["old", "file"]


@pytest.mark.skipif(not SHARED.is_dir(), reason="real SQuAD 2.0 data is not here")
@pytest.mark.parametrize(("name", "count"), [("squad2-train", 3708), ("squad2-dev", 1105), ("paper-example", 1)])
def test_real_squad_is_read_without_a_fault(name, count):
    assert len(read_squad(SHARED / f"{name}.json")) == count
