"""The reader that the pipeline trains (``reader=minilm``), from several seeds: mean and spread of its dev measures.

Writes ``reports/metrics/reader_seeds.json``; takes as many times the ``finetune`` stage's minutes as there are seeds.
``key=value`` overrides settings, for example ``training.sentence_epochs=0 training.epochs=1.6``.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir

from bertlift.config import Config, typed
from bertlift.files import write_json
from bertlift.reader.description import Description
from bertlift.reader.load import Reader, find
from bertlift.reader.predict import predict, tune_null_threshold
from bertlift.reader.train import calibration_split, finetune
from bertlift.squad.metrics import evaluate
from bertlift.squad.schema import read_squad

MEASURES = ("exact", "f1", "HasAns_exact", "HasAns_f1", "NoAns_f1", "minutes")


def measures(config: Config) -> dict[str, float]:
    """Train with the configured seed; the dev measures at the calibrated threshold, and the minutes it took."""
    settings, training = config.reader, config.training
    torch.set_num_threads(settings.threads)
    fitting, calibration = calibration_split(read_squad(config.data.train), training.calibration, training.seed)
    dev = [question for question in read_squad(config.data.dev) if question.name is None]  # without the showcase
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        model, tokenizer, _ = finetune(
            find(settings).directory, fitting, calibration, settings, training, Path(place) / "run"
        )
    minutes = (time.perf_counter() - begin) / 60
    reading = {name: getattr(settings, name) for name in ("max_length", "doc_stride", "max_answer_length", "n_best")}
    nothing = {"commit": None, "base_sha256": "", "adapter_sha256": None, "finetuned": True}
    threshold = {"null_threshold": 0.0, "null_threshold_f1": 0.0, "null_threshold_questions": len(calibration)}
    reader = Reader(model, tokenizer, Description(name=settings.name, origin="", **reading, **nothing, **threshold))
    limit, _ = tune_null_threshold(predict(reader, calibration, settings.batch_size))
    found = evaluate(dev, {p.question.id: p.answer(limit) for p in predict(reader, dev, settings.batch_size)})
    return {name: float((found | {"minutes": minutes})[name]) for name in MEASURES}


def main() -> None:
    """Train from each seed and write what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[13, 14, 15, 16, 17])
    parser.add_argument("--out", type=Path, default=Path("reports/metrics/reader_seeds.json"))
    parser.add_argument("overrides", nargs="*", help="settings, key=value")
    options = parser.parse_args()
    runs: list[dict[str, float]] = []
    result: dict[str, Any] = {}
    for seed in options.seeds:
        with initialize_config_dir(str(Path("conf").resolve()), version_base=None):
            chosen = ["reader=minilm", *options.overrides, f"training.seed={seed}"]
            config = typed(compose("config", overrides=chosen), "conf")
        runs.append(measures(config))
        result = {
            "seeds": options.seeds[: len(runs)],
            "training": asdict(config.training),
            "mean": {name: statistics.mean(run[name] for run in runs) for name in MEASURES},
            "standard_deviation": {name: statistics.pstdev(run[name] for run in runs) for name in MEASURES},
            "runs": runs,
        }
        write_json(options.out, result)
        print(f"seed {seed}: exact {runs[-1]['exact']:.1f}, F1 {runs[-1]['f1']:.1f} in {runs[-1]['minutes']:.1f} min")


if __name__ == "__main__":
    main()
