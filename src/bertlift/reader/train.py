"""Fine-tuning a reader with the ``transformers`` Trainer."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dvclive import Live
from transformers import Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

from bertlift.config import Reader as ReaderSettings
from bertlift.config import Training
from bertlift.reader.load import load_model
from bertlift.reader.predict import all_windows, collate, decode
from bertlift.reader.windows import Window
from bertlift.squad.metrics import evaluate
from bertlift.squad.schema import Question

CURVES = ("loss", "learning_rate", "eval_loss", "eval_exact", "eval_f1", "eval_HasAns_f1", "eval_NoAns_f1")


@dataclass(frozen=True)
class _Example:
    """A window as the Trainer's data set holds it; the Trainer only passes it on to the collator."""

    window: Window

    def __len__(self) -> int:
        return len(self.window.input_ids)


def write_curves(directory: Path, history: Sequence[dict[str, Any]]) -> None:
    """Write the Trainer's log as DVCLive curves: loss and learning rate, dev exact match and F1.

    Written once, from the whole log, so that a run that was resumed has the curves of one that was not.
    Clock times are left out: they differ in each run.
    """
    with Live(dir=str(directory), save_dvc_exp=False, dvcyaml=None, report=None) as live:
        for entry in history:
            live.step = int(entry["step"])
            for key in CURVES:
                if key in entry:
                    group = "dev" if key.startswith("eval_") else "train"
                    live.log_metric(f"{group}/{key.removeprefix('eval_')}", float(entry[key]))
            live.make_summary()


def calibration_split(questions: list[Question], share: float, seed: int) -> tuple[list[Question], list[Question]]:
    """Set questions aside that are not trained on, to set the null threshold.

    Whole articles are set aside, in a random order, until at least ``share`` of the questions are;
    where there is one article only, whole passages. With ``share`` 0, or a single passage, nothing is
    set aside and the threshold is set on the training questions themselves.

    Returns:
        The questions to train on and those to calibrate on.
    """
    by_article = len({q.title for q in questions}) > 1
    unit = {q.id: q.title if by_article else q.context for q in questions}
    units = sorted(set(unit.values()))
    if share == 0 or len(units) == 1:
        return questions, questions
    random.Random(seed).shuffle(units)  # noqa: S311 - a split, not a secret
    aside: set[str] = set()
    while len(aside) < len(units) - 1 and sum(unit[q.id] in aside for q in questions) < share * len(questions):
        aside.add(units[len(aside)])
    return [q for q in questions if unit[q.id] not in aside], [q for q in questions if unit[q.id] in aside]


def fast_bfloat16() -> bool:
    """Whether this machine multiplies bfloat16 matrices in hardware."""
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported())


def fingerprint(*parts: Any) -> str:
    """A short name for everything that decides a training run, so that only the same run is resumed."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def finetune(
    directory: Path,
    train: Sequence[Question],
    dev: Sequence[Question],
    settings: ReaderSettings,
    training: Training,
    checkpoints: Path,
) -> tuple[Any, Any, list[dict[str, Any]]]:
    """Fine-tune the checkpoint in ``directory``: the best model by dev F1, its tokenizer, the Trainer's log.

    An unanswerable question's span is ``[CLS]``, as is that of a window that does not hold the answer.
    Training is deterministic for one machine, seed and number of threads. If ``checkpoints`` holds
    checkpoints of the very same run that was cut short, it goes on from the last; they are removed at
    the end.

    Args:
        directory: a checkpoint directory, with or without a QA head.
        train: questions to train on.
        dev: questions whose F1 chooses the best of the checkpoints, one an epoch.
        settings: window sizes, batch size for evaluation.
        training: epochs, learning rate and so on.
        checkpoints: where checkpoints are kept while training.
    """
    set_seed(training.seed)
    torch.use_deterministic_algorithms(True)
    model, tokenizer = load_model(directory, new_head=True, dropout=training.dropout)
    train_windows = all_windows(train, tokenizer, settings.max_length, settings.doc_stride)
    dev_windows = all_windows(dev, tokenizer, settings.max_length, settings.doc_stride)

    def collator(examples: list[_Example]) -> dict[str, torch.Tensor]:
        windows = [example.window for example in examples]
        labels = [window.label() for window in windows]
        return collate(windows, tokenizer) | {
            "start_positions": torch.tensor([start for start, _ in labels]),
            "end_positions": torch.tensor([end for _, end in labels]),
        }

    def metrics(output: Any) -> dict[str, float]:
        starts, ends = (np.asarray(each, dtype=np.float64) for each in output.predictions[:2])
        logits = [
            (starts[row, : len(window.input_ids)], ends[row, : len(window.input_ids)])
            for row, window in enumerate(dev_windows)
        ]
        predictions = decode(dev_windows, logits, settings.n_best, settings.max_answer_length)
        found = evaluate(dev, {p.question.id: p.answer(0.0) for p in predictions})
        return {key: float(value) for key, value in found.items() if not key.endswith("total")}

    steps = max(1, round(training.epochs * np.ceil(len(train_windows) / training.batch_size)))
    arguments = TrainingArguments(
        output_dir=str(checkpoints),
        num_train_epochs=training.epochs,
        learning_rate=training.learning_rate,
        per_device_train_batch_size=training.batch_size,
        per_device_eval_batch_size=settings.batch_size,
        warmup_steps=round(training.warmup * steps),
        weight_decay=training.weight_decay,
        seed=training.seed,
        use_cpu=not torch.cuda.is_available(),
        bf16=training.bfloat16 and fast_bfloat16(),
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=2,
        logging_steps=max(1, steps // 50),
        load_best_model_at_end=True,
        metric_for_best_model="f1",
        greater_is_better=True,
        remove_unused_columns=False,
        label_names=["start_positions", "end_positions"],
        dataloader_pin_memory=False,
        disable_tqdm=not sys.stderr.isatty(),
        report_to=[],
    )
    resume = get_last_checkpoint(str(checkpoints)) if checkpoints.is_dir() else None
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=[_Example(window) for window in train_windows],
        eval_dataset=[_Example(window) for window in dev_windows],
        data_collator=collator,
        compute_metrics=metrics,
    )
    trainer.train(resume_from_checkpoint=resume)
    shutil.rmtree(checkpoints, ignore_errors=True)
    # Without the wrapper that autocasts to bfloat16.
    best = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
    return best.eval(), tokenizer, trainer.state.log_history


def run_name(weights: str, train: Sequence[Question], settings: ReaderSettings, training: Training) -> str:
    """The :func:`fingerprint` of a run: base weights, questions and settings."""
    return fingerprint(weights, [asdict(q) for q in train], asdict(settings), asdict(training))
