"""Heads: what they attend to, and what their removal does, on planted attention and planted weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bertlift.analysis.heads import (
    KINDS,
    attended,
    behind_heads,
    confidence,
    label_of,
    order_of,
    removal,
    span_scores,
    without_heads,
)
from bertlift.reader.load import load_model
from families import FAMILIES, build
from samples import sample

ONE = sample()
SIZE = len(ONE.tokens)


def one_head(weights):
    """The kinds of a single head with these weights, (query, key)."""
    normal = weights / weights.sum(-1, keepdims=True)
    return dict(zip(KINDS, attended(ONE, normal[None, None])[0, 0], strict=True)), label_of(
        attended(ONE, normal[None, None])[0, 0]
    )


def onto(*tokens):
    weights = np.full((SIZE, SIZE), 1e-9)
    weights[:, [index for index, token in enumerate(ONE.tokens) if token in tokens]] = 1
    return weights


SHIFT = np.eye(SIZE, k=1) + 1e-9


@pytest.mark.parametrize(
    ("weights", "label"),
    [
        (SHIFT, "next token"),
        (SHIFT.T, "previous token"),
        (onto("[SEP]"), "separators"),
        (onto(";", ",", "."), "punctuation"),
        (np.ones((SIZE, SIZE)), "broad"),
    ],
)
def test_a_planted_head_is_named_after_what_it_attends_to(weights, label):
    kinds, found = one_head(weights)
    assert found == label
    assert kinds[label] > 0.8


def test_the_same_word_elsewhere():
    weights = np.full((SIZE, SIZE), 1e-9)
    names = [index for index, token in enumerate(ONE.tokens) if token in ("Beyon", "cé")]
    for query in names:
        weights[query, [key for key in names if key != query]] = 1
    np.fill_diagonal(weights, np.where(weights.sum(1) < 0.1, 1, 0))
    kinds, _ = one_head(weights)
    words = SIZE - 3  # all but [CLS] and the two [SEP]
    assert kinds["same word"] == pytest.approx(4 / words, abs=1e-3)


def test_a_head_from_the_question_into_the_passage():
    weights = np.eye(SIZE) * 1e-3 + 1e-9
    passage = np.flatnonzero(np.array(ONE.segments) == 1)
    question = np.flatnonzero(np.array(ONE.segments) == 0)
    weights[np.ix_(question, passage[:3])] = 1
    kinds, label = one_head(weights)
    assert kinds["question to passage"] == pytest.approx(1, abs=1e-2)
    assert label == "question to passage"


def test_confidence_and_order_by_hand():
    attention = np.array([[[[0.5, 0.5], [1.0, 0.0]], [[0.5, 0.5], [0.5, 0.5]]]])  # one layer, two heads
    assert confidence(attention).tolist() == [[0.75, 0.5]]
    assert order_of(np.array([[0.1, -5.0], [3.0, 0.2]])) == [(1, 0), (1, 1), (0, 0), (0, 1)]


@pytest.mark.parametrize("family", FAMILIES)
def test_taking_heads_out_is_zeroing_their_results(family):
    """The whole attention of a layer taken out leaves the bias of the layer behind the heads, whatever the input."""
    model = build(family)
    places = behind_heads(model)
    if places is None:
        pytest.skip("no linear layer behind the heads of each layer")
    seen = {}
    places[0].register_forward_hook(lambda module, inputs, output: seen.update(inside=inputs[0], out=output))
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 8]])}
    before = model(**inputs).start_logits
    size = model.config.hidden_size // model.config.num_attention_heads
    with without_heads(model, [(0, 1)]):
        model(**inputs)
    assert (seen["inside"][..., size : 2 * size] == 0).all()
    assert (seen["inside"][..., :size] != 0).any()
    with without_heads(model, [(0, head) for head in range(model.config.num_attention_heads)]):
        model(**inputs)
    torch.testing.assert_close(seen["out"], places[0].bias.expand_as(seen["out"]))
    torch.testing.assert_close(model(**inputs).start_logits, before)


def test_planted_heads_are_found_by_removal(tiny_reader):
    """All heads but two write nothing: taking these two out first costs everything at once, others nothing."""
    model, _ = load_model(tiny_reader, new_head=False)
    planted = [(1, 2), (2, 0)]
    with torch.no_grad():
        for layer, place in enumerate(behind_heads(model)):
            for head in range(4):
                factor = 20 if (layer, head) in planted else 0
                place.weight[:, 8 * head : 8 * head + 8] *= factor
    torch.manual_seed(1)
    ids = torch.randint(5, 60, (12, 10))
    batches = [({"input_ids": ids}, torch.arange(12) % 10, torch.arange(12) % 10)]
    others = [(layer, head) for layer in range(3) for head in range(4) if (layer, head) not in planted]
    orders = {"planted": [planted + others], "others": [others + planted]}
    found = removal(model, batches, orders, [2, 10], seed=1)
    falls = {name: np.array(curve["mean"]) for name, curve in found["curves"].items()}
    assert falls["others"] == pytest.approx([0, 0], abs=1e-5)
    assert falls["planted"][0] == pytest.approx(falls["planted"][1], abs=1e-5)
    whole = span_scores(model, batches)
    with without_heads(model, planted):
        assert falls["planted"][0] == pytest.approx((whole - span_scores(model, batches)).mean(), abs=1e-5)
    assert abs(falls["planted"][0]) > 1e-3
    assert found["against"]["others"]["mean"] == pytest.approx(falls["planted"].mean(), abs=1e-5)


def test_a_model_without_such_a_layer_is_refused(tiny_reader):
    model, _ = load_model(tiny_reader, new_head=False)
    del model.bert.encoder.layer[0].attention.output.dense
    with pytest.raises(ValueError, match="no linear layer behind the heads"), without_heads(model, [(0, 0)]):
        pass
