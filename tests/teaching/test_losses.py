"""Losses by graph and as sums, which add up to the loss; and what a device is asked for them."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from grant_fast.tasks import Task
from grant_fast.teaching import aligned, residuals
from grant_fast.teaching.residuals import backward_of_mean, graph_losses, loss, summed_loss
from tests.recording import Asked


@pytest.mark.parametrize("level", ["graph", "node"])
@pytest.mark.parametrize("kind", ["regression", "binary", "multilabel", "multiclass"])
def test_graph_losses_add_up_to_the_loss_and_its_gradient(kind, level):
    outputs = {"regression": 2, "binary": 1, "multilabel": 3, "multiclass": 4}[kind]
    task = Task(kind, level, outputs)
    pred = torch.randn(6, outputs, dtype=torch.float64, requires_grad=True)
    y = torch.randn(6, outputs).sign().clamp(min=0).double()
    y[0] = torch.nan
    if kind == "multiclass":
        y = torch.tensor([-100, 1, 0, 3, 2, 2])
    ptr = torch.tensor([0, 2, 2, 6]) if level == "node" else None
    losses, labels = graph_losses(pred, y, task, ptr)
    total = loss(pred, y, task, reduction="sum")
    torch.testing.assert_close(losses.sum(), total)
    columns = 1 if kind == "multiclass" else outputs
    expected = [1 * columns, 0, 4 * columns] if level == "node" else [0, *[columns] * 5]
    assert labels.tolist() == expected
    weights = torch.arange(1.0, len(losses) + 1)
    (found,) = torch.autograd.grad((weights * losses).sum(), pred, retain_graph=True)
    (plain,) = torch.autograd.grad(total, pred)
    scale = weights if ptr is None else torch.tensor([1.0, 1, 3, 3, 3, 3])
    torch.testing.assert_close(found, plain * scale[:, None])


@pytest.mark.parametrize("kind", ["regression", "binary"])
def test_a_loss_takes_a_device_few_launches(kind):
    """None to make the 0 that stands for a missing label, nor to turn round which are missing."""
    pred, y = torch.zeros(2, 5, 1, device="meta")
    with Asked() as asked:
        loss(pred, y, Task(kind))
    assert asked.launches <= 9


def asked_for(work: Callable[[], tuple[Tensor, Tensor | int]]) -> int:
    """Launches of a step by the mean of a sum, there and back."""
    with Asked() as asked:
        backward_of_mean(*work())
    return asked.launches


@pytest.mark.parametrize("kind", ["regression", "binary", "multilabel", "multiclass"])
@pytest.mark.parametrize("level", ["graph", "node"])
def test_a_sum_is_the_same_and_cheaper_where_every_label_is_measured(kind, level, monkeypatch):
    for module in (aligned, residuals):  # as of a GPU's labels
        monkeypatch.setattr(module, "may_look_at", lambda _: False)
    width = 3 if kind.startswith("multi") else 1
    task = Task(kind, level, width)
    pred, y = torch.randn(7, width), torch.randint(2, (7, width)).float()
    y = y[:, 0].long() if kind == "multiclass" else y
    complete, careful = (summed_loss(pred, y, task, complete=c) for c in (True, False))
    torch.testing.assert_close(complete[0], careful[0])
    assert complete[1] == careful[1] == y.numel()
    pred, y = pred.to("meta").requires_grad_(), y.to("meta")
    few, many = (
        asked_for(partial(summed_loss, pred, y, task, complete=complete))
        for complete in (True, False)
    )
    assert few <= 6 < many


def test_missing_labels_are_not_counted_in_a_sum():
    pred, y = torch.randn(4, 2), torch.tensor([[0.0, math.nan], [1, 1], [math.nan] * 2, [0, 1]])
    task = Task("multilabel", num_outputs=2)
    total, count = summed_loss(pred, y, task, complete=False)
    assert count == 5
    torch.testing.assert_close(total, loss(pred, y, task, "sum"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [0, 1, 3, torch.tensor(0), torch.tensor(3), torch.tensor(2.5)])
def test_the_gradient_of_a_mean_comes_from_the_sum(count, dtype):
    ours, theirs = (torch.arange(4, dtype=dtype, requires_grad=True) for _ in range(2))
    backward_of_mean(ours.square().sum(), count)
    (theirs.square().sum() / max(float(count), 1)).backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
