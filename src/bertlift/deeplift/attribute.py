"""Contributions of every token at every layer to a span's logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bertlift.deeplift.tape import Tape, record, replay


@dataclass(frozen=True)
class Contributions:
    """What :func:`deeplift` found. Row 0 of the layers is the embedding output, row ``l`` encoder layer ``l``.

    ``score_l[t] = sum_d m_l[t, d] (h_l[t, d] - h0_l[t, d])`` in logits, with DeepLIFT's multipliers ``m_l``;
    ``positive`` and ``negative`` are the sums of the positive and negative terms alone.
    """

    scores: Tensor  # (batch, layers + 1, tokens)
    positive: Tensor  # (batch, layers + 1, tokens)
    negative: Tensor  # (batch, layers + 1, tokens)
    target_value: Tensor  # (batch,), f(x)
    reference_value: Tensor  # (batch,), f(x0)
    start_logits: Tensor  # (batch, tokens), of x
    end_logits: Tensor  # (batch, tokens)
    reference_start_logits: Tensor  # (batch, tokens), of x0
    reference_end_logits: Tensor  # (batch, tokens)

    @property
    def delta(self) -> Tensor:
        """``sum_t score_l[t] - (f(x) - f(x0))``, ``(batch, layers + 1)``: what the bookkeeping lost (0 if exact)."""
        return self.scores.sum(-1) - (self.target_value - self.reference_value)[:, None]


def deeplift(model: Any, inputs: Mapping[str, Tensor], reference: Tensor, start: Tensor, end: Tensor) -> Contributions:
    """DeepLIFT of ``start_logits[start] + end_logits[end]`` at every layer, in one backward pass.

    Two forward passes (reference, input) and one backward pass; see ``tape`` and ``rules``. The model is
    run in evaluation mode and given back as it was.

    Args:
        model: an encoder of ``transformers`` with a question-answering head.
        inputs: ``input_ids`` and, if the model takes them, ``attention_mask`` and ``token_type_ids``,
            each ``(batch, tokens)``.
        reference: token ids of the reference, ``(batch, tokens)``.
        start: token positions of the span's first token, ``(batch,)``.
        end: token positions of the span's last token, ``(batch,)``.

    Raises:
        UnsupportedOperationError: if the model computes something non-linear that has no rule.
        TapeMismatchError: if the model takes different paths for input and reference.
    """
    others = {key: value for key, value in inputs.items() if key != "input_ids"}
    rows = torch.arange(reference.shape[0], device=reference.device)
    start, end = start.to(reference.device), end.to(reference.device)
    embed = model.get_input_embeddings()
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        tape = Tape()
        with record(tape):
            plain = model(inputs_embeds=embed(reference), output_hidden_states=True, **others)
        # A leaf that wants a gradient, so that there is a graph even where all weights are frozen.
        embedded = embed(inputs["input_ids"]).detach().requires_grad_()
        with replay(tape):
            output = model(inputs_embeds=embedded, output_hidden_states=True, **others)
    finally:
        for module, training in modes:
            module.training = training

    def target(found: Any) -> Tensor:
        total: Tensor = found.start_logits[rows, start] + found.end_logits[rows, end]
        return total

    value = target(output)
    multipliers = torch.autograd.grad(value.sum(), output.hidden_states)
    with torch.no_grad():
        terms = [m * (h - h0) for m, h, h0 in zip(multipliers, output.hidden_states, plain.hidden_states, strict=True)]
        return Contributions(
            scores=torch.stack([each.sum(-1) for each in terms], 1),
            positive=torch.stack([each.clamp(min=0).sum(-1) for each in terms], 1),
            negative=torch.stack([each.clamp(max=0).sum(-1) for each in terms], 1),
            target_value=value.detach(),
            reference_value=target(plain),
            start_logits=output.start_logits.detach(),
            end_logits=output.end_logits.detach(),
            reference_start_logits=plain.start_logits,
            reference_end_logits=plain.end_logits,
        )
