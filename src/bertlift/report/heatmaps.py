"""The paper's pictures: a text in running order, every word on the colour of its score."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from matplotlib.textpath import TextPath
from numpy.typing import NDArray

from bertlift.analysis.words import Word, word_scores, words_of
from bertlift.attribution import Attribution
from bertlift.reader.windows import SPECIAL
from bertlift.report import theme

Scores = NDArray[np.float64]  # (words,)

WIDTH = 10.0  # inches
MARGIN = 0.3
SIZE = 11.0  # points
LINE = 0.31  # inches from line to line
ROOT = "(colour: square root)"
LOGITS = "contribution to start + end logit"


def unit_of(attribution: Attribution) -> str:
    """What a score of this attribution is measured in."""
    if not attribution.delta.size:
        return f"score of {attribution.method}"
    return "relevance, of 1" if attribution.method == "paper2019" else LOGITS


def shared_scale(attribution: Attribution) -> Normalize:
    """The colour scale of all of one question's figures: symmetric, to its largest word score at any layer.

    The colour follows the square root of the score. In the last layers nearly everything stands on the two ends
    of the answer; on a linear scale their scores would leave the words of all other layers white.
    """
    scores = word_scores(words_of(attribution), attribution.scores)
    return theme.symmetric(float(np.abs(scores).max()), root=True)


@dataclass(frozen=True)
class _Placed:
    word: Word
    index: int
    left: float  # inches
    width: float
    line: int


@lru_cache(maxsize=4096)
def _text_width(text: str, size: float) -> float:
    """Inches."""
    path = TextPath((0, 0), text or " ", size=size, prop=FontProperties(family="DejaVu Sans"))
    return float(max(path.get_extents().x1, size * 0.2)) / 72


def _flow(words: Sequence[Word], width: float, size: float) -> tuple[list[_Placed], int]:
    """Set words in lines like a text; words without a space between them stay together."""
    pad, space = 0.014, 0.07
    chunks: list[list[int]] = []
    for index, word in enumerate(words):
        if word.glued and chunks:
            chunks[-1].append(index)
        else:
            chunks.append([index])
    placed: list[_Placed] = []
    left, line = 0.0, 0
    for chunk in chunks:
        widths = [_text_width(words[index].text, size) + 2 * pad for index in chunk]
        if left > 0 and left + sum(widths) > width:
            left, line = 0.0, line + 1
        for index, wide in zip(chunk, widths, strict=True):
            if left > 0 and left + wide > width:  # a chunk longer than a line
                left, line = 0.0, line + 1
            placed.append(_Placed(words[index], index, left, wide, line))
            left += wide
        left += space
    return placed, line + 1


def _draw_text(
    figure: Figure,
    placed: Sequence[_Placed],
    top: float,
    scores: Scores,
    cmap: Colormap,
    norm: Normalize,
    target: set[int],
    margin: float = MARGIN,
) -> None:
    """Draw placed words with their colours.

    ``top``: inches from the figure's bottom; ``margin``: from its left; ``target`` is framed.
    """
    width, height = figure.get_size_inches()
    box = 0.78 * LINE
    for each in placed:
        left, bottom = margin + each.left, top - (each.line + 1) * LINE + (LINE - box) / 2
        color = cmap(norm(scores[each.index]))
        framed = each.index in target
        figure.add_artist(
            Rectangle(
                (left / width, bottom / height),
                each.width / width,
                box / height,
                facecolor=color,
                edgecolor=theme.INK if framed else "none",
                linewidth=1.2 if framed else 0,
                zorder=2 if framed else 1,
                transform=figure.transFigure,
            )
        )
        figure.text(
            (left + each.width / 2) / width,
            (bottom + 0.28 * box) / height,
            each.word.text,
            size=SIZE * (0.8 if each.word.segment == SPECIAL else 1),
            color=theme.ink_on(color),
            ha="center",
            va="baseline",
            zorder=3,
            parse_math=False,
        )


def _scale_bar(
    figure: Figure,
    cmap: Colormap,
    norm: Normalize,
    label: str,
    bottom: float,
    ticks: list[float] | None = None,
    across: tuple[float, float] = (0.25, 0.5),
) -> None:
    height = figure.get_size_inches()[1]
    axes = figure.add_axes((across[0], bottom / height, across[1], 0.13 / height))
    bar = figure.colorbar(ScalarMappable(norm, cmap), cax=axes, orientation="horizontal", ticks=ticks or _ticks(norm))
    bar.ax.xaxis.set_major_formatter(lambda value, _: f"{value + 0.0:g}")
    bar.minorticks_off()
    bar.set_label(label, size=9)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_linewidth(0.6)


def _ticks(norm: Normalize) -> list[float]:
    """Round numbers near the ends of a square-root scale, and near half and a quarter of its colours."""
    sizes = [float(f"{(norm.vmax or 1.0) / part:.0e}") for part in (1, 4, 16)]
    return sorted({sign * size + 0.0 for size in [*sizes, 0.0] for sign in (-1, 1) if size <= (norm.vmax or 1.0)})


def _target_words(attribution: Attribution, words: Sequence[Word]) -> set[int]:
    span = range(attribution.start, attribution.end + 1)
    return {index for index, word in enumerate(words) if any(token in span for token in word.tokens)}


def _headline(figure: Figure, attribution: Attribution, title: str, from_top: float = 0.36) -> None:
    width, height = figure.get_size_inches()
    answer = f"answer: {attribution.answer}" if attribution.answer else "answer: none ([CLS])"
    left, line = MARGIN / width, 1 - from_top / height
    figure.text(left, line, title, size=12, weight="bold", parse_math=False)
    figure.text(1 - left, line, answer, size=10, ha="right", color=theme.FAINT, parse_math=False)


def layer(attribution: Attribution, row: int, cmap: Colormap) -> Figure:
    """The heatmap of one row of scores (0: embedding output), on the question's shared scale."""
    words = words_of(attribution)
    all_scores = word_scores(words, attribution.scores)
    placed, lines = _flow(words, WIDTH - 2 * MARGIN, SIZE)
    height = 0.55 + lines * LINE + 0.85
    figure = plt.figure(figsize=(WIDTH, height))
    norm = shared_scale(attribution)
    _headline(figure, attribution, "Embedding output" if row == 0 else f"Layer {row} of {attribution.layers}")
    _draw_text(figure, placed, height - 0.5, all_scores[row], cmap, norm, _target_words(attribution, words))
    _scale_bar(figure, cmap, norm, f"{unit_of(attribution)} {ROOT}", 0.5)
    return figure


