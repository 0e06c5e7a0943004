"""Clusters of questions: how many, how good, how stable, against what chance gives, and what goes with them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import HDBSCAN, KMeans
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.metrics import adjusted_rand_score, mutual_info_score, pairwise_distances, silhouette_score
from sklearn.mixture import GaussianMixture
from tqdm import tqdm

from bertlift.analysis.groups import FUNCTION_WORDS, QUESTION_WORDS, plain
from bertlift.config import Clusters as Settings
from bertlift.errors import InputError

Matrix = NDArray[np.float64]
Labels = NDArray[np.int64]
NOISE = -1  # HDBSCAN's label for points in no cluster
ALGORITHMS = ("kmeans", "gaussian_mixture", "hdbscan")


@dataclass(frozen=True)
class Choice:
    """How good a number of clusters is."""

    silhouette: float
    stability: float | None = None  # mean adjusted Rand index over bootstrap samples
    null: tuple[float, float, float] | None = None  # silhouettes of shuffled points: 5th percentile, median, 95th


@dataclass(frozen=True)
class Clustering:
    """Labels, ordered so that cluster 0 is the largest (noise is -1), and what k was chosen from."""

    labels: Labels  # (questions,)
    points: Matrix  # (questions, features)
    choices: dict[int, Choice]  # by k; HDBSCAN has one

    @property
    def k(self) -> int:
        """Number of clusters."""
        return int(self.labels.max(initial=NOISE)) + 1

    @property
    def silhouette(self) -> float | None:
        """None where it is not defined (one cluster, or as many as questions)."""
        return self.choices[self.k].silhouette if self.k in self.choices else None

    @property
    def beats_null(self) -> bool:
        """Whether the silhouette is above that of 95 % of shuffled points, clustered the same way."""
        chosen = self.choices.get(self.k)
        return bool(chosen and chosen.null and chosen.silhouette > chosen.null[2])

    def nearest(self, cluster: int, count: int) -> list[int]:
        """The members with the smallest mean distance to the others, the medoid first."""
        members = np.flatnonzero(self.labels == cluster)
        distances = pairwise_distances(self.points[members]).mean(1)
        return [int(each) for each in members[np.argsort(distances, kind="stable")][:count]]


def _labels(points: Matrix, algorithm: str, k: int, settings: Settings) -> Labels:
    if algorithm == "kmeans":
        found = KMeans(n_clusters=k, n_init=10, random_state=settings.seed).fit_predict(points)
    elif algorithm == "gaussian_mixture":
        model = GaussianMixture(k, covariance_type="diag", reg_covar=1e-4, n_init=2, random_state=settings.seed)
        found = model.fit_predict(points)
    else:
        smallest = min(max(5, len(points) // 25), len(points))
        found = HDBSCAN(min_cluster_size=max(2, smallest), copy=True).fit_predict(points)
    return np.asarray(found, dtype=np.int64)


def _silhouette(points: Matrix, labels: Labels) -> float | None:
    """Of the points that are in a cluster; noise is left out."""
    kept = labels != NOISE
    if not 2 <= len(set(labels[kept].tolist())) < kept.sum():
        return None
    return float(silhouette_score(points[kept], labels[kept]))


def cluster(points: Matrix, settings: Settings, algorithm: str | None = None) -> Clustering:
    """Clusters by ``settings.algorithm``: ``settings.k``, or the k of ``k_min..k_max`` of the best silhouette.

    There are never more clusters than different points; with fewer than three, all are one cluster. HDBSCAN finds its
    own number and may call points noise.

    Raises:
        InputError: for another algorithm.
    """
    algorithm = algorithm or settings.algorithm
    if algorithm not in ALGORITHMS:
        raise InputError(f"analysis.clusters.algorithm is {algorithm!r}; allowed: {', '.join(ALGORITHMS)}")
    different = len(np.unique(points, axis=0))
    most = max(min(different, len(points) - 1), 1)
    wanted = [settings.k] if settings.k is not None else range(settings.k_min, settings.k_max + 1)
    tried: dict[int, tuple[Labels, float]] = {}
    for k in [0] if algorithm == "hdbscan" else sorted({min(k, most) for k in wanted} - {1}):
        labels = _labels(points, algorithm, k, settings) if most > 1 else np.full(len(points), NOISE)
        score = _silhouette(points, labels)
        if score is not None:
            tried[len(set(labels.tolist()) - {NOISE})] = labels, score
    if not tried:
        none = np.full(len(points), NOISE if algorithm == "hdbscan" else 0)
        return Clustering(none, points, {})
    best = max(tried, key=lambda k: (tried[k][1], -k))
    labels = tried[best][0]
    order = np.argsort(-np.bincount(labels[labels != NOISE]), kind="stable")
    rank = {int(old): new for new, old in enumerate(order)} | {NOISE: NOISE}
    renamed = np.array([rank[int(label)] for label in labels], dtype=np.int64)
    return Clustering(renamed, points, {k: Choice(score) for k, (_, score) in tried.items()})


def stability(points: Matrix, labels: Labels, k: int, settings: Settings) -> float | None:
    """Mean adjusted Rand index between the labels and those of bootstrap samples, on the sampled points.

    1: the same clusters each time; 0: no more alike than chance. None with a single cluster.
    """
    if k < 2:
        return None
    random = np.random.default_rng(settings.seed)
    scores = []
    for _ in range(settings.bootstraps):
        sample = np.unique(random.integers(0, len(points), len(points)))
        if len(np.unique(points[sample], axis=0)) >= k:
            again = _labels(points[sample], settings.algorithm, k, settings)
            scores.append(adjusted_rand_score(labels[sample], again))
    return float(np.mean(scores)) if scores else None


def shuffled(points: Matrix, random: np.random.Generator) -> Matrix:
    """Every feature's values dealt out anew among the questions: the same spread, nothing that goes together."""
    return np.stack([random.permutation(column) for column in points.T], axis=1)


