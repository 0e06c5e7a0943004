"""The whole DAG in a copy of the project: from the corpus to the report, sweeps, repeats and users' mistakes."""

from __future__ import annotations

import csv
import io
import json
import shutil

import pytest
from PIL import Image

from conftest import ROOT
from workspace import STAGES, copy_of_the_project, ran

# One showcase question: the real run draws them all.
SETTINGS = ("experiment=smoke", "data.showcase=paper.json")
SMOKE = [part for setting in SETTINGS for part in ("-S", setting)]


# The figures of the whole set that a run always has; others need enough right and wrong answers, or clusters.
EARLY = ("separators_early", "keywords_early")
SET_WIDE = (
    *("trajectories", "spread", "claims", "controls", "heads", "head_removal", "map", "layer_maps"),
    *("methods", "perturbation", "agreement", "randomised"),
)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    made = copy_of_the_project(tmp_path_factory.mktemp("project") / "copy")
    showcase = json.loads((ROOT / "data/corpus/dev/showcase.json").read_text(encoding="utf-8"))
    showcase["data"] = [article for article in showcase["data"] if article["title"] == "Beyoncé"]
    (made.root / "paper.json").write_text(json.dumps(showcase), encoding="utf-8")
    made.commit("one showcase question")
    made.output = made.run("dvc", "exp", "run", *SMOKE)
    made.commit("smoke run")
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
    claims = workspace.read("reports/metrics/claims.json")
    keys = {"claim", "statement", "statistic", "ci_low", "ci_high", "controls", "verdict"}
    assert all(set(claim) >= keys for claim in claims)
    assert all(set(claim["controls"]) == {"random_weights", "before_finetuning", "wrong_span"} for claim in claims)
    assert all(claim["controls"]["random_weights"]["questions"] <= 10 for claim in claims if claim["claim"] in EARLY)
    heads = workspace.read("reports/metrics/heads.json")
    assert set(heads["curves"]) == {"contribution", "attention weight", "at random"}
    faithfulness = workspace.read("reports/metrics/faithfulness.json")
    assert list(faithfulness["methods"]) == ["deeplift", "gradient", "random"]
    for method in faithfulness["methods"].values():
        for measure in ("deletion", "insertion", "comprehensiveness", "sufficiency"):
            assert set(method[measure]) == {"mean", "ci_low", "ci_high"}
        assert method["seconds_per_question"] > 0
    confidence = workspace.read("reports/metrics/confidence.json")
    assert set(confidence["features"]) in ({"softmax", "span", "explanation", "both"}, set())
    keys = {"reader", "parameters", "megabytes", "answered", "correct", "exact", "seconds_per_question"}
    readers = workspace.read("reports/metrics/readers.json")
    assert [row["reader"] for row in readers] == ["minilm", "minilm_1"]
    assert all(set(row) >= keys for row in readers)
    assert readers[1]["answered"] == readers[1]["questions"] == 1
    shown = workspace.run("dvc", "metrics", "show")
    assert "max_relative_delta" in shown
    assert "NoAns_f1" in shown


def test_the_evaluation_is_the_official_one_of_the_written_predictions(workspace):
    from bertlift.squad.metrics import evaluate
    from bertlift.squad.schema import read_squad

    answers, na_prob = (workspace.read(f"data/predictions/{name}.json") for name in ("predictions", "na_prob"))
    dev = read_squad(workspace.root / "data/prepared/dev.json")
    assert evaluate(dev, answers, na_prob) == workspace.read("reports/metrics/evaluation.json")


def test_the_showcase_is_scored_as_the_official_measures_do(workspace):
    found = workspace.read("reports/metrics/showcase.json")
    given = found["questions"]["beyonce"]
    assert given["golds"] == ["late 1990s", "in the late 1990s", "the late 1990s"]
    assert given["exact"] == float(given["answer"] in given["golds"])
    assert (found["total"], found["right"]) == (1, given["exact"])


def test_every_figure_is_there_and_is_no_blank_picture(workspace):
    names = [f"layer_{row:02d}" for row in range(1, 7)] + ["output", "overview", "bars"]
    for name in [
        *(f"beyonce/{each}" for each in names),
        "beyonce/rules",
        "beyonce/methods",
        "beyonce/readers",
        *SET_WIDE,
    ]:
        picture = Image.open(workspace.root / f"reports/figures/{name}.png")
        assert len(set(picture.convert("RGB").resize((64, 64)).getdata())) > 20, name
        assert (workspace.root / f"reports/figures/{name}.pdf").read_bytes().startswith(b"%PDF"), name


