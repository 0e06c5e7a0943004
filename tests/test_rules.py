"""The multipliers: by hand, against derivatives and Shapley values, and summation-to-delta."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bertlift.engine.tape import Tape, record, replay

D = torch.float64


def through(plain):
    """``plain`` with its rules: takes the operands, then those of the reference."""

    def rule(*operands):
        half, tape = len(operands) // 2, Tape(nn.Identity())
        with record(tape):
            plain(*operands[half:])
        with replay(tape):
            return plain(*operands[:half])

    return rule


def softmax(z):
    return z.softmax(-1)


def log_softmax(z):
    return z.log_softmax(-1)


def quotient(x, c):
    return x / (1 + c**2).sqrt()


def norm(shape, weight, bias, eps):
    return lambda x: F.layer_norm(x, shape, weight, bias, eps)


product, matmul, soft = through(torch.mul), through(torch.matmul), through(softmax)


def tensor(*values, dtype=D):
    return torch.tensor(values, dtype=dtype, requires_grad=True)


def multipliers(output, *inputs, grad=None):
    return torch.autograd.grad(output, inputs, torch.ones_like(output) if grad is None else grad)


def drawn(seed, *shape, scale=1.0, dtype=D):
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=D) * scale).to(dtype)


def operations(seed, n, scale, dtype=D):
    """Every rule on random operands: name -> (function of the operands, rule, operands, reference operands)."""
    x, x0 = drawn(seed, 3, n, scale=scale, dtype=dtype), drawn(seed + 1, 3, n, scale=scale, dtype=dtype)
    a, a0 = (drawn(seed + k, 2, 4, n, scale=scale, dtype=dtype) for k in (2, 3))
    b, b0 = (drawn(seed + k, n, 3, scale=scale, dtype=dtype) for k in (4, 5))  # broadcast over a's batch
    c, c0 = (drawn(seed + k, n, scale=scale, dtype=dtype) for k in (6, 7))
    weight, bias = (drawn(seed + k, n, dtype=dtype) for k in (8, 9))
    cases = {
        name: (g, through(g), (x,), (x0,))
        for name, g in {"gelu": F.gelu, "relu": torch.relu, "tanh": torch.tanh}.items()
    }
    cases["product"] = (torch.mul, product, (x, c), (x0, c0))
    cases["matmul"] = (torch.matmul, matmul, (a, b), (a0, b0))
    cases["softmax"] = (softmax, soft, (x,), (x0,))
    cases["log_softmax"] = (log_softmax, through(log_softmax), (x,), (x0,))
    cases["quotient"] = (quotient, through(quotient), (x, c), (x0, c0))
    wide, wide_bias = (drawn(seed + k, 4, n, dtype=dtype) for k in (10, 11))
    for name, dims, scaling, moving in [
        ("layer_norm", (-1,), weight, bias),
        ("layer_norm without bias", (-1,), weight, None),
        ("layer_norm without weight", (-1,), None, bias),
        ("layer_norm without either", (-1,), None, None),
        ("layer_norm over two dimensions", (-2, -1), wide, wide_bias),
        ("layer_norm over two dimensions without either", (-2, -1), None, None),
    ]:
        plain = norm(a.shape[-len(dims) :], scaling, moving, 1e-5)
        cases[name] = (
            plain,
            through(plain),
            (a,),
            (a0,),
        )
    return cases


def lost(case, seed, tolerance):
    """What the contributions miss of the outputs' difference, in units of what they may miss."""
    plain, rule, operands, references = case
    leaves = [operand.clone().requires_grad_() for operand in operands]
    output = rule(*leaves, *references)
    if output.dtype == D:  # in float32 two ways to compute the same differ by more where a row is nearly constant
        torch.testing.assert_close(output, plain(*operands), rtol=1e-9, atol=1e-9)
    grad = drawn(seed + 20, *output.shape).to(output.dtype)
    found = torch.autograd.grad(output, leaves, grad)
    assert all(torch.isfinite(each).all() for each in found)
    moves = [(x - x0).double() for x, x0 in zip(operands, references, strict=True)]
    terms = [m.double() * move for m, move in zip(found, moves, strict=True)]
    y, y0 = output.detach().double(), plain(*references).double()
    changes = grad.double() * (y - y0)
    size = sum(each.abs().sum() for each in terms) + changes.abs().sum()
    # Rounding: of the outputs, however little they differ, and of multipliers, which then meet x - x0 (in a
    # saturated softmax the multipliers are small differences of numbers as large as grad).
    rounded = (grad.double().abs() * (y.abs() + y0.abs())).sum()
    rounded += grad.abs().max() * max(move.abs().max() for move in moves)
    # And of the operands: layer_norm of two numbers that differ in their last digits only magnifies it.
    sizes = [x.double().abs() + x0.double().abs() for x, x0 in zip(operands, references, strict=True)]
    rounded += sum((m.double().abs() * size).sum() for m, size in zip(found, sizes, strict=True))
    may_miss = tolerance * size + 8 * torch.finfo(output.dtype).eps * rounded
    return float((sum(each.sum() for each in terms) - changes.sum()).abs() / may_miss)


