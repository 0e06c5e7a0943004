"""Whether an explanation helps to tell right answers from wrong ones."""

from __future__ import annotations

import json

from bertlift.analysis.confidence import compare
from bertlift.config import Config
from bertlift.files import write_json
from bertlift.stages import METRICS, PREDICTIONS, run
from bertlift.stages.cluster import dev_attributions


def confidence(config: Config) -> None:
    """Write ``reports/metrics/confidence.json``."""
    attributions = dev_attributions()
    nbest = json.loads((PREDICTIONS / "nbest.json").read_text(encoding="utf-8"))
    spans = [nbest[each.question_id]["spans"] for each in attributions]
    runners_up = [each[1]["score"] if len(each) > 1 else None for each in spans]
    found = compare(attributions, runners_up, config.analysis.confidence)
    write_json(METRICS / "confidence.json", found)
    told = ", ".join(f"{name} {each['auroc']:.3f}" for name, each in found["features"].items())
    print(f"area under the ROC curve: {told or 'too few right or wrong answers'}")


if __name__ == "__main__":
    run("confidence", confidence)
