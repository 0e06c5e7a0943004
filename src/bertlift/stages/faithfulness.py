"""Explain some questions by every method, and judge the explanations."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from bertlift.analysis import faithfulness as measures
from bertlift.analysis.retried import randomised, slightly_changed
from bertlift.attribution import Attribution, save_attributions
from bertlift.config import Config
from bertlift.errors import InputError
from bertlift.files import replacing, write_json
from bertlift.methods.case import Case
from bertlift.methods.explain import METHODS, explain, target_of
from bertlift.reader.load import Reader, load_reader
from bertlift.reader.predict import Prediction, collate
from bertlift.squad.schema import read_squad, spread
from bertlift.stages import METHOD_EXAMPLES, PREDICTIONS, PREPARED, READER, run

AGAINST = ("random", "deeplift")
CHANGES = 2  # small changes of the input; the worst counts


def faithfulness(config: Config) -> None:
    """Write ``analysis.faithfulness.out``, and ``data/methods/NAME``: the showcase as each method explains it.

    The methods explain the spans that the reader chose. Seconds a question are those of the scores of the input alone;
    all else repeats exactly.
    """
    settings = config.analysis.faithfulness
    if unknown := [name for name in settings.methods if name not in METHODS]:
        raise InputError(f"analysis.faithfulness.methods has {unknown[0]!r}; allowed: {', '.join(METHODS)}")
    torch.set_num_threads(config.reader.threads)
    reader = load_reader(READER)
    nbest = json.loads((PREDICTIONS / "nbest.json").read_text(encoding="utf-8"))
    dev, showcase = (
        [Prediction.from_json(each, nbest[each.id]) for each in read]
        for read in (
            spread(read_squad(PREPARED / "dev.json"), settings.limit),
            read_squad(PREPARED / "showcase.json"),
        )
    )
    splits = dict.fromkeys(nbest, "dev")

    def explained(method: str, by: Reader, predictions: Sequence[Prediction]) -> list[Attribution]:
        chosen = replace(config.attribution, method=method)
        targets = [target_of(each, reader) for each in predictions]
        return explain(by, predictions, chosen, splits, targets, layers=False, heads=False)

    found: dict[str, list[Attribution]] = {}
    seconds: dict[str, float] = {}
    with replacing(METHOD_EXAMPLES) as new:
        for method in settings.methods:
            begin = time.perf_counter()
            found[method] = explained(method, reader, dev)
            seconds[method] = (time.perf_counter() - begin) / len(dev)
            if showcase:
                save_attributions(new / method, explained(method, reader, showcase))
    scores = [{method: of[index].scores[0] for method, of in found.items()} for index in range(len(dev))]
    values: dict[str, dict[str, Any]] = {method: {} for method in found}
    curves: dict[str, list[Any]] = {method: [] for method in found}
    for index, prediction in enumerate(tqdm(dev, desc="judge", unit="question", disable=None)):
        case = case_of(reader, prediction, config)
        judged = measures.judged(case, scores[index], config.reader.batch_size)
        ranked = index < settings.naopc and measures.naopc(case, scores[index], config.reader.batch_size)
        for method, of in judged.items():
            curves[method].append([of.pop("deleted"), of.pop("inserted")])
            of |= measures.plausibility(found[method][index])
            of |= {"naopc": ranked[method]} if ranked else {}
            for name, value in of.items():
                values[method].setdefault(name, np.full(len(dev), np.nan))[index] = value
    stages: list[str] = []
    for method, of in _checks(reader, dev[: settings.checks], found, explained, config).items():
        stages = [name for name in of if name not in measures.MEASURES]
        values[method] |= {
            name: np.pad(each, (0, len(dev) - len(each)), constant_values=np.nan) for name, each in of.items()
        }
    write_json(
        Path(settings.out),
        {
            "questions": len(dev),
            "checked_questions": len(dev[: settings.checks]),
            "naopc_questions": min(settings.naopc, len(dev)),
            "naopc_steps": measures.STEPS,
            "reference": config.attribution.reference,
            "shares": [0.0, *measures.SHARES, 1.0],
            "methods": {
                method: {name: measures.estimated(of[name], settings.seed) for name in measures.MEASURES if name in of}
                | {
                    "seconds_per_question": round(seconds[method], 4),
                    "deleted": np.mean(curves[method], 0)[0].round(6).tolist(),
                    "inserted": np.mean(curves[method], 0)[1].round(6).tolist(),
                    "randomised": {name: measures.estimated(of[name], settings.seed) for name in stages},
                }
                for method, of in values.items()
            },
            "against": measures.compared(
                {
                    method: {name: each for name, each in of.items() if name in measures.MEASURES}
                    for method, of in values.items()
                },
                AGAINST,
                settings.seed,
            ),
            "agreement": measures.agreement(scores),
        },
    )
    print(f"{len(found)} methods judged on {len(dev)} questions")


def case_of(reader: Reader, prediction: Prediction, config: Config) -> Case:
    """The answer's window and span, to try other inputs on."""
    window, start, end = target_of(prediction, reader)
    inputs = collate([window], reader.tokenizer)
    ends = torch.tensor([start]), torch.tensor([end])
    return Case(reader.model, inputs, *ends, config.attribution.reference, reader.tokenizer, samples=0, seed=0)


def _checks(
    reader: Reader, chosen: Sequence[Prediction], found: dict[str, list[Attribution]], explained: Any, config: Config
) -> dict[str, dict[str, Any]]:
    """``sensitivity``, ``randomisation`` (when all is random) and the rank correlation at every stage on the way."""
    seed = config.analysis.faithfulness.seed
    result: dict[str, dict[str, Any]] = {}
    if not chosen:
        return result
    changed = [replace(reader, model=slightly_changed(reader.model, seed + number)) for number in range(CHANGES)]
    fresh = {name: replace(reader, model=model) for name, model in randomised(reader.model, seed)}
    for method, usual in found.items():
        before = [each.scores[0] for each in usual[: len(chosen)]]
        moved = []
        for each in changed:
            after = [one.scores[0] for one in explained(method, each, chosen)]
            moved.append([float(np.linalg.norm(b - a) / np.linalg.norm(a)) for a, b in zip(before, after, strict=True)])
        of = {"sensitivity": np.max(moved, 0)}
        for name, each in fresh.items():
            after = [one.scores[0] for one in explained(method, each, chosen)]
            of[name] = np.array([measures.rank_correlation(a, b) for a, b in zip(before, after, strict=True)])
        result[method] = of | {"randomisation": of["embeddings"]}
    return result


if __name__ == "__main__":
    run("faithfulness", faithfulness)
