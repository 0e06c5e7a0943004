"""The map: UMAP of the questions' profiles in the plane."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

from bertlift.config import Map as Settings

FEWEST = 5  # below that UMAP's graph of neighbours means nothing


def project(points: NDArray[np.float64], settings: Settings) -> NDArray[np.float64]:
    """Coordinates in the plane, ``(questions, 2)``, the same for the same points, settings and machine.

    With fewer than ``FEWEST`` points, where UMAP is not defined, the first two principal axes take its
    place (zeros for a single point).
    """
    if len(points) < FEWEST:
        centred = points - points.mean(0)
        u, s, _ = np.linalg.svd(centred, full_matrices=False)
        axes = (u * s)[:, :2]
        return np.pad(axes, ((0, 0), (0, 2 - axes.shape[1])))
    import umap  # slow to import, and only needed here

    model = umap.UMAP(
        n_neighbors=min(settings.neighbors, len(points) - 1),
        min_dist=settings.min_dist,
        random_state=settings.seed,
        init="random" if len(points) < 10 else "spectral",  # the spectral start needs more points than axes
        n_jobs=1,
        tqdm_kwds={"disable": None},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(model.fit_transform(points), dtype=np.float64)
