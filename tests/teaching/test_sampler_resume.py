"""A sampler stops and goes on: the same batches, or a refusal that says why."""

import io
from typing import Any

import pytest
import torch
from torch import Tensor

from grant_fast.errors import InputError
from grant_fast.tasks import Task
from grant_fast.teaching.picking import MODES
from grant_fast.teaching.sampler import GraNTSampler

REGRESSION = Task("regression")


class Learner:
    """Predictions that change from epoch to epoch, as a learning model's do."""

    def __init__(self) -> None:
        self.epoch = 0

    def __call__(self, batch: Any) -> Tensor:
        return torch.sin(batch.y.flatten() * (self.epoch + 1)) * 30


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stop", [1, 6, 13])
def test_a_resumed_run_equals_an_unbroken_one(make_graphs, mode, stop) -> None:
    graphs = make_graphs(30)
    learner = Learner()

    def make() -> GraNTSampler:
        return GraNTSampler(graphs, REGRESSION, 4, epochs=20, mode=mode, start_ratio=0.15, seed=2)

    def run(sampler: GraNTSampler, first: int, last: int) -> list[list[list[int]]]:
        seen = []
        for learner.epoch in range(first, last):
            sampler.select(learner, learner.epoch)
            seen.append(list(sampler))
        return seen

    unbroken = run(make(), 0, 20)
    first = make()
    head = run(first, 0, stop)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = make()
    second.load_state_dict(torch.load(file, weights_only=True))
    assert list(second) == head[-1]
    assert len(second) == len(first)
    assert second.selected.equal(first.selected)
    counts = [sampler.weights(sampler.selected) for sampler in (first, second)]
    assert counts[1].equal(counts[0])
    assert head + run(second, stop, 20) == unbroken


def test_a_state_before_any_selection_resumes_too(make_graphs, zero) -> None:
    def make() -> GraNTSampler:
        return GraNTSampler(make_graphs(9), REGRESSION, 4, epochs=5, predict=zero)

    sampler = make()
    sampler.load_state_dict(make().state_dict())
    with pytest.raises(InputError, match=r"sampler\.select"):
        list(sampler)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"mode": "graph"}, "mode='batch' but this one has mode='graph'"),
        ({"seed": 1}, "seed=0 but this one has seed=1"),
        ({"batch_size": 5}, "batch_size=4 but this one has batch_size=5"),
        ({"epochs": 6}, "epochs=5"),
        ({"start_ratio": 0.2}, r"start_ratio=0\.1"),
        ({"interval": 2}, "interval='curriculum'"),
        ({"ratio_schedule": "linear"}, "ratio_schedule='step'"),
        ({"residual": "raw"}, "residual='gradient'"),
        ({"ids": [0, 1, 2]}, "num_graphs=9 but this one has num_graphs=3"),
        ({"ids": [0, 1, 2, 3, 4, 5, 6, 7, 9]}, "ids_crc32"),
    ],
)
def test_a_state_of_other_settings_is_refused(make_graphs, zero, change, says) -> None:
    settings = {"batch_size": 4, "epochs": 5, "predict": zero, "ids": list(range(9))}
    graphs = make_graphs(10)
    state = GraNTSampler(graphs, REGRESSION, **settings).state_dict()
    other = GraNTSampler(graphs, REGRESSION, **{**settings, **change})
    with pytest.raises(InputError, match=says):
        other.load_state_dict(state)
    lacks = "the saved state lacks batch_of, epoch, picked, …: give what state_dict"
    for none, why in (({"weights": torch.zeros(1)}, lacks), (None, "saved state is no dict: give")):
        with pytest.raises(InputError, match=why):
            other.load_state_dict(none)


def test_a_sampler_of_all_graphs_goes_on_for_more_epochs(make_graphs) -> None:
    def make(epochs: int) -> GraNTSampler:
        return GraNTSampler(make_graphs(9), REGRESSION, 4, epochs=epochs, mode="full")

    short, long = make(5), make(50)
    for epoch in range(5):
        short.select(None, epoch)
        long.select(None, epoch)
    longer = make(50)
    longer.load_state_dict(short.state_dict())
    for epoch in range(5, 50):
        longer.select(None, epoch)
        long.select(None, epoch)
        assert list(longer) == list(long)