def bars(attribution: Attribution, cmap: Colormap) -> Figure:
    """Every word's score at the input as a bar, the words in running order, wrapped like a text."""
    words = words_of(attribution)
    scores = word_scores(words, attribution.scores[0])
    target = _target_words(attribution, words)
    columns, cell = 32, 0.29
    blocks = [range(start, min(start + columns, len(words))) for start in range(0, len(words), columns)]
    block_height, left = 1.75, 0.75
    width, height = left + columns * cell + 0.2, 0.6 + len(blocks) * block_height
    figure = plt.figure(figsize=(width, height))
    low, high = min(float(scores.min()), 0.0), max(float(scores.max()), 0.0)
    pad = 0.05 * ((high - low) or 1.0)
    for number, block in enumerate(blocks):
        bottom = height - 0.5 - number * block_height - 1.0
        axes = figure.add_axes((left / width, bottom / height, len(block) * cell / width, 1.0 / height))
        values = scores[list(block)]
        colors = [cmap(float(value > 0)) for value in values]
        axes.bar(range(len(block)), values, width=0.8, color=colors)
        axes.set(xlim=(-0.5, len(block) - 0.5), ylim=(low - pad, high + pad))
        axes.axhline(0, color=theme.INK, linewidth=0.6)
        axes.set_xticks(range(len(block)), [_short(words[index].text) for index in block], size=8, rotation=60)
        for tick, index in zip(axes.get_xticklabels(), block, strict=True):
            tick.set(ha="right", rotation_mode="anchor", parse_math=False)
            if index in target:
                tick.set(weight="bold")
        axes.tick_params(axis="x", length=0)
        axes.tick_params(axis="y", labelsize=7)
        if number == 0:
            axes.set_ylabel(textwrap.fill(unit_of(attribution), 20), size=7)
    _headline(figure, attribution, f"The input by {attribution.method} (words of the answer in bold)")
    return figure