NAMES = list(operations(0, 3, 1.0))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(2, 6), scale=st.sampled_from([1e-6, 1e-2, 1.0, 10.0, 100.0]))
def test_contributions_add_up_to_the_difference(name, seed, n, scale):
    assert lost(operations(seed, n, scale)[name], seed, 1e-9) < 1
    assert lost(operations(seed, n, scale, torch.float32)[name], seed, 1e-5) < 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("distance", "tolerance"), [(0.0, 1e-10), (1e-7, 1e-5)])
def test_near_the_reference_the_multiplier_is_the_derivative(name, distance, tolerance):
    plain, rule, operands, _ = operations(5, 4, 1.0)[name]
    # Not by a constant: neither softmax nor layer_norm would see it.
    references = [operand + distance * drawn(40 + k, *operand.shape) for k, operand in enumerate(operands)]
    leaves = [operand.clone().requires_grad_() for operand in operands]
    output = rule(*leaves, *references)
    grad = drawn(1, *output.shape)
    derivative = torch.autograd.grad(plain(*leaves), leaves, grad)
    for found, expected in zip(torch.autograd.grad(output, leaves, grad), derivative, strict=True):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_a_product_by_hand():
    a, b = tensor(2.0), tensor(3.0)
    # Means of 3 and 1, and of 2 and 1; contributions 2 * (2 - 1) and 1.5 * (3 - 1) make 5 = 6 - 1.
    assert [float(m) for m in multipliers(product(a, b, tensor(1.0), tensor(1.0)), a, b)] == [2.0, 1.5]


def test_a_factor_that_is_broadcast_collects_from_all_its_places():
    a, b = tensor(1.0, 2.0), tensor(3.0)
    m_a, m_b = multipliers(product(a, b, tensor(0.0, 0.0), tensor(1.0)), a, b)
    # Each a meets the mean of 3 and 1; b meets 1/2 and 1. 2 * 1 + 2 * 2 + 1.5 * (3 - 1) = 9 = (3 + 6) - 0.
    assert m_a.tolist() == [2.0, 2.0]
    assert m_b.tolist() == [1.5]


@settings(deadline=None)
@given(st.lists(st.floats(-10, 10), min_size=4, max_size=4))
def test_a_product_is_shared_as_by_shapley(values):
    a, b, a0, b0 = (tensor(value) for value in values)
    m_a, m_b = multipliers(product(a, b, a0, b0), a, b)
    # Two orders of letting the two players in, averaged.
    of_a = ((a * b0 - a0 * b0) + (a * b - a0 * b)) / 2
    of_b = ((a0 * b - a0 * b0) + (a * b - a * b0)) / 2
    torch.testing.assert_close(m_a * (a - a0), of_a)
    torch.testing.assert_close(m_b * (b - b0), of_b)


def test_a_matmul_is_the_products_of_its_sum():
    a, b, a0, b0 = drawn(0, 2, 3), drawn(1, 3, 4), drawn(2, 2, 3), drawn(3, 3, 4)
    for each in (a, b):
        each.requires_grad_()
    by_matmul = multipliers(matmul(a, b, a0, b0), a, b)
    each = product(a[:, :, None], b[None], a0[:, :, None], b0[None]).sum(1)
    for one, other in zip(by_matmul, multipliers(each, a, b), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4)])  # the second factor with and without the batch dimension
def test_a_matmul_is_shared_as_by_shapley(shape):
    a, b, a0, b0, grad = (drawn(k, *size) for k, size in enumerate([(2, 5, 3), shape, (2, 5, 3), shape, (2, 5, 4)]))
    a.requires_grad_()
    b.requires_grad_()

    def value(one, other):
        return float((grad * (one @ other)).sum().detach())

    m_a, m_b = multipliers(matmul(a, b, a0, b0), a, b, grad=grad)
    of_a = (value(a, b0) - value(a0, b0) + value(a, b) - value(a0, b)) / 2
    of_b = (value(a0, b) - value(a0, b0) + value(a, b) - value(a, b0)) / 2
    assert float((m_a * (a - a0)).sum().detach()) == pytest.approx(of_a, rel=1e-12)
    assert float((m_b * (b - b0)).sum().detach()) == pytest.approx(of_b, rel=1e-12)


