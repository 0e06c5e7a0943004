"""SQuAD's official measures: by hand, against the official script's output, and what must always hold."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertlift.errors import InputError
from bertlift.squad.metrics import evaluate, exact_match, f1, normalize
from bertlift.squad.schema import Answer, Question, read_squad
from conftest import SHARED


def question(identity, *golds):
    context = " | ".join(golds) or "nothing"
    answers = tuple(Answer(gold, context.index(gold)) for gold in golds)
    return Question(identity, "What?", context, "Article", answers)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Beatles' 'White' Album!", "beatles white album"),
        ("an apple, a day", "apple day"),
        ("theory of a thing", "theory of thing"),  # articles only as whole words
        ("U.S.", "us"),
        ("Beyoncé — “Halo”", "beyoncé — “halo”"),  # only ASCII punctuation goes, accents stay
        ("the", ""),
        ("ﬁve\u00a0pounds\n", "ﬁve pounds"),
    ],
)
def test_normalisation(text, expected):
    assert normalize(text) == expected


@pytest.mark.parametrize(
    ("gold", "predicted", "exact", "overlap"),
    [
        ("the Black Sea", "Black Sea", 1, 1),
        ("late 1990s", "in the late 1990s", 0, 0.8),  # precision 2/3, recall 1: 2 * 2 / (3 + 2)
        ("one two two", "two two three", 0, 2 / 3),  # counted with repeats: 2 shared of 3 and 3
        ("cat", "dog", 0, 0),
        ("", "", 1, 1),
        ("", "dog", 0, 0),
        ("dog", "", 0, 0),
        ("the", "", 1, 1),
    ],
)
def test_one_answer_by_hand(gold, predicted, exact, overlap):
    assert exact_match(gold, predicted) == exact
    assert f1(gold, predicted) == pytest.approx(overlap)


def test_a_data_set_by_hand():
    questions = [
        question("a", "late 1990s", "the nineties"),  # "nineties": the second gold, exactly
        question("b", "Black Sea"),  # "the Sea": F1 2 * 1 / (1 + 2) = 2/3
        question("c"),  # rightly unanswered
        question("d"),  # wrongly answered
    ]
    answers = {"a": "nineties", "b": "the Sea", "c": "", "d": "Danube"}
    found = evaluate(questions, answers, {"a": 0.1, "b": 0.4, "c": 0.9, "d": 0.6})
    assert found == pytest.approx(
        {
            "exact": 50.0,
            "f1": 100 * (1 + 2 / 3 + 1 + 0) / 4,
            "total": 4,
            "HasAns_exact": 50.0,
            "HasAns_f1": 100 * (1 + 2 / 3) / 2,
            "HasAns_total": 2,
            "NoAns_exact": 50.0,
            "NoAns_f1": 50.0,
            "NoAns_total": 2,
            # All unanswered: 2 of 4 right (c and d). Answer a: 3. Answer b: 3 exact, 3 2/3 by F1. Answer d: one less.
            "best_exact": 75.0,
            "best_exact_thresh": 0.1,
            "best_f1": 100 * (3 + 2 / 3) / 4,
            "best_f1_thresh": 0.4,
        }
    )


def test_where_no_answer_helps_the_best_threshold_is_the_scripts_zero():
    found = evaluate([question("a", "cat"), question("b")], {"a": "dog", "b": "dog"}, {"a": 0.2, "b": 0.1})
    assert (found["best_exact"], found["best_exact_thresh"]) == (50.0, 0.0)


def test_a_no_answer_probability_above_one_takes_the_text_away():
    found = evaluate([question("a", "cat"), question("b")], {"a": "cat", "b": "dog"}, {"a": 1.5, "b": 1.5})
    assert (found["HasAns_exact"], found["NoAns_exact"]) == (0, 100)


def test_answers_or_probabilities_that_are_missing_are_named():
    with pytest.raises(InputError, match="1 questions have no prediction, the first is b"):
        evaluate([question("a", "x"), question("b")], {"a": "x"})
    with pytest.raises(InputError, match="no no-answer probability, the first is a"):
        evaluate([question("a", "x")], {"a": "x"}, {})
    with pytest.raises(InputError, match="no questions"):
        evaluate([], {})


@pytest.mark.skipif(not SHARED.is_dir(), reason="the official script's case is not here")
def test_the_numbers_are_those_of_the_official_script():
    case = SHARED / "official-case"
    answers, na_prob, plain, with_na_prob = (
        json.loads((case / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("predictions", "na_prob", "expected", "expected_with_na_prob")
    )
    questions = read_squad(case / "data.json")
    assert evaluate(questions, answers) == plain
    assert evaluate(questions, answers, na_prob) == with_na_prob


WORDS = st.lists(st.sampled_from(["the", "a", "black", "sea", "1990s", "Beyoncé", "!"]), max_size=5).map(" ".join)


@given(WORDS, WORDS)
def test_f1_is_symmetric_within_bounds_and_one_where_the_match_is_exact(one, other):
    assert f1(one, other) == f1(other, one)
    assert 0 <= f1(one, other) <= 1
    assert exact_match(one, other) <= f1(one, other)
    assert f1(one, one) == exact_match(one, one) == 1


@given(st.lists(st.tuples(WORDS, WORDS, st.floats(0, 1)), min_size=1, max_size=8), st.randoms())
def test_the_order_of_questions_does_not_matter_and_best_is_best(rows, random):
    questions = [question(str(index), *([gold] if gold else [])) for index, (gold, _, _) in enumerate(rows)]
    answers = {str(index): answer for index, (_, answer, _) in enumerate(rows)}
    na_prob = {str(index): value for index, (_, _, value) in enumerate(rows)}
    found = evaluate(questions, answers, na_prob)
    shuffled = random.sample(questions, len(questions))
    assert evaluate(shuffled, answers, na_prob) == pytest.approx(found)
    assert found["best_exact"] <= found["best_f1"] + 1e-9
    golds = evaluate(questions, {q.id: q.golds[0] if q.golds else "" for q in questions})
    assert golds["exact"] == golds["f1"] == 100
