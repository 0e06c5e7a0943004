"""One look for every figure, and how figures are saved."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.colors import FuncNorm, LinearSegmentedColormap, Normalize, is_color_like, to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray

from bertlift.config import Colors
from bertlift.config import Report as Settings
from bertlift.errors import InputError

# Okabe and Ito's palette without yellow: told apart with every kind of colour vision.
CATEGORIES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000", "#999999")
MARKERS = "osD^vPX*"
INK, FAINT = "#222222", "#777777"


def apply() -> None:
    """Set matplotlib's defaults for all figures; no display is needed."""
    mpl.use("agg")
    mpl.rcParams.update(
        {
            "font.family": "DejaVu Sans",
            "font.size": 10,
            "text.color": INK,
            "axes.labelcolor": INK,
            "axes.edgecolor": FAINT,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "xtick.color": INK,
            "ytick.color": INK,
            "figure.facecolor": "white",
        }
    )


def diverging(colors: Colors) -> LinearSegmentedColormap:
    """Negative, zero, positive.

    Raises:
        InputError: for something that is no colour.
    """
    for name in ("negative", "zero", "positive"):
        value = getattr(colors, name)
        if not is_color_like(value):
            raise InputError(f"report.colors.{name} is {value!r}; allowed: a colour such as '#2166ac' or 'navy'")
    # An odd number of steps: zero is the middle one exactly.
    return LinearSegmentedColormap.from_list("bertlift", [colors.negative, colors.zero, colors.positive], N=257)


def symmetric(limit: float, *, root: bool = False) -> Normalize:
    """A scale from ``-limit`` to ``limit``, so that zero has the middle colour.

    Args:
        limit: where the colours end.
        root: whether the colour follows the square root of the size, so that scores a hundred times smaller
            than the largest can still be seen (a tenth of its colour).
    """
    limit = limit if limit > 0 else 1.0
    if not root:
        return Normalize(-limit, limit)
    return FuncNorm((_signed_root, _signed_square), -limit, limit)


def _signed_root(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.sign(values) * np.sqrt(np.abs(values)))


def _signed_square(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.sign(values) * np.square(values))


def ink_on(color: tuple[float, float, float, float]) -> str:
    """Dark or white, whichever reads better on ``color`` (WCAG relative luminance)."""
    channels = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    luminance = 0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2]
    return INK if luminance > 0.24 else "white"


def save(figure: Figure, path: Path, settings: Settings) -> None:
    """Write ``path`` with ``.png`` and ``.pdf`` appended; the files carry no date, so they repeat exactly."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(f"{path}.png", dpi=settings.dpi, metadata={"Software": None})
    figure.savefig(f"{path}.pdf", metadata={"CreationDate": None, "ModDate": None, "Producer": None, "Creator": None})
