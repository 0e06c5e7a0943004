"""The methods beside DeepLIFT: equal to a direct computation, to Captum called by hand, or to numbers worked out."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from captum.attr import FeatureAblation, IntegratedGradients, KernelShap, Lime
from torch import nn
from transformers import BertForQuestionAnswering

from bertlift.attribution import load_attributions, save_attributions
from bertlift.config import AttributionSettings
from bertlift.engine.references import reference_embeddings
from bertlift.methods import attentions, gradients, perturbations
from bertlift.methods.case import Case
from bertlift.methods.explain import METHODS, explain
from bertlift.reader.description import Description
from bertlift.reader.load import Reader
from bertlift.reader.predict import predict
from conftest import ROOT
from families import build

TOKENIZER = SimpleNamespace(all_special_ids=[0, 2, 3], unk_token_id=1, mask_token_id=4, sep_token_id=3)
SAMPLES = 24


def case_of(family="bert", sizes=(9,), dtype=torch.float64, **options):
    """``[CLS] question [SEP] passage [SEP]`` of random tokens, padded on the right."""
    model = build(family, dtype=dtype, scale=3.0)
    draw = torch.Generator().manual_seed(5)
    ids = torch.zeros(len(sizes), max(sizes), dtype=torch.long)
    for row, size in enumerate(sizes):
        ids[row, :size] = torch.randint(5, 40, (size,), generator=draw)
        ids[row, 0], ids[row, 3], ids[row, size - 1] = 2, 3, 3
    inputs = {"input_ids": ids, "attention_mask": (ids > 0).long()}
    ends = (torch.tensor([4] * len(sizes)), torch.tensor([5] * len(sizes)))
    return replace(Case(model, inputs, *ends, "mask", TOKENIZER, samples=SAMPLES, seed=3), **options)


def by_embedding(case):
    """``f`` as a function of word embeddings, by the model's own argument for them."""

    def forward(embedded):
        mask = case.inputs["attention_mask"].expand(len(embedded), -1)
        output = case.model(inputs_embeds=embedded, attention_mask=mask)
        return output.start_logits[:, case.starts[0]] + output.end_logits[:, case.ends[0]]

    return forward


def test_gradient_is_that_of_the_one_hot_input():
    case = case_of()
    weight = case.model.get_input_embeddings().weight.detach()
    onehot = nn.functional.one_hot(case.inputs["input_ids"], len(weight)).double().requires_grad_()
    (found,) = torch.autograd.grad(by_embedding(case)(onehot @ weight).sum(), onehot)
    expected = found.norm(dim=-1) / found.norm(dim=-1).max()
    torch.testing.assert_close(gradients.gradient(case).scores[:, 0], expected, atol=1e-6, rtol=0)


def test_smoothgrad_without_noise_is_the_gradient(monkeypatch):
    monkeypatch.setattr(gradients, "NOISE", 0.0)
    case = case_of()
    torch.testing.assert_close(gradients.smoothgrad(case).scores, gradients.gradient(case).scores)


def test_smoothgrad_is_the_mean_over_noisy_gradients():
    case = case_of(samples=3)
    noise = gradients.NOISE * float(case.embedded.std())
    with case.random():
        moved = [case.embedded + torch.normal(0, noise, case.embedded.shape).double() for _ in range(3)]
    moved = [each.requires_grad_() for each in moved]
    found = sum(torch.autograd.grad(by_embedding(case)(each).sum(), each)[0] for each in moved) / 3
    # Captum draws its noise in one piece, so that the numbers differ: they are as near as two such means are.
    ours = gradients.smoothgrad(case).scores[0, 0]
    expected = gradients._over_vocabulary(case, found)[0]
    assert np.corrcoef(ours, expected)[0, 1] > 0.8


