"""A question as a point: what clusters and maps are made of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from torch import nn

from bertlift.analysis.trajectories import trajectory
from bertlift.attribution import Attribution
from bertlift.errors import InputError

Points = NDArray[np.float64]
REPRESENTATIONS = ("profile", "hidden", "autoencoder")
COMPONENTS = 20  # principal components that are kept of each layer's hidden states
CODE = 8  # units of the autoencoder's code
STEPS = 300


def layers_of(attributions: Sequence[Attribution], representation: str) -> Points:
    """Questions layer by layer, ``(questions, rows, features)``.

    - ``profile``: positive and negative shares of the token groups. Left unscaled: one unit is the same part of a
      layer's score everywhere, and groups that never matter stay small.
    - ``hidden``: the score-weighted mean hidden state, centred, reduced to at most 20 principal components a layer and
      scaled to a total variance of 1 a layer, so that no layer weighs more for its larger norm.
    - ``autoencoder``: the states of the encoder of :func:`encode`, one after each layer.

    Raises:
        InputError: for another name.
    """
    if representation not in REPRESENTATIONS:
        raise InputError(
            f"analysis.clusters.representation is {representation!r}; allowed: {', '.join(REPRESENTATIONS)}"
        )
    if representation == "hidden":
        states = np.stack([np.asarray(each.hidden, dtype=np.float64) for each in attributions])
        keep = min(COMPONENTS, len(states), states.shape[2])
        reduced = [PCA(keep, svd_solver="full").fit_transform(states[:, row]) for row in range(states.shape[1])]
        return np.stack([each / (np.sqrt(each.var(0).sum()) or 1) for each in reduced], axis=1)
    found = [trajectory(each) for each in attributions]
    profiles = np.stack([np.concatenate([each.positive, each.negative], axis=1) for each in found])
    return profiles if representation == "profile" else encode(profiles)


def encode(sequences: Points, seed: int = 13) -> Points:
    """States of a small sequence autoencoder, ``(questions, rows, CODE)``.

    The paper fed the layers' relevances to a GRU autoencoder and meant to cluster its state. Here a GRU reads a
    question's profile layer by layer into ``CODE`` units, and another writes it again from the last state; both are
    trained to the least squared error (Adam, full batches), the same for the same input.
    """
    torch.manual_seed(seed)
    data = torch.tensor(sequences, dtype=torch.float32)
    scale = data.std().clamp(min=1e-6)
    width = data.shape[2]
    encoder, decoder = nn.GRU(width, CODE, batch_first=True), nn.GRU(width, CODE, batch_first=True)
    write = nn.Linear(CODE, width)
    weights = [*encoder.parameters(), *decoder.parameters(), *write.parameters()]
    optimizer = torch.optim.Adam(weights, lr=0.01)
    nothing = torch.zeros_like(data)  # the writer knows the code alone
    for _ in range(STEPS):
        _, code = encoder(data / scale)
        written, _ = decoder(nothing, code)
        loss = (write(written) - data / scale).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        states, _ = encoder(data / scale)
    return np.asarray(states, dtype=np.float64)


def points_of(attributions: Sequence[Attribution], representation: str) -> Points:
    """Questions as points, ``(questions, features)``: all layers, or the autoencoder's last state."""
    layers = layers_of(attributions, representation)
    return layers[:, -1] if representation == "autoencoder" else layers.reshape(len(layers), -1)
