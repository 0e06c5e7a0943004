"""AttnLRP: against LXT's own numbers, by hand, and what adds up in it and what does not."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from safetensors.torch import load_file
from torch import nn
from transformers import BertConfig, BertForQuestionAnswering

from bertlift import deeplift
from bertlift.engine import attnlrp
from bertlift.engine.tape import Tape, UnsupportedOperationError, replay
from families import FAMILIES, VOCABULARY, build

D = torch.float64
LXT = Path(__file__).parent / "data" / "lxt_bert.safetensors"
MODELS = [(family, implementation) for family, each in FAMILIES.items() for implementation in each[1]]


@pytest.fixture(scope="module")
def stored():
    """What ``data/lxt_bert.py`` stored: the weights, and the case."""
    tensors = load_file(LXT)
    case = {name.removeprefix("case."): tensors.pop(name) for name in list(tensors) if name.startswith("case.")}
    return tensors, case


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(D, 1e-10), (torch.float32, 1e-5)])
def test_relevance_is_that_of_lxt(stored, implementation, dtype, tolerance):
    weights, case = stored
    words, positions = (weights[f"bert.embeddings.{name}_embeddings.weight"] for name in ("word", "position"))
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=words.shape[1],
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=len(weights["bert.encoder.layer.0.intermediate.dense.bias"]),
        max_position_embeddings=len(positions),
        attn_implementation=implementation,
    )
    model = BertForQuestionAnswering(config).to(dtype)
    model.load_state_dict(weights)
    found = deeplift(model, case, target=tuple(case["target"]), rule="attnlrp")
    torch.testing.assert_close(found.scores, case["relevance"].to(dtype), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(found.positive + found.negative, found.scores)
    with torch.no_grad():
        output = model.eval()(**{name: case[name] for name in ("input_ids", "attention_mask", "token_type_ids")})
    (start, end), rows = case["target"], torch.arange(2)
    torch.testing.assert_close(found.target_value, output.start_logits[rows, start] + output.end_logits[rows, end])
    assert found.reference_value.tolist() == [0, 0]
    assert found.reference_output is None
    assert found.scores[1, :, 7:].abs().max() == 0  # padding
    assert found.delta.abs().min() > 0.01  # biases, which it has, keep their part


# --- the rules


def tensor(*values):
    return torch.tensor(values, dtype=D, requires_grad=True)


def run(function, *operands):
    """``function`` under the rules."""
    tape = Tape(nn.Identity(), attnlrp.RULES)
    tape.recording = False
    with replay(tape):
        return function(*operands)


def gradients(function, *operands, grad=None):
    y = run(function, *operands)
    torch.testing.assert_close(y, function(*operands))
    found = torch.autograd.grad(y, operands, torch.ones_like(y) if grad is None else torch.tensor(grad, dtype=D))
    return [each.flatten().tolist() for each in found]


@pytest.mark.parametrize(
    ("g", "x", "expected"),
    [
        (F.gelu, 1.0, (1 + math.erf(math.sqrt(1 / 2))) / 2),  # x P(x) / x with the normal distribution function P
        (torch.tanh, math.log(2), 3 / 5 / math.log(2)),
        (torch.relu, 2.0, 1.0),
        (torch.relu, -2.0, 0.0),
        (nn.ReLU(inplace=True), 2.0, 1.0),
        (lambda x: x**2, 3.0, 3.0),  # as of the product x x
        (F.gelu, 0.0, 0.0),
        (F.gelu, attnlrp.EPSILON, 1 / 4),  # half the slope of 1/2, for the stabiliser doubles x
    ],
)
def test_an_activation_by_hand(g, x, expected):
    x = tensor(x)
    y = run(g, x)
    assert torch.autograd.grad(y, x)[0].tolist() == pytest.approx([expected], rel=1e-8)


def test_products_by_hand():
    assert gradients(torch.mul, tensor(2.0), tensor(3.0)) == [[1.5], [1.0]]
    assert gradients(lambda x: 3 * x * torch.tensor(2.0), tensor(2.0)) == [[6.0]]  # by constants: linear
    assert gradients(lambda x: x * x, tensor(3.0)) == [[3.0]]
    assert gradients(torch.matmul, tensor([1.0, 2.0]), tensor([3.0], [4.0])) == [[1.5, 2.0], [0.5, 1.0]]
    assert gradients(lambda x: x @ torch.ones(2, 1, dtype=D) / 2, tensor([1.0, 2.0])) == [[0.5, 0.5]]


def test_a_softmax_by_hand():
    # p = (3/4, 1/4): the ordinary derivative, p (1 - p).
    (found,) = gradients(lambda z: z.softmax(-1), tensor(math.log(3), 0.0), grad=[1.0, 0.0])
    assert found == pytest.approx([3 / 16, -3 / 16])


def test_a_layer_norm_by_hand():
    """Of (3, 1) the mean is 2 and the deviation 1, which counts as a constant: y = (2 c, 3 c) + b, c = (1, -1)."""
    weight, bias = torch.tensor([2.0, 3.0], dtype=D), torch.tensor([5.0, 7.0], dtype=D)
    x = tensor(3.0, 1.0)
    # The derivative proper is 0. 3 * 1 + 1 * (-1) = 2, the first output but for its bias.
    assert gradients(lambda x: F.layer_norm(x, (2,), weight, bias, 0.0), x, grad=[1.0, 0.0]) == [[1.0, -1.0]]
    # With eps = 3 the deviation is 2; over both dimensions of a column nothing changes.
    assert gradients(lambda x: F.layer_norm(x, (2,), eps=3.0), x, grad=[1.0, 0.0]) == [[0.25, -0.25]]
    column = tensor([3.0], [1.0])
    assert gradients(lambda x: F.layer_norm(x, (2, 1), eps=3.0), column, grad=[[1.0], [0.0]]) == [[0.25, -0.25]]


def test_attention_is_its_steps():
    q, k, v = torch.randn(3, 1, 2, 4, 3, generator=torch.Generator().manual_seed(0), dtype=D).requires_grad_()

    def steps(q, k, v):
        return ((q @ k.transpose(-1, -2)) * 3**-0.5).softmax(-1) @ v

    found = (gradients(each, q, k, v) for each in (F.scaled_dot_product_attention, steps))
    for one, other in zip(*found, strict=True):
        assert one == pytest.approx(other)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (torch.sin, "sin"),
        (torch.sigmoid, "sigmoid"),  # 1/2 at 0
        (torch.exp, "exp"),
        (torch.reciprocal, "reciprocal"),
        (lambda x: x**x, "pow"),
        (lambda x: 1 / x, "div|reciprocal"),
        (lambda x: x / x.abs(), "div"),
        (lambda x: torch.div(x, 2, rounding_mode="floor"), "div"),
        (lambda x: x.log_softmax(-1), "log_softmax"),
        (lambda x: F.linear(x, x), "linear"),
        (lambda x: F.layer_norm(x, (2,), x[0]), "layer_norm"),
    ],
)
def test_what_has_no_rule_is_refused_by_name(function, name):
    with pytest.raises(UnsupportedOperationError, match=rf"^[\w.]*({name})[\w.]*: there is no rule for it"):
        run(function, tensor([1.0, 2.0], [3.0, 4.0]))


# --- whole models


def questions():
    ids = torch.randint(5, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def without_biases(model):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
    return model


def test_all_that_is_lost_without_biases_is_lost_in_the_softmax(monkeypatch):
    """At each layer by all softmaxes behind it, of each ``sum(z G_z) - sum(p G_p)``."""
    totals = {}

    def softmax(tape, func, z, *args, **kwargs):
        p, layer = func(z, *args, **kwargs), len(totals) // 2
        for name, each in (("z", z), ("p", p)):
            totals[name, layer] = 0
            each.register_hook(
                lambda grad, key=(name, layer), x=each: totals.update({key: (x.detach() * grad).sum((1, 2, 3))})
            )
        return p

    monkeypatch.setitem(attnlrp.RULES, F.softmax, softmax)
    found = deeplift(without_biases(build("bert", scale=5)), questions(), target=(2, 5), rule="attnlrp")
    lost = torch.stack([totals["z", layer] - totals["p", layer] for layer in range(2)], 1)
    assert lost.abs().min() > 1e-3
    behind = torch.stack([lost.sum(1), lost[:, 1], 0 * lost[:, 1]], 1)
    torch.testing.assert_close(found.delta, behind, rtol=1e-6, atol=1e-8)


def test_without_softmax_all_adds_up():
    """As behind the last layer: the pooler of a classifier, tanh and all, loses nothing but its biases."""
    model = build("bert", "SequenceClassification", scale=5)
    found = deeplift(without_biases(model), questions(), rule="attnlrp")
    assert found.target_value.abs().min() > 0.01
    torch.testing.assert_close(found.delta[:, -1], torch.zeros(2, dtype=D), rtol=0, atol=1e-7)

    def function(x):
        x = F.gelu(x @ torch.ones(3, 3, dtype=D)) * torch.tanh(x)
        return F.layer_norm(x @ x.transpose(-1, -2) @ x, (3,), torch.arange(3, dtype=D)).relu()

    x = torch.randn(1, 4, 3, generator=torch.Generator().manual_seed(0), dtype=D).requires_grad_()
    y = run(function, x)
    (grad,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close((grad * x).sum(), y.sum(), rtol=1e-6, atol=0)


@pytest.mark.parametrize(("family", "implementation"), MODELS)
def test_every_family_has_it(family, implementation):
    """Of the last layer it is the linear head's; nothing depends on how attention is computed."""
    made = [build(family, implementation=each, scale=3) for each in (implementation, "eager")]
    for model in made:
        torch.nn.init.constant_(model.qa_outputs.bias, 0.5)
    found, other = (deeplift(model, questions(), target=(2, 5), rule="attnlrp") for model in made)
    torch.testing.assert_close(found.delta[:, -1], torch.tensor([-1.0, -1.0], dtype=D))
    torch.testing.assert_close(found.scores, other.scores)
    assert found.scores[:, 0].abs().min() > 0


def test_a_model_with_another_activation_is_refused_by_name():
    with pytest.raises(UnsupportedOperationError, match=r"sigmoid, called by bert\.encoder\.layer\.0\..*not 0 at 0"):
        deeplift(build("bert", hidden_act="sigmoid"), questions(), target=(2, 5), rule="attnlrp")
