"""Clusters of questions by k-means: how many, how good, how stable, and what goes with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score, mutual_info_score, silhouette_score
from tqdm import tqdm

from bertlift.config import Clusters as Settings

Matrix = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Clustering:
    """k-means labels, ordered so that cluster 0 is the largest, and what k was chosen from."""

    labels: Labels  # (questions,)
    distances: Matrix  # (questions, k), Euclidean distance to every centre
    silhouette: float | None  # None where it is not defined (one cluster, or as many as questions)
    silhouettes: dict[int, float]  # k -> silhouette, for every k that was tried

    @property
    def k(self) -> int:
        """Number of clusters."""
        return int(self.distances.shape[1])

    def nearest(self, cluster: int, count: int) -> list[int]:
        """The members of a cluster nearest to its centre, the nearest first."""
        members = np.flatnonzero(self.labels == cluster)
        return [int(i) for i in members[np.argsort(self.distances[members, cluster], kind="stable")][:count]]


def _k_means(points: Matrix, k: int, seed: int) -> KMeans:
    return KMeans(n_clusters=k, n_init=10, random_state=seed).fit(points)


def _silhouette(points: Matrix, labels: Labels) -> float | None:
    if not 2 <= len(set(labels.tolist())) < len(points):
        return None
    return float(silhouette_score(points, labels))


def cluster(points: Matrix, settings: Settings) -> Clustering:
    """k-means with ``settings.k`` clusters, or with the k of ``k_min..k_max`` that has the best silhouette.

    There are never more clusters than different points; with fewer than three, all are one cluster.
    """
    different = len(np.unique(points, axis=0))
    most = min(different, len(points) - 1)
    wanted = [settings.k] if settings.k is not None else list(range(settings.k_min, settings.k_max + 1))
    tried: dict[int, float] = {}
    for k in tqdm(sorted({min(k, max(most, 1)) for k in wanted}), desc="k-means", disable=None):
        score = _silhouette(points, _k_means(points, k, settings.seed).labels_) if k > 1 else None
        if score is not None:
            tried[k] = score
    k = max(tried, key=lambda each: (tried[each], -each)) if tried else 1
    model = _k_means(points, k, settings.seed)
    order = np.argsort(-np.bincount(model.labels_, minlength=k), kind="stable")
    rank = np.empty(k, dtype=np.int64)
    rank[order] = np.arange(k)
    return Clustering(rank[model.labels_], model.transform(points)[:, order], tried.get(k), tried)


def stability(points: Matrix, clustering: Clustering, settings: Settings) -> float | None:
    """Mean adjusted Rand index between the clustering and those of bootstrap samples, on the sampled points.

    1: the same clusters each time; 0: no more alike than chance. None with a single cluster.
    """
    if clustering.k == 1:
        return None
    random = np.random.default_rng(settings.seed)
    scores = []
    for _ in tqdm(range(settings.bootstraps), desc="bootstrap", disable=None):
        sample = np.unique(random.integers(0, len(points), len(points)))
        if len(np.unique(points[sample], axis=0)) < clustering.k:
            continue
        labels = _k_means(points[sample], clustering.k, settings.seed).labels_
        scores.append(adjusted_rand_score(clustering.labels[sample], labels))
    return float(np.mean(scores)) if scores else None


def association(
    labels: Labels, properties: Mapping[str, Sequence[str]], settings: Settings
) -> dict[str, dict[str, float]]:
    """Mutual information (in nats) between the clusters and properties of the questions.

    The p-value is that of a permutation test: the share of ``settings.permutations`` shufflings (and the
    data itself) whose mutual information is as large.
    """
    random = np.random.default_rng(settings.seed)
    found = {}
    for name, values in tqdm(properties.items(), desc="association", disable=None):
        codes = np.unique(np.asarray(values), return_inverse=True)[1]
        observed = float(mutual_info_score(labels, codes))
        shuffled = [mutual_info_score(labels, random.permutation(codes)) for _ in range(settings.permutations)]
        as_large = 1 + sum(value >= observed - 1e-12 for value in shuffled)
        found[name] = {"mutual_information": observed, "p_value": as_large / (1 + settings.permutations)}
    return found
