"""A hand-made attribution, small enough to work its numbers out by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from bertlift.analysis.groups import token_groups
from bertlift.attribution import Attribution

QUESTION = "When did Beyoncé win $5?"
CONTEXT = "In 2003 Beyoncé's album won; it made $5, <b>not</b> $6."


def sample(**changes: object) -> Attribution:
    """Two layers over ``[CLS] question [SEP] passage [SEP]``; 'Beyoncé' is two pieces in both places."""
    tokens: list[str] = []
    offsets: list[list[int]] = []
    segments: list[int] = []
    words: list[int] = []

    def special(name: str) -> None:
        tokens.append(name)
        offsets.append([0, 0])
        segments.append(-1)
        words.append(-1)

    def text(source: str, pieces: list[list[str]], segment: int) -> None:
        place = 0
        for number, word in enumerate(pieces):
            for piece in word:
                start = source.index(piece, place)
                place = start + len(piece)
                tokens.append(piece)
                offsets.append([start, place])
                segments.append(segment)
                words.append(number)

    special("[CLS]")
    text(QUESTION, [["When"], ["did"], ["Beyon", "cé"], ["win"], ["$"], ["5"], ["?"]], 0)
    special("[SEP]")
    passage = [
        ["In"],
        ["2003"],
        ["Beyon", "cé"],
        ["'"],
        ["s"],
        ["album"],
        ["won"],
        [";"],
        ["it"],
        ["made"],
        ["$"],
        ["5"],
    ]
    passage += [[","], ["<"], ["b"], [">"], ["not"], ["<"], ["/"], ["b"], [">"], ["$"], ["6"], ["."]]
    text(CONTEXT, passage, 1)
    special("[SEP]")
    size = len(tokens)
    random = np.random.default_rng(7)
    scores = random.normal(size=(3, size)).astype(np.float32)
    target = tokens.index("2003")
    scores[2] = 0
    scores[2, target] = scores[1].sum()
    values: dict[str, object] = {
        "question_id": "q1",
        "name": "example",
        "split": "dev+showcase",
        "title": "Beyoncé",
        "question": QUESTION,
        "context": CONTEXT,
        "golds": ["2003"],
        "gold_starts": [CONTEXT.index("2003")],
        "answer": "2003",
        "best_span": "2003",
        "span_score": 3.5,
        "null_score": -1.0,
        "method": "deeplift",
        "reference": "mask",
        "tokens": tokens,
        "offsets": offsets,
        "segments": segments,
        "words": words,
        "start": target,
        "end": target,
        "target_value": 3.5,
        "reference_value": 0.5,
        "start_logits": random.normal(size=size).astype(np.float32),
        "end_logits": random.normal(size=size).astype(np.float32),
        "reference_start_logits": np.zeros(size, dtype=np.float32),
        "reference_end_logits": np.zeros(size, dtype=np.float32),
        "scores": scores,
        "positive": scores.clip(min=0),
        "negative": scores.clip(max=0),
        "delta": np.array([3e-4, 0, -6e-5], dtype=np.float32),
        "value_path": random.normal(size=(2, 3)).astype(np.float32),
        "attention_path": random.normal(size=(2, 3)).astype(np.float32),
        "residual": random.normal(size=2).astype(np.float32),
        "attention": np.full((2, size), 1 / size, dtype=np.float32),
        "hidden": random.normal(size=(3, 5)).astype(np.float32),
        "gradient": 2.0,
    }
    return Attribution(**(values | changes))


def planted(
    shares: Mapping[str, Sequence[float]], noise: float = 0.05, seed: int = 0, **changes: object
) -> Attribution:
    """An attribution whose groups of tokens have the given shares of the score, row by row, but for some noise."""
    one = sample(**changes)
    groups = np.array(token_groups(one))
    rows = len(next(iter(shares.values())))
    random = np.random.default_rng(seed)
    scores = np.zeros((rows, len(groups)))
    for name, values in shares.items():
        members = groups == name
        scores[:, members] = np.array(values)[:, None] / members.sum()
    scores *= 1 + 0.05 * random.normal(size=scores.shape)
    layers = {"attention": np.full((rows - 1, len(groups)), 1 / len(groups), dtype=np.float32)}
    layers |= {name: np.ones((rows - 1, 3), dtype=np.float32) for name in ("value_path", "attention_path")}
    layers |= {"residual": np.ones(rows - 1, dtype=np.float32), "hidden": np.ones((rows, 5), dtype=np.float32)}
    plain = scores.astype(np.float32)
    found = {"scores": plain, "positive": plain.clip(min=0), "negative": plain.clip(max=0)}
    return replace(one, delta=np.zeros(rows, dtype=np.float32), **layers, **found)
