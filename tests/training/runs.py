"""What tests do to runs: break them off, say what validation finds, compare them."""

import pytest
import torch

from grant_fast.training.observers import Observer
from grant_fast.training.trainer import Trainer

#: Settings of a run that takes no time.
TINY = {"epochs": 3, "batch_size": 5, "hidden_channels": [4], "orders": [2, 2], "device": "cpu"}
TIMES = {"train_seconds", "selection_seconds", "valid_seconds"}


def untimed(history):
    return [{k: v for k, v in vars(record).items() if k not in TIMES} for record in history]


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


class InterruptAt(Observer):
    """Presses Ctrl-C after an epoch."""

    def __init__(self, epoch):
        self.epoch = epoch

    def epoch_done(self, record):
        if record.epoch == self.epoch:
            raise KeyboardInterrupt


def validated(run: Trainer, monkeypatch: pytest.MonkeyPatch, found: list[tuple[float, float]]):
    """The run, whose validation finds these losses and metrics, an epoch each."""
    values, evaluate = iter(found[run.epoch :]), run._evaluate
    monkeypatch.setattr(
        run, "_evaluate", lambda part: next(values) if part == "valid" else evaluate(part)
    )
    return run
