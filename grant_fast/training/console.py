"""A run, shown to people: a bar where somebody watches, a line now and then where nobody does."""

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from ..progress import LINE_EVERY_SECONDS
from .config import NETWORKS, RunConfig
from .observers import Observer
from .records import EpochRecord, RunResult


class ConsoleObserver(Observer):
    """Shows loss, metric and selected share while runs go on, and a line when one is done.

    Use it as a context manager, so that the bar is taken away whatever happens.

    Args:
        console: where to show it; stderr by convention, results belong on stdout.
        num_runs: how many runs will be shown, for "2/12".
        about: lines to begin with, once the first run has found nothing to refuse.
    """

    def __init__(self, console: Console, num_runs: int = 1, about: Sequence[str] = ()) -> None:
        self._about = about
        self._console, self._num_runs, self._run = console, num_runs, 0
        self._bar = Progress(
            SpinnerColumn("line"),  # an epoch may take a while
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.completed:.0f}/{task.total:.0f} epochs  {task.fields[state]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> "ConsoleObserver":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def kept(self) -> None:
        self._run += 1

    def started(self, config: RunConfig, run_dir: Path, epoch: int) -> None:
        for line in self._about:
            self._print(line)
        self._about = ()
        self._run += 1
        count = f"{self._run}/{self._num_runs} " if self._num_runs > 1 else ""
        network = NETWORKS[config.network]
        named = f"{network}, {config.label}" if network else config.label
        self._name = f"{count}{named}, seed {config.seed}"
        self._epochs, self._last_line = config.epochs, time.monotonic()
        self._patience, self._eval_every = config.patience, config.eval_every
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(
            self._name, total=config.epochs, completed=epoch, state="starting"
        )

    def epoch_done(self, record: EpochRecord) -> None:
        state = _state(record)
        assert self._task is not None
        self._bar.update(self._task, completed=record.epoch, state=state)
        overdue = time.monotonic() - self._last_line > LINE_EVERY_SECONDS
        if not self._console.is_terminal and overdue:
            self._last_line = time.monotonic()
            self._print(f"{self._name}: epoch {record.epoch}/{self._epochs}  {state}")

    def finished(self, result: RunResult) -> None:
        assert self._task is not None
        self._bar.update(self._task, state="writing what came out")
        value = "–" if result.test_metric is None else f"{result.test_metric:.4g}"
        early, n = "", self._patience
        ran_out = n is not None and result.epochs - result.best_epoch >= n * self._eval_every
        if ran_out and result.epochs < self._epochs:
            early = f", stopped after epoch {result.epochs}: no better for {n} validation"
            early += "s" * (n != 1)
        self._print(
            f"{self._name}: test {result.metric} {value}, {result.train_seconds:.1f} s of "
            f"training, {result.graphs_seen:,} graphs seen{early}"
        )

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


def _state(record: EpochRecord) -> str:
    metric = "" if record.valid_metric is None else f"  valid {record.valid_metric:.4g}"
    share = "" if record.share == 1 else f"  share {record.share:.0%}"
    return f"loss {record.loss:.4g}{metric}{share}"
