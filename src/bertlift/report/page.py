"""The HTML report: one file that opens without a network."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from bertlift.attribution import Attribution
from bertlift.reader.description import Description


@dataclass(frozen=True)
class Example:
    """A showcase question and its PNG figures: one a layer, the output, the overview."""

    attribution: Attribution
    layers: list[Path]
    output: Path
    overview: Path


def _embedded(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


def render(
    title: str,
    reader: Description,
    metrics: Mapping[str, Mapping[str, Any]],
    examples: Sequence[Example],
    nearest: Sequence[Sequence[Mapping[str, Any]]],
    figures: Mapping[str, Path],
) -> str:
    """The page's HTML. Every string is escaped.

    Args:
        title: of the page.
        reader: what its ``reader.json`` says.
        metrics: ``evaluation``, ``attribution`` and ``clusters``: the metrics files.
        examples: showcase questions.
        nearest: for every cluster the questions nearest to its centre (rows of ``data/clusters.json``).
        figures: ``clusters``, ``map_clusters`` and ``map_question_words``: PNG files.
    """
    environment = Environment(
        loader=PackageLoader("bertlift", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["embedded"] = _embedded
    return environment.get_template("page.html.jinja").render(
        title=title, reader=reader, **metrics, examples=examples, nearest=nearest, figures=figures
    )
