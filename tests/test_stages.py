"""What a stage does when it fails, and the parts of the stages that decide something."""

from __future__ import annotations

import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bertlift import stages
from bertlift.config import load_params
from bertlift.errors import InputError
from bertlift.files import write_text
from bertlift.reader.description import Description
from bertlift.reader.load import Reader, load_reader, sha256
from bertlift.reader.predict import Prediction, Span, predict
from bertlift.squad.schema import read_squad, write_squad
from bertlift.stages import finetune as finetune_stage
from bertlift.stages import readers as readers_stage
from bertlift.stages.finetune import train_reader
from bertlift.stages.prepare import named, prepare
from conftest import ROOT, make_question


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project of one stage, ``make``, whose output DVC has removed before the stage starts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "dvc.yaml").write_text(
        "stages: {make: {cmd: 'true', outs: [out], metrics: [{numbers.json: {cache: false}}]}}\n"
    )
    (tmp_path / ".dvc").mkdir()
    return tmp_path


def work(_):
    write_text("out/deep/file.txt", "result")
    write_text("numbers.json", "1")


def failing(error):
    def fail(_):
        raise error

    return fail


def dvc_removes_the_outputs(project: Path) -> None:
    (project / "out/deep/file.txt").unlink()
    (project / "out/deep").rmdir()
    (project / "out").rmdir()
    (project / "numbers.json").unlink()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            InputError("questions.json: first fault\nquestions.json: second fault"),
            "bertlift make: questions.json: first fault",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device", "out/deep/file.txt"),
            "no room left on the disk writing out/deep",
        ),
        (KeyboardInterrupt(), "bertlift make: interrupted"),
    ],
)
def test_a_fault_ends_in_lines_not_in_a_traceback_and_the_old_output_stands(project, capsys, error, said):
    stages.run("make", work)
    dvc_removes_the_outputs(project)
    with pytest.raises(SystemExit) as ended:
        stages.run("make", failing(error))
    assert ended.value.code == 1
    printed = capsys.readouterr().err
    assert printed.startswith("bertlift make: ")
    assert said in printed
    assert len(printed.splitlines()) == len(str(error).splitlines() or [1])
    assert (project / "out/deep/file.txt").read_text() == "result"
    assert (project / "numbers.json").read_text() == "1"


def test_a_stage_of_many_keeps_its_own_output(project):
    (project / "dvc.yaml").write_text(
        "stages: {make: {foreach: '${names}', do: {cmd: 'true', outs: ['out/${key}']}}}\n", encoding="utf-8"
    )
    assert stages.outputs_of("make@deep") == [Path("out/deep")]
    stages.run("make@deep", work)
    shutil.rmtree(project / "out/deep")
    with pytest.raises(SystemExit):
        stages.run("make@deep", failing(InputError("fault")))
    assert (project / "out/deep/file.txt").read_text() == "result"


def test_a_programming_error_is_not_hidden_and_the_old_output_stands(project):
    stages.run("make", work)
    dvc_removes_the_outputs(project)
    with pytest.raises(ZeroDivisionError):
        stages.run("make", failing(ZeroDivisionError()))
    assert (project / "out/deep/file.txt").read_text() == "result"


def test_an_output_that_was_written_anew_is_not_replaced_by_the_old_one(project):
    stages.run("make", work)
    dvc_removes_the_outputs(project)

    def half(_):
        write_text("out/deep/file.txt", "new")
        raise InputError("then something was wrong")

    with pytest.raises(SystemExit):
        stages.run("make", half)
    assert (project / "out/deep/file.txt").read_text() == "new"


def test_a_stage_outside_the_project_says_where_to_run_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        stages.run("make", work)
    assert "params.yaml: no such file; run from the project's root" in capsys.readouterr().err


def test_showcase_names_are_fit_for_files_and_their_own():
    questions = [
        make_question("Rivers", f"Where does it end, {number}?", "the Black Sea", f"r{number}") for number in range(2)
    ]
    evil = questions[0].__class__("x", "Who?", "Ann did.", "../../Ünïted/States", (), None)
    assert [each.name for each in named([*questions, evil])] == ["rivers", "rivers-2", "united-states"]


def prepared(tmp_path, monkeypatch, train, dev, showcase):
    monkeypatch.chdir(tmp_path)
    config = load_params(ROOT / "params.yaml")
    for name, questions in (("train", train), ("dev", dev), ("showcase", showcase)):
        write_squad(tmp_path / f"{name}.json", questions)
        setattr(config.data, name, f"{name}.json")
    prepare(config)
    return {name: read_squad(f"data/prepared/{name}.json") for name in ("train", "dev", "showcase")}


def test_a_passage_that_is_explained_is_not_trained_on(tmp_path, monkeypatch, questions):
    rivers, bread, kites = (
        [question for question in questions if question.title == title] for title in ("Rivers", "Bread", "Kites")
    )
    found = prepared(tmp_path, monkeypatch, rivers + bread, kites, rivers[:1])
    assert [question.id for question in found["train"]] == [question.id for question in bread]
    assert found["showcase"][0].name == "rivers"


def test_a_showcase_id_that_dev_has_over_another_passage_is_refused(tmp_path, monkeypatch, questions):
    clash = make_question("Kites", "Who flew a kite?", "Franklin", questions[0].id)
    with pytest.raises(InputError, match=f"showcase.json: article 'Kites': question {questions[0].id}: this id is in"):
        prepared(tmp_path, monkeypatch, questions[3:5], questions[:3], [clash])


