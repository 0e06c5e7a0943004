"""Draw all figures and write the HTML report."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import Colormap
from matplotlib.figure import Figure
from tqdm import tqdm

from bertlift.attribution import Attribution, load_attributions
from bertlift.config import Config
from bertlift.config import Report as Settings
from bertlift.files import replacing, write_text
from bertlift.reader.description import Description
from bertlift.report import figures, heatmaps, theme
from bertlift.report.page import Example, render
from bertlift.stages import ATTRIBUTIONS, CLUSTERS, MAP, METRICS, READER, run

FIGURES = Path("reports/figures")
PAGE = Path("reports/index.html")


def _save(figure: Figure, path: Path, settings: Settings) -> Path:
    theme.save(figure, path, settings)
    plt.close(figure)
    return path.with_suffix(".png")


def draw_example(attribution: Attribution, directory: Path, cmap: Colormap, settings: Settings) -> Example:
    """All figures of one question, into ``directory``."""
    layers = [
        _save(heatmaps.layer(attribution, row, cmap), directory / f"layer_{row:02d}", settings)
        for row in range(1, attribution.layers + 1)
    ]
    return Example(
        attribution,
        layers,
        _save(heatmaps.output(attribution, cmap), directory / "output", settings),
        _save(heatmaps.overview(attribution, cmap), directory / "overview", settings),
    )


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def draw_set(directory: Path, detail: Any, cmap: Colormap, settings: Settings) -> dict[str, Path]:
    """The figures about all dev questions, into ``directory``."""
    with MAP.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    points = np.array([[float(row["x"]), float(row["y"])] for row in rows])
    clusters = [f"cluster {row['cluster']}" for row in rows]
    names = [f"cluster {number}" for number in range(len(detail["nearest"]))]
    words = [row["question_word"] for row in rows]
    profiles, sizes = np.array(detail["profiles"]), [clusters.count(name) for name in names]
    return {
        "clusters": _save(figures.cluster_profiles(profiles, sizes, cmap), directory / "clusters", settings),
        "map_clusters": _save(
            figures.umap_map(points, clusters, "Questions by cluster", names), directory / "map_clusters", settings
        ),
        "map_question_words": _save(
            figures.umap_map(points, words, "Questions by question word"), directory / "map_question_words", settings
        ),
    }


def report(config: Config) -> None:
    """Write ``reports/figures`` and ``reports/index.html``."""
    settings = config.report
    theme.apply()
    cmap = theme.diverging(settings.colors)
    shown = [each for each in load_attributions(ATTRIBUTIONS) if each.split.endswith("showcase")]
    detail = _read_json(CLUSTERS)
    by_id = {row["id"]: row for row in detail["questions"]}
    metrics = {name: _read_json(METRICS / f"{name}.json") for name in ("evaluation", "attribution", "clusters")}
    with replacing(FIGURES) as new:
        examples = [
            draw_example(each, new / str(each.name), cmap, settings)
            for each in tqdm(shown, desc="figures", unit="question", disable=None)
        ]
        paths = draw_set(new, detail, cmap, settings)
        page = render(
            settings.title,
            Description.read(READER),
            metrics,
            examples,
            [[by_id[identity] for identity in identities] for identities in detail["nearest"]],
            paths,
        )
    write_text(PAGE, page)


if __name__ == "__main__":
    run("report", report)
