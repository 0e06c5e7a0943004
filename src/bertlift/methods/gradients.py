"""Explanations from derivatives of the span score ``f``."""

from __future__ import annotations

from functools import partial

import torch
from captum.attr import IntegratedGradients, NoiseTunnel, Saliency
from torch import Tensor

from bertlift.engine.attribute import encoder_layers
from bertlift.methods.case import Case, Scores, giving

NOISE = 0.5  # of SmoothGrad: its standard deviation over that of the window's word embeddings
AT_ONCE = 32  # rows that Captum puts through the model at a time


def gradient(case: Case) -> Scores:
    """``|df / d onehot_t|`` over the vocabulary (L2), divided by the largest of the window; one row.

    The blog's explanation. With word embeddings ``E`` ``(vocabulary, width)`` and ``g_t = df / d embedding_t`` the
    gradient is ``E g_t``, whose length is ``sqrt(g_t^T (E^T E) g_t)``: nothing as wide as the vocabulary is formed
    for a token.
    """
    embedded = case.embedded.clone().requires_grad_()
    with torch.enable_grad():
        value = case.forward(embedded, *case.arguments)
        (found,) = torch.autograd.grad(value.sum(), embedded)
    return Scores.of([_over_vocabulary(case, found)])


def _over_vocabulary(case: Case, found: Tensor) -> Tensor:
    weight = case.model.get_input_embeddings().weight.detach()
    length = torch.einsum("btd,de,bte->bt", found, weight.T @ weight, found).clamp(min=0).sqrt()
    return length / length.amax(-1, keepdim=True).clamp(min=torch.finfo(length.dtype).tiny)


def smoothgrad(case: Case) -> Scores:
    """:func:`gradient` with the mean of the gradients at ``samples`` noisy copies of the word embeddings; one row.

    Smilkov et al. 2017.
    """
    found = torch.zeros_like(case.embedded)
    for row, one in case.singles():
        noise = NOISE * float(one.embedded.std())
        tunnel = NoiseTunnel(Saliency(one.forward))
        with one.random(), torch.enable_grad():
            found[row, : one.embedded.shape[1]] = tunnel.attribute(
                one.embedded,
                nt_type="smoothgrad",
                nt_samples=one.samples,
                nt_samples_batch_size=AT_ONCE,
                stdevs=noise,
                abs=False,
                additional_forward_args=one.arguments,
            )[0]
    return Scores.of([_over_vocabulary(case, found)])


def _states_and_gradients(case: Case) -> tuple[list[Tensor], list[Tensor]]:
    with torch.enable_grad():
        output = case.model(**case.inputs, output_hidden_states=True)
        found = torch.autograd.grad(case.span(output).sum(), output.hidden_states)
    return [each.detach() for each in output.hidden_states], list(found)


def gradient_x_input(case: Case) -> Scores:
    """``sum_d h_l[t, d] df / dh_l[t, d]``, at the embedding output and at every layer (Shrikumar et al. 2016)."""
    return Scores.summed([state * slope for state, slope in zip(*_states_and_gradients(case), strict=True)])


def gradcam(case: Case) -> Scores:
    """``sum_d a_l[d] h_l[t, d]`` with ``a_l[d]`` the mean over tokens of ``df / dh_l[t, d]`` (Selvaraju et al. 2017).

    Tokens stand for the places of an image, units for its channels. Without the paper's ReLU, which would make all
    tokens that speak against the answer the same.
    """
    mask = case.inputs["attention_mask"][..., None]
    rows = []
    for state, slope in zip(*_states_and_gradients(case), strict=True):
        weights = (slope * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
        rows.append(state * weights * mask)
    return Scores.summed(rows)


def integrated_gradients(case: Case) -> Scores:
    """The gradient's mean on the straight way from reference to input, times their difference.

    Sundararajan et al. 2017; Captum's, with ``samples`` steps. Row 0 takes the word embeddings along that way, row
    ``l`` the output of layer ``l``. A model whose layers are one and the same module has row 0 only.
    """
    places = [(case.model.get_input_embeddings(), case.embedded, case.reference_embedded)]
    layers = encoder_layers(case.model) if case.layers else []
    if len(layers) == case.model.config.num_hidden_layers:
        states, states0 = (_states(case, each) for each in (case.embedded, case.reference_embedded))
        places += zip(layers, states[1:], states0[1:], strict=True)
    rows = []
    for module, state, state0 in places:
        captums = IntegratedGradients(partial(case.forward_from, module))
        with torch.enable_grad():
            found = captums.attribute(
                state,
                baselines=state0,
                additional_forward_args=case.arguments,
                n_steps=case.samples,
                internal_batch_size=max(AT_ONCE, len(state)),
            )
        rows.append(found.detach())
    return Scores.summed(rows, complete=True)


def _states(case: Case, embedded: Tensor) -> list[Tensor]:
    with torch.no_grad(), giving(case.model.get_input_embeddings(), embedded):
        return list(case.model(**case.inputs, output_hidden_states=True).hidden_states)
