"""The whole DAG in a copy of the project: from the corpus to the report, sweeps, repeats and users' mistakes."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from PIL import Image

from conftest import ROOT, SHARED

SMOKE = ("-S", "experiment=smoke")
STAGES = ("prepare", "finetune", "evaluate", "attribute", "cluster", "project", "report")


class Workspace:
    """A copy of the project in a Git repository of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environment = os.environ | {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(root / "src"),
            "HF_HUB_OFFLINE": "1",
        }

    def run(self, *command: str, ok: bool = True) -> str:
        done = subprocess.run(
            command, cwd=self.root, env=self.environment, capture_output=True, text=True, timeout=900, check=False
        )
        output = done.stdout + done.stderr
        assert (done.returncode == 0) is ok, output
        return output

    def read(self, path: str):
        return json.loads((self.root / path).read_text(encoding="utf-8"))

    def hashes(self) -> dict[str, str]:
        """Output path -> hash, from dvc.lock."""
        lock = yaml.safe_load((self.root / "dvc.lock").read_text(encoding="utf-8"))
        return {out["path"]: out["md5"] for stage in lock["stages"].values() for out in stage["outs"]}


def ran(output: str) -> list[str]:
    return [stage for stage in STAGES if f"Running stage '{stage}'" in output]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    root = tmp_path_factory.mktemp("project") / "copy"
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    for name in listed:
        # Results of the real run stay out: what is found below must have been made here.
        if not name.startswith("reports/") and name != "dvc.lock" and (ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / name)
    made = Workspace(root)
    made.run("git", "init", "--quiet")
    made.run("git", "config", "user.name", "test")
    made.run("git", "config", "user.email", "test@example.org")
    made.run("git", "add", "--all")
    made.run("git", "commit", "--quiet", "--message", "copy")
    made.output = made.run("dvc", "exp", "run", *SMOKE)
    made.run("git", "add", "--all")
    made.run("git", "commit", "--quiet", "--message", "smoke run")
    return made


def test_one_command_runs_every_stage(workspace):
    assert ran(workspace.output) == list(STAGES)


def test_the_metrics_have_the_agreed_names_and_keys(workspace):
    evaluation = workspace.read("reports/metrics/evaluation.json")
    assert set(evaluation) >= {
        *("exact", "f1", "total", "HasAns_exact", "HasAns_f1", "HasAns_total", "NoAns_exact", "NoAns_f1"),
        *("NoAns_total", "best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh"),
    }
    assert evaluation["total"] == 24
    attribution = workspace.read("reports/metrics/attribution.json")
    assert attribution["layers"] == 6
    assert attribution["heads"] == 12
    assert len(attribution["relative_delta"]) == 7
    assert attribution["max_relative_delta"] == max(attribution["relative_delta"]) <= 1e-4
    clusters = workspace.read("reports/metrics/clusters.json")
    assert set(clusters) >= {"k", "silhouette", "stability", "sizes", "representation", "association"}
    assert sum(clusters["sizes"]) == 24
    shown = workspace.run("dvc", "metrics", "show")
    assert "max_relative_delta" in shown
    assert "NoAns_f1" in shown


def test_the_evaluation_is_the_official_one_of_the_written_predictions(workspace):
    from bertlift.squad.metrics import evaluate
    from bertlift.squad.schema import read_squad

    answers, na_prob = (workspace.read(f"data/predictions/{name}.json") for name in ("predictions", "na_prob"))
    dev = read_squad(workspace.root / "data/prepared/dev.json")
    assert evaluate(dev, answers, na_prob) == workspace.read("reports/metrics/evaluation.json")


def test_every_figure_is_there_and_is_no_blank_picture(workspace):
    names = [f"layer_{row:02d}" for row in range(1, 7)] + ["output", "overview"]
    wanted = [f"{example}/{name}" for example in ("beyonce", "eiffel-tower", "titanic") for name in names]
    for name in [*wanted, "map_clusters", "map_question_words", "clusters"]:
        picture = Image.open(workspace.root / f"reports/figures/{name}.png")
        assert len(set(picture.convert("RGB").resize((64, 64)).getdata())) > 20, name
        assert (workspace.root / f"reports/figures/{name}.pdf").read_bytes().startswith(b"%PDF"), name


def test_the_page_holds_the_papers_question_and_all_its_pictures(workspace):
    page = (workspace.root / "reports/index.html").read_text(encoding="utf-8")
    assert "When did Beyonce start becoming popular?" in page
    assert page.count("data:image/png;base64,") == 4 * 8 + 3
    assert "http://" not in page
    assert "https://" not in page


