"""The HTML report: one file that opens without a network."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template, select_autoescape

from bertlift.attribution import Attribution
from bertlift.reader.description import Description
from bertlift.report.figures import best_first


@dataclass(frozen=True)
class Example:
    """A showcase question and its PNG figures: one a layer, the output, the overview, the input's scores as bars."""

    attribution: Attribution
    layers: list[Path]
    output: Path
    overview: Path
    bars: Path


def _embedded(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


def _template(name: str) -> Template:
    environment = Environment(
        loader=PackageLoader("bertlift", "report"),
        autoescape=select_autoescape(("html.jinja",)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["embedded"] = _embedded
    environment.filters["estimate"] = _estimate
    return environment.get_template(name)


def _estimate(found: Mapping[str, Any] | None) -> str:
    """A statistic with its interval, in words that a table takes."""
    if not found or found["statistic"] is None:
        return "n/a"
    value, low, high = (f"{found[name]:.2f}" for name in ("statistic", "ci_low", "ci_high"))
    return f"{value} ({low} to {high})"


def render(
    title: str,
    reader: Description,
    metrics: Mapping[str, Any],
    examples: Sequence[Example],
    clusters: Sequence[Mapping[str, Any]],
    figures: Mapping[str, Path],
) -> str:
    """The page's HTML. Every string is escaped.

    Args:
        title: of the page.
        reader: what its ``reader.json`` says.
        metrics: ``evaluation``, ``attribution``, ``claims``, ``heads``, ``faithfulness``, ``readers``, ``confidence``
            and ``clusters``: the metrics files.
        examples: showcase questions.
        clusters: for every cluster its ``description`` and ``nearest`` questions (rows of ``data/clusters.json``).
        figures: name -> PNG file; those that there are.
    """
    return _template("page.html.jinja").render(
        title=title, reader=reader, metrics=metrics, examples=examples, clusters=clusters, figures=figures
    )


def findings(reader: Description, metrics: Mapping[str, Any], trajectories: Mapping[str, Any]) -> str:
    """What the analysis found, as Markdown: the text of ``docs/findings.md``, with its numbers filled in.

    Args:
        reader: what its ``reader.json`` says.
        metrics: as for :func:`render`.
        trajectories: ``data/trajectories.json``.
    """
    everyone = trajectories["subsets"]["all"]
    return _template("findings.md.jinja").render(
        reader=reader, metrics=metrics, measures=everyone["measures"], questions=everyone["questions"]
    )


def methods(reader: Description, found: Mapping[str, Any], source: str) -> str:
    """The text of ``docs/methods.md``: what the methods are, and how they fared.

    Args:
        reader: what its ``reader.json`` says.
        found: what the ``faithfulness`` stage wrote.
        source: into which file.
    """
    return _template("methods.md.jinja").render(reader=reader, found=found, order=best_first(found), source=source)
