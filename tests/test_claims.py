"""The claims: planted attributions in which they are true, and in which they are not, get the right verdict."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bertlift.analysis.claims import (
    CLAIMS,
    CONSTRUCTION,
    FEWEST,
    NOT_SUPPORTED,
    SUPPORTED,
    UNDECIDED,
    distances,
    judge,
    mean_layer,
    thirds,
)
from bertlift.analysis.groups import GROUPS
from bertlift.analysis.trajectories import trajectory
from samples import planted, sample

# Rows: embedding, layers 1 to 4; early 1, middle 2, late 3; all other groups share what is left.
FLAT = {"passage_function": [0.2] * 5, "answer_sentence": [0.2] * 5, "question_function": [0.2] * 5}
END = {"answer": [0.1, 0.1, 0.1, 0.1, 50.0]}


def shares(**groups):
    return {**FLAT, **END, **groups}


def many(found, count=20, **changes):
    return [trajectory(planted(found, seed=seed, question_id=f"q{seed}", **changes)) for seed in range(count)]


def verdicts(reader, **controls):
    return {each["claim"]: each["verdict"] for each in judge(reader, controls, seed=1)}


TRUE_AND_FALSE = {
    "separators_early": (
        {"first_separator": [1, 1, 1, 0.1, 1], "last_separator": [1, 1, 1, 0.1, 1]},
        {"first_separator": [0.001] * 5, "last_separator": [0.001] * 5},
    ),
    "separators_fall": (
        {"first_separator": [1, 1, 0.5, 0.1, 0], "last_separator": [1, 1, 0.5, 0.1, 0]},
        {"first_separator": [0, 0.1, 0.5, 1, 1], "last_separator": [0, 0.1, 0.5, 1, 1]},
    ),
    "punctuation_after_separators": (
        {"first_separator": [1, 1, 0.1, 0.1, 0], "punctuation": [0, 0.1, 1, 1, 0]},
        {"first_separator": [0, 0.1, 0.1, 1, 0], "punctuation": [1, 1, 1, 0.1, 0]},
    ),
    "content_after_punctuation": (
        {"punctuation": [1, 1, 0.1, 0.1, 0], "question_keyword": [0, 0.1, 1, 1, 0]},
        {"punctuation": [0, 0.1, 1, 1, 0], "question_keyword": [1, 1, 0.1, 0.1, 0]},
    ),
    "keywords_early": (
        {"question_keyword": [2, 2, 0.1, 0.1, 0]},
        {"question_keyword": [2, 0.001, 1, 1, 0]},
    ),
    "keywords_lost": (
        {"question_keyword": [1, 1, 0.1, 1, 0]},
        {"question_keyword": [0.1, 0.1, 1, 1, 0]},
    ),
    "keywords_return": (
        {"question_keyword": [1, 1, 0.1, 1, 0]},
        {"question_keyword": [1, 1, 1, 0.1, 0]},
    ),
    "spread_narrows": ({"answer": [0.1, 0.1, 1, 9, 50]}, {"answer": [9, 9, 1, 0.1, 50]}),
    "answer_grows": ({"answer": [0.1, 0.1, 1, 9, 50]}, {"answer": [9, 9, 1, 0.1, 50]}),
}


@pytest.mark.parametrize("claim", TRUE_AND_FALSE)
def test_a_claim_is_supported_where_it_was_planted_and_not_where_the_contrary_was(claim):
    true, false = (many(shares(**each)) for each in TRUE_AND_FALSE[claim])
    flat = many(shares())
    assert verdicts(true, random_weights=flat)[claim] == SUPPORTED
    assert verdicts(true)[claim] == SUPPORTED
    assert verdicts(false, random_weights=flat)[claim] == NOT_SUPPORTED


def test_what_random_weights_show_as_well_is_true_by_construction():
    both = many(shares(**TRUE_AND_FALSE["separators_fall"][0]))
    assert verdicts(both, random_weights=both)["separators_fall"] == CONSTRUCTION


def test_little_more_than_nothing_is_undecided():
    random = np.random.default_rng(2)
    reader = []
    for seed in range(30):
        rising = random.random() < 0.5
        values = [0.1, 0.1, 0.5, 1, 0] if rising else [1, 1, 0.5, 0.1, 0]
        reader += [trajectory(planted(shares(first_separator=values), seed=seed, question_id=f"q{seed}"))]
    assert verdicts(reader)["separators_fall"] == UNDECIDED


def test_a_handful_of_questions_decides_nothing():
    found = judge(many(shares(**TRUE_AND_FALSE["answer_grows"][0]), FEWEST - 1), {}, seed=1)
    assert {each["verdict"] for each in found} == {UNDECIDED}


def test_scores_of_the_input_alone_decide_nothing_about_layers():
    one = sample()
    single = sample(**{name: getattr(one, name)[:1] for name in ("scores", "positive", "negative", "delta", "hidden")})
    told = verdicts([trajectory(replace(single, question_id=f"q{number}")) for number in range(20)])
    assert {told[name] for name in TRUE_AND_FALSE} == {UNDECIDED}


def test_the_output_is_on_the_answer_by_construction():
    only = {name: [*values[:-1], 0.0] for name, values in shares().items() if name != "answer"} | END
    reader = many(only)
    found = next(each for each in judge(reader, {}, seed=1) if each["claim"] == "output_on_answer")
    assert (found["verdict"], found["statistic"]) == (CONSTRUCTION, pytest.approx(1))
    assert "linear function" in found["because"]
    assert verdicts(many(shares()))["output_on_answer"] == NOT_SUPPORTED


NO_GOLD = {"golds": [], "gold_starts": []}


@pytest.mark.parametrize(("unanswerable", "verdict"), [(0.5, SUPPORTED), (4.0, NOT_SUPPORTED)])
def test_gradients_of_unanswerable_questions(unanswerable, verdict):
    """Every third question has "no answer" for its answer, with a gradient that hides the difference."""
    random = np.random.default_rng(0)
    reader = []
    for number in range(60):
        size = (unanswerable if number % 2 else 2.0) * float(np.exp(0.1 * random.normal()))
        changes = {"question_id": f"q{number}", "gradient": size} | (NO_GOLD if number % 2 else {})
        if number % 3 == 0:
            changes |= {"answer": "", "start": 0, "end": 0, "gradient": 2.0 if number % 2 else unanswerable}
        reader.append(trajectory(planted(shares(), **changes)))
    told = verdicts(reader)
    assert told["unanswerable_gradient_answered"] == verdict
    assert verdicts([each for each in reader if each.answered])["unanswerable_gradient"] == verdict


@pytest.mark.parametrize(("unanswerable", "verdict"), [(3.0, SUPPORTED), (0.1, NOT_SUPPORTED)])
def test_the_score_of_unanswerable_questions_in_the_question(unanswerable, verdict):
    reader = []
    for number in range(40):
        found = shares(question_word=[unanswerable if number % 2 else 1.0] * 5)
        reader.append(
            trajectory(planted(found, seed=number, question_id=f"q{number}", **(NO_GOLD if number % 2 else {})))
        )
    assert verdicts(reader)["unanswerable_question"] == verdict


def test_right_and_wrong_answers_part_where_it_was_planted():
    right = many(shares(), 20)
    elsewhere = shares(punctuation=[0, 0, 0, 1.0, 0])
    wrong = [
        trajectory(planted(elsewhere, seed=seed, question_id=f"w{seed}", golds=["album"], gold_starts=[18]))
        for seed in range(20)
    ]
    found = judge([*right, *wrong], {}, seed=1)[-1]
    assert (found["claim"], found["verdict"], found["clearest_layer"]) == ("right_and_wrong", SUPPORTED, 3)
    assert found["p_values"][3] < 0.05
    # Who missed a gold answer has a group more. Alone that is no other way: its words are content to the reader.
    missed = shares(gold_answer=[0.3] * 5)
    wrong = [
        trajectory(planted(missed, seed=seed, question_id=f"w{seed}", golds=["album"], gold_starts=[18]))
        for seed in range(20)
    ]
    alike = [replace(each, positive=each.positive.copy()) for each in wrong]
    for each in alike:  # the same share, on content
        content, gold = GROUPS.index("passage_content"), GROUPS.index("gold_answer")
        each.positive[:, content] += each.positive[:, gold]
        each.positive[:, gold] = 0
    right = [replace(each, right=True, question_id=f"r{number}") for number, each in enumerate(alike)]
    assert judge([*right, *wrong], {}, seed=1)[-1]["verdict"] == NOT_SUPPORTED
    alike = [replace(each, right=number % 2 == 0) for number, each in enumerate(many(shares(), 40))]
    same = judge(alike, {}, seed=1)[-1]
    assert (same["verdict"], same["first_layer"]) == (NOT_SUPPORTED, None)


def test_the_distance_by_hand():
    profiles = np.array([[[1.0, 0, 0]], [[0.5, 0.5, 0]], [[0, 0, 1.0]]])
    assert distances(profiles, np.array([True, True, False])) == pytest.approx([1.0])
    assert distances(profiles, np.array([True, False, False])) == pytest.approx([0.75])


def test_depth_by_hand():
    assert [each.tolist() for each in thirds(7)] == [[1, 2], [3, 4], [5]]
    assert [len(each) for each in thirds(4)] == [0, 0, 0]
    assert mean_layer(np.array([9.0, 1, 0, 3, 9])) == pytest.approx((1 * 1 + 3 * 3) / 4)
    assert np.isnan(mean_layer(np.zeros(5)))


def test_the_example_and_the_controls_are_told():
    reader = many(shares(**TRUE_AND_FALSE["answer_grows"][0]))
    control = many(shares())[:10]
    found = {each["claim"]: each for each in judge(reader, {"wrong_span": control}, 1, example="q3")}
    assert len(found) == len(CLAIMS) + 1
    own = found["answer_grows"]
    assert own["example"] == pytest.approx(own["statistic"], abs=0.1)
    assert own["controls"]["random_weights"] is None
    assert own["controls"]["wrong_span"]["questions"] == 10
    assert own["ci_low"] <= own["statistic"] <= own["ci_high"]
