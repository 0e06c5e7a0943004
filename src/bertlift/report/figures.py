"""Figures about the whole set of questions. Each is made by one function from what the stages wrote."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, NullLocator
from numpy.typing import NDArray

from bertlift.analysis.groups import GROUPS
from bertlift.report import theme

Array = NDArray[np.float64]
Measures = Mapping[str, Mapping[str, Any]]  # measure -> mean, low, high: a subset in data/trajectories.json


def _titled(axes: Axes, title: str, size: float = 10) -> None:
    axes.set_title(title, loc="left", weight="bold", size=size, parse_math=False)


def _headline(figure: Figure, title: str) -> None:
    figure.suptitle(title, x=0.01, ha="left", weight="bold", size=12)


def _layers(axes: Axes, rows: int, first: int = 0) -> None:
    """Name the rows of scores along the x axis: e for the embedding output, then the layers."""
    names = ["e" if row == 0 else str(row) for row in range(first, first + rows)]
    axes.set_xticks(range(first, first + rows), names, size=8)


def _line(
    axes: Axes, found: Mapping[str, Any], number: int, label: str, column: int | None = None, first: int = 0
) -> None:
    """A mean over the layers, from the ``first`` on, with its interval as a band."""
    mean, low, high = (np.array(found[side], dtype=np.float64) for side in ("mean", "low", "high"))
    if column is not None and mean.size:
        mean, low, high = mean[:, column], low[:, column], high[:, column]
    if not mean.size:
        return
    x = np.arange(len(mean)) + first
    color = theme.CATEGORIES[number]
    axes.plot(x, mean, color=color, marker=theme.MARKERS[number], markersize=3.5, linewidth=1.4, label=label)
    axes.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)


def trajectories(series: Mapping[str, tuple[Measures, str]], title: str) -> Figure:
    """The fair share of every token group, layer by layer, one small panel a group.

    Args:
        series: label -> (measures of a subset, which of them: ``fair`` or ``attention_fair``).
        title: of the figure.
    """
    shown = [
        column
        for column in range(len(GROUPS))
        if any(
            # No rows where a method tells no attention.
            np.isfinite(np.array(found[key]["mean"], dtype=float).reshape(-1, len(GROUPS))[:, column]).any()
            for found, key in series.values()
        )
    ]
    lines = -(-len(shown) // 4)
    figure, grid = plt.subplots(lines, 4, figsize=(10, 0.9 + 1.9 * lines), layout="constrained", squeeze=False)
    for axes in grid.flat[len(shown) :]:
        axes.set_axis_off()
    for axes, column in zip(grid.flat, shown, strict=False):
        for number, (label, (found, key)) in enumerate(series.items()):
            _line(axes, found[key], number, label, column, first=int(key == "attention_fair"))
        axes.axhline(1, color=theme.FAINT, linewidth=0.8, linestyle=":")
        rows = len(next(iter(series.values()))[0]["fair"]["mean"])
        _layers(axes, rows)
        axes.set_ylim(bottom=0)
        axes.tick_params(labelsize=8)
        _titled(axes, GROUPS[column].replace("_", " "))
    for axes in grid[:, 0]:
        axes.set_ylabel("score share /\ntoken share", size=8)
    for axes in grid[-1]:
        axes.set_xlabel("layer (e: embedding)", size=8)
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    _headline(figure, title)
    return figure


def spread(measures: Measures, method: str) -> Figure:
    """How widely the score is spread, where the answer stands in it, and which way it takes through a layer."""
    figure, grid = plt.subplots(1, 4, figsize=(11, 3.3), layout="constrained")
    rows = len(measures["effective"]["mean"])
    _line(grid[0], measures["effective"], 0, method)
    _line(grid[0], measures["attention_effective"], 1, "plain attention", first=1)
    _titled(grid[0], "effective number of tokens")
    _line(grid[1], measures["gini"], 0, method)
    grid[1].set_ylim(0, 1)
    _titled(grid[1], "Gini coefficient")
    if any(value is not None for value in measures["answer_rank"]["mean"]):
        _line(grid[2], measures["answer_rank"], 0, method)
    grid[2].set_ylim(max(grid[2].get_ylim()[1], 2), 1)  # the first on top; a rank that is 1 throughout has a scale too
    _titled(grid[2], "rank of the answer (1: first)")
    paths = np.array(measures["paths"]["mean"], dtype=np.float64)
    if paths.size:
        bottom = np.zeros(len(paths))
        for number, label in enumerate(("value path", "attention path", "residual")):
            color = theme.CATEGORIES[number]
            grid[3].bar(np.arange(1, len(paths) + 1), paths[:, number], bottom=bottom, color=color, label=label)
            bottom += paths[:, number]
        grid[3].legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=3, fontsize=7, frameon=False)
    _titled(grid[3], "share of the layer's paths")
    for axes in grid:
        _layers(axes, rows)
        axes.tick_params(labelsize=8)
        axes.set_xlabel("layer (e: embedding)", size=8)
    grid[0].set_ylim(bottom=0)
    grid[0].legend(fontsize=8, frameon=False)
    return figure


VERDICT_COLORS = {
    "supported": theme.CATEGORIES[2],
    "not supported": theme.CATEGORIES[5],
    "true by construction": theme.CATEGORIES[0],
    "undecided": theme.FAINT,
}
CONTROL_NAMES = {
    "random_weights": "random weights",
    "before_finetuning": "before fine-tuning",
    "wrong_span": "a wrong span",
}


def claims(found: Sequence[Mapping[str, Any]]) -> Figure:
    """Every claim's statistic with its interval and controls, each on its own scale; dashed: nothing to claim."""
    told = [claim for claim in found if claim["statistic"] is not None]
    if not told:
        figure, axes = plt.subplots(figsize=(11, 1.2))
        axes.set_axis_off()
        axes.text(0, 0.5, "No claim could be measured on these questions.")
        return figure
    figure, grid = plt.subplots(len(told), 1, figsize=(11, 0.6 + 0.72 * len(told)), squeeze=False)
    figure.subplots_adjust(left=0.42, right=0.83, top=1 - 0.35 / (0.6 + 0.72 * len(told)), bottom=0.07, hspace=1.0)
    for axes, claim in zip(grid[:, 0], told, strict=True):
        rows = [("the reader", claim)] + [
            (CONTROL_NAMES[name], control) for name, control in claim["controls"].items() if control
        ]
        for number, (label, each) in enumerate(rows):
            if each["statistic"] is None:
                continue
            ends = [[each["statistic"] - each["ci_low"]], [each["ci_high"] - each["statistic"]]]
            place = 3 - ["the reader", *CONTROL_NAMES.values()].index(label)
            axes.errorbar(
                [each["statistic"]],
                [place],
                xerr=np.maximum(ends, 0),
                color=theme.CATEGORIES[(0, 7, 1, 3)[3 - place]],
                marker=theme.MARKERS[3 - place],
                markersize=5.5 if number == 0 else 4,
                linewidth=1.6,
                label=label,
            )
        if claim["null"] is not None:
            axes.axvline(claim["null"], color=theme.INK, linewidth=0.9, linestyle="--")
        axes.set(ylim=(-0.7, 3.7), yticks=[])
        axes.spines["left"].set_visible(False)
        axes.tick_params(labelsize=7, pad=1)
        axes.margins(x=0.12)
        axes.ticklabel_format(axis="x", useOffset=False)
        axes.text(
            -0.02,
            0.5,
            "\n".join(textwrap.wrap(claim["statement"], 54)),
            transform=axes.transAxes,
            ha="right",
            va="center",
            size=9,
        )
        axes.text(
            1.02,
            0.5,
            claim["verdict"],
            transform=axes.transAxes,
            va="center",
            size=9,
            weight="bold",
            color=VERDICT_COLORS[claim["verdict"]],
        )
    handles = {
        label: handle for axes in grid[:, 0] for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=4, frameon=False, fontsize=9)
    return figure


