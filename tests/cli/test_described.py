"""What is said of the data, and of an epoch."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from grant_fast.cli.messages import described
from grant_fast.tasks import Task
from grant_fast.training.config import RunConfig
from grant_fast.training.console import _state
from tests.rings import make_dataset


@pytest.mark.parametrize(
    ("names", "said"),
    [(("a", "b"), "targets a, b"), (("a", "b", "c", "d"), "4 targets (a, b, c, …)")],
)
def test_targets_are_named(names, said):
    dataset = make_dataset()
    dataset.graphs.y = torch.randn(len(dataset.graphs), len(names))
    task = Task("regression", num_outputs=len(names), names=names)
    first, *_ = described(replace(dataset, task=task, targets=names), RunConfig(source="x.csv"))
    assert first == f"x.csv: 24 / 8 / 8 graphs (given split), {said}, regression"


@pytest.mark.parametrize(("share", "said"), [(1.0, ""), (0.4, "  share 40%")])
def test_a_share_of_all_graphs_takes_no_room(share, said):
    record = SimpleNamespace(loss=0.5, valid_metric=None, share=share)
    assert _state(record) == f"loss 0.5{said}"
