"""Fine-tune a reader, or take a ready one, and set its null threshold on train-side questions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from bertlift.config import Config
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
from bertlift.squad.schema import read_squad
from bertlift.stages import PREPARED, READER, run

CURVES = Path("reports/training")
CHECKPOINTS = Path("data/checkpoints")


def train_reader(config: Config) -> None:
    """Write the reader to ``data/reader`` and its training curves to ``reports/training``."""
    settings, training = config.reader, config.training
    torch.set_num_threads(settings.threads)
    source = find(settings)
    weights = " ".join(sha256(file) for file in weight_files(source.directory))
    train = read_squad(PREPARED / "train.json")
    fitting, calibration = calibration_split(train, training.calibration, training.seed)
    history: list[dict[str, float]] = []
    with replacing(CURVES) as curves, replacing(READER) as new:
        adapter = Path(settings.adapter) if settings.adapter is not None else None
        if settings.finetune:
            checkpoints = CHECKPOINTS / run_name(weights, train, settings, training)
            model, tokenizer, history = finetune(
                source.directory, fitting, calibration, settings, training, checkpoints
            )
            if training.adapter_rank is not None:
                adapter = new / "adapter"
                base, _ = load_model(source.directory, new_head=True)
                write_adapter(adapter, base, model, training.adapter_rank, source.origin)
        if adapter is not None:  # also one that was just trained: as it will be read again, in half precision
            model, tokenizer = load_model(source.directory, new_head=True)
            model = merge_adapter(model, adapter)
        elif not settings.finetune:
            model, tokenizer = load_model(source.directory, new_head=False)
        description = Description(
            name=settings.name,
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
            threshold, score = tune_null_threshold(predictions)
        description = replace(description, null_threshold=threshold, null_threshold_f1=score)
        write_curves(curves, history)
        save_reader(new, model, tokenizer, description)
    print(
        f"null threshold {threshold:.3f}: F1 {score:.1f} on {description.null_threshold_questions} questions set aside"
    )


if __name__ == "__main__":
    run("finetune", train_reader)
