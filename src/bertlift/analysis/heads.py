"""The heads: what each one attends to, what it contributes, and what goes when it is taken out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertlift.analysis.bootstrap import Array, mean_estimate
from bertlift.analysis.groups import plain, stem, token_groups
from bertlift.analysis.words import words_of
from bertlift.attribution import Attribution
from bertlift.reader.windows import PASSAGE, QUESTION

# What a head may attend to. Shares of its attention, but for the last, which is a share of the window's tokens.
KINDS = (
    "next token",
    "previous token",
    "separators",
    "punctuation",
    "same word",
    "question to passage",
    "passage to question",
    "broad",
)
STRONG = 0.4  # of the attention: then a head is named after the kind
BROAD = 0.4  # effective number of attended tokens over all tokens: then it is called broad
CROSSING = 0.6  # of one side's attention on the other side
# The linear layer behind the heads, by the names that transformers' encoders give it.
BEHIND_HEADS = ("attention.output.dense", "attention.out_lin", "attention.attn.o", "attention.dense")


def attended(attribution: Attribution, attention: Array) -> Array:
    """The :data:`KINDS` of attention of every head for one window, ``(layers, heads, kinds)``.

    Args:
        attribution: tells what the tokens are.
        attention: probabilities, ``(layers, heads, query, key)``. Queries are the words of question and passage;
            "same word" is another place with the same stem, "question to passage" the attention of the question's words
            to the passage's tokens, and so the other way round.
    """
    size = len(attribution.tokens)
    groups = np.array(token_groups(attribution))
    separators = np.isin(groups, ["cls", "first_separator", "last_separator"])
    marks = groups == "punctuation"
    stems = np.empty(size, dtype=object)
    for number, word in enumerate(words_of(attribution)):
        named = any(character.isalnum() for character in word.text) and word.segment >= 0
        for position in word.tokens:
            stems[position] = stem(plain(word.text)) if named else f" {number}"
    segments = np.array(attribution.segments)
    words = ~separators
    step = np.subtract.outer(np.arange(size), np.arange(size))  # query minus key
    same = (stems[:, None] == stems[None, :]) & (np.abs(step) > 0)
    masks = {
        "next token": step == -1,
        "previous token": step == 1,
        "separators": np.broadcast_to(separators, (size, size)),
        "punctuation": np.broadcast_to(marks, (size, size)),
        "same word": same,
    }
    found = {name: (attention * mask).sum(-1)[..., words].mean(-1) for name, mask in masks.items()}
    for name, query, key in (("question to passage", QUESTION, PASSAGE), ("passage to question", PASSAGE, QUESTION)):
        asking = words & (segments == query)
        found[name] = attention[:, :, asking][..., segments == key].sum(-1).mean(-1)
    entropy = -(attention * np.log(np.where(attention > 0, attention, 1))).sum(-1)
    found["broad"] = np.exp(entropy)[..., words].mean(-1) / size
    return np.stack([found[name] for name in KINDS], axis=-1)


def label_of(kinds: Array) -> str:
    """The name of a head with these mean :data:`KINDS`.

    The strongest of the first five if it has enough of the attention; else broad; else the direction between question
    and passage that it takes; else mixed.
    """
    of = dict(zip(KINDS, kinds.tolist(), strict=True))
    strongest = max(KINDS[:5], key=lambda name: of[name])
    if of[strongest] >= STRONG:
        return strongest
    if of["broad"] >= BROAD:
        return "broad"
    crossing = max(KINDS[5:7], key=lambda name: of[name])
    return crossing if of[crossing] >= CROSSING else "mixed"


def confidence(attention: Array) -> Array:
    """Mean over query tokens of the largest attention weight, ``(layers, heads)`` (Voita et al. 2019)."""
    return np.asarray(attention.max(-1).mean(-1))


def behind_heads(model: Any) -> list[nn.Module] | None:
    """The linear layer that reads the heads' results, layer by layer; None where it is not found once a layer."""
    found = [module for name, module in model.named_modules() if name.endswith(BEHIND_HEADS)]
    return found if len(found) == model.config.num_hidden_layers else None


@contextmanager
def without_heads(model: Any, heads: Sequence[tuple[int, int]]) -> Iterator[None]:
    """Within the block the results of these heads (layer from 0, head from 0) are zero.

    Raises:
        ValueError: for a model whose heads are not found; see :func:`behind_heads`.
    """
    places = behind_heads(model)
    if places is None:
        raise ValueError(f"{type(model).__name__}: no linear layer behind the heads of each layer")
    size = model.config.hidden_size // model.config.num_attention_heads
    handles = []
    for layer in {layer for layer, _ in heads}:
        keep = torch.ones(model.config.hidden_size)
        for head in (head for at, head in heads if at == layer):
            keep[head * size : (head + 1) * size] = 0

        def silence(module: nn.Module, inputs: tuple[Tensor, ...], keep: Tensor = keep) -> tuple[Tensor, ...]:
            return (inputs[0] * keep.to(inputs[0]), *inputs[1:])

        handles.append(places[layer].register_forward_pre_hook(silence))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def span_scores(model: Any, batches: Sequence[tuple[Mapping[str, Tensor], Tensor, Tensor]]) -> Array:
    """Start plus end logit of the given spans, ``(questions,)``; a batch: inputs, starts, ends."""
    found = []
    for inputs, starts, ends in batches:
        output = model(**inputs)
        rows = torch.arange(len(starts))
        found.append(output.start_logits[rows, starts] + output.end_logits[rows, ends])
    return np.asarray(torch.cat(found).double().cpu().numpy())


def order_of(size: NDArray[np.floating]) -> list[tuple[int, int]]:
    """Heads (layer, head) by decreasing size, ``(layers, heads)``."""
    flat = np.argsort(-size, axis=None, kind="stable")
    return [(int(each) // size.shape[1], int(each) % size.shape[1]) for each in flat]


def removal(
    model: Any,
    batches: Sequence[tuple[Mapping[str, Tensor], Tensor, Tensor]],
    orders: Mapping[str, Sequence[Sequence[tuple[int, int]]]],
    counts: Sequence[int],
    seed: int,
) -> dict[str, Any]:
    """How far the span score falls when the first heads of an order are taken out.

    Args:
        model: the reader's.
        batches: as for :func:`span_scores`.
        orders: by name; several orders of one name (random ones) are averaged question by question.
        counts: how many heads to take out.
        seed: of the bootstrap.

    Returns:
        ``counts``, ``curves`` (name -> mean, low, high a count, in logits), and ``against``: for every other name the
        first one's mean fall over all counts minus its own, with the interval over questions.
    """
    whole = span_scores(model, batches)
    falls: dict[str, Array] = {}
    for name, several in orders.items():
        of_each = []
        for order in several:
            by_count = []
            for count in counts:
                with without_heads(model, order[:count]):
                    by_count.append(whole - span_scores(model, batches))
            of_each.append(np.stack(by_count, axis=1))
        falls[name] = np.mean(of_each, axis=0)  # (questions, counts)
    first, *others = falls
    return {
        "counts": list(counts),
        "questions": len(whole),
        "curves": {name: mean_estimate(values, seed).plain() for name, values in falls.items()},
        "against": {name: mean_estimate((falls[first] - falls[name]).mean(1), seed).plain() for name in others},
    }