def test_the_plots_can_be_drawn(workspace):
    workspace.run("dvc", "plots", "show", "--out", "plots-out")
    page = (workspace.root / "plots-out/index.html").read_text(encoding="utf-8")
    assert "Training loss" in page
    assert "F1 on the dev questions" in page
    shutil.rmtree(workspace.root / "plots-out")


def test_a_second_run_has_nothing_to_do(workspace):
    assert "up to date" in workspace.run("dvc", "repro")


def test_a_report_colour_runs_only_the_report(workspace):
    output = workspace.run("dvc", "exp", "run", *SMOKE, "-S", "report.colors.positive='#8c510a'")
    assert ran(output) == ["report"]


def test_a_sweep_of_a_clustering_key_trains_nothing_and_stands_in_exp_show(workspace):
    output = workspace.run("bertlift", "sweep", "--multirun", "experiment=smoke", "analysis.clusters.k=3")
    assert set(ran(output)) == {"cluster", "project", "report"}
    rows = list(csv.DictReader(io.StringIO(workspace.run("dvc", "exp", "show", "--csv"))))
    swept = {row["analysis.clusters.k"] for row in rows if row["rev"] != "workspace" and row["Experiment"]}
    assert "3" in swept


def test_a_forced_run_repeats_every_hash(workspace):
    workspace.run("git", "checkout", "--quiet", "--", ".")
    workspace.run("dvc", "checkout", "--force", "--quiet")
    before = workspace.hashes()
    output = workspace.run("dvc", "repro", "--force", "project")
    assert ran(output) == list(STAGES[:-1])
    assert workspace.hashes() == before


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            ["analysis.clusters.kk=4"],
            "unknown key 'analysis.clusters.kk'; allowed under 'analysis.clusters': bootstraps",
        ),
        (["reader=bert_huge"], "there is no 'reader/bert_huge'; allowed: bert_base, bert_base_squad2, local, minilm"),
        (["training.epochs=many"], "training.epochs"),
        (
            ["data=squad_json", "data.train=nosuch.json", "data.dev=data/corpus/dev"],
            "data.train is 'nosuch.json': no such file",
        ),
    ],
)
def test_a_wrong_setting_ends_in_one_line_and_changes_nothing(workspace, settings, said):
    before = (workspace.root / "params.yaml").read_text(encoding="utf-8")
    output = workspace.run("dvc", "exp", "run", *[part for each in settings for part in ("-S", each)], ok=False)
    lines = [line for line in output.splitlines() if said in line]
    assert len(lines) == 1, output
    assert "Traceback" not in output
    if "data=squad_json" not in settings:
        assert (workspace.root / "params.yaml").read_text(encoding="utf-8") == before
    workspace.run("git", "checkout", "--quiet", "--", ".")


def test_a_full_disk_keeps_the_old_output(workspace):
    """As DVC does it: remove the stage's outputs, run it. A file size limit stands in for a disk without room."""
    workspace.run("git", "checkout", "--quiet", "--", ".")
    workspace.run("dvc", "checkout", "--force", "--quiet")
    old = {path: path.read_bytes() for path in sorted((workspace.root / "data/attributions").iterdir())}
    shutil.rmtree(workspace.root / "data/attributions")
    (workspace.root / "reports/metrics/attribution.json").unlink()
    output = workspace.run("bash", "-c", "ulimit -f 40; python -m bertlift.stages.attribute", ok=False)
    assert "no room left on the disk" in output
    assert "Traceback" not in output
    assert {path: path.read_bytes() for path in sorted((workspace.root / "data/attributions").iterdir())} == old
    assert (workspace.root / "reports/metrics/attribution.json").is_file()
    assert not [path for path in (workspace.root / "data").iterdir() if path.name.startswith(".attributions")]


@pytest.mark.skipif(not SHARED.is_dir(), reason="real SQuAD 2.0 data is not here")
def test_real_squad_runs_through_to_figures_of_the_papers_own_paragraph(workspace):
    workspace.run("git", "checkout", "--quiet", "--", ".")
    files = {"train": "squad2-train", "dev": "squad2-dev", "showcase": "paper-example"}
    settings = [f"data.{key}={os.path.relpath(SHARED / name, workspace.root)}.json" for key, name in files.items()]
    output = workspace.run(
        *("dvc", "exp", "run", *SMOKE, "-S", "data=squad_json", "-S", "data.limit=16"),
        *[part for each in settings for part in ("-S", each)],
    )
    assert ran(output) == list(STAGES)
    assert workspace.read("reports/metrics/evaluation.json")["total"] == 16
    assert workspace.read("reports/metrics/attribution.json")["max_relative_delta"] <= 1e-4
    assert (workspace.root / "reports/figures/beyonce/layer_06.png").is_file()
    workspace.run("git", "checkout", "--quiet", "--", ".")
