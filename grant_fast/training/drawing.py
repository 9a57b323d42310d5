"""What the pictures have in common: figures that need no screen, and how their axes look."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..files import atomic_path

# Okabe and Ito's palette, told apart in every common colour blindness.
BLACK, GREY, ORANGE, BLUE = "#000000", "#7a7a7a", "#E69F00", "#0072B2"
GREEN, RED, PINK, SKY = "#009E73", "#D55E00", "#CC79A7", "#56B4E9"


def new_figure(width: float, height: float) -> Any:
    """A figure, in inches, that is drawn without a screen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, path: Path, title: str) -> None:
    """Write a PNG under a title, whole or not at all.

    Raises:
        InputError: `path` cannot be written.
    """
    figure.suptitle(title, fontsize=13, parse_math=False)
    with atomic_path(path) as temporary, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # boxes, in a name
        figure.savefig(temporary, format="png", dpi=150)


def frame(axis: Any, values: Sequence[float | None], best: float | None = None) -> None:
    """Vertical limits within which every curve can be read, and the best value, if there is one.

    A wild first epoch runs out of the frame. Values that span more than a factor of ten, as where
    one arm diverges, get a logarithmic axis.
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    known = np.array([value for value in values if value is not None and np.isfinite(value)])
    if not len(known):
        return
    low, high = np.quantile(known, [0.005, 0.97])
    if best is not None and np.isfinite(best):
        low, high = min(low, best), max(high, best)
    if 0 < 10 * low < high:
        axis.set_yscale("log", nonpositive="clip")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter(NullFormatter())
        margin = (high / low) ** 0.06
        axis.set_ylim(low / margin, high * margin)
    else:
        is_flat = high - low <= 1e-6 * abs(high)  # as of a single epoch
        margin = 0.06 * (max(abs(high), 1e-12) if is_flat else high - low)
        axis.set_ylim(low - margin, high + margin)


def dress(axis: Any) -> None:
    """A faint grid, and no box."""
    axis.grid(color="#dddddd", linewidth=0.7)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def draw_constant(axis: Any, loss: float) -> None:
    """The loss of the same prediction everywhere, on a framed axis; with a name for the legend
    where it is within the frame."""
    line = axis.axhline(loss, color="#444444", linewidth=1, linestyle="-.", zorder=1)
    low, high = axis.get_ylim()
    if low <= loss <= high:
        line.set_label("constant guess")
