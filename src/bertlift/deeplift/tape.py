"""Finding a model's non-linear operations without touching its code.

Two passes through the same model under a ``TorchFunctionMode``. The first, on the reference, notes the
operands of each non-linear call, in call order: the tape. The second, on the actual input, replaces each
of these calls by the Function of ``rules`` with the operands of the reference taken from the tape. An
operation of neither kind on which the result depends is refused by name: passing it on would return
numbers that do not add up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name

from bertlift.deeplift.rules import LayerNorm, Matmul, Product, Rescale, Softmax, layer_norm, softmax


class UnsupportedOperationError(NotImplementedError):
    """The model computes something non-linear for which DeepLIFT has no rule here."""


class TapeMismatchError(RuntimeError):
    """The model took another path for the actual input than for the reference."""


class Tape:
    """The operands of the reference pass, first in, first out."""

    def __init__(self) -> None:
        self._entries: list[tuple[str, tuple[Tensor, ...]]] = []
        self._next = 0
        self.recording = True

    def swap(self, name: str, *operands: Tensor) -> tuple[Tensor, ...]:
        """Note ``operands`` in the reference pass; return the reference's in the actual pass."""
        if self.recording:
            kept = tuple(operand.detach() for operand in operands)
            self._entries.append((name, kept))
            return kept
        if self._next == len(self._entries):
            raise TapeMismatchError(f"the reference pass ended before {name}")
        noted, kept = self._entries[self._next]
        self._entries[self._next] = ("used", ())  # lets the memory go
        self._next += 1
        if noted != name or [each.shape for each in kept] != [each.shape for each in operands]:
            raise TapeMismatchError(f"{name} of {[tuple(each.shape) for each in operands]} met {noted} on the tape")
        return kept

    def rewind(self) -> None:
        """From the reference pass to the actual pass."""
        self.recording = False

    def check_used_up(self) -> None:
        """Raise :class:`TapeMismatchError` if the actual pass ended before the reference pass did."""
        if self._next < len(self._entries):
            raise TapeMismatchError(f"the actual pass ended before {self._entries[self._next][0]}")


# A rule takes the tape and the call's own arguments and computes the call, in both passes.


