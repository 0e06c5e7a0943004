"""Models that an explanation is tried on again: one a little different, and ones that have lost what they learned."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch

from bertlift.engine.attribute import encoder_layers

NOISE = 0.01  # length of the change over that of the word's embedding


def slightly_changed(model: Any, seed: int) -> Any:
    """A copy whose word embeddings are each moved a hundredth of their length in a random direction.

    A small change of the input for every method alike (the sensitivity of Yeh et al. 2019); the same word moves the
    same way wherever it stands.
    """
    changed = copy.deepcopy(model)
    weight = changed.get_input_embeddings().weight.data
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed)).to(weight)
    weight += NOISE * weight.norm(dim=-1, keepdim=True) * noise / noise.norm(dim=-1, keepdim=True)
    return changed


def randomised(model: Any, seed: int) -> Iterator[tuple[str, Any]]:
    """Copies with fresh weights from the top down: the head, then each layer as well, then the embeddings.

    The cascading randomisation of Adebayo et al. 2018. Layers that share their weights are fresh together.

    Yields:
        What has become fresh last (``head``, ``layer N``, ``embeddings``), and the model.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh = type(model)(model.config).to(next(model.parameters())).eval()
    changed = copy.deepcopy(model)

    def take(prefixes: list[str], others: bool = False) -> Any:
        source = dict(fresh.named_parameters())
        with torch.no_grad():
            for name, parameter in changed.named_parameters():
                if name.startswith(tuple(prefixes)) != others:
                    parameter.copy_(source[name])
        return copy.deepcopy(changed)

    base = model.base_model_prefix
    yield "head", take([f"{base}."], others=True)
    names = {id(module): name for name, module in model.named_modules()}
    layers = [names[id(layer)] for layer in encoder_layers(model)]
    for number, name in reversed(list(enumerate(layers, 1))):
        yield f"layer {number}", take([f"{name}."])
    yield "embeddings", take([f"{base}."])
