"""AttnLRP (Achtibat et al. 2024, arXiv 2402.05602): layer-wise relevance propagation by a modified gradient.

The relevance of a hidden unit is ``h G``, where ``G``, "the gradient" below, is pulled back through

    linear, sums, softmax     as it is
    Y = A B, a * b            G_A = 1/2 G B^T,  G_B = 1/2 A^T G,  if both factors depend on the input (uniform rule)
    y = g(x), element-wise    G_x = G y / (x + EPSILON)                                    (identity rule)
    y = w (x - mean) / s + b  as it is, with the standard deviation s a constant           (LayerNorm)

There is no reference. All rules but that of the softmax keep ``sum(h G)``, except what biases and other constants
bring in: they keep their part. The softmax turns ``sum(p G)`` into ``sum(z p (G - sum(p G)))``.

This is what LXT 2.1 computes for BERT (``lxt.efficient``), and where that leaves the paper so does this. The
paper's stabilisers in the denominators of linear layers and products are 0, as the denominators cancel out. Its
identity rule hands relevance on unchanged; here it has the stabiliser ``EPSILON``, added whatever the sign of ``x``,
so that ``R = G y`` becomes ``R x / (x + EPSILON)``. Unlike in LXT a function with ``g(0)`` other than 0 (sigmoid,
exp) is refused: near 0 its quotient would be anything.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from bertlift.engine.paper2019 import Passed
from bertlift.engine.tape import ELEMENTWISE, Func, Tape, attention_arguments, dropout, named, refusal, weighted

EPSILON = 1e-10


def _dependent(*operands: Any) -> int:
    return sum(isinstance(each, Tensor) and each.requires_grad for each in operands)


def _plain(tape: Tape, func: Func, *args: Any, **kwargs: Any) -> Any:
    return func(*args, **kwargs)


def _halved(tape: Tape, func: Func, a: Any, b: Any) -> Any:
    y = func(a, b)
    return Passed.apply(y, y.detach(), 0.5) if _dependent(a, b) == 2 else y


def _quotient(tape: Tape, func: Func, a: Any, b: Any, **kwargs: Any) -> Any:
    if kwargs.get("rounding_mode") is not None or _dependent(b):
        raise refusal(tape, func, "with rounding, or where the divisor depends on the input")
    return func(a, b, **kwargs)


def _identity(tape: Tape, func: Func, x: Any, *args: Any, **kwargs: Any) -> Any:
    kwargs.pop("inplace", None)
    if not _dependent(x, *args, *kwargs.values()):
        return func(x, *args, **kwargs)
    if _dependent(*args, *kwargs.values()):
        raise refusal(tape, func, "where a second operand depends on the input")
    x0 = x.detach()
    if func(x0.new_zeros(()), *args, **kwargs) != 0:
        raise refusal(tape, func, "as it is not 0 at 0")
    y = func(x0, *args, **kwargs)
    return Passed.apply(x, y, y / (x0 + EPSILON))


def _layer_norm(
    tape: Tape, func: Func, x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    if _dependent(weight, bias):
        raise refusal(tape, func, "with weights that depend on the input")
    dims = tuple(range(-len(shape), 0))
    centred = x - x.mean(dims, keepdim=True)
    y = centred / (centred.detach().square().mean(dims, keepdim=True) + eps).sqrt()
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _attention(tape: Tape, func: Func, q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Any:
    mask, scale = attention_arguments(tape, func, q, *args, **kwargs)
    logits = _halved(tape, torch.matmul, q, k.transpose(-1, -2)) * scale
    return _halved(tape, torch.matmul, (logits if mask is None else logits + mask).softmax(-1), v)


RULES: dict[Func, Func] = {
    F.layer_norm: _layer_norm,
    F.scaled_dot_product_attention: _attention,
    **named("linear conv1d conv2d", weighted),
    **named("dropout", dropout),
    **named("softmax add __add__ __radd__", _plain),
    **named("matmul bmm __matmul__ mul __mul__ __rmul__", _halved),
    **named("div true_divide __truediv__", _quotient),
    **named(ELEMENTWISE, _identity),
}
