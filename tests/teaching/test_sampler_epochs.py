"""Whose word counts for the epoch that a sampler serves."""

import math

import pytest
import torch

from grant_fast.errors import InputError
from grant_fast.tasks import Task
from grant_fast.teaching.sampler import MODES, GraNTSampler

REGRESSION = Task("regression")


@pytest.mark.parametrize("mode", MODES)
def test_a_loader_that_counts_its_passes_does_not_move_a_selected_epoch(
    make_graphs, zero, mode
) -> None:
    """As accelerate's does, from 0, and one for each pass that was not broken off."""
    settings = {"epochs": 9, "mode": mode, "interval": 2, "predict": zero}
    plain, counted = (GraNTSampler(make_graphs(40), REGRESSION, 4, **settings) for _ in range(2))
    for passes, epoch in enumerate((4, 5, 6, 6, 8)):  # it is resumed, or some passes are broken off
        plain.select(zero, epoch)
        counted.select(zero, epoch)
        counted.set_epoch(passes)
        assert counted.epoch == epoch and list(counted) == list(plain)
    counted.set_epoch(1)  # once they are served, it may begin anew
    assert counted.epoch == 1
    counted.set_epoch(0)  # nobody has selected this one
    assert counted.epoch == 0
    counted.select(zero, 8)
    counted.load_state_dict(plain.state_dict())
    assert counted.scores is None  # those it had are another selection's
    counted.set_epoch(2)
    assert counted.epoch == 2


def test_an_epoch_whose_selection_failed_is_not_held_on_to(make_graphs) -> None:
    nan = lambda model, batch: torch.full((batch.num_graphs,), math.nan)  # noqa: E731
    sampler = GraNTSampler(make_graphs(40), REGRESSION, 4, epochs=9, predict=nan)
    with pytest.raises(InputError, match="NaN"):
        sampler.select(nan, 4)
    sampler.set_epoch(1)
    assert sampler.epoch == 1
