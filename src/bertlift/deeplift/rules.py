"""DeepLIFT's multipliers as autograd Functions: the forward is the operation, the backward pulls multipliers.

Every Function takes the actual operands and those of the reference (named ``*0``). In its backward the
incoming "gradient" ``G`` is the multiplier of the output, and what it returns are the multipliers of the
inputs, chosen so that

    sum(m_in * (x - x0)) = sum(G * (y - y0))                                  (summation-to-delta)

holds exactly. With these in place of the ordinary derivatives one call of ``torch.autograd.grad``
gives the multipliers of all layers (Shrikumar et al. 2017, section 3; the chain rule for multipliers).
Linear operations need no rule: their derivative is their multiplier.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


def _divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """``numerator / denominator``, and 0 where the denominator is 0."""
    zero = denominator == 0
    return torch.where(zero, torch.zeros_like(numerator), numerator / torch.where(zero, 1, denominator))


class Rescale(Function):
    """Element-wise ``y = g(x)``: ``m = (g(x) - g(x0)) / (x - x0)``, the rescale rule.

    Where the difference is small the quotient loses its digits, and ``g'`` at the midpoint takes its place: its
    error, ``(x - x0)^2 g''' / 24``, is below the rounding error there. Only where the two differ by more than
    rounding explains (ReLU with its kink in between) the quotient stays.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, x0: Tensor, y0: Tensor, g: Callable[[Tensor], Tensor]) -> Tensor:
        """``g(x)``; all tensors of one shape."""
        y = g(x)
        difference = x - x0
        near = difference.abs() <= torch.finfo(x.dtype).eps ** (1 / 3)
        multiplier = _divide(y - y0, difference)
        if near.any():
            with torch.enable_grad():
                middle = ((x + x0) / 2)[near].detach().requires_grad_()
                (slope,) = torch.autograd.grad(g(middle).sum(), middle)
            quotient = multiplier[near]
            rounding = 4 * torch.finfo(x.dtype).eps * torch.maximum(y.abs(), y0.abs())[near]
            multiplier[near] = torch.where(
                (quotient - slope).abs() * difference.abs()[near] <= rounding, slope, quotient
            )
        ctx.save_for_backward(multiplier)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """``m_x = G * m``."""
        (multiplier,) = ctx.saved_tensors
        return grad * multiplier, None, None, None


class Product(Function):
    """Element-wise ``y = a * b``: each factor's multiplier is the mean of the other.

    ``a b - a0 b0 = b_bar (a - a0) + a_bar (b - b0)``, the average over the two orders of replacing ``a``
    and ``b``: the Shapley value for two players.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, a0: Tensor, b0: Tensor) -> Tensor:
        """``a * b``; the shapes broadcast."""
        ctx.save_for_backward((a + a0) / 2, (b + b0) / 2)
        return a * b

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """``m_a = G * b_bar``, ``m_b = G * a_bar``, summed over broadcast dimensions."""
        a, b = ctx.saved_tensors
        return (grad * b).sum_to_size(a.shape), (grad * a).sum_to_size(b.shape), None, None


class Matmul(Function):
    """``Y = A @ B`` with batch dimensions: ``m_A = G B_bar^T``, ``m_B = A_bar^T G`` (see :class:`Product`)."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, a0: Tensor, b0: Tensor) -> Tensor:
        """``(..., n, k) @ (..., k, m)``."""
        ctx.save_for_backward((a + a0) / 2, (b + b0) / 2)
        return a @ b

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Multipliers of both factors, summed over broadcast batch dimensions."""
        a, b = ctx.saved_tensors
        return (
            (grad @ b.transpose(-1, -2)).sum_to_size(a.shape),
            (a.transpose(-1, -2) @ grad).sum_to_size(b.shape),
            None,
            None,
        )


def softmax(z: Tensor) -> Tensor:
    """Softmax over the last dimension, computed just as :class:`Softmax` does."""
    return z.log_softmax(-1).exp()


class Softmax(Function):
    """``p = softmax(z)`` over the last dimension: its Jacobian at the row of logarithmic means.

    With ``L_i = (p_i - p0_i) / (log p_i - log p0_i)``: since ``p_i - p0_i = L_i (dz_i - dlse)`` and both
    rows sum to one, ``dlse = sum(L dz) / sum(L)``, and

        m_z = L * (G - sum(G L) / sum(L)).

    Unchanged by a shift of the logits, finite where the two rows put their mass in different places, and
    ``L = 0`` for masked entries.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, z0: Tensor) -> Tensor:
        """``softmax(z, -1)``; ``z`` and ``z0`` of one shape."""
        log_p, log_p0 = z.log_softmax(-1), z0.log_softmax(-1)
        p = log_p.exp()
        larger = torch.maximum(p, log_p0.exp())
        # max(p, p0) (1 - exp(-d)) / d with d = |log p - log p0| is L without a difference of like numbers.
        distance = (log_p - log_p0).abs()
        mean = larger * torch.where(distance == 0, 1, _divide(-torch.expm1(-distance), distance))
        ctx.save_for_backward(torch.where(larger == 0, 0, mean))
        return p

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """``m_z`` as in the class's equation."""
        (mean,) = ctx.saved_tensors
        weighted = (grad * mean).sum(-1, keepdim=True)
        return mean * (grad - _divide(weighted, mean.sum(-1, keepdim=True))), None


def layer_norm(
    x: Tensor, dims: tuple[int, ...], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Layer normalisation over ``dims``, the centred ``x`` and ``q = (v + eps)^(1/2)``."""
    c = x - x.mean(dims, keepdim=True)
    q = (c.square().mean(dims, keepdim=True) + eps).sqrt()
    y = c / q
    if weight is not None:
        y = y * weight
    return y if bias is None else y + bias, c, q


class LayerNorm(Function):
    """``y = g c s + b`` with ``c = x - mean(x)``, ``v = mean(c^2)``, ``s = (v + eps)^(-1/2)``.

    Centring is linear; ``c * s`` follows the product rule; the square's multiplier is ``2 c_bar``; that of
    ``s(v)`` is ``-1 / (q q0 (q + q0))`` with ``q = 1 / s``:

        m_c = s_bar G g + (2 / n) c_bar * sum(G g c_bar) * m_s,    m_x = m_c - mean(m_c).
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, x0: Tensor, dims: tuple[int, ...], weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        """Layer normalisation of ``x`` over the last dimensions ``dims``."""
        y, c, q = layer_norm(x, dims, weight, bias, eps)
        _, c0, q0 = layer_norm(x0, dims, weight, bias, eps)
        ctx.dims = dims
        ctx.count = x[(0,) * (x.dim() - len(dims))].numel()
        ctx.save_for_backward((c + c0) / 2, (1 / q + 1 / q0) / 2, -1 / (q * q0 * (q + q0)), weight)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """``m_x`` as in the class's equation; weight and bias are constants."""
        c, s, slope, weight = ctx.saved_tensors
        grad = grad if weight is None else grad * weight
        through_variance = (grad * c).sum(ctx.dims, keepdim=True) * slope * (2 / ctx.count)
        m = s * grad + through_variance * c
        return m - m.mean(ctx.dims, keepdim=True), None, None, None, None, None
