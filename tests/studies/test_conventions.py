"""The published averages, by hand and against the truth they hide."""

import math

import pytest
import torch

from grant_fast.errors import InputError
from grant_fast.studies.conventions import CONVENTIONS, published_metric, true_from_published
from grant_fast.tasks import Task
from grant_fast.training.metrics import evaluate


def test_a_sum_of_batch_means_over_the_number_of_graphs_is_the_truth_over_the_batch_size():
    pred, y = torch.zeros(5, 1), torch.tensor([[1.0], [3.0], [2.0], [4.0], [10.0]])
    task = Task("regression")
    found = published_metric("sum_over_batches_per_graph", "mae", pred, y, task, [2, 2, 1], 5)
    assert found == pytest.approx((2 + 3 + 10) / 5)
    again = true_from_published("sum_over_batches_per_graph", found, 5, 2)
    assert again == pytest.approx((2 + 3 + 10) / 3)  # the mean of batch means; the truth is 4


def test_a_mean_over_batches_leaves_out_those_of_one_class():
    pred = torch.tensor([[1.0], [2.0], [0.0], [5.0], [6.0], [7.0]])
    y = torch.tensor([[0.0], [1.0], [1.0], [0.0], [1.0], [1.0]])
    task = Task("binary")
    found = published_metric("mean_of_batches", "roc_auc", pred, y, task, [2, 2, 2], 6)
    assert found == pytest.approx((1.0 + 0.0) / 2)
    assert evaluate("roc_auc", pred, y, task) == pytest.approx(0.625)
    assert true_from_published("mean_of_batches", 0.9, 6, 2) is None


def test_the_whole_split_is_the_true_metric():
    pred, y, task = torch.randn(9, 1), (torch.arange(9) % 2).float()[:, None], Task("binary")
    found = published_metric("whole_split", "roc_auc", pred, y, task, [4, 5], 9)
    assert found == evaluate("roc_auc", pred, y, task)
    assert true_from_published("whole_split", 0.75, 9, 4) == 0.75


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_what_cannot_be_measured_is_nan(convention):
    pred, y = torch.zeros(4, 1), torch.zeros(4, 1)
    found = published_metric(convention, "roc_auc", pred, y, Task("binary"), [2, 2], 4)
    assert math.isnan(found)


def test_an_unknown_convention_is_refused():
    with pytest.raises(InputError, match="unknown convention 'median'"):
        published_metric("median", "mae", torch.zeros(1), torch.zeros(1), Task("regression"), [], 0)
