"""What the offline reader owes to its data and its training: seeds, minutes, and what else was tried.

``seeds``: the reader that the pipeline trains (``reader=minilm``), from five seeds; mean and spread.
``minutes``: the same with a quarter, half and all of its training, against the minutes that it takes.
``trials``: one change at a time, each with half of the training (and one seed unless told otherwise).
``squad``: on other data, named by ``data.train`` and ``data.dev`` (SQuAD 2.0): the ready reader, which was trained on
the corpus alone, and the same training for as many tokens as three epochs have, with and without sentences first.
``speed``: tokens a second of training steps with and without what makes them fast.

Each writes ``reports/metrics/reader_NAME.json``. Every run goes through the pipeline's own stages in a directory of its
own; ``--jobs`` runs stand side by side, with ``--threads`` threads each. ``key=value`` overrides settings.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from hydra import compose, initialize_config_dir
from torch import nn

from bertlift.analysis.confidence import area_under_roc
from bertlift.config import Config, Training, typed
from bertlift.files import write_json
from bertlift.reader import train as training
from bertlift.reader.load import find, load_model
from bertlift.reader.predict import all_windows
from bertlift.squad.metrics import question_scores
from bertlift.squad.schema import Answer, Question, read_squad, sentence_spans
from bertlift.stages import METRICS, PREDICTIONS, PREPARED, READER
from bertlift.stages.evaluate import evaluate_reader
from bertlift.stages.finetune import train_reader
from bertlift.stages.prepare import prepare

ROOT = Path(__file__).resolve().parent.parent
MEASURES = ("exact", "f1", "HasAns_exact", "HasAns_f1", "NoAns_f1")
Questions = list[Question]


@dataclass(frozen=True)
class Run:
    """One training: settings, and a change that holds while it runs."""

    name: str
    overrides: tuple[str, ...] = ()
    change: contextlib.AbstractContextManager[Any] = field(default_factory=contextlib.nullcontext)


def crossed(questions: Questions) -> Questions:
    """A tenth more: unanswerable ones, made by asking a question over another passage of its article."""
    choose = random.Random(1)  # noqa: S311 - no secret
    others = {q.id: [o.context for o in questions if o.title == q.title and o.context != q.context] for q in questions}
    asked = [q for q in questions if others[q.id] and not q.is_impossible]
    made = [
        replace(q, id=f"{q.id}-crossed", context=choose.choice(others[q.id]), answers=())
        for q in choose.sample(asked, len(questions) // 10)
    ]
    return questions + made


def recurring_spans(questions: Questions) -> Questions:
    """Half as many more: sentences with a name or number taken out, to be found where the passage has it again.

    As Ram et al. 2021 (recurring span selection), with "which" for their question token.
    """
    made = []
    for passage in {q.context: q for q in questions}.values():
        parts = [passage.context[start:end].strip() for start, end in sentence_spans(passage.context)]
        for number, part in enumerate(parts):
            rest = " ".join(parts[:number] + parts[number + 1 :])
            for match in re.finditer(r"\b(?:[A-Z][\w'-]+|\d[\d,.]*\d)(?: [A-Z][\w'-]+)*\b", part):
                at = re.search(rf"\b{re.escape(match[0])}\b", rest)
                if match.start() and at:
                    question = f"{part[: match.start()]}which{part[match.end() :]}"
                    new = {"question": question, "context": rest, "answers": (Answer(match[0], at.start()),)}
                    made.append(replace(passage, id=f"span-{len(made)}", **new))
    random.Random(1).shuffle(made)  # noqa: S311 - no secret
    return made[: len(questions) // 2] + questions


def other_questions(change: Callable[[Questions], Questions]) -> Any:
    """Train on changed questions, for as many steps as on the questions as they are."""

    def finetune(
        directory: Path, train: Questions, held_out: Questions, reader: Any, settings: Training, at: Path
    ) -> Any:
        changed = change(train)
        share = len(train) / len(changed)
        scaled = {name: getattr(settings, name) * share for name in ("epochs", "sentence_epochs")}
        return training.finetune(directory, changed, held_out, reader, replace(settings, **scaled), at)

    return patch("bertlift.stages.finetune.finetune", finetune)


def layer_decay(factor: float) -> Any:
    """AdamW with a learning rate that is smaller by ``factor`` for each layer further down."""

    def create_optimizer(trainer: Any, model: Any = None) -> Any:
        depth = trainer.model.config.num_hidden_layers
        groups = []
        for name, weight in trainer.model.named_parameters():
            if weight.requires_grad:
                found = re.search(r"layer\.(\d+)\.", name)
                below = depth - 1 - int(found[1]) if found else depth if "embeddings" in name else 0
                rate = trainer.args.learning_rate * factor**below
                decay = trainer.args.weight_decay if weight.ndim > 1 else 0.0
                groups.append({"params": [weight], "lr": rate, "weight_decay": decay})
        trainer.optimizer = torch.optim.AdamW(groups)
        return trainer.optimizer

    return patch.object(training.SpanTrainer, "create_optimizer", create_optimizer)


def part(settings: Training, share: float) -> tuple[str, ...]:
    """Overrides for a part of the training."""
    return tuple(f"training.{name}={getattr(settings, name) * share}" for name in ("epochs", "sentence_epochs"))


def trials(settings: Training) -> list[Run]:
    """One change each against the first; all take about as long."""
    base = (*part(settings, 0.5), "training.answerability=0")
    passages_only = settings.epochs + settings.sentence_epochs / 3  # a sentence costs a third of a passage
    return [
        Run("as it is, without the answerability loss", base),
        Run("no sentences first", (*base, f"training.epochs={passages_only / 2}", "training.sentence_epochs=0")),
        Run("crossed questions", base, other_questions(crossed)),
        Run("recurring spans", base, other_questions(recurring_spans)),
        Run("layer-wise learning rate, 0.9", base, layer_decay(0.9)),
        Run("answerability loss, 0.5", (*base, "training.answerability=0.5")),
        Run("embeddings trained", (*base, "training.freeze_embeddings=false")),
    ]


def plan_of(what: str, overrides: Sequence[str]) -> list[Run]:
    """The runs of ``seeds``, ``minutes``, ``squad`` or ``trials``."""
    settings = settings_of(overrides).training
    if what == "trials":
        runs = trials(settings)
    elif what == "squad":
        runs = [
            Run("the ready reader", ("reader=minilm_ready",)),
            Run("sentences three times, passages twice", ("training.epochs=2", "training.sentence_epochs=3")),
            Run("passages three times", ("training.epochs=3", "training.sentence_epochs=0")),
        ]
    elif what == "minutes":
        runs = [Run(f"{share:.0%} of the training", part(settings, share)) for share in (0.25, 0.5, 1)]
    else:
        runs = [Run("as it is")]
    return [replace(run, overrides=(*overrides, *run.overrides)) for run in runs]


def settings_of(overrides: Sequence[str]) -> Config:
    """The configuration of ``reader=minilm``, or another, with overrides."""
    reader = [] if any(each.startswith("reader=") for each in overrides) else ["reader=minilm"]
    with initialize_config_dir(str(ROOT / "conf"), version_base=None), contextlib.chdir(ROOT):
        return typed(compose("config", overrides=[*reader, *overrides]), "conf")


def answerability(dev: Questions) -> dict[str, float]:
    """How well the null margin tells unanswerable questions apart (area under the ROC curve, in percent), and the F1 on
    answerable ones if the reader always gives its best span."""
    na_prob, nbest = (json.loads((PREDICTIONS / f"{name}.json").read_text()) for name in ("na_prob", "nbest"))
    unanswerable = np.array([question.is_impossible for question in dev])
    forced = [question_scores(q, nbest[q.id]["spans"][0]["text"])[1] for q in dev if not q.is_impossible]
    area = area_under_roc(np.array([na_prob[question.id] for question in dev]), unanswerable)
    return {"answerability_auroc": 100 * area, "HasAns_f1_forced": 100 * statistics.mean(forced)}


def measure(what: str, overrides: Sequence[str], number: int, seed: int, threads: int) -> dict[str, Any]:
    """Train and evaluate in a directory of its own; the dev measures, and the training stage's minutes."""
    run = plan_of(what, overrides)[number]  # here, since a change cannot be handed to another process
    config = settings_of((*run.overrides, f"training.seed={seed}", f"reader.threads={threads}"))
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place), run.change:
        Path("data").mkdir()
        for name in ("corpus", "readers"):
            Path(f"data/{name}").symlink_to(ROOT / "data" / name)
        prepare(config)
        begin = time.perf_counter()
        train_reader(config)
        minutes = (time.perf_counter() - begin) / 60
        evaluate_reader(config)
        found, showcase = (json.loads((METRICS / f"{name}.json").read_text()) for name in ("evaluation", "showcase"))
        aside = json.loads((READER / "reader.json").read_text())["null_threshold_f1"]
        told_apart = answerability(read_squad(PREPARED / "dev.json"))
    measures = {name: found[name] for name in MEASURES} | {"set_aside_f1": aside, "minutes": minutes} | told_apart
    rounded = {name: round(value, 2) for name, value in measures.items()}
    return {"run": run.name, "seed": seed} | rounded | {"showcase_right": int(showcase["right"])}


