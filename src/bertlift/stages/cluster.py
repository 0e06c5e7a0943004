"""Cluster the dev questions by their profiles."""

from __future__ import annotations

import numpy as np

from bertlift.analysis.clusters import association, cluster, stability
from bertlift.analysis.groups import question_word_of
from bertlift.analysis.profile import profile, representation
from bertlift.attribution import Attribution, load_attributions
from bertlift.config import Config
from bertlift.files import write_json
from bertlift.squad.metrics import exact_match
from bertlift.stages import ATTRIBUTIONS, CLUSTERS, METRICS, run


def dev_attributions() -> list[Attribution]:
    """The attributions of dev questions, in the order they were written."""
    return [each for each in load_attributions(ATTRIBUTIONS) if each.split.startswith("dev")]


def properties_of(attribution: Attribution) -> dict[str, str]:
    """What is known of a question apart from its scores."""
    right = any(exact_match(gold, attribution.answer) for gold in attribution.golds or [""])
    return {
        "question_word": question_word_of(attribution.question),
        "answerable": "no" if attribution.is_impossible else "yes",
        "answered": "yes" if attribution.answer else "no",
        "exact": "yes" if right else "no",
    }


def cluster_questions(config: Config) -> None:
    """Write ``data/clusters.json`` and ``reports/metrics/clusters.json``."""
    settings = config.analysis.clusters
    attributions = dev_attributions()
    points = representation(attributions)
    clustering = cluster(points, settings)
    properties = [properties_of(each) for each in attributions]
    columns = {name: [each[name] for each in properties] for name in properties[0]}
    profiles = np.stack([profile(each) for each in attributions])
    members = [np.flatnonzero(clustering.labels == number) for number in range(clustering.k)]
    sizes = [len(each) for each in members]
    metrics = {
        "k": clustering.k,
        "silhouette": clustering.silhouette,
        "silhouettes": {str(k): value for k, value in clustering.silhouettes.items()},
        "stability": stability(points, clustering, settings),
        "sizes": sizes,
        "representation": "profile",
        "association": association(clustering.labels, columns, settings),
    }
    detail = {
        "questions": [
            {
                "id": each.question_id,
                "question": each.question,
                "answer": each.answer,
                "cluster": int(clustering.labels[index]),
                "distance": float(clustering.distances[index, clustering.labels[index]]),
                **properties[index],
            }
            for index, each in enumerate(attributions)
        ],
        "nearest": [
            [attributions[index].question_id for index in clustering.nearest(number, settings.nearest)]
            for number in range(clustering.k)
        ],
        "profiles": [np.round(profiles[each].mean(0), 6).tolist() for each in members],
    }
    write_json(CLUSTERS, detail)
    write_json(METRICS / "clusters.json", metrics)
    print(f"{clustering.k} clusters of {', '.join(map(str, sizes))} questions")


if __name__ == "__main__":
    run("cluster", cluster_questions)
