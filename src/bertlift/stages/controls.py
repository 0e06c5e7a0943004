"""Explain again what must not look the same: random weights, the encoder before fine-tuning, a wrong span."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import torch
from transformers import set_seed

from bertlift.attribution import Attribution, save_attributions
from bertlift.config import Config
from bertlift.files import replacing
from bertlift.methods.explain import Target, explain, target_of, wrong_target
from bertlift.reader.load import Reader, find, load_reader
from bertlift.reader.predict import Prediction
from bertlift.reader.train import train_head
from bertlift.squad.schema import read_squad, spread
from bertlift.stages import CONTROLS, PREDICTIONS, PREPARED, READER, run


def controls(config: Config) -> None:
    """Write ``data/controls/NAME`` for each control, and ``paper2019``: the showcase by the paper's own rule.

    The controls explain the spans that the reader chose, on ``analysis.controls.limit`` dev questions.
    """
    settings = config.analysis.controls
    torch.set_num_threads(config.reader.threads)
    reader = load_reader(READER)
    dev = spread(read_squad(PREPARED / "dev.json"), settings.limit)
    showcase = read_squad(PREPARED / "showcase.json")
    nbest = json.loads((PREDICTIONS / "nbest.json").read_text(encoding="utf-8"))
    predictions = [Prediction.from_json(question, nbest[question.id]) for question in dev]
    targets = [target_of(prediction, reader) for prediction in predictions]
    splits = {question.id: "dev" for question in dev}

    def explained(by: Reader, asked: Sequence[Prediction], spans: Sequence[Target]) -> list[Attribution]:
        return explain(by, asked, config.attribution, splits, spans, torch.float32, heads=False)

    set_seed(settings.seed)
    random = Reader(type(reader.model)(reader.model.config).eval(), reader.tokenizer, reader.description)
    found = {"random_weights": explained(random, predictions, targets)}
    if config.reader.finetune or config.reader.adapter is not None:  # else nobody has the encoder as it was
        train = spread(read_squad(PREPARED / "train.json"), settings.head_questions)
        model, _ = train_head(find(config.reader).directory, train, config.reader, settings.seed)
        before = Reader(model, reader.tokenizer, reader.description)
        found["before_finetuning"] = explained(before, predictions, targets)
    answered = [each for each in predictions if each.answer(reader.description.null_threshold)]
    wrong = [wrong_target(prediction, reader, settings.seed) for prediction in answered]
    found["wrong_span"] = explained(reader, answered, wrong)
    paper = replace(config.attribution, method="paper2019")
    shown = [Prediction.from_json(question, nbest[question.id]) for question in showcase]
    found["paper2019"] = explain(reader, shown, paper, dict.fromkeys(nbest, "showcase"))
    with replacing(CONTROLS) as new:
        for name, attributions in found.items():
            if attributions:
                save_attributions(new / name, attributions)
    print(", ".join(f"{name}: {len(attributions)}" for name, attributions in found.items()))


if __name__ == "__main__":
    run("controls", controls)
