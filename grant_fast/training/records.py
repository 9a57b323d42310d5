"""What a run leaves behind: one record for each epoch, one result, and the files they live in."""

import csv
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import atomic_write_csv, atomic_write_text

RESULT_FILE = "result.json"
METRICS_FILE = "metrics.csv"
#: What result.json says besides the result: what it was learned from, and what it was made on.
DATA, MADE_ON = "data", "made_on"
CHECKSUM = "checksum"  # within the former, see `Dataset.checksum`


@dataclass(frozen=True)
class EpochRecord:
    """The state of a run after an epoch; seconds and graphs are totals since its start.

    Args:
        epoch: how many epochs are done, from 1.
        share: selected share of the training graphs, in [0, 1].
        graphs_seen: graph visits (forward and backward); scoring passes are not visits.
        train_seconds: wall time of training, selection included and validation not.
        selection_seconds: the part of `train_seconds` that went to selecting.
        valid_seconds: wall time of validation.
        loss: mean training loss of the epoch, over what was selected.
        valid_loss: mean loss over the validation split; None where not evaluated.
        valid_metric: the true metric over the validation split; None where not evaluated.
    """

    epoch: int
    share: float
    graphs_seen: int
    train_seconds: float
    selection_seconds: float
    valid_seconds: float
    loss: float
    valid_loss: float | None
    valid_metric: float | None


@dataclass(frozen=True)
class RunResult:
    """What came out of a finished run.

    Args:
        arm: who picked the graphs; "full-equal-budget" for the control of that name.
        seed: the run's seed.
        metric: name of the metric, higher or lower being better as `higher_is_better` says.
        test_metric: of the weights that were best by validation; None where not measurable.
        test_metric_last, test_loss: of the last weights; of the best ones.
        valid_metric, best_epoch: the best validation metric, and when.
        epochs, graphs_seen, train_seconds, selection_seconds, valid_seconds: totals, as in
            `EpochRecord`.
        constant_loss: validation loss of always predicting the training mean (or base rate): what
            a model that has learned nothing reaches.
        test_metrics: all metrics that fit the task, of the weights that were best by validation; of
            several regressions `metric` and R², of more than 1,000 classes `metric` and accuracy.
        test_metrics_each: where there are several targets, all metrics that fit of each; of the
            run's own, `test_metric` is the mean over the targets that could be measured.
        constant_metric: `test_metric` of the same prediction everywhere: of the training targets
            the median for "mae", else the mean, and for classes their rates.
        constant_metrics: the same for each of `test_metrics`.
    """

    arm: str
    seed: int
    metric: str
    higher_is_better: bool
    test_metric: float | None
    test_metric_last: float | None
    test_loss: float | None
    valid_metric: float | None
    best_epoch: int
    epochs: int
    graphs_seen: int
    train_seconds: float
    selection_seconds: float
    valid_seconds: float
    constant_loss: float | None
    test_metrics: dict[str, float | None] = field(default_factory=dict)
    test_metrics_each: dict[str, dict[str, float | None]] = field(default_factory=dict)
    constant_metric: float | None = None
    constant_metrics: dict[str, float | None] = field(default_factory=dict)

    def beats_constant(self, test_metric: float | None) -> bool:
        """Whether a value of the metric is better than that of a constant, if both are known."""
        if test_metric is None or self.constant_metric is None:
            return True
        gain = test_metric - self.constant_metric
        return gain > 0 if self.higher_is_better else gain < 0


@dataclass(frozen=True)
class Run:
    """A finished run: its result and its history."""

    result: RunResult
    history: tuple[EpochRecord, ...]


def known(value: float) -> float | None:
    """A number; NaN and infinity, which JSON cannot hold, as None."""
    return value if math.isfinite(value) else None


def all_known(values: Mapping[str, float]) -> dict[str, float | None]:
    """Numbers by name, each as `known` has it."""
    return {name: known(value) for name, value in values.items()}


def write_history(run_dir: Path, history: Sequence[EpochRecord]) -> None:
    """Write metrics.csv, one row for each epoch, atomically."""
    names = [spec.name for spec in dataclasses.fields(EpochRecord)]
    atomic_write_csv(run_dir / METRICS_FILE, names, (vars(record).values() for record in history))


def write_result(
    run_dir: Path, result: RunResult, data: dict[str, Any], made_on: dict[str, Any]
) -> None:
    """Write result.json, atomically; its presence says that the run is finished."""
    about = {DATA: data, MADE_ON: made_on}
    text = json.dumps(dataclasses.asdict(result) | about, indent=2, ensure_ascii=False)
    atomic_write_text(run_dir / RESULT_FILE, text + "\n")


def is_finished(run_dir: Path) -> bool:
    """Whether the run in this folder has come to its end, and what came out can be read."""
    try:
        read_run(run_dir)
    except InputError:
        return False
    return True


def checksum_in(run_dir: Path) -> int | None:
    """The checksum of the data of the finished run in a folder; None where that is not known."""
    try:
        found = json.loads((run_dir / RESULT_FILE).read_text(encoding="utf-8"))
        return found[DATA].get(CHECKSUM)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def read_run(run_dir: Path) -> Run:
    """The finished run in a folder.

    Raises:
        InputError: a file is missing or was not written by this version.
    """
    try:
        found = json.loads((run_dir / RESULT_FILE).read_text(encoding="utf-8"))
        result = RunResult(**{name: found[name] for name in found if name not in (DATA, MADE_ON)})
        with open(run_dir / METRICS_FILE, newline="", encoding="utf-8") as file:
            history = tuple(_record(row) for row in csv.DictReader(file))
    except (OSError, ValueError, TypeError, LookupError, RecursionError, csv.Error) as error:
        raise InputError(f"{run_dir}: not a finished run ({error}); train it again") from error
    return Run(result, history)


def _record(row: dict[str, Any]) -> EpochRecord:
    values: dict[str, Any] = {}
    for spec in dataclasses.fields(EpochRecord):
        text = row[spec.name]
        values[spec.name] = None if text == "" else int(text) if spec.type is int else float(text)
    return EpochRecord(**values)