def test_integrated_gradients_are_captums_and_add_up():
    case = case_of(samples=50)
    found = gradients.integrated_gradients(case)
    by_hand = IntegratedGradients(by_embedding(case)).attribute(case.embedded, case.reference_embedded, n_steps=50)
    torch.testing.assert_close(found.scores[:, 0], by_hand.sum(-1))
    forward = by_embedding(case)
    difference = forward(case.embedded) - forward(case.reference_embedded)
    torch.testing.assert_close(found.scores.sum(-1), difference[:, None].expand(-1, 3), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(found.positive + found.negative, found.scores)


def test_integrated_gradients_of_the_last_layer_are_exact():
    """After the last layer ``f`` is linear: the score is ``w (h - h0)`` on the two ends, whatever the steps."""
    case = case_of(samples=2)
    heads = case.model.qa_outputs.weight.detach()
    with torch.no_grad():
        states, states0 = (
            case.model(
                inputs_embeds=each, attention_mask=case.inputs["attention_mask"], output_hidden_states=True
            ).hidden_states[-1]
            for each in (case.embedded, case.reference_embedded)
        )
    expected = torch.zeros(9, dtype=torch.float64)
    for side, place in ((0, 4), (1, 5)):
        expected[place] += heads[side] @ (states - states0)[0, place]
    torch.testing.assert_close(gradients.integrated_gradients(case).scores[0, -1], expected)


def test_shared_layers_have_the_input_row_only():
    assert gradients.integrated_gradients(case_of("albert")).scores.shape == (1, 1, 9)
    assert gradients.integrated_gradients(case_of(layers=False)).scores.shape == (1, 1, 9)


def test_occlusion_is_captums_leave_one_out():
    case = case_of()
    features = torch.arange(9)[None, :, None].expand_as(case.embedded)
    with torch.no_grad():
        by_hand = FeatureAblation(by_embedding(case)).attribute(
            case.embedded, case.reference_embedded, feature_mask=features
        )
    found = perturbations.occlusion(case).scores[:, 0]
    torch.testing.assert_close(found, by_hand[..., 0])
    assert (found[0, [0, 3, 8]] == 0).all()  # special tokens cannot go


@pytest.mark.parametrize(("ours", "captums"), [(perturbations.lime, Lime), (perturbations.kernel_shap, KernelShap)])
def test_lime_and_kernel_shap_are_captums(ours, captums):
    case = case_of(dtype=torch.float32)
    features = torch.tensor([0, 1, 2, 0, 3, 4, 5, 6, 0])[None, :, None].expand_as(case.embedded)
    with case.random(), torch.no_grad():
        by_hand = captums(by_embedding(case)).attribute(
            case.embedded, case.reference_embedded, feature_mask=features, n_samples=SAMPLES
        )
    expected = by_hand[..., 0] * (features[..., 0] > 0)
    torch.testing.assert_close(ours(case).scores[:, 0], expected, atol=1e-5, rtol=1e-4)


def test_kernel_shap_of_enough_sets_adds_up():
    case = case_of(samples=400, dtype=torch.float32)
    with torch.no_grad():
        difference = by_embedding(case)(case.embedded) - by_embedding(case)(case.reference_embedded)
    torch.testing.assert_close(perturbations.kernel_shap(case).scores.sum((1, 2)), difference, atol=2e-2, rtol=2e-2)


def test_gradient_x_input_of_the_last_layer_is_f_without_its_bias():
    case = case_of()
    found = gradients.gradient_x_input(case)
    value = by_embedding(case)(case.embedded).detach() - case.model.qa_outputs.bias.sum().detach()
    torch.testing.assert_close(found.scores[:, -1].sum(-1), value)
    assert found.scores.shape == (1, 3, 9)


def test_gradcam_by_hand():
    """Two tokens, two units: slopes (1, 0) and (3, 2) have means (2, 1); with states (1, 2), (0, -1): 4 and -1."""
    states, slopes = torch.tensor([[[1.0, 2.0], [0.0, -1.0]]]), torch.tensor([[[1.0, 0.0], [3.0, 2.0]]])

    class Model(nn.Module):
        def forward(self, input_ids, attention_mask, output_hidden_states):
            state = states.clone().requires_grad_()
            value = (state * slopes).sum((1, 2))[:, None].expand(-1, 2)
            return SimpleNamespace(start_logits=value, end_logits=0 * value, hidden_states=(state,))

    ids = torch.tensor([[5, 6]])
    none = torch.tensor([0])
    case = Case(Model(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, none, none, "mask", None, 0, 0)
    assert gradients.gradcam(case).scores.tolist() == [[[4.0, -1.0]]]


class Attending(nn.Module):
    """Attention weights as given, ``(layers, heads, query, key)``; ``f = sum w_l A_l`` over everything."""

    def __init__(self, weights, slopes=None):
        super().__init__()
        self.weights, self.slopes = torch.tensor(weights), slopes
        self.config = SimpleNamespace(_attn_implementation="sdpa")
        self.asked = []

    def set_attn_implementation(self, name):
        self.config._attn_implementation = name
        self.asked.append(name)

    def forward(self, input_ids, attention_mask, output_attentions=False):
        weights = [each[None].clone().requires_grad_() for each in self.weights]
        value = sum(slope * each.sum() for slope, each in zip(self.slopes or [0, 0], weights, strict=True))
        logits = value.expand(1, self.weights.shape[-1])
        return SimpleNamespace(start_logits=logits, end_logits=0 * logits, attentions=tuple(weights))


def attending_case(weights, slopes=None, start=0, end=0):
    model = Attending(weights, slopes)
    ids = torch.arange(5, 5 + model.weights.shape[-1])[None]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return Case(model, inputs, torch.tensor([start]), torch.tensor([end]), "mask", None, 0, 0)


LAYER_1 = [[[0.5, 0.5], [0.0, 1.0]], [[1.0, 0.0], [0.5, 0.5]]]  # mean over heads: (.75, .25), (.25, .75)
LAYER_2 = [[[0.2, 0.8], [1.0, 0.0]], [[0.6, 0.4], [0.0, 1.0]]]  # (.4, .6), (.5, .5)


def test_rollout_worked_by_hand():
    """From token 0: (1, 0); past layer 2: (.7, .3); past layer 1: .7 (.875, .125) + .3 (.125, .875) = (.65, .35)."""
    case = attending_case([LAYER_1, LAYER_2])
    expected = [[0.65, 0.35], [0.7, 0.3], [1.0, 0.0]]
    torch.testing.assert_close(attentions.rollout(case).scores[0], torch.tensor(expected))
    both = attentions.rollout(attending_case([LAYER_1, LAYER_2], start=0, end=1)).scores
    torch.testing.assert_close(both.sum(-1), torch.ones(1, 3))
    assert case.model.asked == ["eager", "sdpa"]  # and back again


def test_attention_by_hand():
    found = attentions.attention(attending_case([LAYER_1, LAYER_2], start=0, end=1)).scores[0]
    torch.testing.assert_close(found, torch.tensor([[0.475, 0.525], [0.5, 0.5], [0.45, 0.55]]))


def test_attention_x_gradient_by_hand():
    """Slopes 2 and -1: twice the columns' sums of layer 1 (2, 2), minus those of layer 2 (1.8, 2.2)."""
    found = attentions.attention_x_gradient(attending_case([LAYER_1, LAYER_2], [2.0, -1.0])).scores[0]
    torch.testing.assert_close(found, torch.tensor([[2.2, 1.8], [4.0, 4.0], [-1.8, -2.2]]))


OURS = {
    "gradient": gradients.gradient,
    "gradient_x_input": gradients.gradient_x_input,
    "smoothgrad": gradients.smoothgrad,
    "integrated_gradients": gradients.integrated_gradients,
    "gradcam": gradients.gradcam,
    "attention": attentions.attention,
    "rollout": attentions.rollout,
    "attention_x_gradient": attentions.attention_x_gradient,
    "occlusion": perturbations.occlusion,
    "lime": perturbations.lime,
    "kernel_shap": perturbations.kernel_shap,
    "random": perturbations.random,
}


@pytest.mark.parametrize("name", OURS)
def test_a_padded_batch_gives_what_single_windows_give(name):
    case = case_of(sizes=(9, 7), dtype=torch.float32)
    found = OURS[name](case).scores
    for row, single in case.singles():
        size = single.embedded.shape[1]
        torch.testing.assert_close(found[row : row + 1, :, :size], OURS[name](single).scores, atol=1e-4, rtol=1e-3)
        assert (found[row, 0, size:] == 0).all()


@pytest.mark.parametrize("family", ["distilbert", "roberta", "electra", "mpnet", "deberta-v2"])
@pytest.mark.parametrize("name", ["gradient", "integrated_gradients", "occlusion", "rollout"])
def test_other_families(family, name):
    found = OURS[name](case_of(family)).scores
    assert torch.isfinite(found).all()
    assert found.abs().sum() > 0


def test_the_model_is_given_back_as_it_was():
    case = case_of(dtype=torch.float32)
    embedding = case.model.get_input_embeddings()
    before = {name: each.clone() for name, each in case.model.named_parameters()}
    for method in OURS.values():
        method(case)
    assert not embedding._forward_hooks
    assert case.model.config._attn_implementation == "eager"
    assert all(torch.equal(each, before[name]) and each.grad is None for name, each in case.model.named_parameters())


def test_the_reference_leaves_special_tokens_and_padding():
    case = case_of(sizes=(9, 7))
    assert case.replaced.sum(-1).tolist() == [6, 4]
    expected = reference_embeddings(case.model, case.inputs["input_ids"], "mask", TOKENIZER)
    torch.testing.assert_close(case.reference_embedded[0], expected[0])


@pytest.mark.parametrize("method", METHODS)
def test_every_method_ends_in_the_one_result_type(method, tiny_reader, tokenizer, questions, tmp_path):
    model = BertForQuestionAnswering.from_pretrained(tiny_reader).eval()
    reader = Reader(model, tokenizer, Description("tiny", "here", None, "x", None, True, 64, 8, 5, 20, 0.0, 0.0, 1))
    predictions = predict(reader, questions[:3], 4)
    settings = AttributionSettings(method=method, samples=8)
    found = explain(reader, predictions, settings, {each.id: "dev" for each in questions})
    save_attributions(tmp_path / "found", found)
    for one, back in zip(found, load_attributions(tmp_path / "found"), strict=True):
        assert one.method == method
        assert one.scores.shape in {(1, len(one.tokens)), (4, len(one.tokens))}
        assert len(one.hidden) == len(one.scores)
        assert (one.reference == "mask") == METHODS[method].reference
        np.testing.assert_allclose(one.positive + one.negative, one.scores, atol=1e-4)
        np.testing.assert_array_equal(one.scores, back.scores)
    single = explain(reader, predictions, replace(settings, batch_size=1), {each.id: "dev" for each in questions})
    for one, other in zip(found, single, strict=True):
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-3)


def test_every_method_has_a_choice_in_the_configuration():
    named = {path.stem: path.read_text() for path in (ROOT / "conf/attribution").glob("*.yaml")}
    assert named.keys() == METHODS.keys()
    assert all(f"method: {name}\n" in text for name, text in named.items())