def overlays(attributions: Mapping[str, Attribution], title: str, cmap: Colormap) -> Figure:
    """One question explained several times: the text once for each, every word on the colour of its input score.

    Each has its own scale, to its largest score.

    Args:
        attributions: name -> what is drawn below it; of several methods, or of several readers.
        title: of the figure.
        cmap: negative, zero, positive.
    """
    texts = []
    for each in attributions.values():
        words = words_of(each)
        texts.append((each, words, *_flow(words, WIDTH - 2 * MARGIN, SIZE)))
    height = 0.55 + sum(lines * LINE + 0.42 for *_, lines in texts) + 0.75
    figure = plt.figure(figsize=(WIDTH, height))
    figure.text(MARGIN / WIDTH, 1 - 0.36 / height, title, size=12, weight="bold", parse_math=False)
    top = height - 0.55
    for name, (each, words, placed, lines) in zip(attributions, texts, strict=True):
        scores = word_scores(words, each.scores[0])
        scores = scores / (np.abs(scores).max() or 1.0)
        at = (top - 0.2) / height
        figure.text(MARGIN / WIDTH, at, name, size=11, weight="bold", parse_math=False)
        said = f"answer: {each.answer or 'none ([CLS])'}"
        figure.text(1 - MARGIN / WIDTH, at, said, size=10, ha="right", color=theme.FAINT, parse_math=False)
        _draw_text(figure, placed, top - 0.27, scores, cmap, theme.symmetric(1.0), _target_words(each, words))
        top -= lines * LINE + 0.42
    _scale_bar(
        figure, cmap, theme.symmetric(1.0), "score, of the largest below the same name", 0.5, [-1, -0.5, 0, 0.5, 1]
    )
    return figure


def output(attribution: Attribution, cmap: Colormap) -> Figure:
    """The output: what each token's logits contribute, and where the reader sees start and end.

    Above, the difference of the target's own logits to the reference: it stands on the two ends of the
    answer by construction. Below, the mean of the softmax over starts and that over ends, which says how
    sure the reader is and where else it looked.
    """
    words = words_of(attribution)
    target = _target_words(attribution, words)
    contribution = _own_logits(attribution)
    probability = (_softmax(attribution.start_logits) + _softmax(attribution.end_logits)) / 2
    # In logits: on the scale of the layers only where their scores are logits as well.
    norm = shared_scale(attribution)
    if unit_of(attribution) != LOGITS:
        norm = theme.symmetric(float(np.abs(contribution).max()), root=True)
    placed, lines = _flow(words, WIDTH - 2 * MARGIN, SIZE)
    block = lines * LINE + 1.3
    height = 2 * block + 0.1
    figure = plt.figure(figsize=(WIDTH, height))
    panels = (
        (
            contribution,
            norm,
            f"{LOGITS} {ROOT}",
            "Output: the span's own logits (by construction)",
        ),
        (
            probability,
            theme.symmetric(1.0),
            "probability (mean of start and end)",
            "Output: where the answer starts or ends",
        ),
    )
    for number, (values, norm, label, title) in enumerate(panels):
        top = height - number * block
        scores = word_scores(words, values)
        _headline(figure, attribution, title, height - top + 0.36)
        _draw_text(figure, placed, top - 0.5, scores, cmap, norm, target)
        ticks = [0, 0.5, 1] if number else None
        _scale_bar(figure, cmap, norm, label, top - block + 0.5, ticks)
        if number:
            figure.axes[-1].set_xlim(0, 1)  # there are no negative probabilities
    return figure


def _own_logits(attribution: Attribution) -> NDArray[np.float64]:
    """What the two logits of the target add, each at its token, ``(tokens,)``."""
    found = np.zeros(len(attribution.tokens))
    found[attribution.start] += (attribution.start_logits - attribution.reference_start_logits)[attribution.start]
    found[attribution.end] += (attribution.end_logits - attribution.reference_end_logits)[attribution.end]
    return found


