"""Words, token groups, profiles, clusters and the map."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import orthogonal_procrustes
from sklearn.metrics import adjusted_rand_score, silhouette_score

from bertlift.analysis.bootstrap import difference_estimate, mean_estimate
from bertlift.analysis.clusters import (
    NOISE,
    association,
    cluster,
    distinctive_words,
    judged,
    shuffled,
    stability,
)
from bertlift.analysis.groups import GROUPS, question_word_of, stem, token_groups
from bertlift.analysis.projection import project, project_layers
from bertlift.analysis.represent import REPRESENTATIONS, encode, layers_of, points_of
from bertlift.analysis.trajectories import effective_number, gini, shares_of, summary, trajectory
from bertlift.analysis.words import word_scores, words_of
from bertlift.attribution import load_attributions, save_attributions
from bertlift.config import Clusters, Map
from bertlift.errors import InputError
from samples import CONTEXT, QUESTION, sample


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
    assert by_token[9] == ("[SEP]", "first_separator")
    assert by_token[10:17] == [
        ("In", "passage_function"),
        ("2003", "answer"),
        ("Beyon", "keyword_in_passage"),
        ("cé", "keyword_in_passage"),
        ("'", "punctuation"),
        ("s", "passage_function"),
        ("album", "answer_sentence"),
    ]
    assert by_token[-1] == ("[SEP]", "last_separator")
    # "won" is no form of "win" by its stem; "5" is the question's.
    assert [found[index] for index, token in enumerate(one.tokens) if token in ("won", "5") and index > 9] == [
        "answer_sentence",
        "keyword_in_passage",
    ]


def test_a_gold_answer_that_the_reader_missed_has_its_own_group():
    one = sample(answer="album", golds=["2003"], start=16, end=16)
    groups = token_groups(one)
    assert one.tokens[16] == "album"
    assert [groups[16], groups[one.tokens.index("2003")]] == ["answer", "gold_answer"]


def test_a_keyword_is_found_again_in_another_form():
    assert stem("painted") == stem("painting") == stem("paints")
    one = sample(question=QUESTION.replace("win", "make"))  # the passage has "made" and "album"
    assert "keyword_in_passage" not in [token_groups(one)[one.tokens.index("album")]]


def test_other_sentences_are_not_the_answers():
    context = CONTEXT.replace("won; it", "won. It")
    groups = token_groups(sample(context=context))
    one = sample(context=context)
    by_token = dict(zip(one.tokens, groups, strict=True))
    assert by_token["album"] == "answer_sentence"
    assert by_token["made"] == "passage_content"


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


def test_a_trajectory_holds_the_shares_of_the_layers_score():
    one = sample()
    found = trajectory(one)
    assert found.absolute.shape == (3, len(GROUPS))
    np.testing.assert_allclose(found.absolute.sum(1), 1)
    assert (found.positive >= 0).all()
    assert (found.negative <= 0).all()
    # The last row stands on the answer alone: all of it, with the sign of its sum.
    side = found.positive if one.scores[2].sum() > 0 else found.negative
    assert abs(side[2, GROUPS.index("answer")]) == pytest.approx(1)
    group, row = np.array(token_groups(one)), np.asarray(one.scores[0], dtype=float)
    expected = row[(group == "punctuation") & (row > 0)].sum() / np.abs(row).sum()
    assert found.positive[0, GROUPS.index("punctuation")] == pytest.approx(expected)
    # The fair share by hand: one of all tokens is the answer, and has all of the last row.
    assert found.fair[2, GROUPS.index("answer")] == pytest.approx(len(one.tokens))
    assert np.isnan(found.fair[:, GROUPS.index("gold_answer")]).all()
    assert found.answer_rank[2] == 1
    assert found.effective[2] == pytest.approx(1)
    # Attention that is the same everywhere is fair everywhere.
    np.testing.assert_allclose(found.attention_fair[:, GROUPS.index("punctuation")], 1, rtol=1e-5)
    np.testing.assert_allclose(found.attention_effective, len(one.tokens), rtol=1e-5)
    whole = np.abs(one.value_path[0]).sum() + np.abs(one.attention_path[0]).sum() + abs(one.residual[0])
    assert found.paths[0, 2] == pytest.approx(abs(one.residual[0]) / whole)


def test_without_an_answer_there_is_no_rank():
    assert np.isnan(trajectory(sample(answer="", start=0, end=0)).answer_rank).all()


def test_a_method_without_layers_or_heads_has_a_trajectory_of_one_row():
    one = sample()
    none = np.zeros((0, 0), dtype=np.float32)
    single = sample(
        **{name: getattr(one, name)[:1] for name in ("scores", "positive", "negative", "delta", "hidden")},
        **dict.fromkeys(("value_path", "attention_path", "attention"), none),
        residual=none[0:0, 0] if none.shape[1] else np.zeros(0, dtype=np.float32),
    )
    found = trajectory(single)
    assert found.absolute.shape == (1, len(GROUPS))
    assert found.attention.shape == (0, len(GROUPS))
    assert found.paths.shape == (0, 3)
    measures = summary([found, found], 1)["all"]["measures"]
    assert measures["attention"]["mean"] == []
    for name in REPRESENTATIONS:
        assert len(points_of([single] * 4, name)) == 4


def test_spread_by_hand():
    shares = shares_of(np.array([[1.0, -1.0, 1.0, 1.0], [0, 0, 3, 0], [0, 0, 0, 0], [1, 0, -1, 0]]))
    np.testing.assert_allclose(effective_number(shares), [4, 1, np.nan, 2])
    # Of n equal values 0; all on one of n: (n - 1) / n; half the tokens share it: 1/2.
    np.testing.assert_allclose(gini(shares), [0, 3 / 4, np.nan, 1 / 2])


@given(st.floats(0.01, 100))
def test_a_trajectory_does_not_depend_on_the_size_of_the_logits(scale):
    one = sample()
    other = sample(scores=one.scores * np.float32(scale))
    np.testing.assert_allclose(trajectory(one).positive, trajectory(other).positive, atol=1e-5)


def test_a_row_of_zeros_has_shares_of_zero():
    one = sample(scores=np.zeros_like(sample().scores))
    assert not points_of([one, one], "profile").any()


def test_a_bootstrap_interval_is_about_two_standard_errors_wide():
    values = np.random.default_rng(5).normal(3, 2, size=400)
    found = mean_estimate(values, 1)
    assert found.mean == pytest.approx(values.mean())
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * values.std() / 20, rel=0.1)
    first = np.arange(400) < 100
    between = difference_estimate(values, first, 1)
    assert between.mean == pytest.approx(values[first].mean() - values[~first].mean())
    error = math.hypot(values[first].std() / 10, values[~first].std() / math.sqrt(300))
    assert (between.high - between.low) / 2 == pytest.approx(1.96 * error, rel=0.15)


def test_questions_without_a_value_do_not_count():
    values = np.array([[1.0, np.nan], [3.0, np.nan]])
    found = mean_estimate(values, 1)
    assert found.mean[0] == 2
    assert np.isnan([found.mean[1], found.low[1], found.high[1]]).all()


def test_hidden_layers_weigh_alike():
    random = np.random.default_rng(3)
    many = [sample(hidden=random.normal(size=(3, 5)) * [[1], [10], [100]]) for _ in range(12)]
    layers = layers_of(many, "hidden")
    np.testing.assert_allclose(layers.var(0).sum(-1), 1)
    np.testing.assert_allclose(layers.mean(0), 0, atol=1e-9)


def test_the_autoencoder_tells_sequences_apart_and_repeats_exactly():
    random = np.random.default_rng(0)
    kinds = np.repeat([0, 1], 20)
    centre = random.normal(size=(2, 4, 6))
    sequences = centre[kinds] + 0.05 * random.normal(size=(40, 4, 6))
    first, second = encode(sequences), encode(sequences)
    assert (first == second).all()
    assert silhouette_score(first[:, -1], kinds) > 0.6


def test_an_unknown_representation_is_refused():
    with pytest.raises(InputError, match="allowed: profile, hidden, autoencoder"):
        points_of([sample()], "pixels")


def planted(count=20, seed=0):
    """Three far-apart groups of unlike size."""
    random = np.random.default_rng(seed)
    centres = np.repeat([[0.0, 0, 0], [5, 5, 0], [0, 9, 9]], [count, count // 2, count // 4], axis=0)
    return centres + random.normal(scale=0.1, size=centres.shape)


TRUE = np.repeat([0, 1, 2], [20, 10, 5])


@pytest.mark.parametrize("algorithm", ["kmeans", "gaussian_mixture", "hdbscan"])
def test_planted_clusters_are_found_with_their_number_and_come_largest_first(algorithm):
    points = planted()
    settings = Clusters(algorithm=algorithm, nulls=10, bootstraps=5)
    found = judged(cluster(points, settings), settings)
    assert found.k == 3
    assert adjusted_rand_score(TRUE, found.labels) >= 0.95
    assert found.silhouette > 0.9
    assert found.beats_null
    assert found.choices[3].stability == pytest.approx(1)
    for number in range(3):
        members = np.flatnonzero(found.labels == number)
        nearest = found.nearest(number, 4)
        assert set(nearest) <= set(members.tolist())
        # The medoid has the smallest mean distance to the others.
        distances = np.linalg.norm(points[members, None] - points[None, members], axis=-1).mean(1)
        assert nearest[0] == members[distances.argmin()]


@pytest.mark.parametrize("algorithm", ["kmeans", "gaussian_mixture", "hdbscan"])
def test_pure_noise_is_called_noise(algorithm):
    points = np.random.default_rng(1).normal(size=(80, 6))
    settings = Clusters(algorithm=algorithm, nulls=20, bootstraps=2, k_max=5)
    found = judged(cluster(points, settings), settings)
    assert not found.beats_null
    if algorithm == "hdbscan":
        assert (found.labels == NOISE).mean() > 0.5


def test_shuffling_keeps_each_features_values():
    points = planted()
    mixed = shuffled(points, np.random.default_rng(0))
    assert (np.sort(mixed, axis=0) == np.sort(points, axis=0)).all()
    assert not (mixed == points).all()


def test_distinctive_words_by_hand():
    texts = ["the river Rhine", "the river Po", "the kite flew", "a kite rose", "the stone"]
    assert distinctive_words(texts, np.array([0, 0, 1, 1, NOISE]), 3) == [["river"], ["kite"]]
    assert distinctive_words(["", ""], np.array([0, 0]), 3) == [[]]


def test_an_unknown_algorithm_is_refused():
    with pytest.raises(InputError, match="allowed: kmeans, gaussian_mixture, hdbscan"):
        cluster(planted(), Clusters(algorithm="magic"))


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
    assert stability(np.ones((6, 3)), found.labels, found.k, Clusters()) is None
    assert not judged(found, Clusters()).beats_null


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


def test_maps_of_layers_fit_each_other():
    """The same points in every layer stay where they are; a map is not turned or mirrored from layer to layer."""
    points = planted()
    maps = project_layers(np.stack([points, points, points], axis=1), Map(neighbors=5))
    assert maps.shape == (3, 35, 2)
    for before, after in pairwise(maps):
        assert np.corrcoef(before.ravel(), after.ravel())[0, 1] > 0.7
        turned = orthogonal_procrustes(after, before)[0]
        np.testing.assert_allclose(turned, np.eye(2), atol=1e-6)


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
