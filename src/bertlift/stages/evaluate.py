"""Answer the dev and showcase questions, and score the dev answers by SQuAD's official measures."""

from __future__ import annotations

from typing import Any

import torch

from bertlift.config import Config
from bertlift.files import replacing, write_json
from bertlift.reader.load import load_reader
from bertlift.reader.predict import Prediction, predict
from bertlift.squad.metrics import evaluate, question_scores
from bertlift.squad.schema import Question, read_squad
from bertlift.stages import METRICS, PREDICTIONS, PREPARED, READER, run


def showcase_scores(showcase: list[Question], found: dict[str, Prediction], threshold: float | None) -> dict[str, Any]:
    """How many showcase questions are answered exactly; each answer with its official scores, by name or id."""
    questions = {}
    for question in showcase:
        answer = found[question.id].answer(threshold)
        exact, f1 = question_scores(question, answer)
        given = {"question": question.question, "answer": answer, "golds": question.golds}
        questions[question.name or question.id] = given | {"exact": exact, "f1": f1}
    return {"right": sum(each["exact"] for each in questions.values()), "total": len(showcase), "questions": questions}


def evaluate_reader(config: Config) -> None:
    """Write ``data/predictions``, and ``evaluation.json`` and ``showcase.json`` in ``reports/metrics``.

    ``predictions.json`` and ``na_prob.json`` are what the official script takes; ``nbest.json`` holds the
    n-best spans with scores and positions, also of showcase questions that are not in dev.
    """
    torch.set_num_threads(config.reader.threads)
    reader = load_reader(READER)
    dev, showcase = read_squad(PREPARED / "dev.json"), read_squad(PREPARED / "showcase.json")
    known = {question.id for question in dev}
    questions = dev + [question for question in showcase if question.id not in known]
    found = {p.question.id: p for p in predict(reader, questions, config.reader.batch_size)}
    threshold = reader.description.null_threshold
    answers = {question.id: found[question.id].answer(threshold) for question in dev}
    na_prob = {question.id: found[question.id].na_prob for question in dev}
    metrics = evaluate(dev, answers, na_prob)
    with replacing(PREDICTIONS) as new:
        write_json(new / "predictions.json", answers)
        write_json(new / "na_prob.json", na_prob)
        write_json(new / "nbest.json", {identity: each.to_json() for identity, each in found.items()})
    write_json(METRICS / "evaluation.json", metrics)
    write_json(METRICS / "showcase.json", showcase_scores(showcase, found, threshold))
    print(f"dev: exact {metrics['exact']:.1f}, F1 {metrics['f1']:.1f} on {metrics['total']} questions")


if __name__ == "__main__":
    run("evaluate", evaluate_reader)
