"""Confidence: measures worked out by hand, planted cases, and nothing that knows the gold answer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupKFold

from bertlift.analysis import confidence
from bertlift.analysis.confidence import (
    EXPLANATION,
    SPAN,
    area_under_roc,
    calibration_error,
    compare,
    features,
    out_of_fold,
    risk_coverage,
)
from bertlift.config import Confidence
from samples import sample


def test_risk_and_coverage_by_hand():
    """By confidence: right, wrong, right, wrong: 0, 1/2, 1/3, 2/4 of the answers so far are wrong."""
    found = risk_coverage(np.array([0.2, 0.9, 0.6, 0.4]), np.array([False, True, False, True]))
    assert found == pytest.approx([0, 1 / 2, 1 / 3, 1 / 2])


def test_calibration_error_by_hand(monkeypatch):
    """Two bins: confidence .2 with half right (off by .3), confidence .8 with all right (off by .2)."""
    monkeypatch.setattr(confidence, "BINS", 2)
    given = np.array([0.1, 0.9, 0.3, 0.7])
    assert calibration_error(given, np.array([True, True, False, True])) == pytest.approx(0.25)


def test_the_area_under_roc_is_the_usual_one():
    random = np.random.default_rng(0)
    given, right = random.integers(0, 9, 200) / 9, random.random(200) < 0.6  # with ties
    assert area_under_roc(given, right) == pytest.approx(roc_auc_score(right, given))
    assert np.isnan(area_under_roc(given, np.ones(200, dtype=bool)))


def test_the_gold_answer_changes_no_feature():
    one = sample()
    blind, other = replace(one, golds=[], gold_starts=[]), replace(one, golds=["album"], gold_starts=[18])
    assert features(one, 1.0) == features(blind, 1.0) == features(other, 1.0)
    assert list(features(one, 1.0)) == [*SPAN, *EXPLANATION]
    assert all(np.isfinite(list(features(one, None).values())))


@pytest.fixture(autouse=True)
def fewer_samples(monkeypatch):
    monkeypatch.setattr(confidence, "TIMES", 200)


def answers(count, seed, told_by=None):
    """Half of the answers are right, ten an article; ``told_by`` is larger where they are."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(count):
        right = bool(random.random() < 0.5)
        one = sample(
            question_id=str(number),
            title=f"article {number // 10}",
            answer="2003" if right else "album",
            scores=random.normal(size=sample().scores.shape).astype(np.float32),
            gradient=float(np.exp(random.normal() + (3 * right if told_by == "explanation" else 0))),
            start_logits=random.normal(size=len(sample().tokens)).astype(np.float32),
            span_score=float(random.normal() + (3 * right if told_by == "span" else 0)),
        )
        found.append(one)
    return found, [0.0] * count


def test_an_explanation_that_knows_adds_to_probabilities_that_do_not():
    found = compare(*answers(200, 1, "explanation"), Confidence())
    assert found["features"]["both"]["ci_low"] > 0.9
    assert found["differences"]["both - span"]["auroc"]["ci_low"] > 0.2
    assert found["differences"]["both - span"]["aurc"]["ci_high"] < 0
    assert max(found["weights"], key=lambda name: found["weights"][name]) == "gradient"


def test_an_explanation_that_knows_nothing_adds_nothing():
    found = compare(*answers(200, 2, "span"), Confidence())
    assert found["features"]["span"]["ci_low"] > 0.8
    assert found["differences"]["both - span"]["auroc"]["ci_low"] < 0.02
    none = compare(*answers(200, 3), Confidence())
    for each in ("span", "explanation", "both"):
        assert none["features"][each]["ci_low"] < 0.5
        assert none["features"][each]["auroc"] < 0.6


def test_no_article_is_on_both_sides(monkeypatch):
    seen = []
    usual = GroupKFold.split

    def split(self, values, y=None, groups=None):
        for train, test in usual(self, values, y, groups):
            seen.append(({groups[index] for index in train}, {groups[index] for index in test}))
            yield train, test

    monkeypatch.setattr(GroupKFold, "split", split)
    random = np.random.default_rng(0)
    titles = [f"article {number % 7}" for number in range(70)]
    assert out_of_fold(random.normal(size=(70, 2)), random.random(70) < 0.5, titles, 10) is not None
    assert len(seen) == 7
    assert all(not train & test for train, test in seen)


@pytest.mark.parametrize("count", [1, 9])
def test_too_few_articles_are_no_fault(count):
    found = compare(*answers(count, 4), Confidence())
    assert found["features"] == {}
    assert found["questions"] == count


def test_answers_that_are_all_right_are_no_fault():
    given = [sample(question_id=str(number), title=str(number)) for number in range(20)]
    assert compare(given, [None] * 20, Confidence())["features"] == {}
