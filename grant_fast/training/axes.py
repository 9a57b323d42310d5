"""How the axes of a picture look, and what of the values they show."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def frame(axis: Any, values: Sequence[float | None]) -> None:
    """Vertical limits within which every curve can be read.

    A wild first epoch runs out of the frame. Values that span more than a factor of ten, as where
    one arm diverges, get a logarithmic axis.
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    known = np.array([value for value in values if value is not None and np.isfinite(value)])
    if not len(known):
        return
    low, high = np.quantile(known, [0.005, 0.97])
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