def test_the_page_holds_the_papers_question_and_all_its_pictures(workspace):
    page = (workspace.root / "reports/index.html").read_text(encoding="utf-8")
    assert "When did Beyonce start becoming popular?" in page
    drawn = list((workspace.root / "reports/figures").rglob("*.png"))
    assert page.count("data:image/png;base64,") == len(drawn) >= 12 + len(SET_WIDE)
    assert "http://" not in page
    assert "https://" not in page


def test_the_findings_say_what_the_metrics_say(workspace):
    text = (workspace.root / "docs/findings.md").read_text(encoding="utf-8")
    for claim in workspace.read("reports/metrics/claims.json"):
        (row,) = [line for line in text.splitlines() if line.startswith(f"| {claim['statement']} |")]
        assert claim["verdict"] in row
        if claim["statistic"] is not None:
            assert f"{claim['statistic']:.2f} ({claim['ci_low']:.2f} to {claim['ci_high']:.2f})" in row
    assert f"exact {workspace.read('reports/metrics/evaluation.json')['exact']:.1f}" in text


def test_the_page_about_methods_says_what_the_metrics_say(workspace):
    text = (workspace.root / "docs/methods.md").read_text(encoding="utf-8")
    for name, method in workspace.read("reports/metrics/faithfulness.json")["methods"].items():
        row = next(
            line for line in text.splitlines() if line.startswith(f"| `{name}` | {method['insertion']['mean']:.2f}")
        )
        assert f"{method['deletion']['mean']:.2f} (" in row


def test_the_plots_can_be_drawn(workspace):
    workspace.run("dvc", "plots", "show", "--out", "plots-out")
    page = (workspace.root / "plots-out/index.html").read_text(encoding="utf-8")
    assert "Training loss" in page
    assert "F1 on the training articles set aside" in page
    shutil.rmtree(workspace.root / "plots-out")


def test_a_second_run_has_nothing_to_do(workspace):
    assert "up to date" in workspace.run("dvc", "repro")


def test_a_report_colour_runs_only_the_report(workspace):
    output = workspace.run("dvc", "exp", "run", *SMOKE, "-S", "report.colors.positive='#8c510a'")
    assert ran(output) == ["report"]


def test_a_sweep_of_a_clustering_key_trains_nothing_and_stands_in_exp_show(workspace):
    output = workspace.run("bertlift", "sweep", "--multirun", *SETTINGS, "analysis.clusters.k=3")
    assert set(ran(output)) == {"cluster", "project", "report"}
    rows = list(csv.DictReader(io.StringIO(workspace.run("dvc", "exp", "show", "--csv"))))
    swept = {row["analysis.clusters.k"] for row in rows if row["rev"] != "workspace" and row["Experiment"]}
    assert "3" in swept


def test_a_method_that_scores_the_input_alone_runs_through_to_the_report(workspace):
    workspace.restore()
    output = workspace.run("dvc", "exp", "run", *SMOKE, "-S", "attribution=gradient")
    assert set(ran(output)) >= {"attribute", "controls", "claims", "heads", "readers", "cluster", "project", "report"}
    page = (workspace.root / "reports/index.html").read_text(encoding="utf-8")
    assert "explained by gradient at the input" in page
    assert not (workspace.root / "reports/figures/beyonce/rules.png").exists()
    assert not (workspace.root / "reports/figures/beyonce/layer_01.png").exists()
    assert workspace.read("reports/metrics/attribution.json")["layers"] == 0


def test_a_forced_run_repeats_every_hash(workspace):
    workspace.restore()
    before = workspace.hashes()
    output = workspace.run("dvc", "repro", "--force", "claims", "heads", "project")
    others = ("faithfulness", "finetune_compared@minilm_1", "readers", "confidence", "report")
    assert ran(output) == [stage for stage in STAGES if stage not in others]
    assert workspace.hashes() == before


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            ["analysis.clusters.kk=4"],
            "unknown key 'analysis.clusters.kk'; allowed under 'analysis.clusters': algorithm, bootstraps",
        ),
        (["reader=bert_huge"], "there is no 'reader/bert_huge'; allowed: bert_base, bert_base_squad2, bert_large"),
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
    workspace.restore()
    old = {path: path.read_bytes() for path in sorted((workspace.root / "data/attributions").iterdir())}
    shutil.rmtree(workspace.root / "data/attributions")
    (workspace.root / "reports/metrics/attribution.json").unlink()
    output = workspace.run("bash", "-c", "ulimit -f 40; python -m bertlift.stages.attribute", ok=False)
    assert "no room left on the disk" in output
    assert "Traceback" not in output
    assert {path: path.read_bytes() for path in sorted((workspace.root / "data/attributions").iterdir())} == old
    assert (workspace.root / "reports/metrics/attribution.json").is_file()
    assert not [path for path in (workspace.root / "data").iterdir() if path.name.startswith(".attributions")]
