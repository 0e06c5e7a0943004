"""The rule of the paper's own code: relevance handed down in place of multipliers, against a zero reference.

Nearer to layer-wise relevance propagation than to DeepLIFT, and kept as it was so that the published figures
can be drawn again: biases keep their part, layer normalisation, activations and the softmax are ignored, each
linear layer hands on a total of 1, the relevance of query, key and value is averaged, and a residual sum gives
all of it to both branches, to be averaged where they meet. The code had no guard against division by an output
near 0; here ``y`` becomes ``y + EPSILON`` away from 0. "Gradients" below are relevance.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.autograd import Function

from bertlift.engine.tape import ELEMENTWISE, Func, Tape, attention_arguments, dropout, named

EPSILON = 1e-12


def _over(relevance: Tensor, y: Tensor) -> Tensor:
    return relevance / torch.where(y < 0, y - EPSILON, y + EPSILON)


class Linear(Function):
    """``R <- R (y - b) / y``, then ``R_x = x * (R W)``, divided by its sum over tokens and units."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, share: float) -> Tensor:
        """``x W^T + b``, ``(batch, tokens, units)``; ``share``: of the result where branches are averaged."""
        ctx.share, y = share, F.linear(x, weight, bias)
        ctx.save_for_backward(x, weight, y if bias is None else y - bias, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The relevance of ``x``."""
        x, weight, unbiased, y = ctx.saved_tensors
        found = (_over(grad * unbiased, y) @ weight) * x
        return ctx.share * _over(found, found.sum((-1, -2), keepdim=True)), None, None, None


class Matmul(Function):
    """``Y = A B``: each factor gets ``R A B / Y``, element by element, summed over the other's index."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        """``(..., n, k) @ (..., k, m)``."""
        y = a @ b
        ctx.save_for_backward(a, b, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        """The relevance of both factors."""
        a, b, y = ctx.saved_tensors
        ratio = _over(grad, y)
        return (ratio @ b.mT) * a, (a.mT @ ratio) * b


class Passed(Function):
    """An operation ``x -> y`` that is ignored: ``R_x = share * R``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, share: float | Tensor) -> Tensor:
        """``y``."""
        ctx.share = share
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The relevance of ``x``."""
        return grad * ctx.share, None, None


def _branches(tape: Tape, x: Any) -> float:
    """In how many branches the relevance of ``x`` meets: 2 for what a layer or its feed-forward part starts from."""
    within = len(tape.watch) > 1 and tape.watch[-1].numel() == 0  # in a layer: its output is not known yet
    return 2 if within and (x is tape.watch[-2] or getattr(x, "normed", False)) else 1


def _linear(tape: Tape, func: Func, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    projected = len(tape.watch) > 1 and x is tape.watch[-2]  # to query, key and value
    return Linear.apply(x, weight, bias, 1 / (_branches(tape, x) * (3 if projected else 1)))


def _ignored(tape: Tape, func: Func, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    y = Passed.apply(x, func(x.detach(), *args, **kwargs), 1)
    y.normed = func is F.layer_norm
    return y


def _sum(tape: Tape, func: Func, a: Any, b: Any, **kwargs: Any) -> Any:
    a, b = (Passed.apply(each, each.detach(), 0.5) if _branches(tape, each) == 2 else each for each in (a, b))
    return func(a, b, **kwargs)


def _attention(tape: Tape, func: Func, q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Any:
    mask, scale = attention_arguments(tape, func, q, *args, **kwargs)
    logits = Matmul.apply(q, k.transpose(-1, -2))
    z = logits.detach() * scale
    return Matmul.apply(Passed.apply(logits, (z if mask is None else z + mask).softmax(-1), 1), v)


RULES: dict[Func, Func] = {
    F.layer_norm: _ignored,
    F.scaled_dot_product_attention: _attention,
    **named("linear", _linear),
    **named("dropout", dropout),
    **named("matmul bmm __matmul__", lambda tape, func, a, b: Matmul.apply(a, b)),
    **named("add __add__ __radd__", _sum),
    **named(f"softmax div true_divide __truediv__ mul __mul__ __rmul__ {ELEMENTWISE}", _ignored),
}
