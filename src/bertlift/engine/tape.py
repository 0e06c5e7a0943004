"""Finding a model's non-linear operations without touching its code.

Two passes through the same model under a ``TorchFunctionMode``. The first, on the reference, notes the
operands of each non-linear call, in call order: the tape. The second, on the actual input, replaces each
of these calls by the Function of ``rules`` with the operands of the reference taken from the tape. Model
weights are constants in both, so that a tensor wants a gradient if and only if it depends on the input;
an operation on such a tensor that is neither linear nor has a rule is refused by name: passing it on would
return numbers that do not add up.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name

from bertlift.engine.rules import LayerNorm, LogSoftmax, Matmul, Product, Rescale, Softmax, log_mean

Func = Callable[..., Any]


class UnsupportedOperationError(NotImplementedError):
    """The model computes something non-linear for which there is no rule."""


class TapeMismatchError(RuntimeError):
    """The model took another path for the actual input than for the reference."""


class Tape:
    """The operands of the reference pass, first in, first out; and what both passes need to know.

    Attributes:
        model: whose modules give names to refused operations.
        rules: torch function -> rule, called with the tape and the call's own function and arguments.
        words, embedded: the word embeddings' weight, and what stands for the result of looking up in it.
        watch: if set, told of every sum (``watch.added(a, b, total)``) and of every product with attention
            probabilities (``watch.attended(p, v, p_bar, v_bar, context)``).
    """

    def __init__(self, model: nn.Module, rules: dict[Func, Func] | None = None, words: Any = None) -> None:
        self.model, self.rules, self.words = model, rules or RULES, words
        self.embedded: Tensor | None = None
        self.watch: Any = None
        self.recording = True
        self._entries: list[tuple[str, tuple[Tensor, ...], list[int]]] = []
        self._next = 0

    def note(self, name: str, *tensors: Tensor) -> None:
        """In the reference pass: keep ``tensors`` for the same call of the actual pass."""
        self._entries.append((name, tensors, [each._version for each in tensors]))

    def take(self, name: str, x: Tensor) -> tuple[Tensor, ...]:
        """In the actual pass: what the reference pass kept at this call, whose first tensor is shaped as ``x``."""
        if self._next == len(self._entries):
            raise TapeMismatchError(f"the reference pass ended before {name}")
        noted, kept, versions = self._entries[self._next]
        self._entries[self._next] = ("used", (), [])  # lets the memory go
        self._next += 1
        if noted != name or kept[0].shape != x.shape:
            raise TapeMismatchError(f"{name} of shape {tuple(x.shape)} met {noted} {tuple(kept[0].shape)} on the tape")
        if versions != [each._version for each in kept]:
            raise UnsupportedOperationError(f"{name}{self.where()}: its operand is overwritten in place later on")
        return kept

    def check_used_up(self) -> None:
        """Raise :class:`TapeMismatchError` if the actual pass ended before the reference pass did."""
        if self._next < len(self._entries):
            raise TapeMismatchError(f"the actual pass ended before {self._entries[self._next][0]}")

    def where(self) -> str:
        """The module that is being called, for an error's text."""
        names, frame = {id(module): name for name, module in self.model.named_modules()}, sys._getframe().f_back
        while frame:
            caller = frame.f_locals.get("self")
            if isinstance(caller, nn.Module) and id(caller) in names:
                return f", called by {names[id(caller)] or 'the model'} ({type(caller).__name__})"
            frame = frame.f_back
        return ""


def refusal(tape: Tape, func: Func, why: str) -> UnsupportedOperationError:
    """The error for a call that no rule covers: its name, the module that called it, and why."""
    name = resolve_name(func) or getattr(func, "__name__", str(func))
    return UnsupportedOperationError(f"{name}{tape.where()}: there is no rule for it {why}")


def _mean(a: Tensor, a0: Tensor) -> Tensor:
    return a.detach().lerp(a0, 0.5)


# A rule takes the tape and the call's own arguments and computes the call, in both passes.