def judged(clustering: Clustering, settings: Settings) -> Clustering:
    """The same with stability and the silhouettes of shuffled points for every k that was tried."""
    points, choices = clustering.points, {}
    random = np.random.default_rng(settings.seed)
    nothing = [shuffled(points, random) for _ in range(settings.nulls)]
    for k, choice in tqdm(clustering.choices.items(), desc="clusters against chance", disable=None):
        labels = clustering.labels
        if k != clustering.k:
            labels = _labels(points, settings.algorithm, k, settings)
        # HDBSCAN finds no cluster in most shuffled points: no structure, a silhouette of 0.
        null = [_silhouette(each, _labels(each, settings.algorithm, k, settings)) or 0.0 for each in nothing]
        low, middle, high = (float(value) for value in np.percentile(null, [5, 50, 95]))
        choices[k] = replace(choice, stability=stability(points, labels, k, settings), null=(low, middle, high))
    return replace(clustering, choices=choices)


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
        observed = _mutual_information(labels, codes)
        shuffles = [_mutual_information(labels, random.permutation(codes)) for _ in range(settings.permutations)]
        as_large = 1 + sum(value >= observed - 1e-12 for value in shuffles)
        found[name] = {"mutual_information": observed, "p_value": as_large / (1 + settings.permutations)}
    return found


def _mutual_information(labels: Labels, codes: Labels) -> float:
    # scikit-learn is quick with a table of counts, and slow to make one.
    table = np.zeros((labels.max() + 2, codes.max() + 1))
    np.add.at(table, (labels, codes), 1)  # noise, -1, is the last row
    return float(mutual_info_score(None, None, contingency=table))


def distinctive_words(texts: Sequence[str], labels: Labels, count: int) -> list[list[str]]:
    """For every cluster the words that mark its texts off: class-based TF-IDF (Grootendorst 2022).

    A word's frequency in the cluster times ``log(1 + A / f)``: ``A`` the mean number of words of a cluster, ``f`` the
    word's frequency in all. Function words, question words and words of fewer than two texts do not count.
    """
    words: Callable[[str], list[str]] = lambda text: [  # noqa: E731
        word
        for word in re.findall(r"\w+", plain(text))
        if word not in FUNCTION_WORDS | QUESTION_WORDS | {"many", "much"}
    ]
    k = int(labels.max(initial=NOISE)) + 1
    if not k or not any(words(text) for text in texts):
        return [[] for _ in range(k)]
    vectors = CountVectorizer(analyzer=words)
    counts = np.asarray(vectors.fit_transform(texts).todense(), dtype=np.float64)
    often = (counts > 0).sum(0) >= 2
    by_cluster = np.stack([counts[labels == number].sum(0) for number in range(k)])
    total = by_cluster.sum(0)
    weight = np.log1p(np.divide(by_cluster.sum() / k, total, out=np.zeros_like(total), where=total > 0))
    scores = by_cluster / np.maximum(by_cluster.sum(1, keepdims=True), 1) * weight * often
    names = vectors.get_feature_names_out()
    ranked = [np.argsort(-row, kind="stable")[:count] for row in scores]
    return [[str(names[each]) for each in order if row[each] > 0] for order, row in zip(ranked, scores, strict=True)]


def answer_type(text: str) -> str:
    """What kind of answer it is, by its look: none, date, number, name, clause (more than six words) or phrase.

    >>> [answer_type(each) for each in ("", "3 May 1921", "four hundred", "Ada Lovelace", "the first engine")]
    ['none', 'date', 'number', 'name', 'phrase']
    """
    if not text:
        return "none"
    if re.search(r"\b1\d\d\d\b|\b20\d\d\b|\b(" + "|".join(MONTHS) + r")\b", text):
        return "date"
    words = re.findall(r"[\w'-]+", text)
    if re.search(r"\d", text) or (words and plain(words[0]) in NUMBERS):
        return "number"
    if len(words) > 6:
        return "clause"
    content = [word for word in words if plain(word) not in FUNCTION_WORDS]
    return "name" if content and all(word[0].isupper() for word in content) else "phrase"


MONTHS = "January February March April May June July August September October November December".split()
NUMBERS = frozenset(
    """one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million half""".split()
)