def _elementwise(tape: Tape, func: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    kwargs.pop("inplace", None)

    def g(value: Tensor) -> Tensor:
        return func(value, *args, **kwargs)

    (x0,) = tape.swap(func.__name__, x)
    return g(x) if tape.recording else Rescale.apply(x, x0, g(x0), g)


def _product(tape: Tape, func: Callable[..., Tensor], a: Any, b: Any) -> Tensor:
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return func(a, b)  # a number times a tensor is linear
    # A Boolean mask counts as 0 and 1: the mean of two Booleans would be 1/2.
    a, b = (each if each.is_floating_point() else each.to(torch.result_type(a, b)) for each in (a, b))
    a0, b0 = tape.swap("mul", a, b)
    product: Tensor = a * b if tape.recording else Product.apply(a, b, a0, b0)
    return product


def _quotient(tape: Tape, func: Callable[..., Tensor], a: Tensor, b: Any) -> Tensor:
    if isinstance(b, Tensor) and b.requires_grad and not isinstance(b, torch.nn.Parameter):
        raise UnsupportedOperationError("div by a computed tensor; DeepLIFT here knows division by constants only")
    return func(a, b)


def _matmul(tape: Tape, func: Callable[..., Tensor], a: Tensor, b: Tensor) -> Tensor:
    if a.dim() < 2 or b.dim() < 2:
        raise UnsupportedOperationError("matmul of a vector; DeepLIFT here knows matrices, (..., n, k) @ (..., k, m)")
    a0, b0 = tape.swap("matmul", a, b)
    return a @ b if tape.recording else Matmul.apply(a, b, a0, b0)


def _linear(tape: Tape, func: Callable[..., Tensor], x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if isinstance(weight, torch.nn.Parameter):
        return func(x, weight, bias)
    y = _matmul(tape, torch.matmul, x, weight.transpose(-1, -2))  # computed weights are a factor like any other
    return y if bias is None else y + bias


def _dropout(
    tape: Tape, func: Callable[..., Tensor], x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    if p and training:
        raise UnsupportedOperationError("dropout that evaluation mode does not switch off")
    return x


def _softmax(tape: Tape, func: Callable[..., Tensor], x: Tensor, dim: int | None = None, **kwargs: Any) -> Tensor:
    dtype = kwargs.get("dtype")
    z = x if dtype is None else x.to(dtype)
    if dim not in (-1, z.dim() - 1):
        raise UnsupportedOperationError(f"softmax over dimension {dim}; DeepLIFT here knows the last dimension only")
    (z0,) = tape.swap("softmax", z)
    # Both passes compute in the same way, so that an input equal to its reference differs nowhere.
    return softmax(z) if tape.recording else Softmax.apply(z, z0)


def _layer_norm(
    tape: Tape,
    func: Callable[..., Tensor],
    x: Tensor,
    normalized_shape: tuple[int, ...],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    if any(each is not None and not isinstance(each, torch.nn.Parameter) for each in (weight, bias)):
        plain = _layer_norm(tape, func, x, normalized_shape, None, None, eps)
        plain = plain if weight is None else _product(tape, torch.mul, plain, weight)
        return plain if bias is None else plain + bias
    (x0,) = tape.swap("layer_norm", x)
    dims = tuple(range(-len(normalized_shape), 0))
    if tape.recording:
        return layer_norm(x, dims, weight, bias, eps)[0]
    normalized: Tensor = LayerNorm.apply(x, x0, dims, weight, bias, eps)
    return normalized


def _attention(
    tape: Tape,
    func: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """``softmax(query key^T * scale + mask) value``, opened up into its three rules."""
    if dropout_p or is_causal or enable_gqa:
        raise UnsupportedOperationError("scaled_dot_product_attention with dropout, causal or grouped heads")
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    logits = _matmul(tape, torch.matmul, query * scale, key.transpose(-1, -2))
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=logits.dtype).masked_fill(~attn_mask, -math.inf)
        logits = logits + attn_mask
    return _matmul(tape, torch.matmul, _softmax(tape, F.softmax, logits, -1), value)


_TENSOR_FUNCTIONS = (Tensor.tanh, Tensor.relu, Tensor.sigmoid)
_RULES: dict[Callable[..., Any], Callable[..., Tensor]] = {
    F.layer_norm: _layer_norm,
    F.linear: _linear,
    F.dropout: _dropout,
    F.softmax: _softmax,
    torch.softmax: _softmax,
    Tensor.softmax: _softmax,
    F.scaled_dot_product_attention: _attention,
    **dict.fromkeys((torch.matmul, torch.bmm, Tensor.matmul, Tensor.bmm, Tensor.__matmul__), _matmul),
    **dict.fromkeys((torch.div, Tensor.div, Tensor.__truediv__), _quotient),
    **dict.fromkeys((torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__), _product),
    **dict.fromkeys(
        (F.gelu, F.relu, F.silu, F.tanh, F.sigmoid, torch.tanh, torch.relu, torch.sigmoid, *_TENSOR_FUNCTIONS),
        _elementwise,
    ),
}

# Linear in what they are given (dropout is off), or only asking about it.
_LINEAR = frozenset(
    "embedding add __add__ __radd__ sub __sub__ neg __neg__ "
    "view reshape transpose permute contiguous flatten unflatten squeeze unsqueeze expand expand_as split chunk "
    "unbind cat stack select __getitem__ index_select gather clone to float double type_as sum mean "
    "size dim numel __len__ __get__ stride is_contiguous data_ptr requires_grad_ is_floating_point "
    "zeros_like ones_like empty_like full_like new_zeros new_ones new_empty new_full new_tensor".split()
)


class _Mode(TorchFunctionMode):
    """Routes the calls that have a rule through it, and refuses what is neither linear nor has one."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self.tape = tape

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        rule = _RULES.get(func)
        floats = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor) and each.is_floating_point()]
        if rule is not None and floats:
            return rule(self.tape, func, *args, **kwargs)
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", str(func))
        if not self.tape.recording and name not in _LINEAR and any(each.requires_grad for each in floats):
            raise UnsupportedOperationError(
                f"{resolve_name(func) or name}: DeepLIFT has no rule for this operation, and without one the scores "
                f"would not add up; known are linear operations, {', '.join(sorted(_rule_names()))}"
            )
        return result


def _flat(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def _rule_names() -> set[str]:
    return {getattr(func, "__name__", str(func)).strip("_") for func in _RULES}


@contextmanager
def record(tape: Tape) -> Iterator[None]:
    """Run the reference through the model inside this block."""
    with torch.no_grad(), _Mode(tape):
        yield
    tape.rewind()


@contextmanager
def replay(tape: Tape) -> Iterator[None]:
    """Run the actual input through the model inside this block; then differentiate what came out."""
    with torch.enable_grad(), _Mode(tape):
        yield
    tape.check_used_up()
