"""Fine-tune a reader, or take a ready one, and set its null threshold on train-side questions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from bertlift.config import Config
from bertlift.files import replacing
from bertlift.reader.description import Description
from bertlift.reader.load import Reader, find, load_model, save_reader, sha256, weight_files
from bertlift.reader.predict import predict, tune_null_threshold
from bertlift.reader.train import calibration_split, finetune, run_name, write_curves
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
    train, dev = read_squad(PREPARED / "train.json"), read_squad(PREPARED / "dev.json")
    fitting, calibration = calibration_split(train, training.calibration, training.seed)
    history: list[dict[str, float]] = []
    if settings.finetune:
        checkpoints = CHECKPOINTS / run_name(weights, train, settings, training)
        model, tokenizer, history = finetune(source.directory, fitting, dev, settings, training, checkpoints)
    else:
        model, tokenizer = load_model(source.directory, new_head=False)
    description = Description(
        name=settings.name,
        origin=source.origin,
        commit=source.commit,
        base_sha256=weights,
        finetuned=settings.finetune,
        max_length=settings.max_length,
        doc_stride=settings.doc_stride,
        max_answer_length=settings.max_answer_length,
        n_best=settings.n_best,
        null_threshold=0.0,
        null_threshold_f1=0.0,
        null_threshold_questions=len(calibration),
    )
    predictions = predict(Reader(model, tokenizer, description), calibration, settings.batch_size)
    threshold, score = tune_null_threshold(predictions)
    description = replace(description, null_threshold=threshold, null_threshold_f1=score)
    with replacing(CURVES) as new:
        write_curves(new, history)
    with replacing(READER) as new:
        save_reader(new, model, tokenizer, description)
    print(f"null threshold {threshold:.3f}: F1 {score:.1f} on {len(calibration)} questions set aside")


if __name__ == "__main__":
    run("finetune", train_reader)