def speed(config: Config, steps: int = 30) -> list[dict[str, Any]]:
    """Real tokens a second of training steps over passages, in the same questions each time."""
    torch.set_num_threads(config.reader.threads)
    questions = read_squad(ROOT / config.data.train)[: steps * config.training.batch_size]
    found = []
    for name, bucketed, padded, frozen in (
        ("bucketed, embeddings frozen", True, False, True),
        ("bucketed, embeddings trained", True, False, False),
        ("in random order, embeddings trained", False, False, False),
        ("padded to the longest window allowed, embeddings trained", False, True, False),
    ):
        model, tokenizer = load_model(find(config.reader).directory, new_head=True, dropout=config.training.dropout)
        model.base_model.embeddings.requires_grad_(not frozen)
        model.train()
        optimizer = torch.optim.AdamW(each for each in model.parameters() if each.requires_grad)
        windows = all_windows(questions, tokenizer, config.reader.max_length, config.reader.doc_stride)
        pool = training.POOL if bucketed else 1
        with patch.object(training, "POOL", pool):
            plan = training.schedule(windows, config.training.batch_size, 1, config.training.seed)[:steps]
        times = []
        for batch in plan:
            inputs = training.collate(batch, tokenizer)
            if padded:
                inputs = {
                    k: nn.functional.pad(v, (0, config.reader.max_length - v.shape[1])) for k, v in inputs.items()
                }
            begin = time.perf_counter()
            labels = torch.tensor([window.label() for window in batch])
            output = model(**inputs, start_positions=labels[:, 0], end_positions=labels[:, 1])
            output.loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            times.append(sum(len(window.input_ids) for window in batch) / (time.perf_counter() - begin))
        found.append({"steps": name, "tokens_per_second": round(statistics.median(times))})
    for each in found:
        each["ratio"] = round(each["tokens_per_second"] / found[-1]["tokens_per_second"], 2)
    return found


