"""Draw all figures and write the HTML report."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from joblib import Parallel, delayed
from matplotlib.colors import Colormap
from matplotlib.figure import Figure
from tqdm import tqdm

from bertlift.attribution import Attribution, load_attributions
from bertlift.config import Config
from bertlift.config import Report as Settings
from bertlift.files import replacing, write_text
from bertlift.reader.description import Description
from bertlift.report import figures, heatmaps, theme
from bertlift.report.page import Example, findings, methods, render
from bertlift.stages import (
    ATTRIBUTIONS,
    CLUSTERS,
    CONTROLS,
    HEADS,
    LAYER_MAPS,
    MAP,
    METHOD_EXAMPLES,
    METRICS,
    READER,
    READINGS,
    TRAJECTORIES,
    run,
)

FIGURES = Path("reports/figures")
PAGE = Path("reports/index.html")
FINDINGS = Path("docs/findings.md")


def _save(figure: Figure, path: Path, settings: Settings) -> Path:
    theme.save(figure, path, settings)
    plt.close(figure)
    return path.with_suffix(".png")


def draw_example(attribution: Attribution, directory: Path, cmap: Colormap, settings: Settings) -> Example:
    """All figures of one question, into ``directory``; in a process of its own."""
    theme.apply()
    layers = [
        _save(heatmaps.layer(attribution, row, cmap), directory / f"layer_{row:02d}", settings)
        for row in range(1, attribution.layers + 1)
    ]
    return Example(
        attribution,
        layers,
        _save(heatmaps.output(attribution, cmap), directory / "output", settings),
        _save(heatmaps.overview(attribution, cmap), directory / "overview", settings),
        _save(heatmaps.bars(attribution, cmap), directory / "bars", settings),
    )


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def draw_maps(detail: Any, most_followed: int = 6) -> tuple[Figure, Figure]:
    """The map of all layers by several properties, and one for each layer with each cluster's medoid to follow."""
    rows, places = _rows(MAP), _rows(LAYER_MAPS)
    points = np.array([[float(row["x"]), float(row["y"])] for row in rows])
    names = {"cluster": "cluster", "question word": "question_word", "answerable": "answerable", "right": "exact"}
    properties = {name: [row[column] for row in rows] for name, column in names.items()}
    maps = np.array([[float(place["x"]), float(place["y"])] for place in places]).reshape(-1, len(rows), 2)
    number = {row["id"]: index for index, row in enumerate(rows)}
    medoids = [identities[0] for identities in detail["nearest"] if identities][:most_followed]
    asked = {row["id"]: row["question"] for row in detail["questions"]}
    followed = {number[identity]: asked[identity] for identity in medoids}
    return figures.umap_maps(points, properties), figures.layer_maps(maps, properties["cluster"], followed)


def readings(readers: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Attribution]]:
    """Showcase question -> reader -> how it explains its answer; nothing where there is one reader alone."""
    found: dict[str, dict[str, Attribution]] = {}
    for number, row in enumerate(readers) if len(readers) > 1 else ():
        for each in load_attributions(READINGS / str(number)):
            found.setdefault(str(each.name), {})[row["reader"]] = each
    return found


