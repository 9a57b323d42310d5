"""What the tests of training share."""

from collections.abc import Callable
from functools import partial

import pytest

from grant_fast.teaching import aligned, residuals
from grant_fast.training import loop, recording, trainer
from grant_fast.training.config import RunConfig
from tests.recording import Tape


@pytest.fixture(scope="module", autouse=True)
def unthreaded(one_thread: None) -> None:
    """Every test here has one thread."""


@pytest.fixture
def config() -> Callable[..., RunConfig]:
    """A config for tiny runs of a teacher's arm, with any settings of one's own."""

    def make(**settings) -> RunConfig:
        small = {"epochs": 6, "batch_size": 5, "hidden_channels": (4,), "device": "cpu"}
        small["arm"] = "grant-b"
        return RunConfig(**{**small, **settings})

    return make


@pytest.fixture
def figures(monkeypatch):
    """The figures that are saved from now on, drawn."""
    figures = []

    def keep(figure, path, **_):
        figure.canvas.draw()
        figures.append(figure)

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", keep)
    return figures


@pytest.fixture
def tapes(monkeypatch):
    """All that is recorded from here on, on the CPU."""
    from grant_fast.kernels import tables  # after it is known who runs kernels here

    out = []

    def record(work, device):
        out.append(tape := Tape())
        through_it = lambda *args, **kwargs: tape.starting(partial(launch, *args, **kwargs))  # noqa: E731
        with tape, pytest.MonkeyPatch.context() as patch:
            patch.setattr(tables, "launch", through_it)
            for module in (aligned, residuals):
                patch.setattr(module, "may_look_at", lambda _: False)  # as of a GPU's labels
            result = work()
        return tape, result

    launch = tables.launch

    monkeypatch.setattr(recording, "record", record)
    for module in (trainer, loop):
        monkeypatch.setattr(module, "recording_device", lambda model: model.convs[0].weight.device)
    return out
