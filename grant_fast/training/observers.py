"""Who watches a run: nobody by default, TensorBoard if asked. `console.py` shows it to people."""

from collections.abc import Sequence
from pathlib import Path

from ..errors import InputError, require
from .config import RunConfig
from .folder import BOARD
from .records import EpochRecord, RunResult


class Observer:
    """What a run tells while it goes; this one listens to nothing."""

    def kept(self) -> None:
        """A run of a comparison was finished before, and is kept."""

    def started(self, config: RunConfig, run_dir: Path, epoch: int) -> None:
        """A run begins, or goes on after `epoch` epochs."""

    def epoch_done(self, record: EpochRecord) -> None:
        """An epoch is over, validation included."""

    def finished(self, result: RunResult) -> None:
        """The run has its result."""


class Observers(Observer):
    """Several observers as one."""

    def __init__(self, members: Sequence[Observer]) -> None:
        self.members = tuple(members)

    def kept(self) -> None:
        for member in self.members:
            member.kept()

    def started(self, config: RunConfig, run_dir: Path, epoch: int) -> None:
        for member in self.members:
            member.started(config, run_dir, epoch)

    def epoch_done(self, record: EpochRecord) -> None:
        for member in self.members:
            member.epoch_done(record)

    def finished(self, result: RunResult) -> None:
        for member in self.members:
            member.finished(result)


class TensorBoard(Observer):
    """Writes every epoch's numbers as TensorBoard events beside the run's other files.

    Raises:
        MissingExtraError: the `tensorboard` extra is not installed.
        InputError: the events cannot be written, for a full disk, say.
    """

    def __init__(self) -> None:
        require("tensorboard", "tensorboard")

    def started(self, config: RunConfig, run_dir: Path, epoch: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Steps of an interrupted run beyond the checkpoint that it resumes from are hidden.
        self._writer = SummaryWriter(str(run_dir / BOARD), purge_step=epoch + 1)

    def epoch_done(self, record: EpochRecord) -> None:
        try:
            for name, value in vars(record).items():
                if name != "epoch" and value is not None:
                    self._writer.add_scalar(name, value, record.epoch)
            self._writer.flush()  # an interrupt must not lose what the checkpoint remembers
        except OSError as error:
            raise InputError(
                f"cannot write TensorBoard's events: {error.strerror or error}; free some space, "
                "or continue without TensorBoard"
            ) from error

    def finished(self, result: RunResult) -> None:
        self._writer.close()
