"""The map: UMAP of the questions' profiles in the plane."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import orthogonal_procrustes

from bertlift.config import Map as Settings

Points = NDArray[np.float64]
FEWEST = 5  # below that UMAP's graph of neighbours means nothing
FEW_EPOCHS = 200  # are enough from where the layer before has led


def project(points: Points, settings: Settings, start: Points | None = None) -> Points:
    """Coordinates in the plane, ``(questions, 2)``, the same for the same points, settings and machine.

    With fewer than ``FEWEST`` points, where UMAP is not defined, the first two principal axes take its
    place (zeros for a single point). ``start``: where the points stand before UMAP moves them.
    """
    if len(points) < FEWEST:
        return _principal_axes(points)
    import umap  # slow to import, and only needed here

    # The spectral start needs more points than axes.
    usual = "random" if len(points) < 10 else "spectral"
    model = umap.UMAP(
        n_neighbors=min(settings.neighbors, len(points) - 1),
        min_dist=settings.min_dist,
        random_state=settings.seed,
        init=usual if start is None else start.astype(np.float32),
        n_epochs=None if start is None else FEW_EPOCHS,
        n_jobs=1,
        tqdm_kwds={"disable": None},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(model.fit_transform(points), dtype=np.float64)


def project_layers(layers: Points, settings: Settings) -> Points:
    """A map for each row of scores, ``(rows, questions, 2)``, from ``(questions, rows, features)``.

    Each map starts from the one before and is then turned (and mirrored) to fit it best (orthogonal Procrustes), so
    that a question's way from layer to layer can be followed. (``umap.AlignedUMAP`` took ten times as long.)
    """
    maps: list[Points] = []
    for row in range(layers.shape[1]):
        found = project(layers[:, row], settings, maps[-1] if maps else None)
        found = found - found.mean(0)
        if maps:
            found = found @ orthogonal_procrustes(found, maps[-1])[0]
        maps.append(found)
    return np.stack(maps)


def _principal_axes(points: Points) -> Points:
    centred = points - points.mean(0)
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    axes = (u * s)[:, :2]
    return np.pad(axes, ((0, 0), (0, 2 - axes.shape[1])))
