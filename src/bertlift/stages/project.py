"""Lay the dev questions out in the plane."""

from __future__ import annotations

import csv
import io
import json

from bertlift.analysis.profile import representation
from bertlift.analysis.projection import project
from bertlift.config import Config
from bertlift.files import write_text
from bertlift.stages import CLUSTERS, MAP, run
from bertlift.stages.cluster import dev_attributions

COLUMNS = ("id", "x", "y", "cluster", "question_word", "answerable", "answered", "exact")


def project_questions(config: Config) -> None:
    """Write ``data/map.csv``: coordinates, cluster and properties of every dev question."""
    points = project(representation(dev_attributions()), config.analysis.map)
    questions = json.loads(CLUSTERS.read_text(encoding="utf-8"))["questions"]
    table = io.StringIO()
    writer = csv.DictWriter(table, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for question, (x, y) in zip(questions, points, strict=True):
        writer.writerow(question | {"x": f"{x:.6f}", "y": f"{y:.6f}"})
    write_text(MAP, table.getvalue())


if __name__ == "__main__":
    run("project", project_questions)
