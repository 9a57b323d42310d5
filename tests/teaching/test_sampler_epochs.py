"""Whose word counts for the epoch that a sampler serves, and which selection it uses."""

import math
from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor

from grant_fast.errors import InputError
from grant_fast.tasks import Task
from grant_fast.teaching.picking import MODES, SCORED
from grant_fast.teaching.sampler import GraNTSampler
from grant_fast.teaching.schedules import ratio_at

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


@pytest.mark.parametrize("mode", MODES)
def test_batches_are_the_served_lists_as_tensors(make_graphs, zero, mode) -> None:
    settings = {"epochs": 9, "mode": mode, "interval": 2, "predict": zero}
    sampler = GraNTSampler(make_graphs(40), REGRESSION, 4, **settings)
    sampler.select(zero, 4)
    batches = list(sampler.batches())
    assert all(batch.dtype == torch.int64 for batch in batches)
    assert [batch.tolist() for batch in batches] == list(sampler) != []


def test_batches_need_a_selection_and_are_watched(make_graphs, zero) -> None:
    sampler = GraNTSampler(make_graphs(40), REGRESSION, 4, epochs=9, predict=zero)
    with pytest.raises(InputError, match="select"):
        next(sampler.batches())
    sampler.select(zero, 0)
    for _ in range(4):
        list(sampler.batches())
    with pytest.warns(UserWarning, match="served for the fifth time") as told:
        list(sampler.batches())
    assert told[0].filename == __file__


@pytest.mark.parametrize("mode", SCORED)
def test_a_loop_that_counts_from_1_is_told_so_at_once(make_graphs, zero, mode) -> None:
    make = lambda: GraNTSampler(  # noqa: E731
        make_graphs(40), REGRESSION, 4, epochs=9, mode=mode, interval=1, predict=zero
    )
    with pytest.warns(UserWarning, match="counts from 1 gives epoch - 1") as warned:
        make().select(zero, 1)
    assert [warning.filename for warning in warned] == [__file__]
    sampler, resumed = make(), make()
    for epoch in (0, 1, 2):
        sampler.select(zero, epoch)
    sampler.select(zero, 0)
    resumed.load_state_dict(sampler.state_dict())
    resumed.select(zero, 1)


def test_an_epoch_whose_selection_failed_is_not_held_on_to(make_graphs) -> None:
    nan = lambda model, batch: torch.full((batch.num_graphs,), math.nan)  # noqa: E731
    sampler = GraNTSampler(make_graphs(40), REGRESSION, 4, epochs=9, predict=nan)
    with pytest.raises(InputError, match="NaN"):
        sampler.select(nan, 4)
    sampler.set_epoch(1)
    assert sampler.epoch == 1


@pytest.mark.parametrize("mode", SCORED)
def test_between_selections_the_teacher_does_nothing(make_graphs, zero, mode) -> None:
    looks = []

    def predict(model: Any, batch: Any) -> Tensor:
        looks.append(batch.num_graphs)
        return zero(model, batch)

    sampler = GraNTSampler(
        make_graphs(20), REGRESSION, 2, epochs=10, mode=mode, interval=4, predict=predict
    )
    changed = [sampler.select(zero, epoch) for epoch in range(10)]
    assert [epoch for epoch, change in enumerate(changed) if change] == [0, 4, 8]
    assert sum(looks) == 3 * 20  # one look at each graph for each selection


def test_batches_that_are_all_kept_are_dealt_anew_and_not_scored(make_graphs) -> None:
    sampler = GraNTSampler(
        make_graphs(20),
        REGRESSION,
        8,
        epochs=10,
        start_ratio=0.7,
        interval=4,
        ratio_schedule="constant",
    )
    assert sampler.select(None, 0)  # 2.1 of 3 batches
    first = [sorted(batch) for batch in sampler]
    assert not sampler.select(None, 1)
    assert sorted(chain.from_iterable(first)) == sampler.selected.tolist() == list(range(20))
    assert sampler.scores is None and [sorted(batch) for batch in sampler] != first


@pytest.mark.parametrize("mode", SCORED)
def test_a_missed_selection_is_refused_and_then_made_up_for(make_graphs, zero, mode) -> None:
    sampler = GraNTSampler(
        make_graphs(40),
        REGRESSION,
        8,
        epochs=20,
        mode=mode,
        interval=5,
        ratio_schedule="linear",
        predict=zero,
    )
    with pytest.raises(InputError, match=r"selection of epoch 0.*call sampler\.select\(model, 0\)"):
        list(sampler)
    with pytest.raises(InputError, match="was not made"):
        _ = sampler.selected
    sampler.select(zero, 0)
    at_first = sampler.selected
    sampler.set_epoch(12)
    with pytest.raises(InputError, match=r"epoch 12 uses the selection of epoch 10.*model, 12\)"):
        list(sampler)
    assert sampler.select(zero, 12)
    made_up = sampler.selected
    assert not sampler.select(zero, 13)
    assert sampler.select(zero, 10)
    assert sampler.selected.equal(made_up)
    assert sampler.ratio == ratio_at(10, 20, 0.1, "linear")
    assert sampler.select(zero, 0)  # a run begun again selects again
    assert sampler.selected.equal(at_first)


@pytest.mark.parametrize("mode", [*SCORED, "random"])
def test_a_late_selection_is_that_of_its_epoch_and_the_next_is_drawn_anew(
    make_graphs, zero, mode
) -> None:
    settings = {"mode": mode, "interval": 4, "ratio_schedule": "constant", "start_ratio": 0.3}
    graphs = make_graphs(60)
    on_time, late = (
        GraNTSampler(graphs, REGRESSION, 4, epochs=12, predict=zero, **settings) for _ in range(2)
    )
    on_time.select(zero, 4)
    late.select(zero, 6)
    assert late.selected.equal(on_time.selected)
    late.select(zero, 8)
    assert late.selected.equal(on_time.selected) is (mode == "global")  # which knows no chance
