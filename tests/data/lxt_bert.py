"""Makes ``lxt_bert.safetensors``: a small random BERT, two questions, and the relevance that LXT gives them.

Made on 2026-12-01 with LXT 2.1, transformers 4.52.4, torch 2.13.0 and safetensors 0.8.0, in an environment of
their own (bertlift needs a newer transformers), by

    python tests/data/lxt_bert.py

LXT's AttnLRP for BERT is in force (``lxt.efficient``). The file holds the model's weights under their names, and the
inputs, the target and the relevance of every token at every layer under ``case.*``, in float64:
``case.relevance[row, l, t]`` is ``sum_d h_l[t, d] * grad_l[t, d]`` of the start logit plus the end logit, for all
entries of ``hidden_states`` (0: the embeddings' output). The second row is padded.
"""

from __future__ import annotations

from pathlib import Path

import torch
import transformers.models.bert.modeling_bert as modeling
from lxt.efficient import monkey_patch
from safetensors.torch import save_file

SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 16,
}
IDS = [[2, 17, 8, 31, 3, 22, 9, 35, 12, 3], [2, 11, 26, 3, 38, 5, 3, 0, 0, 0]]
START, END = [6, 4], [8, 5]


def build() -> torch.nn.Module:
    """A model with biases, and with layer norms that do something."""
    config = modeling.BertConfig(**SIZES, pad_token_id=0)
    config._attn_implementation = "eager"
    model = modeling.BertForQuestionAnswering(config).double().eval()
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random, dtype=torch.float64) * 0.3)
            if name.endswith("LayerNorm.weight"):
                parameter.add_(1)
    return model


def relevance(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """``(batch, layers + 1, tokens)``."""
    output = model(**inputs, output_hidden_states=True)
    rows = torch.arange(2)
    value = output.start_logits[rows, START] + output.end_logits[rows, END]
    grads = torch.autograd.grad(value.sum(), output.hidden_states)
    return torch.stack([(h * grad).sum(-1) for h, grad in zip(output.hidden_states, grads, strict=True)], 1).detach()


if __name__ == "__main__":
    monkey_patch(modeling)
    ids = torch.tensor(IDS)
    inputs = {
        "input_ids": ids,
        "attention_mask": (ids > 0).long(),
        "token_type_ids": torch.tensor([[0] * 5 + [1] * 5, [0] * 4 + [1] * 6]),
    }
    model = build()
    case = inputs | {"target": torch.tensor([START, END]), "relevance": relevance(model, inputs)}
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    save_file(
        weights | {f"case.{name}": each for name, each in case.items()}, Path(__file__).with_suffix(".safetensors")
    )