HEAD_CODES = {
    "next token": ("next", 0),
    "previous token": ("prev", 4),
    "separators": ("sep", 7),
    "punctuation": (".,;", 3),
    "same word": ("same", 2),
    "question to passage": ("q→p", 1),
    "passage to question": ("p→q", 5),
    "broad": ("broad", None),
    "mixed": ("", None),
}


def head_atlas(atlas: Mapping[str, Any], cmap: Colormap) -> Figure:
    """All heads: what each attends to, and how much of the target goes through it (mean over questions, in logits)."""
    panels = [name for name in ("positive", "negative", "value_path", "attention_path") if name in atlas]
    labels = atlas["labels"]
    layers, heads = len(labels), len(labels[0])
    wide = max(4.4, 0.42 * heads)
    lines = 1 + -(-len(panels) // 2)
    figure = plt.figure(figsize=(0.8 + 2 * wide, 0.6 + lines * (0.9 + 0.3 * layers)), layout="constrained")
    grid = figure.add_gridspec(lines, 2)
    axes = figure.add_subplot(grid[0, :])
    axes.set(xlim=(-0.5, heads - 0.5), ylim=(layers - 0.5, -0.5))
    for layer in range(layers):
        for head in range(heads):
            code, color = HEAD_CODES[labels[layer][head]]
            face = theme.CATEGORIES[color] if color is not None else "#f2f2f2"
            axes.add_patch(Rectangle((head - 0.48, layer - 0.46), 0.96, 0.92, facecolor=face, edgecolor="white"))
            ink = theme.ink_on((*to_rgb(face), 1.0))
            axes.text(head, layer, code, ha="center", va="center", size=8, color=ink)
    _named(axes, layers, heads)
    _titled(axes, "what the head attends to (grey: broad, or nothing in particular)")
    values = {name: np.array(atlas[name]) for name in panels}
    norm = theme.symmetric(max((float(np.abs(each).max()) for each in values.values()), default=1.0))
    below = []
    for number, name in enumerate(panels):
        axes = figure.add_subplot(grid[1 + number // 2, number % 2])
        image = axes.imshow(values[name], cmap=cmap, norm=norm, aspect="auto", interpolation="nearest")
        _named(axes, layers, heads)
        _titled(axes, f"{name} part" if name in ("positive", "negative") else name.replace("_", " "))
        below.append(axes)
    if below:
        bar = figure.colorbar(image, ax=below, shrink=0.7, pad=0.01)
        bar.set_label("contribution to start + end logit", size=9)
        bar.ax.tick_params(labelsize=8)
    return figure


def _named(axes: Axes, layers: int, heads: int) -> None:
    axes.set_xticks(range(heads), [str(head) for head in range(heads)], size=8)
    axes.set_yticks(range(layers), [str(layer + 1) for layer in range(layers)], size=8)
    axes.set_xlabel("head", size=8)
    axes.set_ylabel("layer", size=8)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def head_removal(found: Mapping[str, Any]) -> Figure:
    """How far the span score falls when heads are taken out, in the order of each ranking."""
    figure, axes = plt.subplots(figsize=(6.4, 4), layout="constrained")
    for number, (name, curve) in enumerate(found["curves"].items()):
        color = theme.CATEGORIES[number]
        axes.plot(found["counts"], curve["mean"], color=color, marker=theme.MARKERS[number], markersize=4, label=name)
        axes.fill_between(found["counts"], curve["low"], curve["high"], color=color, alpha=0.2, linewidth=0)
    axes.axhline(0, color=theme.FAINT, linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_xticks(found["counts"], [str(count) for count in found["counts"]])
    axes.set(xlabel="heads taken out", ylabel="fall of the span score (start + end logit)")
    axes.legend(title="first out by", frameon=False)
    _titled(axes, f"Taking heads out ({found['questions']} questions)", 12)
    return figure


def cluster_choice(choices: Mapping[str, Mapping[str, Any]], chosen: int) -> Figure:
    """How good each number of clusters is, against shuffled points, and how stable."""
    figure, grid = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained", sharex=True)
    counts = [int(k) for k in choices]
    grid[0].plot(counts, [each["silhouette"] for each in choices.values()], color=theme.CATEGORIES[0], marker="o")
    nulls = np.array([each["null"] or [np.nan] * 3 for each in choices.values()], dtype=np.float64)
    grid[0].fill_between(counts, nulls[:, 0], nulls[:, 2], color=theme.FAINT, alpha=0.3, linewidth=0, label="shuffled")
    grid[0].plot(counts, nulls[:, 1], color=theme.FAINT, linestyle="--", linewidth=1)
    grid[0].legend(frameon=False, fontsize=8)
    stable = [np.nan if each["stability"] is None else each["stability"] for each in choices.values()]
    grid[1].plot(counts, stable, color=theme.CATEGORIES[2], marker="s")
    for axes, title in zip(grid, ("silhouette", "stability (adjusted Rand index)"), strict=True):
        axes.axvline(chosen, color=theme.INK, linewidth=0.8, linestyle=":")
        axes.set_ylim(min(0.0, axes.get_ylim()[0]), 1.02)
        axes.set_xticks(counts)
        axes.set_xlabel("number of clusters (dotted: chosen)", size=9)
        _titled(axes, title)
    return figure


def cluster_profiles(profiles: Array, sizes: Sequence[int], cmap: Colormap) -> Figure:
    """Where each cluster's score sits: mean share of every token group at every layer.

    Args:
        profiles: ``(clusters, 2, rows, groups)``, positive and negative shares; their sum is drawn.
        sizes: questions a cluster.
        cmap: the diverging colours.
    """
    net = profiles.sum(1)
    norm = theme.symmetric(float(np.abs(net).max()))
    columns = min(len(net), 4)
    lines = -(-len(net) // columns)
    figure, grid = plt.subplots(
        lines,
        columns,
        figsize=(2.3 + 1.9 * columns, 0.9 + 3.2 * lines),
        layout="constrained",
        squeeze=False,
        sharey=True,
    )
    image = None
    for axes in grid.flat[len(net) :]:
        axes.set_axis_off()
    for number, axes in enumerate(grid.flat[: len(net)]):
        image = axes.imshow(net[number].T, cmap=cmap, norm=norm, aspect="auto", interpolation="nearest")
        axes.set_title(f"cluster {number} ({sizes[number]})", size=10)
        _layers(axes, net.shape[1])
        axes.set_yticks(range(len(GROUPS)), [group.replace("_", " ") for group in GROUPS], size=8)
        axes.set_xlabel("layer (e: embedding)", size=8)
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
    assert image is not None
    bar = figure.colorbar(image, ax=list(grid.flat), shrink=0.7, pad=0.02)
    bar.set_label("mean share of the layer's absolute score", size=9)
    bar.ax.tick_params(labelsize=8)
    return figure


def _coloured(labels: Sequence[str], order: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Labels and the order of their colours: the most frequent first; the rarest share "other"."""
    labels = list(labels)
    order = list(order or sorted(set(labels), key=lambda label: (-labels.count(label), label)))
    most = len(theme.CATEGORIES)
    if len(order) > most:
        kept = [label for label in order if label != "other"][: most - 1]
        labels = [label if label in kept else "other" for label in labels]
        order = [*kept, "other"]
    return labels, order


def _scatter(axes: Axes, points: Array, labels: Sequence[str], order: Sequence[str], size: float) -> None:
    for number, label in enumerate(order):
        chosen = np.array([each == label for each in labels])
        axes.scatter(
            points[chosen, 0],
            points[chosen, 1],
            s=size,
            color=theme.CATEGORIES[number],
            marker=theme.MARKERS[number],
            linewidth=0.3,
            edgecolor="white",
            label=f"{label} ({int(chosen.sum())})",
        )
    axes.set(xticks=[], yticks=[])


def umap_maps(points: Array, properties: Mapping[str, Sequence[str]]) -> Figure:
    """The map of questions, once for each property, by which it is coloured and marked.

    Args:
        points: ``(questions, 2)``.
        properties: name -> one label a question.
    """
    lines = -(-len(properties) // 2)
    figure, grid = plt.subplots(lines, 2, figsize=(11.5, 0.4 + 3.7 * lines), layout="constrained", squeeze=False)
    for axes in grid.flat[len(properties) :]:
        axes.set_axis_off()
    for axes, (name, labels) in zip(grid.flat, properties.items(), strict=False):
        labels, order = _coloured(labels, sorted(set(labels)) if name == "cluster" else None)
        _scatter(axes, points, labels, order, 20)
        axes.set(xlabel="UMAP 1", ylabel="UMAP 2")
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=8)
        _titled(axes, f"by {name.replace('_', ' ')}", 11)
    return figure


def layer_maps(maps: Array, clusters: Sequence[str], followed: Mapping[int, str]) -> Figure:
    """A map for each layer, coloured by cluster; some questions are numbered, to be followed from map to map.

    Args:
        maps: ``(rows, questions, 2)``, aligned.
        clusters: one a question.
        followed: question -> what it asks.
    """
    labels, order = _coloured(clusters, sorted(set(clusters)))
    columns = min(len(maps), 4)
    lines = -(-len(maps) // columns)
    height = 0.6 + 2.7 * lines + 0.2 * len(followed)
    figure, grid = plt.subplots(lines, columns, figsize=(2.8 * columns, height), layout="constrained", squeeze=False)
    for axes in grid.flat[len(maps) :]:
        axes.set_axis_off()
    for row, (axes, points) in enumerate(zip(grid.flat, maps, strict=False)):
        _scatter(axes, points, labels, order, 9)
        for number, question in enumerate(followed, 1):
            box = {"boxstyle": "circle,pad=0.15", "facecolor": "white", "edgecolor": theme.INK, "linewidth": 0.8}
            axes.text(*points[question], str(number), size=7, ha="center", va="center", bbox=box, zorder=5)
        _titled(axes, "embedding output" if row == 0 else f"layer {row}")
    handles, names = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=min(len(names), 6), frameon=False, fontsize=8)
    told = "\n".join(f"{number}  {text}" for number, text in enumerate(followed.values(), 1))
    figure.supxlabel(told, x=0.02, ha="left", size=8, parse_math=False)
    return figure


JUDGED = {
    "insertion": "insertion\n(more is better)",
    "deletion": "deletion\n(more is better)",
    "comprehensiveness": "comprehensive-\nness (more)",
    "sufficiency": "sufficiency\n(less)",
    "naopc": "NAOPC\n(more)",
    "sign_violation": "wrong sign\n(less)",
    "sensitivity": "sensitivity\n(less)",
    "randomisation": "random weights\n(near 0)",
    "plausibility_sentence": "on the answer's\nsentence (1: fair)",
    "plausibility_keywords": "on the question's\nkeywords (1: fair)",
    "seconds_per_question": "seconds a\nquestion",
}


def best_first(found: Mapping[str, Any]) -> list[str]:
    """The methods of ``faithfulness.json`` by decreasing insertion."""
    return sorted(found["methods"], key=lambda name: -(found["methods"][name]["insertion"]["mean"] or 0.0))


def judgement(found: Mapping[str, Any]) -> Figure:
    """Every method by every measure, with 95 % intervals; the best by insertion on top, ``random`` as a line."""
    methods = best_first(found)
    shown = {
        name: label
        for name, label in JUDGED.items()
        if any(_mean(found["methods"][method].get(name)) is not None for method in methods)
    }
    columns = 6
    lines = -(-len(shown) // columns)
    height = 0.9 + lines * (0.95 + 0.2 * len(methods))
    figure, grid = plt.subplots(lines, columns, figsize=(12, height), layout="constrained", squeeze=False, sharey=True)
    for axes in grid.flat[len(shown) :]:
        axes.set_axis_off()
    for axes, (name, label) in zip(grid.flat, shown.items(), strict=False):
        for place, method in enumerate(methods):
            each = found["methods"][method].get(name)
            value = _mean(each)
            if value is None:
                continue
            low, high = (each["ci_low"], each["ci_high"]) if isinstance(each, Mapping) else (value, value)
            color = theme.CATEGORIES[0] if method != "random" else theme.FAINT
            axes.plot([low, high], [place, place], color=color, linewidth=1.6)
            axes.plot([value], [place], color=color, marker="o" if method != "random" else "s", markersize=5)
            if method == "random" and name != "seconds_per_question":
                axes.axvline(value, color=theme.FAINT, linewidth=0.8, linestyle="--")
        if name == "seconds_per_question":
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.xaxis.set_minor_locator(NullLocator())
        axes.set_title(label, size=9, weight="bold")
        axes.set_yticks(range(len(methods)), methods, size=8)
        axes.set_ylim(len(methods) - 0.5, -0.5)
        axes.tick_params(axis="x", labelsize=7)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", color="#eeeeee", linewidth=0.8)
        axes.set_axisbelow(True)
    _headline(figure, f"How the methods fare (questions: {found['questions']})")
    return figure


def _mean(found: Any) -> float | None:
    value = found["mean"] if isinstance(found, Mapping) else found
    return None if value is None else float(value)


def perturbation_curves(found: Mapping[str, Any], most: int = 6) -> Figure:
    """What the span score does when the first tokens of each method go, and when they alone are there."""
    methods = best_first(found)
    named = [name for name in dict.fromkeys(["deeplift", *methods]) if name in methods and name != "random"][:most]
    figure, grid = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained", sharey=True)
    panels = (("deleted", "without the first tokens (lower is better)"), ("inserted", "with the first tokens alone"))
    for axes, (key, title) in zip(grid, panels, strict=True):
        for method in methods:
            values, color, width = found["methods"][method][key], "#cccccc", 0.9
            label = None
            if method == "random":
                color, width, label = theme.INK, 1.4, "random"
            elif method in named:
                color, width, label = theme.CATEGORIES[named.index(method)], 1.8, method
            style = "--" if method == "random" else "-"
            axes.plot(found["shares"], values, color=color, linewidth=width, linestyle=style, label=label)
        axes.axhline(0, color=theme.FAINT, linewidth=0.8, linestyle=":")
        axes.set_xlabel("share of the tokens", size=9)
        _titled(axes, title)
    grid[0].set_ylabel("span score above the reference's (logits)", size=9)
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9)
    return figure


CONFIDENCES = {
    "softmax": "span softmax alone",
    "span": "the reader's probabilities, fitted",
    "explanation": "the explanation, fitted",
    "both": "both, fitted",
}


def confidence(found: Mapping[str, Any]) -> Figure:
    """How well right answers are told from wrong ones: risk by coverage, calibration, the fitted model's weights."""
    figure, grid = plt.subplots(1, 3, figsize=(12, 4.9), layout="constrained", width_ratios=[1, 1, 0.9])
    for number, (name, label) in enumerate(CONFIDENCES.items()):
        style = {"color": theme.CATEGORIES[number], "marker": theme.MARKERS[number], "markersize": 3.5}
        grid[0].plot(*found["risk_coverage"][name], label=label, linewidth=1.5, **(style | {"marker": ""}))
        means, shares, _ = np.array(found["calibration"][name]).T
        grid[1].plot(means, shares, linewidth=1, **style)
    grid[0].set(xlim=(0, 1), ylim=(0, None), xlabel="share of the questions answered", ylabel="share of these wrong")
    _titled(grid[0], "risk by coverage (lower is better)")
    grid[1].plot([0, 1], [0, 1], color=theme.FAINT, linewidth=0.8, linestyle=":")
    grid[1].set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="share right")
    _titled(grid[1], "calibration (dotted: exact)")
    weights = found["weights"]
    names = sorted(weights, key=lambda name: abs(weights[name]))
    colors = [theme.CATEGORIES[1 if name in found["span_features"] else 2] for name in names]
    grid[2].barh(range(len(names)), [weights[name] for name in names], color=colors)
    grid[2].axvline(0, color=theme.INK, linewidth=0.7)
    grid[2].set_yticks(range(len(names)), names, size=7)
    grid[2].tick_params(axis="y", length=0)
    grid[2].set_xlabel("weight of the standardised feature")
    _titled(grid[2], "what the model of both uses")
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9)
    return figure


def agreement(found: Mapping[str, Any], cmap: Colormap) -> Figure:
    """How far every two methods agree: the mean rank correlation of their absolute scores."""
    table = found["agreement"]
    order = [table["methods"].index(name) for name in best_first(found)]
    names = [table["methods"][index] for index in order]
    values = np.array(table["rank_correlation"], dtype=np.float64)[np.ix_(order, order)]
    size = 2.4 + 0.47 * len(names)
    figure, axes = plt.subplots(figsize=(size + 0.6, size), layout="constrained")
    _matrix(figure, axes, values, cmap, "rank correlation (Spearman)")
    axes.set_xticks(range(len(names)), names, size=8, rotation=60, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(names)), names, size=8)
    _titled(axes, "Agreement of the methods", 11)
    return figure


def randomised(found: Mapping[str, Any], cmap: Colormap) -> Figure:
    """Whether explanations follow the weights: rank correlation with themselves as the model loses what it learned."""
    names = [name for name in best_first(found) if found["methods"][name]["randomised"]]
    stages = list(found["methods"][names[0]]["randomised"])
    values = np.array(
        [[found["methods"][name]["randomised"][stage]["mean"] for stage in stages] for name in names], dtype=np.float64
    )
    figure, axes = plt.subplots(figsize=(2.9 + 0.6 * len(stages), 1.5 + 0.3 * len(names)), layout="constrained")
    _matrix(figure, axes, values, cmap, "rank correlation")
    axes.set_xticks(range(len(stages)), stages, size=8, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(names)), names, size=8)
    _titled(axes, f"Random weights, from the top down (questions: {found['checked_questions']})", 11)
    return figure


def _matrix(figure: Figure, axes: Axes, values: Array, cmap: Colormap, label: str) -> None:
    """Correlations as colours and numbers."""
    norm = theme.symmetric(1.0)
    image = axes.imshow(values, cmap=cmap, norm=norm, aspect="auto", interpolation="nearest")
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            ink = theme.ink_on(cmap(norm(value)))
            axes.text(column, row, f"{round(value, 2) + 0.0:.2f}", ha="center", va="center", size=7, color=ink)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    bar = figure.colorbar(image, ax=axes, shrink=0.8, pad=0.02)
    bar.set_label(label, size=9)
    bar.ax.tick_params(labelsize=8)