def _elementwise(tape: Tape, func: Func, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    kwargs.pop("inplace", None)
    if any(isinstance(each, Tensor) and each.requires_grad for each in (*args, *kwargs.values())):
        raise refusal(tape, func, "where a second operand depends on the input")

    def g(value: Tensor) -> Any:
        return func(value, *args, **kwargs)

    if not tape.recording:
        return Rescale.apply(x, *tape.take(func.__name__, x), g)
    y = g(x)
    tape.note(func.__name__, x, y)
    return y


def _product(tape: Tape, func: Func, a: Any, b: Any) -> Any:
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return func(a, b)  # a number times a tensor is linear
    # A Boolean mask counts as 0 and 1: the mean of two Booleans would be 1/2.
    a, b = (each if each.is_floating_point() else each.to(torch.result_type(a, b)) for each in (a, b))
    if tape.recording:
        tape.note("mul", a, b)
        return a * b
    a0, b0 = tape.take("mul", a)
    return Product.apply(a, b, _mean(a, a0), _mean(b, b0)) if a.requires_grad and b.requires_grad else a * b


def _quotient(tape: Tape, func: Func, a: Any, b: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode is not None:
        raise refusal(tape, func, "with rounding")
    if not isinstance(b, Tensor) or not b.is_floating_point():
        return func(a, b)
    return _product(tape, torch.mul, a, _elementwise(tape, torch.reciprocal, b))


def _matmul(tape: Tape, func: Func, a: Tensor, b: Tensor) -> Any:
    if a.dim() < 2 or b.dim() < 2:
        raise refusal(tape, func, "with a vector; known are matrices, (..., n, k) @ (..., k, m)")
    bar = getattr(a, "bar", None)  # attention probabilities come with their mean
    if tape.recording:
        tape.note("matmul", *((a, b) if bar is None else (b,)))
        return a @ b
    *a0, b0 = tape.take("matmul", a if bar is None else b)
    a_bar, b_bar = _mean(a, a0[0]) if bar is None else bar, _mean(b, b0)
    product = Matmul.apply(a, b, a_bar, b_bar)
    if tape.watch is not None and bar is not None:
        tape.watch.attended(a.detach(), b.detach(), a_bar, b_bar, product)
    return product


def weighted(tape: Tape, func: Func, x: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Linear, as long as the weights are constants."""
    if weight.requires_grad:
        raise refusal(tape, func, "with weights that depend on the input")
    return func(x, weight, *args, **kwargs)


def _add(tape: Tape, func: Func, a: Any, b: Any, **kwargs: Any) -> Any:
    total = func(a, b, **kwargs)
    if tape.watch is not None:
        tape.watch.added(a, b, total)
    return total


def dropout(tape: Tape, func: Func, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Off, whatever the training flag says."""
    return x


def _softmax(tape: Tape, func: Func, x: Tensor, dim: int | None = None, own: bool = False, **kwargs: Any) -> Any:
    z = x if kwargs.get("dtype") is None else x.to(kwargs["dtype"])
    if dim not in (-1, z.dim() - 1):
        raise refusal(tape, func, f"over dimension {dim}; known is the last one")
    logarithm = func.__name__ == "log_softmax"
    kept = () if tape.recording else tape.take("softmax", z)
    # Both passes compute in the same way, so that an input equal to its reference differs nowhere. Matrices of
    # this size are slow to come by: where we made the logits ourselves, they are overwritten.
    log_p = torch.log_softmax(z.detach(), -1, out=z.detach() if own else None)
    p = log_p.exp()
    if tape.recording:
        tape.note("softmax", log_p.clone() if logarithm else log_p, p)
        p.bar = p.detach()  # type: ignore[attr-defined]
        return log_p if logarithm else p
    log_p0, p0 = kept
    bar = p0.lerp_(p, 0.5) if own else p0.lerp(p, 0.5)
    mean = log_mean(log_p.clone() if logarithm else log_p, log_p0, bar)
    if logarithm:
        return LogSoftmax.apply(z, log_p, mean)
    result = Softmax.apply(z, p, mean)
    result.bar = bar
    return result


def _layer_norm(
    tape: Tape, func: Func, x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    if any(each is not None and each.requires_grad for each in (weight, bias)):
        raise refusal(tape, func, "with weights that depend on the input")
    if not tape.recording:
        return LayerNorm.apply(x, *tape.take("layer_norm", x), tuple(shape), weight, bias, eps)
    y, mean, s = torch.native_layer_norm(x, tuple(shape), weight, bias, eps)
    tape.note("layer_norm", x, mean, s)
    return y


def _attention(tape: Tape, func: Func, q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Any:
    """``softmax(q k^T * scale + mask) v``, opened up into its rules."""
    mask, scale = attention_arguments(tape, func, q, *args, **kwargs)
    q, k, v = (q * scale).contiguous(), k.contiguous(), v.contiguous()  # once, not at each product
    logits = _matmul(tape, torch.matmul, q, k.transpose(-1, -2))
    logits = logits if mask is None else logits + mask
    return _matmul(tape, torch.matmul, _softmax(tape, F.softmax, logits, -1, own=True), v)


def attention_arguments(
    tape: Tape, func: Func, q: Tensor, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, **kw: Any
) -> tuple[Tensor | None, float]:
    """The additive mask and the scale of a call of ``scaled_dot_product_attention``; dropout is off."""
    if is_causal or kw.get("enable_gqa"):
        raise refusal(tape, func, "with causal or grouped heads")
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=q.dtype).masked_fill(~attn_mask, -math.inf)
    return attn_mask, 1 / math.sqrt(q.shape[-1]) if kw.get("scale") is None else kw["scale"]


def named(names: str, rule: Func) -> dict[Func, Func]:
    """``rule`` for all functions of torch with one of ``names``."""
    places = (F, torch, Tensor)
    return {getattr(place, name): rule for name in names.split() for place in places if hasattr(place, name)}


ELEMENTWISE = (
    "gelu relu silu mish elu selu softplus leaky_relu hardtanh logsigmoid tanh sigmoid erf exp log sqrt rsqrt square "
    "reciprocal pow __pow__ abs clamp"
)
RULES: dict[Func, Func] = {
    F.layer_norm: _layer_norm,
    F.scaled_dot_product_attention: _attention,
    **named("linear conv1d conv2d", weighted),
    **named("dropout", dropout),
    **named("softmax log_softmax", _softmax),
    **named("matmul bmm __matmul__", _matmul),
    **named("div true_divide __truediv__", _quotient),
    **named("mul __mul__ __rmul__", _product),
    **named("add __add__ __radd__", _add),
    **named(ELEMENTWISE, _elementwise),
}

_ASKING = frozenset("size dim numel __len__ __get__ stride is_contiguous data_ptr is_floating_point is_complex".split())
_PASSING = frozenset("view reshape to type_as contiguous".split())  # the same numbers in the same order
_LINEAR = _PASSING | frozenset(
    "embedding __iadd__ add_ sub __sub__ __rsub__ sub_ neg __neg__ permute transpose flatten unflatten squeeze "
    "unsqueeze expand expand_as reshape_as view_as split chunk unbind cat concat stack repeat select narrow t flip "
    "roll __getitem__ index_select gather take_along_dim clone float double half bfloat16 sum mean cumsum pad "
    "masked_fill masked_fill_ requires_grad_ zeros_like ones_like empty_like full_like new_zeros new_ones new_empty "
    "new_full new_tensor".split()
)


class _Mode(TorchFunctionMode):
    """Routes the calls that have a rule through it, and refuses what is neither linear nor has one."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self.tape = tape

    def __torch_function__(self, func: Func, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        tape, name = self.tape, getattr(func, "__name__", str(func))
        if func is F.embedding and args[1] is tape.words:
            return tape.embedded
        if name in _ASKING and func != Tensor.data.__get__:  # type: ignore[attr-defined]
            return func(*args, **(kwargs or {}))
        args = tuple(each.detach() if isinstance(each, nn.Parameter) else each for each in args)
        kwargs = {k: each.detach() if isinstance(each, nn.Parameter) else each for k, each in (kwargs or {}).items()}
        given = [*args, *kwargs.values()]
        tensors = [each for one in given for each in (one if isinstance(one, tuple | list) else (one,))]
        tensors = [each for each in tensors if isinstance(each, Tensor) and each.is_floating_point()]
        depends = not tape.recording and any(each.requires_grad for each in tensors)
        if depends and not torch.is_grad_enabled():
            raise refusal(tape, func, "under no_grad, which cuts its result off")
        if func in tape.rules and tensors:
            return tape.rules[func](tape, func, *args, **kwargs)
        if depends and name not in _LINEAR:
            raise refusal(tape, func, "here, and without one the scores would not add up")
        result = func(*args, **kwargs)
        if name in _PASSING and hasattr(args[0], "bar"):
            result.bar = func(args[0].bar, *args[1:], **kwargs)
        return result


@contextmanager
def record(tape: Tape) -> Iterator[None]:
    """Run the reference through the model inside this block."""
    with torch.no_grad(), _Mode(tape):
        yield
    tape.recording = False


@contextmanager
def replay(tape: Tape) -> Iterator[None]:
    """Run the actual input through the model inside this block; then differentiate what came out."""
    with torch.enable_grad(), _Mode(tape):
        yield
    tape.check_used_up()
