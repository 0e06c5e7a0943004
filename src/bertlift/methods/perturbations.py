"""Explanations from what the span score ``f`` does when tokens become the reference's; the model is a black box."""

from __future__ import annotations

from typing import Any

import torch
from captum.attr import FeatureAblation, KernelShap, Lime
from torch import Tensor

from bertlift.methods.case import Case, Scores

AT_ONCE = 16  # changed inputs that Captum puts through the model at a time


def occlusion(case: Case) -> Scores:
    """``f(x) - f(x without t)``: each token by itself is the reference's (leave one out; Zeiler and Fergus 2014)."""

    def ablated(one: Case, features: Tensor, common: dict[str, Any]) -> Any:
        return FeatureAblation(one.forward).attribute(one.embedded, feature_mask=features, **common)

    return _by_token(case, ablated)


def lime(case: Case) -> Scores:
    """The weights of a linear model of ``f`` over which tokens are there, fitted to ``samples`` draws near the input.

    Ribeiro et al. 2016; Captum's, with its settings: lasso, and draws weighted by the cosine of the embeddings.
    """

    def fitted(one: Case, features: Tensor, common: dict[str, Any]) -> Any:
        return Lime(one.forward).attribute(one.embedded, feature_mask=features, n_samples=one.samples, **common)

    return _by_token(case, fitted)


def kernel_shap(case: Case) -> Scores:
    """Shapley values of the tokens, estimated from ``samples`` sets of them (Lundberg and Lee 2017); Captum's."""

    def fitted(one: Case, features: Tensor, common: dict[str, Any]) -> Any:
        return KernelShap(one.forward).attribute(one.embedded, feature_mask=features, n_samples=one.samples, **common)

    return _by_token(case, fitted, complete=True)


def _by_token(case: Case, method: Any, complete: bool = False) -> Scores:
    """One number for each token that the reference replaces; the others, which cannot change, have 0."""
    found = torch.zeros_like(case.embedded[..., 0])
    for row, one in case.singles():
        if not bool(one.replaced.any()):
            continue
        # Captum's features are numbered from 0; all tokens that stay as they are make one.
        numbers = one.replaced.cumsum(-1) * one.replaced
        features = numbers - int(bool(one.replaced.all()))
        common = {"baselines": one.reference_embedded, "additional_forward_args": one.arguments}
        common |= {"perturbations_per_eval": AT_ONCE}
        with one.random(), torch.no_grad():
            values = method(one, features[..., None].expand_as(one.embedded), common)
        found[row, : values.shape[1]] = values[0, :, 0] * one.replaced[0]
    return Scores.of([found], complete)


def random(case: Case) -> Scores:
    """Normal numbers that know nothing: what every method has to beat."""
    found = torch.zeros_like(case.embedded[..., 0])
    for row, one in case.singles():
        with one.random():
            found[row, : one.embedded.shape[1]] = torch.randn(one.embedded.shape[1])
    return Scores.of([found])
