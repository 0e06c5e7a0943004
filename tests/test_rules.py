"""The multipliers: by hand, against derivatives and Shapley values, and summation-to-delta."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given
from hypothesis import strategies as st

from bertlift.deeplift.rules import LayerNorm, Matmul, Product, Rescale, Softmax

D = torch.float64


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
        name: (g, lambda x, x0, g=g: Rescale.apply(x, x0, g(x0), g), (x,), (x0,))
        for name, g in {"gelu": F.gelu, "relu": torch.relu, "tanh": torch.tanh}.items()
    }
    cases["product"] = (torch.mul, Product.apply, (x, c), (x0, c0))
    cases["matmul"] = (torch.matmul, Matmul.apply, (a, b), (a0, b0))
    cases["softmax"] = (lambda z: z.softmax(-1), Softmax.apply, (x,), (x0,))
    cases["layer_norm"] = (
        lambda x: F.layer_norm(x, (n,), weight, bias, 1e-5),
        lambda x, x0: LayerNorm.apply(x, x0, (-1,), weight, bias, 1e-5),
        (x,),
        (x0,),
    )
    cases["layer_norm over two dimensions"] = (
        lambda x: F.layer_norm(x, (4, n), None, None, 1e-5),
        lambda x, x0: LayerNorm.apply(x, x0, (-2, -1), None, None, 1e-5),
        (a,),
        (a0,),
    )
    return cases


def delta(case, seed):
    """What the contributions miss of the outputs' difference, in units of what could be lost to rounding."""
    plain, rule, operands, references = case
    leaves = [operand.clone().requires_grad_() for operand in operands]
    output = rule(*leaves, *references)
    torch.testing.assert_close(output, plain(*operands), rtol=1e-5, atol=1e-6)
    grad = drawn(seed + 20, *output.shape).to(output.dtype)
    found = torch.autograd.grad(output, leaves, grad)
    assert all(torch.isfinite(each).all() for each in found)
    terms = [m.double() * (x - x0).double() for m, x, x0 in zip(found, operands, references, strict=True)]
    contribution = sum(each.sum() for each in terms)
    changes = grad.double() * (plain(*operands).double() - plain(*references).double())
    size = sum(each.abs().sum() for each in terms) + changes.abs().sum() + 1e-12
    size += 1e-2 * (grad.double() * plain(*operands)).abs().sum()  # the outputs are rounded, however little they differ
    return float((contribution - changes.sum()).abs() / size)


