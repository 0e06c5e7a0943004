"""Words, token groups, profiles, clusters and the map."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import silhouette_score

from bertlift.analysis.clusters import association, cluster, stability
from bertlift.analysis.groups import GROUPS, question_word_of, token_groups
from bertlift.analysis.profile import profile, representation
from bertlift.analysis.projection import project
from bertlift.analysis.words import word_scores, words_of
from bertlift.attribution import load_attributions, save_attributions
from bertlift.config import Clusters, Map
from bertlift.errors import InputError
from samples import sample


def test_words_are_the_users_own_with_their_spaces():
    words = words_of(sample())
    text = "".join(("" if word.glued else " ") + word.text for word in words)
    expected = " [CLS] When did Beyoncé win $5? [SEP] In 2003 Beyoncé's album won; it made $5, <b>not</b> $6. [SEP]"
    assert text == expected
    assert sorted(token for word in words for token in word.tokens) == list(range(len(sample().tokens)))


def test_the_scores_of_words_add_up_to_those_of_their_tokens():
    one = sample()
    words = words_of(one)
    scores = word_scores(words, one.scores)
    assert scores.shape == (3, len(words))
    np.testing.assert_allclose(scores.sum(1), one.scores.astype(float).sum(1), atol=1e-5)
    name = next(index for index, word in enumerate(words) if word.text == "Beyoncé")
    assert scores[0, name] == pytest.approx(float(one.scores[0, 3]) + float(one.scores[0, 4]))


def test_every_token_has_the_group_that_a_reader_would_give_it():
    one = sample()
    found = dict(zip(range(len(one.tokens)), token_groups(one), strict=True))
    by_token = [(token, found[index]) for index, token in enumerate(one.tokens)]
    assert by_token[:9] == [
        ("[CLS]", "cls"),
        ("When", "question_word"),
        ("did", "question_function"),
        ("Beyon", "question_keyword"),
        ("cé", "question_keyword"),
        ("win", "question_keyword"),
        ("$", "punctuation"),
        ("5", "question_keyword"),
        ("?", "punctuation"),
    ]
    assert by_token[9] == ("[SEP]", "separator")
    assert by_token[10:17] == [
        ("In", "passage_function"),
        ("2003", "answer"),
        ("Beyon", "keyword_in_passage"),
        ("cé", "keyword_in_passage"),
        ("'", "punctuation"),
        ("s", "passage_function"),
        ("album", "passage_content"),
    ]
    assert by_token[-1] == ("[SEP]", "separator")


def test_without_an_answer_no_token_is_in_the_answer_group():
    groups = token_groups(sample(answer="", start=0, end=0))
    assert "answer" not in groups
    assert groups[0] == "cls"


@pytest.mark.parametrize(
    ("question", "word"),
    [
        ("When did it open?", "when"),
        ("In which year did it open?", "which"),
        ("How many people?", "how many"),
        ("How did they do it?", "how"),
        ("At whose house?", "whose"),
        ("Name the first mayor.", "other"),
    ],
)
def test_the_question_word(question, word):
    assert question_word_of(question) == word


def test_a_profile_holds_the_shares_of_the_layers_score():
    one = sample()
    found = profile(one)
    assert found.shape == (2, 3, len(GROUPS))
    np.testing.assert_allclose(np.abs(found).sum((0, 2)), 1)
    assert (found[0] >= 0).all()
    assert (found[1] <= 0).all()
    # The last row stands on the answer alone: all of it, with the sign of its sum.
    sign = 0 if one.scores[2].sum() > 0 else 1
    assert abs(found[sign, 2, GROUPS.index("answer")]) == pytest.approx(1)
    group, row = np.array(token_groups(one)), np.asarray(one.scores[0], dtype=float)
    expected = row[(group == "punctuation") & (row > 0)].sum() / np.abs(row).sum()
    assert found[0, 0, GROUPS.index("punctuation")] == pytest.approx(expected)


@given(st.floats(0.01, 100))
def test_a_profile_does_not_depend_on_the_size_of_the_logits(scale):
    one = sample()
    other = sample(scores=one.scores * np.float32(scale))
    np.testing.assert_allclose(profile(one), profile(other), atol=1e-5)


def test_a_row_of_zeros_has_a_profile_of_zeros():
    one = sample(scores=np.zeros_like(sample().scores))
    assert not representation([one, one]).any()


def planted(count=20, seed=0):
    """Three far-apart groups of unlike size."""
    random = np.random.default_rng(seed)
    centres = np.repeat([[0.0, 0, 0], [5, 5, 0], [0, 9, 9]], [count, count // 2, count // 4], axis=0)
    return centres + random.normal(scale=0.1, size=centres.shape)


def test_planted_clusters_are_found_with_their_number_and_come_largest_first():
    points = planted()
    found = cluster(points, Clusters())
    assert found.k == 3
    assert np.bincount(found.labels).tolist() == [20, 10, 5]
    assert found.silhouette > 0.9
    assert stability(points, found, Clusters()) == pytest.approx(1)
    for number in range(3):
        nearest = found.nearest(number, 4)
        distances = found.distances[nearest, number]
        assert (found.labels[nearest] == number).all()
        assert distances.tolist() == sorted(distances)
        assert distances[0] == found.distances[found.labels == number, number].min()


def test_a_given_k_is_kept():
    assert cluster(planted(), Clusters(k=5)).k == 5


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_few_questions_cluster_without_a_fault(count):
    points = np.random.default_rng(0).random((count, 6))
    found = cluster(points, Clusters())
    assert len(found.labels) == count
    assert 1 <= found.k <= count
    assert project(points, Map()).shape == (count, 2)


def test_questions_that_are_all_alike_are_one_cluster():
    found = cluster(np.ones((6, 3)), Clusters())
    assert found.k == 1
    assert found.silhouette is None
    assert stability(np.ones((6, 3)), found, Clusters()) is None


def test_association_tells_the_planted_property_from_a_random_one():
    labels = np.repeat([0, 1], 20)
    same = ["a"] * 20 + ["b"] * 20
    unrelated = ["a", "b"] * 20
    found = association(labels, {"same": same, "unrelated": unrelated}, Clusters(permutations=200))
    # Two equally likely values that the clusters tell for certain: ln 2.
    assert found["same"]["mutual_information"] == pytest.approx(math.log(2))
    assert found["same"]["p_value"] == pytest.approx(1 / 201)
    assert found["unrelated"]["mutual_information"] == pytest.approx(0, abs=1e-12)
    assert found["unrelated"]["p_value"] == 1


def test_the_map_repeats_exactly_and_keeps_planted_groups_apart():
    points = planted()
    first, second = (project(points, Map(neighbors=5)) for _ in range(2))
    assert (first == second).all()
    labels = cluster(points, Clusters()).labels
    assert silhouette_score(first, labels) > 0.5


def test_attributions_are_read_back_as_they_were_saved(tmp_path):
    many = [sample(), sample(question_id="q2", name=None, golds=[], answer="", start=0, end=0)]
    save_attributions(tmp_path / "saved", many)
    back = load_attributions(tmp_path / "saved")
    for one, other in zip(many, back, strict=True):
        for key, value in vars(one).items():
            found = getattr(other, key)
            assert np.array_equal(value, found) if isinstance(value, np.ndarray) else value == found, key
    assert back[1].is_impossible
    assert back[0].relative_delta == pytest.approx([1e-4, 0, 2e-5])
    files = {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()}
    save_attributions(tmp_path / "saved", many)
    assert {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()} == files


def test_what_is_no_attributions_is_refused(tmp_path):
    with pytest.raises(InputError, match="the attribute stage writes them"):
        load_attributions(tmp_path / "nothing")
