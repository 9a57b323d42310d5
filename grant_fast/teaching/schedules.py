"""The curriculum: how large a share of the graphs to teach, and at which epochs to pick anew.

Pure functions of the epoch, with no hidden state: a resumed run sees what an unbroken one sees.
Epochs count from 0. The paper's appendix on graph-level tasks says that the share begins at
`start_ratio` and that selections grow rarer over 50 stages; the formulas are its published code's.
"""

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral, Real
from typing import Literal

from ..errors import InputError, whole_number

RatioSchedule = Literal["step", "linear", "cosine", "constant"]
Interval = Literal["curriculum"] | int

STAGES = 50  # steps of the share, as in the published code
SHORTEST, LONGEST = 5, 50  # epochs between two selections, at the start and towards the end

# How far the share has come from its start (0) towards all graphs (1), at epoch t of T.
_PROGRESS: dict[str, Callable[[int, int], float]] = {
    "step": lambda t, T: (t * STAGES // T) / STAGES,
    "linear": lambda t, T: t / T,
    "cosine": lambda t, T: (1 - math.cos(math.pi * t / T)) / 2,
    "constant": lambda t, T: 0.0,
}


def ratio_at(
    epoch: int, epochs: int, start_ratio: float, schedule: RatioSchedule = "step"
) -> float:
    """The share of the graphs that a selection made at `epoch` picks.

    "step" climbs from `start_ratio` towards 1 in 50 equal stages, as in the paper's published code;
    "linear" and "cosine" climb smoothly, and "constant" stays at `start_ratio`.

    Raises:
        InputError: unknown schedule, fewer than one epoch, epoch outside the run, or a
            `start_ratio` outside (0, 1].
    """
    _check_run(epochs, start_ratio)
    if not 0 <= epoch < epochs:
        raise InputError(f"epoch {epoch} is outside this run's 0..{epochs - 1}: raise epochs")
    if schedule not in _PROGRESS:
        known = ", ".join(_PROGRESS)
        raise InputError(f"unknown ratio schedule {schedule!r}: choose one of {known}")
    return min(start_ratio + (1 - start_ratio) * _PROGRESS[schedule](epoch, epochs), 1.0)


def selection_epochs(
    epochs: int, start_ratio: float, interval: Interval = "curriculum"
) -> tuple[int, ...]:
    """Every epoch at which the teacher picks anew, ascending; the first is always 0.

    "curriculum": every epoch during the first `start_ratio` share of the T epochs, and from there a
    selection at epoch t is followed by the next at t + 5 + ⌊45·t/T⌋. (The paper's published code
    counts these intervals from epoch 0, and so keeps selecting at every epoch a little longer,
    until its count has caught up.) An integer is a fixed interval in epochs.

    Raises:
        InputError: unknown or non-positive interval, fewer than one epoch, or a `start_ratio`
            outside (0, 1].
    """
    _check_run(epochs, start_ratio)
    if isinstance(interval, Integral):
        return tuple(range(0, epochs, whole_number("interval", interval)))
    if interval != "curriculum":
        raise InputError(f"unknown interval {interval!r}: give 'curriculum' or a number of epochs")
    startup = int(_exact(start_ratio * epochs))
    chosen, epoch = [], 0
    while epoch < epochs:
        chosen.append(epoch)
        epoch += 1 if epoch < startup else SHORTEST + (LONGEST - SHORTEST) * epoch // epochs
    return tuple(chosen)


def share_size(ratio: float, total: int) -> int:
    """How many things a share of them, above 0, is: ⌈ratio · total⌉, 1 or more of any."""
    return min(max(math.ceil(_exact(ratio * total)), 1), total)


@dataclass(frozen=True)
class Curriculum:
    """The two schedules of one run together: when the teacher picks, and how much.

    Args:
        epochs: length of the run.
        start_ratio: the share to begin with, above 0 and at most 1.
        ratio_schedule: as in `ratio_at`.
        interval: as in `selection_epochs`.

    Raises:
        InputError: as those do, at once.
    """

    epochs: int
    start_ratio: float = 0.1
    ratio_schedule: RatioSchedule = "step"
    interval: Interval = "curriculum"

    def __post_init__(self) -> None:
        self.ratio(0)
        plain = int if isinstance(self.interval, Integral) else str.__str__
        for name, kind in (
            ("epochs", int),
            ("start_ratio", float),
            ("ratio_schedule", str.__str__),
            ("interval", plain),
        ):  # of NumPy's, or an enum's: a saved state holds plain ones
            object.__setattr__(self, name, kind(getattr(self, name)))

    @cached_property
    def selection_epochs(self) -> tuple[int, ...]:
        """Every epoch at which the teacher picks anew, ascending from 0."""
        return selection_epochs(self.epochs, self.start_ratio, self.interval)

    def last_selection(self, epoch: int) -> int:
        """The epoch whose selection `epoch` uses: itself, or the selection epoch before it."""
        return self.selection_epochs[bisect_right(self.selection_epochs, epoch) - 1]

    def ratio(self, epoch: int) -> float:
        """The share that `epoch` uses: that of its last selection."""
        at = self.last_selection(epoch)
        return ratio_at(at, self.epochs, self.start_ratio, self.ratio_schedule)


def _exact(product: float) -> float:
    """Undo the last-bit noise of a decimal share, so that 7% of 100 is 7 and not a bit more."""
    return round(product, 6)


def _check_run(epochs: int, start_ratio: float) -> None:
    whole_number("epochs", epochs)
    if not isinstance(start_ratio, Real) or not 0 < start_ratio <= 1:
        raise InputError(f"start_ratio={start_ratio!r}: give a number above 0 and at most 1")
