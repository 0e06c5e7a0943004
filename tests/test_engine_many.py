"""Summation-to-delta over thousands of models, inputs, references and targets: the slow part of the tests."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bertlift import deeplift
from families import FAMILIES, cached
from test_engine import WORDS, batch, lost, lost_by_heads, masked

CASES = 2010 // len(FAMILIES) + 1


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Small matrices are faster so, and a sum has one order only."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=CASES)
@given(
    weights=st.integers(0, 4),
    seed=st.integers(0, 10**6),
    implementation=st.integers(0, 1),
    scale=st.sampled_from([1.0, 2.5, 5.0, 10.0]),
    lengths=st.lists(st.integers(3, 16), min_size=1, max_size=3),
    left=st.booleans(),
    reference=st.sampled_from(["ids", "mask", "zero", "blank_passage", "blank_question", "embeddings", "same"]),
    target=st.sampled_from(["span", "predicted", "log-probability"]),
)
@example(4, 4, 0, 1.0, [9], False, "zero", "span")  # f of a ten-thousandth, from parts of many times its size
def test_it_adds_up(family, weights, seed, implementation, scale, lengths, left, reference, target):
    _, implementations, _, heads = FAMILIES[family]
    inputs, span = batch(seed, lengths, left)
    chosen = {"seed": weights, "implementation": implementations[implementation % len(implementations)], "scale": scale}
    model = cached(family, **chosen)
    ids = inputs["input_ids"]
    given_reference = {
        "ids": masked(inputs).roll(1, 1),
        "embeddings": torch.randn(*ids.shape, model.get_input_embeddings().embedding_dim, dtype=torch.float64) * 0.1,
        "same": ids,
    }.get(reference, reference)
    goal = {
        "span": span,
        "predicted": None,
        "log-probability": lambda o: o.start_logits.log_softmax(-1)[:, 1] + o.end_logits.log_softmax(-1)[:, 2],
    }[target]
    exact = deeplift(model, inputs, given_reference, goal, heads=heads, tokenizer=WORDS)
    assert torch.isfinite(exact.scores).all()
    assert lost(exact, exact.delta) < 1e-9
    if heads:
        assert lost_by_heads(exact) < 1e-9
    if reference == "same":
        assert (exact.scores == 0).all()
    single = deeplift(
        cached(family, dtype=torch.float32, **chosen), inputs, given_reference, goal, heads=heads, tokenizer=WORDS
    )
    assert lost(single, single.delta) < 1e-4
    if heads:
        assert lost_by_heads(single) < 1e-4
