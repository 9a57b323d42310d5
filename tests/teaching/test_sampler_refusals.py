"""What a sampler refuses, before any work is lost."""

import math

import pytest
import torch
from torch import nn

from grant_fast.errors import InputError
from grant_fast.tasks import Task
from grant_fast.teaching import loss
from grant_fast.teaching.sampler import GraNTSampler

REGRESSION = Task("regression")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"batch_size": 0}, "batch_size=0: give a whole number of at least 1"),
        ({"batch_size": 2.5}, "batch_size=2.5: give a whole number"),
        ({"seed": None}, "seed=None: give a whole number of at least 0"),
        ({"score_batch_size": -1}, "score_batch_size=-1"),
        ({"mode": "grant-b"}, r"'grant-b': choose one of batch \(the paper's B\), graph \(the pap"),
        ({"task": "binary"}, r"task is 'binary': give a Task, e\.g\. Task"),
        ({"ratio_schedule": "stairs"}, "'stairs'"),
        ({"residual": "logit"}, "'logit'"),
        ({"epochs": -1}, "epochs=-1"),
        ({"interval": True}, "interval=True: give a whole number"),
        ({"start_ratio": 1.01}, r"start_ratio=1\.01"),
        ({"seed": -1}, "seed=-1"),
        ({"ids": []}, "no graphs to train on"),
        ({"ids": [0, 12]}, "there is no graph 12: this dataset holds 9 graphs"),
        ({"ids": [-10, 2]}, "there is no graph -10: this dataset holds 9 graphs"),
        ({"ids": [-1, 8]}, "ids contains 8 more than once"),
        ({"ids": [1, 2, 1]}, "ids contains 1 more than once"),
        ({"ids": {4, 2}}, r"\{2, 4\} is not a list of graph positions"),
        ({"ids": torch.ones(8, dtype=torch.bool)}, "give one bool for each of the 9 graphs"),
        ({"ids": [False] * 9}, "no graphs to train on"),
        ({"collate": "list"}, "collate='list': give a function of a list of graphs, or None"),
        ({"predict": "logits"}, r"predict='logits': give a function of \(model, batch\)"),
    ],
)
def test_nonsense_is_named(make_graphs, settings: dict, says: str) -> None:
    with pytest.raises(InputError, match=says):
        GraNTSampler(
            make_graphs(9), **{"task": REGRESSION, "batch_size": 4, "epochs": 5, **settings}
        )


def test_one_graph_is_no_data_set() -> None:
    # PyG's graphs have a length and []: how many attributes they have, and those by name.
    data = pytest.importorskip("torch_geometric.data").Data(x=torch.ones(3, 1), y=torch.ones(3))
    with pytest.raises(InputError, match=r"a Data is one graph, not a data set: give \[data\]"):
        GraNTSampler(data, REGRESSION, 4, epochs=5)


def test_arguments_in_the_other_order_are_named(make_graphs) -> None:
    sampler = GraNTSampler(make_graphs(9), REGRESSION, 4, epochs=5)
    with pytest.raises(InputError, match="epoch is Identity: give a whole number from 0 to 4"):
        sampler.select(0, nn.Identity())


def test_an_epoch_outside_the_run_and_a_missing_model_are_named(make_graphs) -> None:
    sampler = GraNTSampler(make_graphs(9), REGRESSION, 4, epochs=5)
    with pytest.raises(InputError, match=r"outside this run's 0\.\.4: epochs count from 0"):
        sampler.select(nn.Identity(), 5)
    with pytest.raises(InputError, match="epoch -1"):
        sampler.set_epoch(-1)
    for strange, shown in (("a", "'a'"), (0.5, r"0\.5"), (None, "None")):
        with pytest.raises(InputError, match=f"epoch is {shown}: give a whole number from 0 to 4"):
            sampler.select(nn.Identity(), strange)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="mode 'batch' scores graphs with the model"):
        sampler.select(None, 0)


@pytest.mark.parametrize(
    "anew",
    [
        {"score_batch_size": 0},
        {"score_batch_size": 2.5},
        {"task": "regression"},
        {"residual": "logit"},
        {"collate": 3},
        {"predict": 5},
        {"predict": len, "score": len},
    ],
    ids=str,
)
def test_what_was_set_anew_is_looked_at_before_it_is_scored_by(anew, make_graphs, zero) -> None:
    sampler = GraNTSampler(make_graphs(20), REGRESSION, 8, epochs=4, mode="global")
    for name, value in anew.items():
        setattr(sampler, name, value)
    with pytest.raises(InputError):
        sampler.select(zero, 0)


def test_a_nan_model_stops_with_a_clear_error_and_changes_nothing(make_graphs, zero) -> None:
    sampler = GraNTSampler(make_graphs(20), REGRESSION, 8, epochs=4, interval=1, predict=zero)
    sampler.select(zero, 0)
    before = sampler.selected
    sampler.predict = lambda model, batch: torch.full((batch.num_graphs,), math.nan)
    with pytest.raises(InputError, match=r"position 0 is NaN.*lower the learning rate"):
        sampler.select(zero, 1)
    assert sampler.selected.equal(before)
    with pytest.raises(InputError, match="was not made"):
        list(sampler)


def test_an_epoch_that_stands_for_those_after_it_is_warned_of(make_graphs) -> None:
    sampler = GraNTSampler(make_graphs(9), REGRESSION, 4, epochs=20, mode="random")
    for epoch in range(0, 8, 4):
        if epoch:
            with pytest.warns(
                UserWarning, match="epoch 0 was served 4 times, and the next one is 4"
            ):
                sampler.select(None, epoch)
        else:
            sampler.select(None, epoch)
        for _ in range(4):
            list(sampler)
    sampler.select(None, 9)  # of a run that was broken off, say


def test_a_multiclass_task_of_one_output_is_a_binary_one() -> None:
    task = Task("multiclass", num_outputs=2)
    with pytest.raises(InputError, match=r'or make the task Task\("binary"\), of labels 0 and 1$'):
        loss(torch.randn(4, 1), torch.tensor([0, 1, 1, 0]), task)


def test_an_epoch_that_is_served_again_and_again_is_warned_of(make_graphs) -> None:
    sampler = GraNTSampler(make_graphs(9), REGRESSION, 4, epochs=5, mode="random")
    sampler.select(None, 0)
    first = list(sampler)
    for _ in range(3):  # to measure something, say, zipped with a loader
        assert list(sampler) == first
    with pytest.warns(
        UserWarning, match=r"epoch 0 is being served for the fifth time.*call sampler\.sel"
    ):
        assert list(sampler) == first
    list(sampler)  # once is enough
    for epoch in (1, 2):
        sampler.select(None, epoch)
        list(sampler), list(sampler), list(sampler), list(sampler)