def test_a_softmax_of_two_by_hand():
    z, z0 = tensor(math.log(3), 0.0), tensor(0.0, 0.0)
    (m,) = multipliers(soft(z, z0), z, grad=torch.tensor([1.0, 0.0], dtype=D))
    # p = (3/4, 1/4), p0 = (1/2, 1/2): the multiplier of the first logit is (p - p0) / ln 3 = 1 / (4 ln 3).
    assert m.tolist() == pytest.approx([1 / (4 * math.log(3)), -1 / (4 * math.log(3))])


def test_attention_over_two_tokens_by_hand():
    """The worked example of docs/deeplift.md: each token is its own key and value, and the query is 1."""

    def attend(x):
        return x.softmax(-1) @ x.transpose(-1, -2)

    x, x0 = tensor([math.log(3), 0.0]), tensor([0.0, 0.0])
    y = through(attend)(x, x0)
    (m,) = multipliers(y, x)
    torch.testing.assert_close(y.item(), 0.75 * math.log(3))
    first = m[0, 0].item() * math.log(3)
    torch.testing.assert_close(first, 5 / 8 * math.log(3) + 1 / 8 * math.log(3))
    torch.testing.assert_close(first, y.item())  # the whole difference: the second token is as in the reference


@settings(deadline=None)
@given(st.lists(st.floats(-20, 20), min_size=4, max_size=4))
def test_a_softmax_of_two_is_a_rescaled_sigmoid(values):
    first, second, first0, second0 = values
    change, change0 = first - second, first0 - second0
    if abs(change - change0) < 1e-3:
        return
    z, z0 = tensor(first, second), tensor(first0, second0)
    (m,) = multipliers(soft(z, z0), z, grad=torch.tensor([1.0, 0.0], dtype=D))
    # The first entry is a function of the logits' difference alone, so one quotient is all there is.
    quotient = (1 / (1 + math.exp(-change)) - 1 / (1 + math.exp(-change0))) / (change - change0)
    assert m.tolist() == pytest.approx([quotient, -quotient], rel=1e-6, abs=1e-12)


def test_a_softmax_of_three_by_hand():
    z = torch.tensor([1 / 2, 1 / 4, 1 / 4], dtype=D).log().requires_grad_()
    z0 = torch.tensor([1 / 4, 1 / 4, 1 / 2], dtype=D).log()
    (m,) = multipliers(soft(z, z0), z, grad=torch.tensor([1.0, 0.0, 0.0], dtype=D))
    # Logarithmic means: of 1/2 and 1/4 it is k = 1 / (4 ln 2), of 1/4 with itself 1/4. Their sum is 2 k + 1/4.
    k = 1 / (4 * math.log(2))
    share = k / (2 * k + 1 / 4)
    assert m.tolist() == pytest.approx([k * (1 - share), -share / 4, -k * share])


@settings(deadline=None)
@given(seed=st.integers(0, 1000), shift=st.floats(-50, 50), other=st.floats(-50, 50))
def test_a_shift_of_the_logits_changes_nothing(seed, shift, other):
    z, z0, grad = drawn(seed, 5).requires_grad_(), drawn(seed + 1, 5), drawn(seed + 2, 5)
    (plain,) = multipliers(soft(z, z0), z, grad=grad)
    (moved,) = multipliers(soft(z + shift, z0 + other), z, grad=grad)
    torch.testing.assert_close(plain, moved)


@pytest.mark.parametrize("masked", [-math.inf, "finfo.min", -1e9])
@pytest.mark.parametrize("dtype", [torch.float32, D])
def test_masked_entries_get_nothing(masked, dtype):
    masked = torch.finfo(dtype).min if masked == "finfo.min" else masked
    z = torch.tensor([1.0, masked, 0.5, masked], dtype=dtype, requires_grad=True)
    z0 = torch.tensor([0.0, masked, 0.2, masked], dtype=dtype)
    (m,) = multipliers(soft(z, z0), z, grad=torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=dtype))
    assert m[1] == m[3] == 0
    assert torch.isfinite(m).all()
    assert m[0] != 0


