"""Explanations from attention weights. They say where the model looks, which need not be what it uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from bertlift.methods.case import Case, Scores


@contextmanager
def telling_weights(model: Any) -> Iterator[None]:
    """Within the block the model attends by the one implementation that tells its weights."""
    usual = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(usual)


def _weights(case: Case) -> list[Tensor]:
    """Mean over heads of every layer's attention, ``(batch, query, key)``."""
    with telling_weights(case.model), torch.no_grad():
        found = case.model(**case.inputs, output_attentions=True).attentions
    return [each.mean(1) for each in found]


def _from_span(case: Case, weights: Tensor) -> Tensor:
    """The mean of the rows of the span's two ends, ``(batch, key)``."""
    rows = torch.arange(len(case.starts))
    return (weights[rows, case.starts] + weights[rows, case.ends]) / 2


def attention(case: Case) -> Scores:
    """Row ``l``: layer ``l``'s attention from the ends of the span, mean over heads; row 0: the mean over layers."""
    rows = [_from_span(case, each) for each in _weights(case)]
    return Scores.of([torch.stack(rows).mean(0), *rows])


def rollout(case: Case) -> Scores:
    """Attention followed down from the ends of the span to every layer (Abnar and Zuidema 2020).

    ``r_L`` is one half at either end, and ``r_{l-1} = r_l (A_l + I) / 2``: half of what arrives at a layer goes past
    its attention ``A_l`` (mean over heads). Every row adds up to 1.
    """
    weights = _weights(case)
    ones = torch.eye(weights[0].shape[-1], dtype=weights[0].dtype)
    rows = [_from_span(case, ones.expand_as(weights[0]))]
    for each in reversed(weights):
        rows.insert(0, ((rows[0][:, None] @ each)[:, 0] + rows[0]) / 2)
    return Scores.of(rows)


def attention_x_gradient(case: Case) -> Scores:
    """Row ``l``: ``sum_{h,q} A_l[h, q, t] df / dA_l[h, q, t]``; row 0: the sum over layers (as Barkan et al. 2021)."""
    with telling_weights(case.model), torch.enable_grad():
        output = case.model(**case.inputs, output_attentions=True)
        slopes = torch.autograd.grad(case.span(output).sum(), output.attentions)
    rows = [(each.detach() * slope).sum((1, 2)) for each, slope in zip(output.attentions, slopes, strict=True)]
    return Scores.of([torch.stack(rows).sum(0), *rows])
