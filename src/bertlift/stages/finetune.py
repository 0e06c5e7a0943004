"""Fine-tune a reader, or take a ready one, and set its null threshold on train-side questions.

With a name as its argument: one of ``readers``, which are compared with the pipeline's own.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch

from bertlift.config import Config
from bertlift.errors import InputError
from bertlift.files import replacing
from bertlift.reader.description import FILE as DESCRIPTION
from bertlift.reader.description import Description
from bertlift.reader.load import (
    ADAPTER,
    Reader,
    find,
    load_model,
    merge_adapter,
    save_reader,
    sha256,
    weight_files,
)
from bertlift.reader.predict import predict, tune_null_threshold
from bertlift.reader.train import calibration_split, finetune, run_name, write_adapter, write_curves
from bertlift.squad.metrics import evaluate
from bertlift.squad.schema import read_squad
from bertlift.stages import COMPARED, PREPARED, READER, run

CURVES = Path("reports/training")
CHECKPOINTS = Path("data/checkpoints")


def train_reader(config: Config, name: str | None = None) -> None:
    """Write the reader to ``data/reader`` and its training curves to ``reports/training``.

    With a ``name`` the reader of ``readers`` that is called so, to ``data/compared/NAME``; its curves stay with it.
    """
    settings, training = config.reader if name is None else config.readers[name], config.training
    torch.set_num_threads(settings.threads)
    source = find(settings)
    weights = " ".join(sha256(file) for file in weight_files(source.directory))
    train = read_squad(PREPARED / "train.json")
    if settings.answerable_only:
        train = [question for question in train if question.answers]
        if not train:
            raise InputError(f"{PREPARED / 'train.json'}: no answerable question; set answerable_only=false")
    fitting, calibration = calibration_split(train, training.calibration, training.seed)
    history: list[dict[str, float]] = []
    with ExitStack() as writing:
        new = writing.enter_context(replacing(READER if name is None else COMPARED / name))
        curves = new / "training" if name is not None else writing.enter_context(replacing(CURVES))
        adapter = Path(settings.adapter) if settings.adapter is not None else None
        if settings.finetune:
            checkpoints = CHECKPOINTS / run_name(weights, train, settings, training)
            model, tokenizer, history = finetune(
                source.directory, fitting, calibration, settings, training, checkpoints
            )
            if training.adapter_rank is not None:
                adapter = new / "adapter"
                base, _ = load_model(source.directory, new_head=True, layers=settings.layers)
                write_adapter(adapter, base, model, training.adapter_rank, source.origin)
        if adapter is not None:  # also one that was just trained: as it will be read again, in half precision
            model, tokenizer = load_model(source.directory, new_head=True, layers=settings.layers)
            model = merge_adapter(model, adapter)
        elif not settings.finetune:
            model, tokenizer = load_model(source.directory, new_head=False, layers=settings.layers)
        description = Description(
            name=settings.name if name is None else name,
            origin=source.origin,
            commit=source.commit,
            base_sha256=weights,
            adapter_sha256=None if adapter is None else sha256(adapter / ADAPTER),
            finetuned=settings.finetune,
            max_length=settings.max_length,
            doc_stride=settings.doc_stride,
            max_answer_length=settings.max_answer_length,
            n_best=settings.n_best,
            null_threshold=0.0,
            null_threshold_f1=0.0,
            null_threshold_questions=len(calibration),
        )
        if settings.adapter is not None and (Path(settings.adapter) / DESCRIPTION).is_file():
            # Set when the adapter was trained, on questions that were set aside then: here it may have seen them.
            made = Description.read(Path(settings.adapter))
            threshold, score = made.null_threshold, made.null_threshold_f1
            description = replace(description, null_threshold_questions=made.null_threshold_questions)
        else:
            predictions = predict(Reader(model, tokenizer, description), calibration, settings.batch_size)
            if settings.answerable_only:
                answers = {each.question.id: each.answer(None) for each in predictions}
                threshold, score = None, float(evaluate(calibration, answers)["f1"])
            else:
                threshold, score = tune_null_threshold(predictions)
        description = replace(description, null_threshold=threshold, null_threshold_f1=score)
        write_curves(curves, history)
        save_reader(new, model, tokenizer, description)
    said = "no null threshold" if threshold is None else f"null threshold {threshold:.3f}"
    print(f"{said}: F1 {score:.1f} on {description.null_threshold_questions} questions set aside")


if __name__ == "__main__":
    if sys.argv[1:]:
        run(f"finetune_compared@{sys.argv[1]}", lambda config: train_reader(config, sys.argv[1]))
    else:
        run("finetune", train_reader)
