"""A whole run of a recipe, as a user runs it: selection, training, validation, checkpoints."""

import dataclasses
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from grant_fast.data.dataset import Dataset
from grant_fast.studies.recipe import load_recipe
from grant_fast.training.observers import Observer
from grant_fast.training.records import EpochRecord
from grant_fast.training.trainer import Trainer

from .settings import backend


class _OutOfTime(Exception):
    """The run was stopped; what it did until then is known."""


class _Watch(Observer):
    """Stops a run that takes too long, and keeps the last epoch's totals."""

    def __init__(self, limit: float) -> None:
        self.start, self.limit = time.perf_counter(), limit
        self.last: EpochRecord | None = None

    def epoch_done(self, record: EpochRecord) -> None:
        self.last = record
        if time.perf_counter() - self.start > self.limit:
            raise _OutOfTime


def whole_run(
    recipe: str, arm: str, dataset: Dataset, device: torch.device, limit: float, layers: str
) -> dict[str, Any]:
    """All epochs of a recipe, or as many as `limit` seconds allow, in a process that has trained
    this network before: first runs of few epochs compile what this one starts, one by the same arm
    and one on all graphs, as there are kernels for sizes that few graphs have.

    Args:
        layers: who computes them: "torch", "triton" or "auto".

    Returns:
        "seconds" of the whole by the clock, checkpoints and the test with it, "epochs" done and
        "of" how many, and how many of the seconds went into selection and validation; "test" is
        there where the run came to its end; "warnings", what it warned of, such as steps that the
        device would not record.
    """
    together = len(dataset.split["train"]) if device.type == "cuda" else None
    own = load_recipe(recipe).config
    config = dataclasses.replace(own, arm=arm, device=str(device), pass_size=together)
    out: dict[str, Any] = {"recipe": recipe, "arm": arm, "data": dataset.name, "backend": layers}
    out["normalised together"] = together or config.batch_size
    with (
        tempfile.TemporaryDirectory() as folder,
        backend(layers),
        warnings.catch_warnings(record=True) as noticed,
    ):
        warnings.simplefilter("always")
        for first in (arm, "full"):
            few = dataclasses.replace(config, arm=first, epochs=3)
            Trainer(dataset, few, Path(folder) / "first" / first).fit()
        trainer, watch = Trainer(dataset, config, Path(folder) / "run"), _Watch(limit)
        try:
            result = trainer.fit(watch)
            out |= {"metric": result.metric, "test": result.test_metric}
        except _OutOfTime:
            pass
        seconds = time.perf_counter() - watch.start
    last = watch.last
    assert last is not None, "a run has one epoch at least"
    return out | {
        "epochs": last.epoch,
        "of": config.epochs,
        "graphs seen": last.graphs_seen,
        "seconds": seconds,
        "selection seconds": last.selection_seconds,
        "validation seconds": last.valid_seconds,
        "warnings": list(dict.fromkeys(str(warning.message) for warning in noticed)),
    }
