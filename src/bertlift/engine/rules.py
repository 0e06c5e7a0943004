"""DeepLIFT's multipliers as autograd Functions: the forward is the operation, the backward pulls multipliers.

Every Function takes the actual operands and those of the reference (named ``*0``), or the means of both
(``*_bar``). In its backward the incoming "gradient" ``G`` is the multiplier of the output, and what it
returns are the multipliers of the inputs, chosen so that

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

Backward = tuple[Tensor | None, ...]


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
        eps = torch.finfo(x.dtype).eps
        difference = x - x0
        multiplier = (y - y0).div_(difference)
        near = _places(difference.abs_() <= eps ** (1 / 3))
        if near.numel():
            with torch.enable_grad():
                middle = ((x.take(near) + x0.take(near)) / 2).detach().requires_grad_()
                (slope,) = torch.autograd.grad(g(middle).sum(), middle)
            quotient, rounding = multiplier.take(near), 4 * eps * torch.maximum(y.take(near).abs(), y0.take(near).abs())
            smooth = ~((quotient - slope).abs() * difference.take(near) > rounding)  # also where it is 0 / 0
            multiplier.put_(near, torch.where(smooth, slope, quotient))
        ctx.save_for_backward(multiplier)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Backward:
        """``m_x = G * m``."""
        (multiplier,) = ctx.saved_tensors
        return grad * multiplier, None, None, None


def _places(mask: Tensor) -> Tensor:
    """Flat indices of what is true; nearly nothing is, so that eight Booleans are looked at at a time."""
    flat = mask.flatten()
    if flat.numel() % 8:
        return flat.nonzero().squeeze(1)
    words = flat.view(torch.int64).nonzero().squeeze(1)
    inner = flat.view(-1, 8)[words].nonzero()
    return words[inner[:, 0]] * 8 + inner[:, 1]


class Product(Function):
    """Element-wise ``y = a * b``: each factor's multiplier is the mean of the other.

    ``a b - a0 b0 = b_bar (a - a0) + a_bar (b - b0)``, the average over the two orders of replacing ``a``
    and ``b``: the Shapley value for two players.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, a_bar: Tensor, b_bar: Tensor) -> Tensor:
        """``a * b``, whose shapes broadcast, given the means with the reference."""
        ctx.save_for_backward(a_bar, b_bar)
        return a * b

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Backward:
        """``m_a = G * b_bar``, ``m_b = G * a_bar``, summed over broadcast dimensions."""
        a, b = ctx.saved_tensors
        return (grad * b).sum_to_size(a.shape), (grad * a).sum_to_size(b.shape), None, None


class Matmul(Function):
    """``Y = A @ B`` with batch dimensions: ``m_A = G B_bar^T``, ``m_B = A_bar^T G`` (see :class:`Product`)."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, a_bar: Tensor, b_bar: Tensor) -> Tensor:
        """``(..., n, k) @ (..., k, m)``, given the means with the reference."""
        ctx.save_for_backward(a_bar, b_bar)
        return a @ b

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Backward:
        """Multipliers of both factors, summed over broadcast batch dimensions."""
        a, b = (each.to(grad.dtype) for each in ctx.saved_tensors)  # under autocast the product has a narrower type
        m_a, m_b = grad @ b.transpose(-1, -2), a.transpose(-1, -2) @ grad
        return m_a.sum_to_size(a.shape), m_b.sum_to_size(b.shape), None, None


def log_mean(log_p: Tensor, log_p0: Tensor, p_bar: Tensor) -> Tensor:
    """The logarithmic mean ``L = (p - p0) / (log p - log p0)``; ``p`` where the two are equal, 0 where one is 0.

    Computed as ``p_bar tanh(u) / u`` with ``u = (log p - log p0) / 2``, which subtracts no like numbers. Uses up
    ``log_p`` and ``log_p0``: matrices of this size are slow to come by.
    """
    u = log_p.sub_(log_p0).mul_(0.5)
    # 0 / 0 where the two are equal; -inf - -inf where both are masked.
    return torch.tanh(u, out=log_p0).div_(u).nan_to_num_(1.0).mul_(p_bar)


class Softmax(Function):
    """``p = softmax(z)`` over the last dimension: its Jacobian at the row of logarithmic means.

    With ``L_i = (p_i - p0_i) / (log p_i - log p0_i)``: since ``p_i - p0_i = L_i (dz_i - dlse)`` and both
    rows sum to one, ``dlse = sum(L dz) / sum(L)``, and

        m_z = L * (G - sum(G L) / sum(L)).

    Unchanged by a shift of the logits, finite where the two rows put their mass in different places, and
    ``L = 0`` for masked entries.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, p: Tensor, mean: Tensor) -> Tensor:
        """``p``, given with the logarithmic mean ``L``."""
        ctx.save_for_backward(mean)
        return p

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Backward:
        """``m_z`` as in the class's equation."""
        (mean,) = ctx.saved_tensors
        total = mean.sum(-1, keepdim=True)
        total.masked_fill_(total == 0, 1)  # every L has underflowed
        centred = grad - _dot(grad, mean) / total
        # Once more: a constant in G drops out, and what rounding left of it counts in a saturated row.
        return centred.sub_(_dot(centred, mean) / total).mul_(mean), None, None


class LogSoftmax(Function):
    """``log p = z - lse(z)`` over the last dimension: ``m_z = G - sum(G) L / sum(L)``, ``L`` as in :class:`Softmax`."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, log_p: Tensor, mean: Tensor) -> Tensor:
        """``log_p``, given with the logarithmic mean ``L``."""
        ctx.save_for_backward(mean)
        return log_p

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Backward:
        """``m_z`` as in the class's equation."""
        (mean,) = ctx.saved_tensors
        return grad - grad.sum(-1, keepdim=True) * mean / mean.sum(-1, keepdim=True), None, None


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Sums of products over the last dimension, which stays."""
    return torch.einsum("...i,...i->...", a, b).unsqueeze(-1)


class LayerNorm(Function):
    """``y = g c s + b`` with ``c = x - mean(x)``, ``v = mean(c^2)``, ``s = (v + eps)^(-1/2)``.

    Centring is linear; ``c * s`` follows the product rule; the square's multiplier is ``2 c_bar``; that of
    ``s(v)`` is ``-1 / (q q0 (q + q0)) = -(s s0)^2 / (s + s0)`` with ``q = 1 / s``:

        m_c = s_bar G g - (2 / n) c_bar * sum(G g c_bar) * (s s0)^2 / (s + s0),    m_x = m_c - mean(m_c).
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, x0: Tensor, mean0: Tensor, s0: Tensor, shape: tuple[int, ...], weight: Any, *bias_eps: Any
    ) -> Tensor:
        """Layer normalisation over the last dimensions, ``shape``; ``mean0`` and ``s0`` are those of ``x0``."""
        y, mean, s = torch.native_layer_norm(x, shape, weight, *bias_eps)
        ctx.shape = shape
        ctx.save_for_backward(x.lerp(x0, 0.5).sub_((mean + mean0) / 2), s, s0, weight)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Backward:
        """``m_x`` as in the class's equation; weight and bias are constants."""
        c, s, s0, weight = ctx.saved_tensors
        dims = tuple(range(-len(ctx.shape), 0))
        grad = grad if weight is None else grad * weight
        slope = (grad * c).mean(dims, keepdim=True) * (2 * (s * s0) ** 2 / (s + s0))
        centred = grad.mul((s + s0) / 2).sub_(c * slope)
        return (centred - centred.mean(dims, keepdim=True), *(None,) * 7)
