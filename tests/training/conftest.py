"""What the tests of training share."""

from collections.abc import Callable

import pytest

from grant_fast.training.config import RunConfig


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