NAMES = list(operations(0, 3, 1.0))


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 10**6), n=st.integers(2, 6), scale=st.sampled_from([1e-6, 1e-2, 1.0, 10.0, 100.0]))
def test_contributions_add_up_to_the_difference(name, seed, n, scale):
    assert delta(operations(seed, n, scale)[name], seed) < 1e-9
    assert delta(operations(seed, n, scale, torch.float32)[name], seed) < 1e-4


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("distance", [0.0, 1e-7])
def test_near_the_reference_the_multiplier_is_the_derivative(name, distance):
    plain, rule, operands, _ = operations(5, 4, 1.0)[name]
    references = [operand + distance for operand in operands]
    leaves = [operand.clone().requires_grad_() for operand in operands]
    output = rule(*leaves, *references)
    grad = drawn(1, *output.shape)
    derivative = torch.autograd.grad(plain(*leaves), leaves, grad)
    for found, expected in zip(torch.autograd.grad(output, leaves, grad), derivative, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_product_by_hand():
    a, b = tensor(2.0), tensor(3.0)
    # Means of 3 and 1, and of 2 and 1; contributions 2 * (2 - 1) and 1.5 * (3 - 1) make 5 = 6 - 1.
    assert [float(m) for m in multipliers(Product.apply(a, b, tensor(1.0), tensor(1.0)), a, b)] == [2.0, 1.5]


@given(st.lists(st.floats(-10, 10), min_size=4, max_size=4))
def test_a_product_is_shared_as_by_shapley(values):
    a, b, a0, b0 = (tensor(value) for value in values)
    m_a, m_b = multipliers(Product.apply(a, b, a0, b0), a, b)
    # Two orders of letting the two players in, averaged.
    of_a = ((a * b0 - a0 * b0) + (a * b - a0 * b)) / 2
    of_b = ((a0 * b - a0 * b0) + (a * b - a * b0)) / 2
    torch.testing.assert_close(m_a * (a - a0), of_a)
    torch.testing.assert_close(m_b * (b - b0), of_b)


def test_a_matmul_is_the_products_of_its_sum():
    a, b, a0, b0 = drawn(0, 2, 3), drawn(1, 3, 4), drawn(2, 2, 3), drawn(3, 3, 4)
    for each in (a, b):
        each.requires_grad_()
    by_matmul = multipliers(Matmul.apply(a, b, a0, b0), a, b)
    product = Product.apply(a[:, :, None], b[None], a0[:, :, None], b0[None]).sum(1)
    for one, other in zip(by_matmul, multipliers(product, a, b), strict=True):
        torch.testing.assert_close(one, other)


def test_a_softmax_of_two_by_hand():
    z, z0 = tensor(math.log(3), 0.0), tensor(0.0, 0.0)
    (m,) = multipliers(Softmax.apply(z, z0), z, grad=torch.tensor([1.0, 0.0], dtype=D))
    # p = (3/4, 1/4), p0 = (1/2, 1/2): the multiplier of the first logit is (p - p0) / ln 3 = 1 / (4 ln 3).
    assert m.tolist() == pytest.approx([1 / (4 * math.log(3)), -1 / (4 * math.log(3))])


@given(seed=st.integers(0, 1000), shift=st.floats(-50, 50), other=st.floats(-50, 50))
def test_a_shift_of_the_logits_changes_nothing(seed, shift, other):
    z, z0, grad = drawn(seed, 5).requires_grad_(), drawn(seed + 1, 5), drawn(seed + 2, 5)
    (plain,) = multipliers(Softmax.apply(z, z0), z, grad=grad)
    (moved,) = multipliers(Softmax.apply(z + shift, z0 + other), z, grad=grad)
    torch.testing.assert_close(plain, moved)


@pytest.mark.parametrize("masked", [-math.inf, torch.finfo(torch.float32).min, -1e9])
@pytest.mark.parametrize("dtype", [torch.float32, D])
def test_masked_entries_get_nothing(masked, dtype):
    z = torch.tensor([1.0, masked, 0.5, masked], dtype=dtype, requires_grad=True)
    z0 = torch.tensor([0.0, masked, 0.2, masked], dtype=dtype)
    (m,) = multipliers(Softmax.apply(z, z0), z, grad=torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=dtype))
    assert m[1] == m[3] == 0
    assert torch.isfinite(m).all()
    assert m[0] != 0


@pytest.mark.parametrize("dtype", [torch.float32, D])
def test_rows_with_their_mass_in_different_places_stay_finite_and_add_up(dtype):
    z = torch.tensor([1e3, 0.0, -1e3], dtype=dtype, requires_grad=True)
    z0 = torch.tensor([-1e3, 0.0, 1e3], dtype=dtype)
    grad = torch.tensor([1.0, 0.5, -1.0], dtype=dtype)
    (m,) = multipliers(Softmax.apply(z, z0), z, grad=grad)
    assert torch.isfinite(m).all()
    assert float((m * (z - z0)).sum().detach()) == pytest.approx(2.0, rel=1e-5)  # p goes from (0, 0, 1) to (1, 0, 0)


def test_a_layer_norm_of_two_by_hand():
    # Of two numbers LayerNorm sees half their difference, d: y = d / sqrt(d^2 + eps). With eps = 0 and
    # d = 2, d0 = 1 both rows become (1, -1): nothing changes, and the contributions cancel.
    x, x0 = tensor(4.0, 0.0), tensor(2.0, 0.0)
    (m,) = multipliers(LayerNorm.apply(x, x0, (-1,), None, None, 0.0), x, grad=torch.tensor([1.0, 0.0], dtype=D))
    assert m.tolist() == pytest.approx([0, 0], abs=1e-12)
    # With eps = 3, d = 1 and d0 = -1: y goes from -1/2 to 1/2 and the multiplier of d is 1/2; s is the same in
    # both rows and the mean of c is 0, so nothing goes through the variance. Each number is half of d.
    x, x0 = tensor(1.0, -1.0), tensor(-1.0, 1.0)
    (m,) = multipliers(LayerNorm.apply(x, x0, (-1,), None, None, 3.0), x, grad=torch.tensor([1.0, 0.0], dtype=D))
    assert m.tolist() == pytest.approx([0.25, -0.25])


def test_a_rescale_by_hand():
    x, x0 = tensor(3.0, -1.0, 2.0), torch.tensor([-1.0, -2.0, 1.0], dtype=D)
    (m,) = multipliers(Rescale.apply(x, x0, torch.relu(x0), torch.relu), x)
    assert m.tolist() == [0.75, 0.0, 1.0]  # 3 / 4, 0 / 1, 1 / 1
