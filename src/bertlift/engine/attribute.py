"""Contributions of every token at every layer, and of every head, to a target."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from bertlift.engine import attnlrp, paper2019
from bertlift.engine.references import reference_embeddings
from bertlift.engine.tape import Tape, UnsupportedOperationError, record, replay
from bertlift.errors import InputError

INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
RULES = ("exact", "paper2019", "attnlrp")
_LOCK = threading.Lock()
_LOCKS: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()


@dataclass(frozen=True)
class Contributions:
    """What :func:`deeplift` found, in the target's unit. Row 0 of the layers is the embedding output.

    ``score_l[t] = sum_d m_l[t, d] (h_l[t, d] - h0_l[t, d])`` with DeepLIFT's multipliers ``m_l``;
    ``positive`` and ``negative`` are the sums of the positive and negative terms alone. At every layer the
    scores add up to ``target_value - reference_value``, and so do a layer's ``residual``, ``value_path`` and
    ``attention_path``.
    """

    scores: Tensor  # (batch, layers + 1, tokens)
    positive: Tensor  # (batch, layers + 1, tokens)
    negative: Tensor  # (batch, layers + 1, tokens)
    target_value: Tensor  # (batch,), f(x)
    reference_value: Tensor  # (batch,), f(x0)
    output: Any  # the model's, for x
    reference_output: Any  # for x0; None where there is none, or several
    value_path: Tensor | None = None  # (batch, layers, heads): p_bar dv, what the attended tokens carry
    attention_path: Tensor | None = None  # (batch, layers, heads): dp v_bar, where the head looks
    residual: Tensor | None = None  # (batch, layers): what goes past the heads
    attention: Tensor | None = None  # (batch, layers, heads, query, key): the input's probabilities; heads=True only
    edges: Tensor | None = None  # (batch, edges asked for, query, key): contributions, both paths

    @property
    def delta(self) -> Tensor:
        """``sum_t score_l[t] - (f(x) - f(x0))``, ``(batch, layers + 1)``: what the bookkeeping lost (0 if exact)."""
        return self.scores.sum(-1) - (self.target_value - self.reference_value)[:, None]


def deeplift(
    model: Any,
    inputs: Mapping[str, Tensor],
    reference: Any = "mask",
    target: Any = None,
    heads: bool = False,
    edges: Sequence[tuple[int, int]] | None = None,
    *,
    rule: str = "exact",
    tokenizer: Any = None,
) -> Contributions:
    """DeepLIFT of a target at every layer, in one backward pass; see ``tape`` and ``rules``.

    The model runs twice (reference, input), in evaluation mode, and is given back as it was. Threads that
    explain with the same model take turns.

    Args:
        model: an encoder of ``transformers`` with a head, e.g. for question answering.
        inputs: ``input_ids`` and what the model takes of ``attention_mask``, ``token_type_ids`` and
            ``position_ids``, each ``(batch, tokens)``; other entries of a ``BatchEncoding`` are left out.
        reference: see :func:`reference_embeddings`; of a list of them the average is taken (DeepSHAP).
        target: None: start + end logit of :func:`predicted_span`, or the logit of the predicted class;
            ``(start, end)`` token positions, each a number or ``(batch,)``; or a function of the model's output
            that returns ``(batch,)``, subject to the exact rules like the model (of the others: a plain gradient).
        heads: whether to split every layer by heads and residual as well (and return the attention).
        edges: (layer from 1, head from 0) of the heads whose query-by-key contributions are wanted; without ``heads``
            nothing else of this size is returned.
        rule: ``"exact"``; or one that needs no reference, so that ``reference_value`` is 0: ``"paper2019"``, see
            ``paper2019``, whose relevance adds up to 1, or ``"attnlrp"``, see ``attnlrp``, which does not add up.
        tokenizer: tells which tokens are special; None: the one saved beside the model.

    Raises:
        InputError: for a wrong rule, reference, target or edge.
        UnsupportedOperationError: if the model computes something non-linear that has no rule.
        TapeMismatchError: if the model takes different paths for input and reference.
    """
    if rule not in RULES:
        raise InputError(f"rule is {rule!r}; allowed: {', '.join(RULES)}")
    layers, n_heads = model.config.num_hidden_layers, model.config.num_attention_heads
    asked = list(edges or ())
    if wrong := [edge for edge in asked if not (1 <= edge[0] <= layers and 0 <= edge[1] < n_heads)]:
        raise InputError(f"edges has {wrong[0]}; allowed: (layer 1 to {layers}, head 0 to {n_heads - 1})")
    taken = inspect.signature(model.forward).parameters
    given = {key: inputs[key].to(model.device) for key in INPUTS if key in inputs and key in taken}
    with _to_ourselves(model):
        if rule != "exact":
            return _relevance(model, given, target, rule)
        several = reference if isinstance(reference, list | tuple) else [reference]
        if not several:
            raise InputError("reference is an empty list; allowed: one reference or several")
        made = [reference_embeddings(model, given["input_ids"], each, tokenizer) for each in several]
        found = [_against(model, given, each, target, heads, asked) for each in made]
    if len(found) == 1:
        return found[0]
    tensors = [name for name, value in vars(found[0]).items() if isinstance(value, Tensor)]
    means = {name: torch.stack([getattr(each, name) for each in found]).mean(0) for name in tensors}
    return replace(found[0], reference_output=None, **means)


def _against(
    model: Any, given: dict[str, Tensor], embedded0: Tensor, target: Any, heads: bool, edges: Any
) -> Contributions:
    words = model.get_input_embeddings()
    tape, end = Tape(model, words=words.weight), Tape(model)
    tape.embedded = embedded0
    with _hidden_states(model) as states0, record(tape):
        output0 = model(**given, return_dict=True)
    # A leaf that wants a gradient, so that there is a graph although the weights count as constants.
    tape.embedded = words(given["input_ids"]).detach().requires_grad_()
    watch = None
    try:
        with _hidden_states(model) as states:
            tape.watch = watch = _Heads(states, states0, edges, heads) if heads or edges else None
            with replay(tape):
                output = model(**given, return_dict=True)
        function = target_function(target, output, given)
        with record(end):
            value0 = function(output0)
        with replay(end):
            value = function(output)
        multipliers = _grad(value, states, given)
    finally:
        if watch:
            watch.close()
    terms = [m * (h.detach() - h0) for m, h, h0 in zip(multipliers, states, states0, strict=True)]
    split = watch.split(value.detach(), value0) if watch else {}
    return Contributions(
        **_sums(terms),
        **split,
        target_value=value.detach(),
        reference_value=value0,
        output=_detached(output),
        reference_output=output0,
    )


def _relevance(model: Any, given: dict[str, Tensor], target: Any, rule: str) -> Contributions:
    rules = paper2019.RULES if rule == "paper2019" else attnlrp.RULES
    tape = Tape(model, rules, model.get_input_embeddings().weight)
    tape.embedded = tape.words[given["input_ids"]].detach().requires_grad_()
    tape.recording = False
    with _hidden_states(model) as tape.watch, replay(tape):
        output = model(**given, return_dict=True)
    value = target_function(target, output, given)(output)
    if rule == "paper2019":  # the "gradient" is relevance, half of it from either end of the span
        terms, whole = _grad(value / 2, tape.watch, given), torch.ones_like(value)
    else:
        grads = _grad(value, tape.watch, given)
        terms, whole = [h.detach() * grad for h, grad in zip(tape.watch, grads, strict=True)], value.detach()
    return Contributions(
        **_sums(terms),
        target_value=whole,
        reference_value=torch.zeros_like(whole),
        output=_detached(output),
        reference_output=None,
    )


def _grad(value: Tensor, states: list[Tensor], given: Mapping[str, Tensor]) -> Sequence[Tensor]:
    rows = given["input_ids"].shape[:1]
    if value.shape != rows or not value.requires_grad:
        raise InputError(f"target gives shape {tuple(value.shape)}; allowed: {tuple(rows)}, depending on the input")
    return torch.autograd.grad(value.sum(), states)


def _sums(terms: Sequence[Tensor]) -> dict[str, Tensor]:
    kinds = {"scores": terms, "positive": [t.clamp(min=0) for t in terms], "negative": [t.clamp(max=0) for t in terms]}
    return {name: torch.stack([each.sum(-1) for each in of], 1) for name, of in kinds.items()}


def _detached(output: Any) -> Any:
    return type(output)(**{key: each.detach() for key, each in output.items() if isinstance(each, Tensor)})


def target_function(target: Any, output: Any, given: Mapping[str, Tensor]) -> Any:
    """The target (see :func:`deeplift`) as a function of the model's output; ``output``: that of the input."""
    if callable(target):
        return target
    if target is None and hasattr(output, "start_logits"):
        target = predicted_span(output.start_logits, output.end_logits, given.get("attention_mask"))
    elif target is None and getattr(output, "logits", torch.empty(0)).dim() == 2:
        classes = output.logits.argmax(-1, keepdim=True)
        return lambda of: of.logits.gather(-1, classes).squeeze(-1)
    if not (isinstance(target, tuple | list) and len(target) == 2 and hasattr(output, "start_logits")):
        raise InputError(
            f"target is {target!r}; allowed: None or (start, end) for a model with start and end logits, None for one "
            f"that classifies the text, or a function of the model's output"
        )
    batch, tokens = output.start_logits.shape
    start, end = (torch.as_tensor(each, device=output.start_logits.device).expand(batch) for each in target)
    if not bool(((torch.stack([start, end]) >= 0) & (torch.stack([start, end]) < tokens)).all()):
        raise InputError(f"target is {target!r}; allowed: token positions from 0 to {tokens - 1}")
    rows = torch.arange(batch, device=start.device)
    return lambda of: of.start_logits[rows, start] + of.end_logits[rows, end]


