"""What every method is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn

from bertlift.engine.references import reference_embeddings


@dataclass(frozen=True)
class Scores:
    """What a method says of every token, at one row (the input) or at layers + 1 of them."""

    scores: Tensor  # (batch, rows, tokens)
    positive: Tensor  # (batch, rows, tokens): the sums of the positive terms alone, where a score has several
    negative: Tensor  # (batch, rows, tokens)
    complete: bool  # whether every row is to add up to f(x) - f(x0)

    @classmethod
    def of(cls, scores: Tensor | Sequence[Tensor], complete: bool = False) -> Scores:
        """From scores that are one number a token; several rows of ``(batch, tokens)``, or a tensor of them."""
        rows = scores if isinstance(scores, Tensor) else torch.stack(list(scores), 1)
        return cls(rows, rows.clamp(min=0), rows.clamp(max=0), complete)

    @classmethod
    def summed(cls, terms: Sequence[Tensor], complete: bool = False) -> Scores:
        """From the terms of each row, ``(batch, tokens, units)``, which are summed over their units."""
        kinds = (terms, [each.clamp(min=0) for each in terms], [each.clamp(max=0) for each in terms])
        scores, positive, negative = (torch.stack([each.sum(-1) for each in kind], 1) for kind in kinds)
        return cls(scores, positive, negative, complete)


@dataclass(frozen=True)
class Case:
    """Windows, the span to explain in each, and the model that read them.

    ``f`` is the start logit at ``starts`` plus the end logit at ``ends``.
    """

    model: Any
    inputs: dict[str, Tensor]  # (batch, tokens) each, padded on the right; as the model takes them
    starts: Tensor  # (batch,)
    ends: Tensor
    reference: str
    tokenizer: Any
    samples: int
    seed: int
    layers: bool = True  # whether rows for the layers are wanted from a method that has to pay for them
    heads: bool = True  # whether a split by heads is wanted, where there is one

    @cached_property
    def embedded(self) -> Tensor:
        """Word embeddings, ``(batch, tokens, width)``."""
        found: Tensor = self.model.get_input_embeddings()(self.inputs["input_ids"])
        return found.detach()

    @cached_property
    def reference_embedded(self) -> Tensor:
        """Those of the reference; padding is as it is."""
        found = reference_embeddings(self.model, self.inputs["input_ids"], self.reference, self.tokenizer)
        return torch.where(self.inputs["attention_mask"].bool()[..., None], found, self.embedded)

    @cached_property
    def replaced(self) -> Tensor:
        """Where the reference has something else, ``(batch, tokens)``, Boolean."""
        return (self.embedded != self.reference_embedded).any(-1)

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        """What :meth:`forward` takes after the embeddings."""
        return self.starts, self.ends, *self.inputs.values()

    def span(self, output: Any) -> Tensor:
        """``f`` of the model's output, ``(batch,)``."""
        return _span(output, self.starts, self.ends)

    def forward(self, embedded: Tensor, *arguments: Tensor) -> Tensor:
        """``f`` with these word embeddings in place of the input's, ``(batch,)``; any number of rows."""
        return self.forward_from(self.model.get_input_embeddings(), embedded, *arguments)

    def forward_from(self, module: nn.Module, state: Tensor, starts: Tensor, ends: Tensor, *inputs: Tensor) -> Tensor:
        """``f`` where ``module``, whatever it is given, gives ``state``."""
        with giving(module, state):
            return _span(self.model(**dict(zip(self.inputs, inputs, strict=True))), starts, ends)

    def singles(self) -> Iterator[tuple[int, Case]]:
        """Every row by itself, without its padding."""
        for row, size in enumerate(self.inputs["attention_mask"].sum(-1).tolist()):
            inputs = {name: each[row : row + 1, :size] for name, each in self.inputs.items()}
            yield row, replace(self, inputs=inputs, starts=self.starts[row : row + 1], ends=self.ends[row : row + 1])

    @contextmanager
    def random(self) -> Iterator[None]:
        """Draws of torch inside the block depend on the seed and the first row's tokens, and on nothing else."""
        size = int(self.inputs["attention_mask"][0].sum())
        ids = self.inputs["input_ids"][0, :size].tolist()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(crc32(f"{self.seed} {ids}".encode()))
            yield


def _span(output: Any, starts: Tensor, ends: Tensor) -> Tensor:
    rows = torch.arange(len(starts))
    found: Tensor = output.start_logits[rows, starts] + output.end_logits[rows, ends]
    return found


@contextmanager
def giving(module: nn.Module, state: Tensor) -> Iterator[None]:
    """The module gives ``state``, as the first of several results where it has several."""
    handle = module.register_forward_hook(
        lambda _, __, output: (state, *output[1:]) if isinstance(output, tuple) else state
    )
    try:
        yield
    finally:
        handle.remove()
