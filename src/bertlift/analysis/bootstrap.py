"""Means over questions with their uncertainty: bootstrap intervals (Efron 1979)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
TIMES = 2000  # bootstrap samples
LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """Means and the ends of their 95 % bootstrap intervals; NaN where no question has a value."""

    mean: Array
    low: Array
    high: Array

    def plain(self) -> dict[str, Any]:
        """``mean``, ``low`` and ``high`` as numbers (or lists of them) with six digits; None for NaN."""
        return {name: _plain(value) for name, value in vars(self).items()}


def _plain(values: Array) -> Any:
    rounded = np.asarray(np.round(values, 6), dtype=object)
    rounded[~np.isfinite(values)] = None
    return rounded.tolist()


@lru_cache(maxsize=32)
def resampling(count: int, seed: int, times: int = TIMES) -> Array:
    """How often each of ``count`` questions is drawn in each bootstrap sample, ``(times, count)``."""
    random = np.random.default_rng(seed)
    drawn = random.multinomial(count, np.full(count, 1 / count), size=times).astype(np.float64)
    drawn.flags.writeable = False  # the same for everyone who asks
    return drawn


def weighted_mean(values: Array, weights: Array) -> Array:
    """Means over questions, ``(samples, ...)``, of ``values`` ``(questions, ...)``; NaN counts as no value."""
    flat = values.reshape(len(values), math.prod(values.shape[1:]))
    there = np.isfinite(flat)
    sums, counts = weights @ np.where(there, flat, 0), weights @ there
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.where(counts > 0, sums / counts, np.nan)
    return means.reshape(len(weights), *values.shape[1:])


def _between(samples: Array) -> tuple[Array, Array]:
    """The middle 95 % of bootstrap samples (first axis); those that are NaN are left out."""
    sides = [50 * (1 - LEVEL), 50 * (1 + LEVEL)]
    none = ~np.isfinite(samples).any(0)
    if not none.size:
        return none.astype(np.float64), none.astype(np.float64)
    low, high = np.nanpercentile(np.where(none, 0, samples), sides, axis=0)
    return np.where(none, np.nan, low), np.where(none, np.nan, high)


def mean_estimate(values: Array, seed: int) -> Estimate:
    """The mean over questions (first axis), resampling questions."""
    mean = weighted_mean(values, np.ones((1, len(values))))[0]
    return Estimate(mean, *_between(weighted_mean(values, resampling(len(values), seed))))


def difference_estimate(values: Array, first: NDArray[np.bool_], seed: int) -> Estimate:
    """The mean over the ``first`` questions minus that over the others, resampling both together."""

    def difference(weights: Array) -> Array:
        return weighted_mean(values[first], weights[:, first]) - weighted_mean(values[~first], weights[:, ~first])

    mean = difference(np.ones((1, len(values))))[0]
    return Estimate(mean, *_between(difference(resampling(len(values), seed))))
