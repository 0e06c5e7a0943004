"""Explain the answers: scores for every token at every layer."""

from __future__ import annotations

import json

import numpy as np
import torch

from bertlift.attribution import save_attributions
from bertlift.config import Config
from bertlift.files import write_json
from bertlift.methods.explain import explain
from bertlift.reader.load import load_reader
from bertlift.reader.predict import Prediction
from bertlift.squad.schema import read_squad, spread
from bertlift.stages import ATTRIBUTIONS, METRICS, PREDICTIONS, PREPARED, READER, run


def attribute(config: Config) -> None:
    """Write ``data/attributions`` and ``reports/metrics/attribution.json``."""
    torch.set_num_threads(config.reader.threads)
    reader = load_reader(READER)
    dev = spread(read_squad(PREPARED / "dev.json"), config.attribution.limit)
    showcase = {question.id: question for question in read_squad(PREPARED / "showcase.json")}
    splits = {question.id: "dev" for question in dev}
    for identity in showcase:
        splits[identity] = "dev+showcase" if identity in splits else "showcase"
    # A showcase question that is in dev as well is explained once, under its short name.
    questions = [showcase.get(question.id, question) for question in dev]
    questions += [question for question in showcase.values() if splits[question.id] == "showcase"]
    nbest = json.loads((PREDICTIONS / "nbest.json").read_text(encoding="utf-8"))
    predictions = [Prediction.from_json(question, nbest[question.id]) for question in questions]
    attributions = explain(reader, predictions, config.attribution, splits)
    relative = np.stack([each.relative_delta for each in attributions]).max(0)  # empty where nothing has to add up
    largest = float(relative.max()) if relative.size else None
    save_attributions(ATTRIBUTIONS, attributions)
    metrics = {
        "questions": len(attributions),
        "layers": attributions[0].layers,
        "heads": int(reader.model.config.num_attention_heads),
        "method": config.attribution.method,
        "reference": attributions[0].reference,
        "max_relative_delta": largest,
        "relative_delta": [float(value) for value in relative],
    }
    write_json(METRICS / "attribution.json", metrics)
    said = "" if largest is None else f"; largest relative delta {largest:.1e}"
    print(f"{len(attributions)} answers explained{said}")


if __name__ == "__main__":
    run("attribute", attribute)