@pytest.mark.parametrize("dtype", [torch.float32, D])
def test_rows_with_their_mass_in_different_places_stay_finite_and_add_up(dtype):
    z = torch.tensor([1e3, 0.0, -1e3], dtype=dtype, requires_grad=True)
    z0 = torch.tensor([-1e3, 0.0, 1e3], dtype=dtype)
    grad = torch.tensor([1.0, 0.5, -1.0], dtype=dtype)
    (m,) = multipliers(soft(z, z0), z, grad=grad)
    assert torch.isfinite(m).all()
    assert float((m * (z - z0)).sum().detach()) == pytest.approx(2.0, rel=1e-5)  # p goes from (0, 0, 1) to (1, 0, 0)


def test_a_layer_norm_of_two_by_hand():
    # Of two numbers LayerNorm sees half their difference, d: y = d / sqrt(d^2 + eps). With eps = 0 and
    # d = 2, d0 = 1 both rows become (1, -1): nothing changes, and the contributions cancel.
    x, x0 = tensor(4.0, 0.0), tensor(2.0, 0.0)
    (m,) = multipliers(through(norm((2,), None, None, 0.0))(x, x0), x, grad=torch.tensor([1.0, 0.0], dtype=D))
    assert m.tolist() == pytest.approx([0, 0], abs=1e-12)
    # With eps = 3, d = 1 and d0 = -1: y goes from -1/2 to 1/2 and the multiplier of d is 1/2; s is the same in
    # both rows and the mean of c is 0, so nothing goes through the variance. Each number is half of d.
    x, x0 = tensor(1.0, -1.0), tensor(-1.0, 1.0)
    (m,) = multipliers(through(norm((2,), None, None, 3.0))(x, x0), x, grad=torch.tensor([1.0, 0.0], dtype=D))
    assert m.tolist() == pytest.approx([0.25, -0.25])


@pytest.mark.parametrize(("dims", "shape"), [((-1,), (2,)), ((-2, -1), (2, 1)), ((-2, -1), (1, 2))])
def test_a_layer_norms_weight_multiplies_and_its_bias_does_nothing(dims, shape):
    x, x0 = tensor(1.0, -1.0), torch.tensor([-1.0, 1.0], dtype=D).view(shape)
    weight, bias = torch.tensor([2.0, 3.0], dtype=D).view(shape), torch.tensor([5.0, 7.0], dtype=D).view(shape)
    grad = torch.tensor([1.0, 1.0], dtype=D).view(shape)
    # As above, with 2 of the first number and 3 of the second, whose multipliers are 1/4 and -1/4 the other way.
    (m,) = multipliers(through(norm(shape[-len(dims) :], weight, bias, 3.0))(x.view(shape), x0), x, grad=grad)
    assert m.tolist() == pytest.approx([2 / 4 - 3 / 4, 3 / 4 - 2 / 4])


@pytest.mark.parametrize("dtype", [torch.float32, D])
@pytest.mark.parametrize("distance", [1.0, 1e-3, 1e-8, 1e-12])
def test_a_kink_between_input_and_reference_is_seen_however_close_they_are(distance, dtype):
    x = torch.tensor([distance, -distance, 3 * distance], dtype=dtype, requires_grad=True)
    x0 = torch.tensor([-distance, distance, -distance], dtype=dtype)
    (m,) = multipliers(through(torch.relu)(x, x0), x)
    assert m.tolist() == pytest.approx([1 / 2, 1 / 2, 3 / 4])


@pytest.mark.parametrize(
    ("g", "x", "x0", "expected"),
    [
        (torch.tanh, math.log(2), 0.0, 3 / 5 / math.log(2)),  # tanh(ln 2) = (4 - 1) / (4 + 1)
        (F.gelu, 1.0, -1.0, 1 / 2),  # (P(1) + P(-1)) / 2 with the normal distribution function P
        (F.gelu, 30.0, -10.0, 3 / 4),  # far out it is a ReLU
    ],
)
def test_smooth_activations_by_hand(g, x, x0, expected):
    x, x0 = tensor(x), tensor(x0).detach()
    (m,) = multipliers(through(g)(x, x0), x)
    assert m.tolist() == pytest.approx([expected], rel=1e-12)


def test_a_rescale_by_hand():
    x, x0 = tensor(3.0, -1.0, 2.0), torch.tensor([-1.0, -2.0, 1.0], dtype=D)
    (m,) = multipliers(through(torch.relu)(x, x0), x)
    assert m.tolist() == [0.75, 0.0, 1.0]  # 3 / 4, 0 / 1, 1 / 1