def test_faults_in_all_sources_are_told_at_once(tmp_path, monkeypatch, questions):
    with pytest.raises(InputError) as refused:
        prepared(tmp_path, monkeypatch, questions, questions, questions[:1])
    assert "split by article" in str(refused.value)
    (tmp_path / "train.json").write_text("{")
    (tmp_path / "dev.json").write_text(json.dumps({"data": 3}))
    config = load_params(ROOT / "params.yaml")
    config.data.train, config.data.dev, config.data.showcase = "train.json", "dev.json", "none.json"
    with pytest.raises(InputError) as refused:
        prepare(config)
    assert [line.split(":")[0] for line in str(refused.value).splitlines()] == ["train.json", "dev.json", "none.json"]


def test_a_ready_readers_threshold_is_that_of_its_training_whatever_the_questions_are():
    """Setting it here could use questions that the adapter was trained on."""
    made = json.loads((ROOT / "data/readers/minilm_ready/reader.json").read_text(encoding="utf-8"))
    config = load_params(ROOT / "params.yaml")
    assert config.reader.adapter == "data/readers/minilm_ready"
    assert made["adapter_sha256"] == sha256(ROOT / config.reader.adapter / "adapter_model.safetensors")
    assert made["base_sha256"] == config.reader.sha256


def test_a_reader_to_compare_is_made_beside_the_pipelines_own(tmp_path, monkeypatch, tiny_encoder, questions):
    """Of two layers, and without unanswerable questions: it learns from none, and always answers."""
    monkeypatch.chdir(tmp_path)
    write_squad("data/prepared/train.json", questions)
    config = load_params(ROOT / "params.yaml")
    small = replace(config.reader, package=None, path=str(tiny_encoder), adapter=None, finetune=True, layers=2)
    config.readers["small"] = replace(small, max_length=64, doc_stride=16, answerable_only=True)
    learned = []
    usual = finetune_stage.finetune
    monkeypatch.setattr(
        finetune_stage, "finetune", lambda place, train, *rest: learned.extend(train) or usual(place, train, *rest)
    )
    train_reader(config, "small")
    torch.use_deterministic_algorithms(False)
    made = load_reader(Path("data/compared/small"))
    assert (made.description.name, made.description.null_threshold) == ("small", None)
    assert made.model.config.num_hidden_layers == 2
    assert learned
    assert all(question.answers for question in learned)
    assert any(not question.answers for question in questions)
    assert not Path("data/reader").exists()
    assert all(prediction.answer(None) for prediction in predict(made, questions, 4))
    write_squad("data/prepared/train.json", [question for question in questions if not question.answers])
    with pytest.raises(InputError, match=r"train.json: no answerable question; set answerable_only=false"):
        train_reader(config, "small")


def test_the_finetune_stage_takes_a_ready_adapter_with_its_threshold(tmp_path, monkeypatch, tiny_encoder, questions):
    monkeypatch.chdir(tmp_path)
    write_squad("data/prepared/train.json", questions)
    config = load_params(ROOT / "params.yaml")
    config.reader.package, config.reader.path = None, str(tiny_encoder)
    config.reader.max_length, config.reader.doc_stride = 64, 16
    config.reader.adapter, config.reader.finetune = None, True
    config.training.epochs, config.training.sentence_epochs, config.training.adapter_rank = 2, 1, 4
    train_reader(config)
    first = Description.read(Path("data/reader"))
    shutil.copytree("data/reader/adapter", "ready")
    replace(first, null_threshold=1.25, null_threshold_questions=77).write(Path("ready"))
    config.reader.adapter, config.reader.finetune = "ready", False
    train_reader(config)
    second = Description.read(Path("data/reader"))
    assert (second.null_threshold, second.null_threshold_questions, second.finetuned) == (1.25, 77, False)
    assert second.adapter_sha256 == first.adapter_sha256
    (tmp_path / "ready/reader.json").unlink()
    train_reader(config)  # without a threshold of its own it is set here
    assert Description.read(Path("data/reader")).null_threshold == first.null_threshold
    torch.use_deterministic_algorithms(False)


def test_readers_are_counted_as_the_official_measures_do(monkeypatch):
    """Three questions: an exact answer, half of one, and an answer where the passage has none."""
    asked = [
        make_question("Bread", "What?", "yeast", "exact"),
        make_question("Bread", "Why?", "ten minutes", "half"),
        replace(make_question("Bread", "Who?", "salt", "none"), answers=()),
    ]
    said = {"exact": "yeast", "half": "ten hours", "none": "salt"}
    monkeypatch.setattr(
        readers_stage,
        "predict",
        lambda _, questions, __: [Prediction(each, [Span(1.0, 0, 1, 1, said[each.id])], 0.0, 0) for each in questions],
    )
    tiny = Description("tiny", "here", None, "x", None, True, 64, 16, 30, 20, 0.0, 50.0, 7)
    reader = Reader(None, None, tiny)
    _, row = readers_stage.showcase_row(reader, asked)
    assert (row["questions"], row["answered"], row["correct"], row["exact"]) == (3, 3, 2, 1)
    assert row["answers"]["half"]["f1"] == 0.5
    _, careful = readers_stage.showcase_row(replace(reader, description=replace(tiny, null_threshold=-2.0)), asked)
    assert (careful["answered"], careful["correct"], careful["exact"]) == (0, 1, 1)
    assert readers_stage.showcase_row(reader, [])[1]["seconds_per_question"] is None
