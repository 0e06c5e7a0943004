"""Figures about the whole set of questions: the map and the clusters."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import Colormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from bertlift.analysis.groups import GROUPS
from bertlift.report import theme


def umap_map(
    points: NDArray[np.float64], labels: Sequence[str], title: str, order: Sequence[str] | None = None
) -> Figure:
    """The map of questions, coloured and marked by ``labels``; the rarest labels share "other".

    Args:
        points: ``(questions, 2)``.
        labels: one a question.
        title: what the colours mean.
        order: the labels in the order of the legend; by default the most frequent first.
    """
    labels = list(labels)
    if order is None:
        order = sorted(set(labels), key=lambda label: (-labels.count(label), label))
    most = len(theme.CATEGORIES)
    if len(order) > most:
        kept = [label for label in order if label != "other"][: most - 1]
        labels = [label if label in kept else "other" for label in labels]
        order = [*kept, "other"]
    figure, axes = plt.subplots(figsize=(7.5, 5.2), layout="constrained")
    for number, label in enumerate(order):
        chosen = np.array([each == label for each in labels])
        axes.scatter(
            points[chosen, 0],
            points[chosen, 1],
            s=34,
            color=theme.CATEGORIES[number],
            marker=theme.MARKERS[number],
            linewidth=0.4,
            edgecolor="white",
            label=f"{label} ({int(chosen.sum())})",
        )
    axes.set(xlabel="UMAP 1", ylabel="UMAP 2", xticks=[], yticks=[])
    axes.set_title(title, loc="left", weight="bold", size=12)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure


def cluster_profiles(profiles: NDArray[np.float64], sizes: Sequence[int], cmap: Colormap) -> Figure:
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
        figsize=(2.3 + 1.9 * columns, 0.9 + 2.9 * lines),
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
        axes.set_xticks(range(net.shape[1]), ["e", *[str(row) for row in range(1, net.shape[1])]], size=8)
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
