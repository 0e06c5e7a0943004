"""The whole DAG over real SQuAD 2.0, where it is present."""

from __future__ import annotations

import os

import pytest

from conftest import SHARED
from workspace import STAGES, copy_of_the_project, ran


@pytest.mark.skipif(not SHARED.is_dir(), reason="real SQuAD 2.0 data is not here")
def test_real_squad_runs_through_to_figures_of_the_papers_own_paragraph(tmp_path):
    workspace = copy_of_the_project(tmp_path / "copy")
    files = {"train": "squad2-train", "dev": "squad2-dev", "showcase": "paper-example"}
    settings = [f"data.{key}={os.path.relpath(SHARED / name, workspace.root)}.json" for key, name in files.items()]
    output = workspace.run(
        *("dvc", "exp", "run", "-S", "experiment=smoke", "-S", "data=squad_json", "-S", "data.limit=16"),
        *[part for each in settings for part in ("-S", each)],
    )
    assert ran(output) == list(STAGES)
    assert workspace.read("reports/metrics/evaluation.json")["total"] == 16
    assert workspace.read("reports/metrics/attribution.json")["max_relative_delta"] <= 1e-4
    assert (workspace.root / "reports/figures/beyonce/layer_06.png").is_file()