def draw_set(
    directory: Path, detail: Any, metrics: dict[str, Any], cmap: Colormap, settings: Settings
) -> dict[str, Path]:
    """The figures about all dev questions, into ``directory``: name -> PNG."""
    found = _read_json(TRAJECTORIES)
    subsets = {name: each["measures"] for name, each in found["subsets"].items()}
    everyone, method = subsets["all"], metrics["attribution"]["method"]
    drawn = {
        "trajectories": figures.trajectories(
            {method: (everyone, "fair"), "plain attention": (everyone, "attention_fair")}, "All dev questions"
        ),
        "spread": figures.spread(everyone, method),
        "claims": figures.claims(metrics["claims"]),
        "heads": figures.head_atlas(_read_json(HEADS), cmap),
    }
    for name, first, second in (
        ("right_wrong", "answered, right", "answered, wrong"),
        ("answerable", "answerable", "unanswerable"),
    ):
        if first in subsets and second in subsets:
            pair = {each: (subsets[each], "fair") for each in (first, second)}
            drawn[name] = figures.trajectories(
                pair, f"{first.capitalize()} against {second.removeprefix('answered, ')}"
            )
    beside = {name: (each["measures"], "fair") for name, each in found["controls"].items()}
    if beside:
        shown = {"the reader": (everyone, "fair"), **{figures.CONTROL_NAMES[name]: beside[name] for name in beside}}
        drawn["controls"] = figures.trajectories(shown, "The reader and the controls")
    judged = metrics["faithfulness"]
    drawn |= {"methods": figures.judgement(judged), "perturbation": figures.perturbation_curves(judged)}
    drawn["agreement"] = figures.agreement(judged, cmap)
    if metrics["confidence"]["features"]:
        drawn["confidence"] = figures.confidence(metrics["confidence"])
    if judged["checked_questions"]:
        drawn["randomised"] = figures.randomised(judged, cmap)
    if metrics["heads"]:
        drawn["head_removal"] = figures.head_removal(metrics["heads"])
    if metrics["clusters"]["choices"]:
        drawn["cluster_choice"] = figures.cluster_choice(metrics["clusters"]["choices"], metrics["clusters"]["k"])
    if detail["profiles"]:
        drawn["clusters"] = figures.cluster_profiles(np.array(detail["profiles"]), metrics["clusters"]["sizes"], cmap)
    drawn["map"], drawn["layer_maps"] = draw_maps(detail)
    return {name: _save(figure, directory / name, settings) for name, figure in drawn.items()}


def report(config: Config) -> None:
    """Write ``reports/figures``, ``reports/index.html``, ``docs/findings.md`` and the page about methods."""
    settings = config.report
    theme.apply()
    cmap = theme.diverging(settings.colors)
    shown = [each for each in load_attributions(ATTRIBUTIONS) if each.split.endswith("showcase")]
    by_paper = {}
    if (CONTROLS / "paper2019").is_dir():
        by_paper = {each.question_id: each for each in load_attributions(CONTROLS / "paper2019")}
    detail = _read_json(CLUSTERS)
    by_id = {row["id"]: row for row in detail["questions"]}
    names = ("evaluation", "attribution", "claims", "heads", "clusters", "confidence")
    metrics = {name: _read_json(METRICS / f"{name}.json") for name in names}
    metrics["faithfulness"] = _read_json(Path(config.analysis.faithfulness.out))
    metrics["readers"] = _read_json(Path(config.analysis.readers.out))
    with replacing(FIGURES) as new:
        jobs = (delayed(draw_example)(each, new / str(each.name), cmap, settings) for each in shown)
        drawn = Parallel(n_jobs=max(1, min(config.reader.threads, len(shown))), return_as="generator")(jobs)
        examples = list(tqdm(drawn, total=len(shown), desc="figures", unit="question", disable=None))
        paths = draw_set(new, detail, metrics, cmap, settings)
        if shown and config.attribution.method == "deeplift" and shown[0].question_id in by_paper:
            figure = heatmaps.side_by_side(shown[0], by_paper[shown[0].question_id], cmap)
            paths["rules"] = _save(figure, new / str(shown[0].name) / "rules", settings)
        methods_used = figures.best_first(metrics["faithfulness"])
        if shown and (METHOD_EXAMPLES / methods_used[0]).is_dir():
            by_method = {name: load_attributions(METHOD_EXAMPLES / name)[0] for name in methods_used}
            figure = heatmaps.overlays(by_method, f"The input by {len(by_method)} methods", cmap)
            paths["by_method"] = _save(figure, new / str(shown[0].name) / "methods", settings)
        for name, by_reader in readings(metrics["readers"]).items():
            figure = heatmaps.overlays(by_reader, f"The input by {config.attribution.method}, for every reader", cmap)
            paths[f"readers/{name}"] = _save(figure, new / name / "readers", settings)
        page = render(
            settings.title,
            Description.read(READER),
            metrics,
            examples,
            [
                {
                    "description": detail["descriptions"][number],
                    "nearest": [by_id[identity] for identity in identities],
                }
                for number, identities in enumerate(detail["nearest"])
            ],
            paths,
        )
    write_text(PAGE, page)
    judged = config.analysis.faithfulness
    write_text(Path(judged.page), methods(Description.read(READER), metrics["faithfulness"], judged.out))
    write_text(FINDINGS, findings(Description.read(READER), metrics, _read_json(TRAJECTORIES)))


if __name__ == "__main__":
    run("report", report)