def side_by_side(exact: Attribution, paper: Attribution, cmap: Colormap) -> Figure:
    """All layers and the output, by exact DeepLIFT (left) and by the rule of the paper's own code (right).

    The paper's relevance adds up to 1 at every layer, half of it from each of the two logits; it has no reference.
    """
    width = 7.4
    halves = np.zeros(len(paper.tokens))
    for end in (paper.start, paper.end):
        halves[end] += 0.5
    columns = (
        (exact, "exact DeepLIFT", _own_logits(exact), f"{unit_of(exact)} {ROOT}"),
        (paper, "the rule of the paper's code", halves, f"{unit_of(paper)} {ROOT}"),
    )
    words = words_of(exact)
    placed, lines = _flow(words, width, SIZE)
    block = lines * LINE + 0.45
    rows = range(1, exact.layers + 1)
    height = 0.7 + (len(rows) + 1) * block + 0.7
    figure = plt.figure(figsize=(2 * width + 3 * MARGIN, height))
    total = figure.get_size_inches()[0]
    for number, (each, title, last, unit) in enumerate(columns):
        left = MARGIN + number * (width + MARGIN)
        norm = shared_scale(each)
        figure.text(left / total, 1 - 0.36 / height, title, size=13, weight="bold")
        scores = [*word_scores(words, each.scores)[1:], word_scores(words, last)]
        for place, (name, values) in enumerate(zip([*(f"Layer {row}" for row in rows), "Output"], scores, strict=True)):
            top = height - 0.6 - place * block
            figure.text(left / total, (top - 0.22) / height, name, size=11, weight="bold")
            _draw_text(figure, placed, top - 0.3, values, cmap, norm, _target_words(each, words), left)
        _scale_bar(figure, cmap, norm, unit, 0.45, across=((left + 0.2 * width) / total, 0.6 * width / total))
    return figure


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    raised = np.exp(logits.astype(np.float64) - logits.max())
    return np.asarray(raised / raised.sum())


def overview(attribution: Attribution, cmap: Colormap, columns: int = 40) -> Figure:
    """All rows at once: words from left to right, layers from top to bottom, wrapped like a text."""
    words = words_of(attribution)
    scores = word_scores(words, attribution.scores)
    rows = len(scores)
    blocks = [range(start, min(start + columns, len(words))) for start in range(0, len(words), columns)]
    cell, label, left = 0.155, 0.95, 0.75
    width = left + columns * 0.25 + 0.2
    block_height = rows * cell + label
    height = 0.55 + len(blocks) * block_height + 0.75
    figure = plt.figure(figsize=(width, height))
    norm = shared_scale(attribution)
    target = _target_words(attribution, words)
    for number, block in enumerate(blocks):
        top = height - 0.5 - number * block_height
        axes = figure.add_axes(
            (left / width, (top - rows * cell) / height, len(block) * 0.25 / width, rows * cell / height)
        )
        axes.imshow(scores[:, list(block)], cmap=cmap, norm=norm, aspect="auto", interpolation="nearest")
        axes.set_yticks(range(rows), ["embed.", *[str(row) for row in range(1, rows)]], size=7)
        axes.set_xticks(range(len(block)), [_short(words[index].text) for index in block], size=8, rotation=60)
        for tick, index in zip(axes.get_xticklabels(), block, strict=True):
            tick.set(ha="right", rotation_mode="anchor", parse_math=False)
            if index in target:
                tick.set(weight="bold")
        axes.tick_params(length=0)
        axes.set_xticks(np.arange(len(block) + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
        axes.grid(which="minor", color="#dddddd", linewidth=0.4)
        axes.tick_params(which="minor", length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        if number == 0:
            axes.set_ylabel("layer", size=8)
    shown = "All layers" if rows > 1 else f"The input by {attribution.method}"
    _headline(figure, attribution, f"{shown} (words of the answer in bold)")
    _scale_bar(figure, cmap, norm, f"{unit_of(attribution)} {ROOT}", 0.45)
    return figure


def _short(text: str, most: int = 14) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
