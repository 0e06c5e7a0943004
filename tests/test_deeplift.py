"""The engine on whole models: it adds up at every layer, and leaves the model as it was."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import BertForQuestionAnswering, DistilBertConfig, DistilBertForQuestionAnswering

from bertlift.deeplift import deeplift
from bertlift.deeplift.references import reference_ids
from bertlift.deeplift.tape import TapeMismatchError, UnsupportedOperationError
from bertlift.errors import InputError
from conftest import tiny_config

VOCABULARY = 40


def bert(seed=0, implementation="sdpa", dtype=torch.float64, scale=1.0, **changes):
    torch.manual_seed(seed)
    model = BertForQuestionAnswering(tiny_config(VOCABULARY, **changes)).to(dtype).eval()
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(scale)
    return model


def batch(seed, lengths):
    """Padded input, its reference (token 4 for all but the ends), and spans inside each row."""
    random = torch.Generator().manual_seed(seed)
    longest = max(lengths)
    ids = torch.randint(5, VOCABULARY, (len(lengths), longest), generator=random)
    mask = torch.tensor([[1] * length + [0] * (longest - length) for length in lengths])
    ids = torch.where(mask == 1, ids, 0)
    ids[:, 0] = 2
    segments = (torch.arange(longest) > longest // 2).long().expand(len(lengths), -1)
    reference = torch.where((mask == 1) & (ids != 2), 4, ids)
    start = torch.tensor([int(torch.randint(0, length, (), generator=random)) for length in lengths])
    end = torch.tensor(
        [int(torch.randint(int(s), length, (), generator=random)) for s, length in zip(start, lengths, strict=True)]
    )
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}, reference, start, end


def relative(found):
    difference = (found.target_value - found.reference_value).abs().clamp(min=1e-2)
    return float((found.delta.abs() / difference[:, None]).max())


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10**6),
    implementation=st.sampled_from(["eager", "sdpa"]),
    scale=st.sampled_from([1.0, 3.0, 10.0]),
    lengths=st.lists(st.integers(2, 20), min_size=1, max_size=3),
)
def test_it_adds_up_at_every_layer(seed, implementation, scale, lengths):
    given_batch = batch(seed, lengths)
    exact = deeplift(bert(seed, implementation, scale=scale), *given_batch)
    assert exact.scores.shape == (len(lengths), 4, max(lengths))
    assert relative(exact) < 1e-9
    torch.testing.assert_close(exact.positive + exact.negative, exact.scores)
    assert (exact.positive >= 0).all()
    assert (exact.negative <= 0).all()
    assert (exact.scores[given_batch[0]["attention_mask"][:, None].expand_as(exact.scores) == 0] == 0).all()
    single = deeplift(bert(seed, implementation, torch.float32, scale), *given_batch)
    assert relative(single) < 1e-4


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_the_values_are_those_of_the_plain_model(implementation):
    model = bert(1, implementation)
    inputs, reference, start, end = batch(1, [9, 6])
    found = deeplift(model, inputs, reference, start, end)
    rows = torch.arange(2)
    with torch.no_grad():
        for ids, value in ((inputs["input_ids"], found.target_value), (reference, found.reference_value)):
            output = model(**(inputs | {"input_ids": ids}))
            torch.testing.assert_close(output.start_logits[rows, start] + output.end_logits[rows, end], value)


def test_eager_and_sdpa_give_the_same():
    given_batch = batch(2, [11, 7])
    one, other = (deeplift(bert(2, name), *given_batch) for name in ("eager", "sdpa"))
    torch.testing.assert_close(one.scores, other.scores)


def test_the_last_layer_stands_on_the_two_ends_by_construction():
    inputs, reference, start, end = batch(3, [12])
    last = deeplift(bert(3), inputs, reference, start, end).scores[0, -1]
    assert set(last.nonzero().flatten().tolist()) == {int(start), int(end)}


def test_a_padded_batch_gives_what_single_rows_give():
    inputs, reference, start, end = batch(4, [14, 5, 9])
    model = bert(4)
    together = deeplift(model, inputs, reference, start, end)
    for row, length in enumerate([14, 5, 9]):
        one = {key: value[row : row + 1, :length] for key, value in inputs.items()}
        alone = deeplift(model, one, reference[row : row + 1, :length], start[row : row + 1], end[row : row + 1])
        torch.testing.assert_close(together.scores[row, :, :length], alone.scores[0])


def test_a_reference_equal_to_the_input_gives_zeros():
    inputs, _, start, end = batch(5, [8, 8])
    found = deeplift(bert(5), inputs, inputs["input_ids"], start, end)
    assert (found.scores == 0).all()
    assert (found.delta == 0).all()


def state(model):
    return (
        [module.training for module in model.modules()],
        [(parameter.requires_grad, parameter.grad) for parameter in model.parameters()],
        [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()],
        model.config._attn_implementation,
        {name: value.clone() for name, value in model.state_dict().items()},
    )


def same_state(one, other):
    return one[:4] == other[:4] and all(torch.equal(one[4][name], other[4][name]) for name in one[4])


def test_the_model_is_left_as_it_was_and_dropout_does_not_matter():
    given_batch = batch(6, [10])
    expected = deeplift(bert(6), *given_batch).scores
    model = bert(6, hidden_dropout_prob=0.5)
    model.train()
    model.bert.encoder.layer[1].eval()
    model.qa_outputs.requires_grad_(False)
    with torch.no_grad():  # transformers puts hooks of its own in place the first time that hidden states are asked for
        model(**given_batch[0], output_hidden_states=True)
    before = state(model)
    torch.testing.assert_close(deeplift(model, *given_batch).scores, expected)
    assert same_state(state(model), before)
    broken = model.qa_outputs.forward
    model.qa_outputs.forward = lambda hidden: hidden[0, 0, 0].item() / 0
    with pytest.raises(ZeroDivisionError):
        deeplift(model, *given_batch)
    model.qa_outputs.forward = broken
    assert same_state(state(model), before)
    # Nothing of the function mode is left behind either.
    torch.testing.assert_close(deeplift(model, *given_batch).scores, expected)


def test_frozen_weights_are_explained_too():
    given_batch = batch(7, [10])
    expected = deeplift(bert(7), *given_batch).scores
    torch.testing.assert_close(deeplift(bert(7).requires_grad_(False), *given_batch).scores, expected)


def test_distilbert_adds_up():
    torch.manual_seed(0)
    config = DistilBertConfig(
        vocab_size=VOCABULARY, dim=32, n_layers=3, n_heads=4, hidden_dim=48, max_position_embeddings=64
    )
    model = DistilBertForQuestionAnswering(config).double().eval()
    inputs, reference, start, end = batch(8, [12, 7])
    del inputs["token_type_ids"]
    found = deeplift(model, inputs, reference, start, end)
    assert found.scores.shape == (2, 4, 12)
    assert relative(found) < 1e-9


class Toy(nn.Module):
    """The interface of a question-answering model of transformers around one function of the embeddings."""

    def __init__(self, between):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCABULARY, 4)
        self.mix = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)
        self.between = between
        self.double()

    def get_input_embeddings(self):
        return self.embedding

    def forward(self, inputs_embeds, output_hidden_states, attention_mask=None):
        hidden = self.mix(self.between(self.mix(inputs_embeds)))
        start, end = self.head(hidden).split(1, dim=-1)
        return SimpleNamespace(
            start_logits=start.squeeze(-1), end_logits=end.squeeze(-1), hidden_states=(inputs_embeds, hidden)
        )


def explain_toy(between):
    inputs, reference, start, end = batch(9, [6])
    return deeplift(Toy(between), {"input_ids": inputs["input_ids"]}, reference, start, end)


def test_without_non_linearities_it_is_gradient_times_difference():
    inputs, reference, start, end = batch(9, [6])
    found = deeplift(Toy(lambda hidden: 2 * hidden + 1), {"input_ids": inputs["input_ids"]}, reference, start, end)
    model = Toy(lambda hidden: 2 * hidden + 1)
    embedded = model.embedding(inputs["input_ids"]).detach().requires_grad_()
    output = model(embedded, output_hidden_states=True)
    value = output.start_logits[0, start[0]] + output.end_logits[0, end[0]]
    (gradient,) = torch.autograd.grad(value, embedded)
    difference = embedded - model.embedding(reference)
    torch.testing.assert_close(found.scores[:, 0], (gradient * difference).sum(-1).detach())


@pytest.mark.parametrize(
    ("between", "name"),
    [
        (torch.sin, "sin"),
        (torch.exp, "exp"),
        (lambda hidden: hidden**2, "pow"),
        (lambda hidden: hidden / hidden.sum(), "div"),
        (lambda hidden: hidden.abs(), "abs"),
        (lambda hidden: hidden.max(-1, keepdim=True).values + hidden, "max"),
        (lambda hidden: hidden.clamp(min=0), "clamp"),
        (lambda hidden: hidden.cumsum(1).sort(-1).values, "cumsum|sort"),
    ],
)
def test_an_operation_without_a_rule_is_refused_by_name(between, name):
    with pytest.raises(UnsupportedOperationError, match=name):
        explain_toy(between)


def test_another_path_than_the_references_is_noticed():
    calls = iter([torch.tanh, torch.relu])
    with pytest.raises(TapeMismatchError, match="relu"):
        explain_toy(lambda hidden: next(calls)(hidden))
    calls = iter([lambda hidden: hidden.tanh().tanh(), torch.tanh])
    with pytest.raises(TapeMismatchError, match="ended before"):
        explain_toy(lambda hidden: next(calls)(hidden))
    calls = iter([lambda hidden: hidden, torch.tanh])
    with pytest.raises(TapeMismatchError, match="ended before"):
        explain_toy(lambda hidden: next(calls)(hidden))


def test_products_and_activations_of_a_toy_add_up():
    found = explain_toy(lambda hidden: torch.tanh(hidden) * hidden + hidden.softmax(-1) * 3)
    assert relative(found) < 1e-9


@pytest.mark.parametrize(
    "between",
    [
        lambda hidden: torch.nn.functional.linear(hidden, hidden[0, :4]),
        lambda hidden: torch.nn.functional.layer_norm(hidden, (4,), hidden[0, 0], hidden[0, 1]),
        lambda hidden: hidden * (torch.arange(6) % 2 == 0)[None, :, None],
        lambda hidden: hidden @ hidden.transpose(-1, -2) @ hidden,
        lambda hidden: torch.nn.functional.silu(hidden) / 2 - hidden,
        lambda hidden: torch.nn.functional.gelu(hidden, approximate="tanh") + torch.zeros_like(hidden),
    ],
    ids=["computed weight", "computed norm", "mask", "three factors", "silu", "gelu"],
)
def test_factors_that_are_computed_themselves_add_up(between):
    assert relative(explain_toy(between)) < 1e-9


@pytest.mark.parametrize(
    "between",
    [
        lambda hidden: hidden + torch.sin(hidden.detach()),
        lambda hidden: hidden * float(hidden[0, 0, 0]),
        lambda hidden: torch.where(hidden > 0, hidden, 0),
        lambda hidden: hidden.gather(-1, hidden.argmax(-1, keepdim=True)) + hidden,
        lambda hidden: torch.nn.functional.dropout(hidden, 0.5),
    ],
    ids=["detach", "a number taken out", "a condition", "an index", "dropout that stays on"],
)
def test_what_would_go_unseen_is_refused(between):
    with pytest.raises(UnsupportedOperationError):
        explain_toy(between)


@pytest.mark.parametrize("name", ["mask", "pad", "unk"])
def test_a_reference_keeps_special_tokens_and_replaces_all_others(tokenizer, name):
    encoded = tokenizer("who led", "the dough ☃ rises.", padding="max_length", max_length=16, return_tensors="pt")
    ids = encoded["input_ids"]
    tokens = tokenizer.convert_ids_to_tokens(ids[0].tolist())
    assert "[UNK]" in tokens
    found = tokenizer.convert_ids_to_tokens(reference_ids(ids, tokenizer, name)[0].tolist())
    kept = {"[CLS]", "[SEP]", "[PAD]"}
    assert found == [token if token in kept else f"[{name.upper()}]" for token in tokens]


def test_an_unknown_reference_is_refused_with_the_allowed_ones(tokenizer):
    with pytest.raises(InputError, match=r"attribution\.reference is 'zero'; allowed: mask, pad, unk"):
        reference_ids(torch.tensor([[2, 7, 3]]), tokenizer, "zero")
