"""The learning rate over a run: lowered on a plateau, lifted when the teacher picks anew."""

import math
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from .config import RunConfig
from .metrics import higher_is_better

FACTOR, PATIENCE, LOWEST = 0.95, 7, 1e-5  # of the paper's code, on the OGB sets


class LearningRate:
    """Steers an optimiser's learning rate as `config.lr_schedule` and `config.lr_restart` say.

    Args:
        optimizer: its parameter groups are changed in place.
        config: the run's; "plateau" multiplies lr by 0.95 after more than 7 validations without a
            better metric, down to 1e-5.
        metric: that judges the run. Better is better by one part in 10,000; of R², which may be
            negative or 0, by 0.0001.
    """

    def __init__(self, optimizer: Optimizer, config: RunConfig, metric: str) -> None:
        self._optimizer, self._lowest_after_restart = optimizer, config.lr_restart
        self._plateau: ReduceLROnPlateau | None = None
        if config.lr_schedule == "plateau":
            self._plateau = ReduceLROnPlateau(
                optimizer,
                mode="max" if higher_is_better(metric) else "min",
                threshold_mode="abs" if metric == "r2" else "rel",
                factor=FACTOR,
                patience=PATIENCE,
                min_lr=LOWEST,
            )

    def restart(self) -> None:
        """Graphs have been selected anew: a rate below `lr_restart` is lifted to it."""
        if self._lowest_after_restart is not None:
            for group in self._optimizer.param_groups:
                group["lr"] = max(group["lr"], self._lowest_after_restart)

    def step(self, metric: float) -> None:
        """A validation has given `metric`; NaN (not measurable) changes nothing."""
        if self._plateau is not None and not math.isnan(metric):
            self._plateau.step(metric)

    def state_dict(self) -> dict[str, Any]:
        """What resuming needs beside the optimiser's state, as plain values."""
        return {} if self._plateau is None else self._plateau.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` gave; the rate itself travels in the optimiser's state."""
        if self._plateau is not None:
            self._plateau.load_state_dict(state)
