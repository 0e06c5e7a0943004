"""Cluster the dev questions, and judge the clusters."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from bertlift.analysis.clusters import (
    ALGORITHMS,
    NOISE,
    Clustering,
    answer_type,
    association,
    cluster,
    distinctive_words,
    judged,
)
from bertlift.analysis.groups import question_word_of
from bertlift.analysis.represent import REPRESENTATIONS, points_of
from bertlift.analysis.trajectories import is_right, trajectory
from bertlift.attribution import Attribution, load_attributions
from bertlift.config import Config
from bertlift.files import write_json
from bertlift.stages import ATTRIBUTIONS, CLUSTERS, METRICS, run


def dev_attributions() -> list[Attribution]:
    """The attributions of dev questions, in the order they were written."""
    return [each for each in load_attributions(ATTRIBUTIONS) if each.split.startswith("dev")]


def properties_of(attributions: list[Attribution]) -> list[dict[str, str]]:
    """What is known of the questions apart from their scores."""
    lengths = np.array([len(each.context.split()) for each in attributions])
    short, long = np.percentile(lengths, [100 / 3, 200 / 3])
    return [
        {
            "question_word": question_word_of(each.question),
            "answerable": "no" if each.is_impossible else "yes",
            "answered": "yes" if each.answer else "no",
            "exact": "yes" if is_right(each) else "no",
            "answer_type": answer_type(each.answer),
            "passage_length": "short" if length <= short else "long" if length > long else "middle",
        }
        for each, length in zip(attributions, lengths, strict=True)
    ]


def described(members: list[dict[str, str]], everyone: list[dict[str, str]], words: list[str]) -> str:
    """One line about a cluster: the property that it has most more often than all questions have, and its words."""
    gains = []
    for name in everyone[0]:
        for value in sorted({each[name] for each in members}):
            share, usual = (sum(each[name] == value for each in some) / len(some) for some in (members, everyone))
            gains.append((share - usual, name, value, share, usual))
    most = sorted(gains, key=lambda gain: (-gain[0], gain[1:3]))[:2]
    parts = [
        f"{name.replace('_', ' ')} {value} ({share:.0%}, of all {usual:.0%})"
        for gain, name, value, share, usual in most
        if gain > 0.05
    ]
    named = f"words: {', '.join(words)}" if words else "no words of its own"
    return "; ".join([*(parts or ["like all questions"]), named])


def compared(attributions: list[Attribution], config: Config) -> list[dict[str, Any]]:
    """Every representation by every algorithm: how many clusters, and how far apart."""
    found = []
    for representation in REPRESENTATIONS:
        points = points_of(attributions, representation)
        for algorithm in ALGORITHMS:
            each = cluster(points, config.analysis.clusters, algorithm)
            noise = float(np.mean(each.labels == NOISE))
            row = {"representation": representation, "algorithm": algorithm, "k": each.k}
            found.append(row | {"silhouette": each.silhouette, "noise": round(noise, 4)})
    return found


def cluster_questions(config: Config) -> None:
    """Write ``data/clusters.json`` and ``reports/metrics/clusters.json``."""
    torch.set_num_threads(config.reader.threads)
    settings = config.analysis.clusters
    attributions = dev_attributions()
    clustering: Clustering = judged(cluster(points_of(attributions, settings.representation), settings), settings)
    properties = properties_of(attributions)
    columns = {name: [each[name] for each in properties] for name in properties[0]}
    profiles = np.stack([[each.positive, each.negative] for each in map(trajectory, attributions)])
    members = [np.flatnonzero(clustering.labels == number) for number in range(clustering.k)]
    sizes = [len(each) for each in members]
    chosen = clustering.choices.get(clustering.k)
    words = distinctive_words([each.question for each in attributions], clustering.labels, 6)
    metrics = {
        "k": clustering.k,
        "silhouette": clustering.silhouette,
        "choices": {str(k): asdict(each) for k, each in clustering.choices.items()},
        "stability": chosen.stability if chosen else None,
        "beats_null": clustering.beats_null,
        "sizes": sizes,
        "noise": int((clustering.labels == NOISE).sum()),
        "representation": settings.representation,
        "algorithm": settings.algorithm,
        "association": association(clustering.labels, columns, settings),
        "compared": compared(attributions, config),
    }
    detail = {
        "questions": [
            {
                "id": each.question_id,
                "question": each.question,
                "answer": each.answer,
                "cluster": int(clustering.labels[index]),
                **properties[index],
            }
            for index, each in enumerate(attributions)
        ],
        "nearest": [
            [attributions[index].question_id for index in clustering.nearest(number, settings.nearest)]
            for number in range(clustering.k)
        ],
        "words": words,
        "descriptions": [
            described([properties[index] for index in each], properties, words[number])
            for number, each in enumerate(members)
        ],
        "profiles": [np.round(profiles[each].mean(0), 6).tolist() for each in members],
    }
    write_json(CLUSTERS, detail)
    write_json(METRICS / "clusters.json", metrics)
    verdict = "better than chance" if clustering.beats_null else "not better than chance"
    print(f"{clustering.k} clusters of {', '.join(map(str, sizes))} questions, {verdict}")


if __name__ == "__main__":
    run("cluster", cluster_questions)
