"""Several readers on the same questions: how big, how fast, how often right, and how each explains its answers."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertlift.analysis.faithfulness import estimated, judged, plausibility
from bertlift.attribution import save_attributions
from bertlift.config import Config
from bertlift.files import replacing, write_json
from bertlift.methods.explain import explain
from bertlift.reader.load import Reader, load_reader, weight_files
from bertlift.reader.predict import Prediction, predict
from bertlift.squad.metrics import evaluate
from bertlift.squad.schema import Question, read_squad, spread
from bertlift.stages import COMPARED, PREPARED, READER, READINGS, run
from bertlift.stages.evaluate import showcase_scores
from bertlift.stages.faithfulness import case_of

ENOUGH = 0.5  # official F1 from which on an answer counts as correct


def showcase_row(reader: Reader, showcase: list[Question]) -> tuple[list[Prediction], dict[str, Any]]:
    """What the reader says to every showcase question, and how well and how fast it does.

    ``correct``: answers of an official F1 of at least ``ENOUGH``; ``exact``: exact matches; a right "no answer" is
    both. Seconds: the median over the questions, read one at a time.
    """
    threshold = reader.description.null_threshold
    predict(reader, showcase[:1], 1)  # the first pass is slower
    found, seconds = [], []
    for question in showcase:
        begin = time.perf_counter()
        found += predict(reader, [question], 1)
        seconds.append(time.perf_counter() - begin)
    scored = showcase_scores(showcase, {each.question.id: each for each in found}, threshold)
    answers = scored["questions"]
    return found, {
        "questions": len(showcase),
        "answered": sum(each["answer"] != "" for each in answers.values()),
        "correct": sum(each["f1"] >= ENOUGH for each in answers.values()),
        "exact": int(scored["right"]),
        "seconds_per_question": round(float(np.median(seconds)), 4) if seconds else None,
        "answers": answers,
    }


def explained_row(reader: Reader, predictions: list[Prediction], config: Config) -> dict[str, Any]:
    """How good the reader's explanations are, by measures that do not hang on the size of its logits.

    ``beats_random``: the share of questions for which inserting words in the order of the explanation raises the span
    score sooner than in a random order; and both measures of :func:`plausibility`. Each with an interval.
    """
    method, seed = config.attribution.method, config.analysis.readers.seed
    splits = {each.question.id: "dev" for each in predictions}
    scores = {}
    for name in dict.fromkeys((method, "random")):
        settings = replace(config.attribution, method=name)
        scores[name] = explain(reader, predictions, settings, splits, layers=False, heads=False)
    wins = []
    for index, prediction in enumerate(predictions):
        rows = {name: each[index].scores[0] for name, each in scores.items()}
        found = judged(case_of(reader, prediction, config), rows, config.reader.batch_size)
        wins.append(float(found[method]["insertion"] > found["random"]["insertion"]))
    pointed = [plausibility(each) for each in scores[method]]
    return {
        "method": method,
        "questions": len(predictions),
        "beats_random": estimated(np.array(wins), seed),
        **{name: estimated(np.array([each[name] for each in pointed]), seed) for name in pointed[0]},
    }


def readers(config: Config) -> None:
    """Write ``analysis.readers.out``, a list of readers, and ``data/readings/N``: the showcase as the Nth explains it.

    The pipeline's own reader comes first, unless one of ``readers`` has its name.
    """
    torch.set_num_threads(config.reader.threads)
    settings = config.analysis.readers
    dev, showcase = read_squad(PREPARED / "dev.json"), read_squad(PREPARED / "showcase.json")
    some = {question.id for question in spread(dev, settings.limit)}
    places = {config.reader.name: READER} | {name: COMPARED / name for name in config.readers}
    rows = []
    with replacing(READINGS) as new:
        for number, (name, place) in enumerate(places.items()):
            reader = load_reader(place)
            model = reader.model
            row = {
                "reader": name,
                "origin": reader.description.origin,
                "commit": reader.description.commit,
                "family": model.config.model_type,
                "layers": model.config.num_hidden_layers,
                "always_answers": reader.description.null_threshold is None,
                "parameters": sum(each.numel() for each in model.parameters()),
                "megabytes": round(sum(file.stat().st_size for file in weight_files(place)) / 1e6, 1),
            }
            shown, answers = showcase_row(reader, showcase)
            found = {each.question.id: each for each in predict(reader, dev, config.reader.batch_size)}
            given = {identity: each.answer(reader.description.null_threshold) for identity, each in found.items()}
            row |= answers | {"dev": evaluate(dev, given)}
            row["explanations"] = explained_row(
                reader, [found[identity] for identity in found if identity in some], config
            )
            rows.append(row)
            splits = {question.id: "showcase" for question in showcase}
            if shown:
                explained = explain(reader, shown, config.attribution, splits, layers=False, heads=False)
                save_attributions(new / str(number), explained)
        new.mkdir(exist_ok=True)
    write_json(Path(settings.out), rows)
    for row in rows:
        print(f"{row['reader']}: {row['exact']} of {row['questions']} exactly right, dev F1 {row['dev']['f1']:.1f}")


if __name__ == "__main__":
    run("readers", readers)
