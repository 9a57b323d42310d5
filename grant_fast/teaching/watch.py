"""What a sampler notices of the loop that it serves: passes and lengths that cannot be meant."""

import math
import warnings
from collections.abc import Iterator

from torch import Tensor

#: A second pass over an epoch may measure something, and who zips loader and sampler makes each
#: twice; a fifth is of an epoch that was not begun.
_TOO_MANY_PASSES = 5
_FEW_PASSES = 2  # of an epoch, after which some may be left out on purpose


class Watch:
    """Warns of epochs counted from 1, of one that is served over and over, of a kept length."""

    def __init__(self) -> None:
        self._told: float = math.inf  # the least length that was told
        self._told_anew = False  # in this epoch
        self._served = 0, 0  # batches of the last epoch, and how many it had
        self._passes = 0  # over this epoch

    def begins(self, epoch: int) -> None:
        """The first selection of all: who counts from 1 would learn of it after the last."""
        if epoch == 1:
            warnings.warn(
                "the first epoch that is selected for is 1, but epochs count from 0: a loop that "
                "counts from 1 gives epoch - 1 (a resumed run first loads the sampler's state, and "
                "one sampler serves all epochs of a run)",
                stacklevel=3,
            )

    def tells(self, length: int) -> int:
        """The length, which somebody asks for."""
        self._told, self._told_anew = min(self._told, length), True
        return length

    def serves(self, batches: list[Tensor], epoch: int) -> Iterator[Tensor]:
        """Pass the batches of an epoch on."""
        self._passes += 1
        if self._passes == _TOO_MANY_PASSES:
            warnings.warn(
                f"epoch {epoch} is being served for the fifth time, with the same graphs in the "
                "same order: call sampler.select(model, epoch) at the start of every epoch",
                stacklevel=3,
            )
        for count, batch in enumerate(batches, start=1):
            self._served = count, len(batches)
            yield batch

    def leaves(self, epoch: int, following: int) -> None:
        """The epoch is over: it may have ended early because its length was not asked for anew, or
        stood for all up to the one that follows."""
        if _FEW_PASSES < following - epoch <= self._passes:
            warnings.warn(
                f"epoch {epoch} was served {self._passes} times, and the next one is {following}: "
                "call sampler.select(model, epoch) at the start of every epoch, also of those in "
                "which it picks nothing anew",
                stacklevel=4,
            )
        served, length = self._served
        if self._told <= served < length and not self._told_anew:
            warnings.warn(
                f"epoch {epoch} served {served} of its {length} batches, and len() was once "
                f"{self._told}: if that length was kept, ask for it again after each select. "
                "Lightning's Trainer keeps it: give it reload_dataloaders_every_n_epochs=1, and "
                "call select in train_dataloader",
                stacklevel=4,
            )
            self._told = math.inf
        self._served, self._passes, self._told_anew = (0, 0), 0, False
