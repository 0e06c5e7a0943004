"""Lay the dev questions out in the plane: by all layers, and layer by layer."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from bertlift.analysis.projection import project, project_layers
from bertlift.analysis.represent import layers_of, points_of
from bertlift.config import Config
from bertlift.files import write_text
from bertlift.stages import CLUSTERS, LAYER_MAPS, MAP, run
from bertlift.stages.cluster import dev_attributions

COLUMNS = ("id", "x", "y", "cluster", "question_word", "answerable", "answered", "exact")


def write_table(path: Path, columns: Iterable[str], rows: Iterable[dict[str, Any]]) -> None:
    """Write rows as CSV, whole or not at all; coordinates with six digits."""
    table = io.StringIO()
    writer = csv.DictWriter(table, list(columns), extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(row | {"x": f"{row['x']:.6f}", "y": f"{row['y']:.6f}"} for row in rows)
    write_text(path, table.getvalue())


def project_questions(config: Config) -> None:
    """Write ``data/map.csv``, all layers together with cluster and properties, and ``data/layer_maps.csv``."""
    torch.set_num_threads(config.reader.threads)
    attributions, representation = dev_attributions(), config.analysis.clusters.representation
    questions = json.loads(CLUSTERS.read_text(encoding="utf-8"))["questions"]
    points = project(points_of(attributions, representation), config.analysis.map)
    write_table(MAP, COLUMNS, (row | {"x": x, "y": y} for row, (x, y) in zip(questions, points, strict=True)))
    maps = project_layers(layers_of(attributions, representation), config.analysis.map)
    places = (
        {"id": question["id"], "row": row, "x": x, "y": y}
        for row, each in enumerate(maps)
        for question, (x, y) in zip(questions, each, strict=True)
    )
    write_table(LAYER_MAPS, ("id", "row", "x", "y"), places)


if __name__ == "__main__":
    run("project", project_questions)