def predicted_span(start_logits: Tensor, end_logits: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Positions, each ``(batch,)``, of the highest start + end logit: the first token (no answer), or ``start <= end``
    behind it."""
    there = torch.ones_like(start_logits).bool() if attention_mask is None else attention_mask.bool()
    first = torch.nn.functional.one_hot(there.int().argmax(-1), there.shape[-1]).bool()
    pairs = [part[:, :, None] & part[:, None, :] for part in (there & ~first, first)]
    totals = (start_logits[:, :, None] + end_logits[:, None, :]).detach()
    best = totals.masked_fill(~(pairs[0].triu() | pairs[1]), -torch.inf).flatten(1).argmax(-1)
    return best // there.shape[-1], best % there.shape[-1]


@contextmanager
def _to_ourselves(model: nn.Module) -> Iterator[None]:
    """One thread at a time has the model, in evaluation mode; afterwards every module's flag is as it was."""
    with _LOCK:
        lock = _LOCKS.setdefault(model, threading.RLock())
    with lock:
        flags = [(module, module.training) for module in model.modules()]
        model.eval()
        try:
            yield
        finally:
            for module, training in flags:
                module.training = training


def encoder_layers(model: Any) -> list[nn.Module]:
    """The modules that are the model's layers, in their order; one that several layers share is there once."""
    base = model.base_model
    kind: Any = (getattr(base, "_can_record_outputs", None) or {}).get("hidden_states")
    if kind is None:
        count = model.config.num_hidden_layers
        stacks = [each for each in base.modules() if isinstance(each, nn.ModuleList) and len(each) == count]
        kind = type(stacks[0][0]) if stacks else nn.Module
    return [module for module in base.modules() if isinstance(module, getattr(kind, "target_class", kind))]


@contextmanager
def _hidden_states(model: Any) -> Iterator[list[Tensor]]:
    """The inputs of all layers and the output of the last, of this thread's next pass.

    While a layer runs the last entry is an empty tensor. Hooks of our own, taken away afterwards: those by which the
    library fills ``output_hidden_states`` would stay on the model.
    """
    count, layers = model.config.num_hidden_layers, encoder_layers(model)
    states: list[Tensor] = []
    thread = threading.get_ident()

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        if threading.get_ident() == thread:
            states[max(len(states) - 1, 0) :] = [args[0] if args else kwargs["hidden_states"], torch.empty(0)]

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        if threading.get_ident() == thread:
            states[-1] = output[0] if isinstance(output, tuple | list) else output

    handles = [layer.register_forward_pre_hook(enter, with_kwargs=True) for layer in layers]
    handles += [layer.register_forward_hook(leave) for layer in layers]
    try:
        yield states
    finally:
        for handle in handles:
            handle.remove()
    if len(states) != count + 1:
        raise UnsupportedOperationError(f"{type(model).__name__}: its {count} layers do not follow one on the other")


class _Heads:
    """Splits the layers: catches the multipliers of the heads' results and of the residual sum in the backward pass."""

    def __init__(self, states: list[Tensor], states0: list[Tensor], edges: list[tuple[int, int]], maps: bool) -> None:
        self.states, self.states0, self.edges = states, states0, edges
        self.maps = maps  # whether to keep the attention probabilities of all heads
        self.found: dict[tuple[str, Any], Tensor] = {}
        self.sizes: dict[int, Any] = {}
        self.attended_in = 0  # the layer whose attention came last: the next sum has to be its residual one
        self.hooks: list[Any] = []

    def added(self, a: Any, b: Any, total: Tensor) -> None:
        """``total = a + b``: the residual sum, if an attention came just before and one is the layer's input."""
        layer, attended_in, self.attended_in = len(self.states) - 1, self.attended_in, 0
        if layer == attended_in > 0 and (a is self.states[-2] or b is self.states[-2]):
            dh = self.states[-2].detach() - self.states0[layer - 1]

            def split(m: Tensor) -> None:
                self._keep("residual", layer, m * dh, (1, 2))

            self.hooks += [total.register_hook(split)]

    def attended(self, p: Tensor, v: Tensor, p_bar: Tensor, v_bar: Tensor, context: Tensor) -> None:
        """``context = p v``: ``p v - p0 v0 = p_bar dv + dp v_bar``, the value path and the attention path."""
        self.attended_in = layer = len(self.states) - 1
        by_head = (self.states[-2].shape[0], -1)
        p, v, p_bar, v_bar = (each.reshape(*by_head, *each.shape[-2:]) for each in (p, v, p_bar, v_bar))
        dp, dv = 2 * (p - p_bar), 2 * (v - v_bar)
        if self.maps:
            self.found["attention", layer] = p

        def split(m: Tensor) -> None:
            m = m.reshape(*by_head, *m.shape[-2:])
            self._keep("value_path", layer, m * (p_bar @ dv), (2, 3))
            self._keep("attention_path", layer, m * (dp @ v_bar), (2, 3))
            for _, h in (edge for edge in self.edges if edge[0] == layer):
                both = m[:, h] @ dv[:, h].mT * p_bar[:, h] + m[:, h] @ v_bar[:, h].mT * dp[:, h]
                self.found["edges", (layer, h)] = both

        self.hooks += [context.register_hook(split)]

    def _keep(self, name: str, layer: int, contributions: Tensor, axes: tuple[int, ...]) -> None:
        """Add contributions up; and their sizes, since what is lost by rounding is a share of these."""
        self.found[name, layer] = contributions.sum(axes)
        self.sizes[layer] = self.sizes.get(layer, 0) + contributions.abs().flatten(1).sum(1)

    def close(self) -> None:
        """Let go of the graph: each hook holds tensors of the graph that holds it, a circle that nobody would free."""
        for hook in self.hooks:
            hook.remove()

    def split(self, value: Tensor, value0: Tensor) -> dict[str, Tensor]:
        """What was found, stacked by layer; every layer has to give ``f(x) - f(x0)``, but for rounding."""
        eps = max(torch.finfo(value.dtype).eps, torch.finfo(torch.float32).eps)
        rounding = 100 * eps * (value.abs() + value0.abs())
        numbers = range(1, len(self.states))
        for layer in numbers:
            parts = [self.found.get((name, layer)) for name in ("residual", "value_path", "attention_path")]
            sums = [each.reshape(len(value), -1).sum(1) for each in parts if each is not None]
            missed = (sum(sums) - (value - value0)).abs()
            if len(sums) < 3 or (missed > rounding + eps**0.5 * self.sizes[layer]).any():
                raise UnsupportedOperationError(f"heads: layer {layer} is not one attention and one residual sum")
        names = ("residual", "value_path", "attention_path", *(("attention",) if self.maps else ()))
        found = {name: torch.stack([self.found[name, layer] for layer in numbers], 1) for name in names}
        if self.edges:
            found["edges"] = torch.stack([self.found["edges", tuple(edge)] for edge in self.edges], 1)
        return found