def main() -> None:
    """Run what was asked for and write what came out after every run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["seeds", "minutes", "trials", "squad", "speed"])
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("overrides", nargs="*", help="settings, key=value")
    options = parser.parse_intermixed_args()
    out = (options.out or ROOT / METRICS / f"reader_{options.what}.json").resolve()
    config = settings_of(tuple(options.overrides))
    if options.what == "speed":
        write_json(out, {"threads": config.reader.threads, "steps": speed(config)})
        return
    runs = range(len(plan_of(options.what, options.overrides)))
    seeds = options.seeds or ([13, 14, 15, 16, 17] if options.what == "seeds" else [13])
    result: dict[str, Any] = {"train_questions": len(read_squad(ROOT / config.data.train))}
    result["dev_questions"] = len(read_squad(ROOT / config.data.dev))
    result |= {"jobs": options.jobs, "threads": options.threads, "training": asdict(config.training), "runs": []}
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        given = [(options.what, options.overrides, run, seed, options.threads) for seed in seeds for run in runs]
        for done in as_completed([pool.submit(measure, *each) for each in given]):
            result["runs"].append(done.result())
            if options.what == "seeds" and len(result["runs"]) > 1:
                for name, measure_of in (("mean", statistics.mean), ("standard_deviation", statistics.stdev)):
                    result[name] = {
                        key: round(measure_of([each[key] for each in result["runs"]]), 2)
                        for key in (*MEASURES, "showcase_right", "minutes")
                    }
            write_json(out, result)
            print(result["runs"][-1], flush=True)


if __name__ == "__main__":
    main()
