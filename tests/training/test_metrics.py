"""Metrics against scikit-learn, on random and on degenerate inputs."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grant_fast.errors import InputError
from grant_fast.tasks import Task
from grant_fast.training.metrics import (
    accuracy,
    average_precision,
    evaluate,
    evaluate_each,
    higher_is_better,
    mae,
    r2,
    rmse,
    roc_auc,
)

sk = pytest.importorskip("sklearn.metrics")

EVERY = ["mae", "rmse", "r2", "roc_auc", "ap", "accuracy"]
RANKED = [(roc_auc, sk.roc_auc_score), (average_precision, sk.average_precision_score)]
# Few distinct values, so that ties are the rule; large ones, whose sigmoids would all be 1.
SCORES = st.sampled_from([-1e30, -3.0, -0.0, 0.0, 0.5, 40.0, 41.0, 1e4])
ROWS = st.lists(st.tuples(SCORES, st.sampled_from([0.0, 1.0, math.nan])), min_size=1, max_size=40)


def column(values):
    return torch.tensor(values, dtype=torch.float32).reshape(-1, 1)


@pytest.mark.parametrize(("ours", "theirs"), RANKED, ids=["roc_auc", "ap"])
@settings(deadline=None)
@given(rows=ROWS)
def test_ranked_metrics_equal_scikit_learn_with_ties_and_unmeasured_rows(ours, theirs, rows):
    pred, y = (column(side) for side in zip(*rows, strict=True))
    kept = ~y.isnan()
    if len(y[kept].unique()) < 2:
        assert math.isnan(ours(pred, y))
    else:
        assert float(ours(pred, y)) == pytest.approx(theirs(y[kept], pred[kept]), abs=1e-6)


@pytest.mark.parametrize(("ours", "theirs"), RANKED, ids=["roc_auc", "ap"])
def test_several_labels_are_averaged_over_those_with_both_classes(ours, theirs):
    generator = torch.Generator().manual_seed(0)
    pred = torch.randn(501, 5, generator=generator)
    y = (torch.rand(501, 5, generator=generator) < 0.2).float()
    y[torch.rand(501, 5, generator=generator) < 0.3] = torch.nan
    y[:, 1] = 1.0
    y[:, 3] = torch.nan
    kept = ~y.isnan()
    expected = np.mean([theirs(y[kept[:, t], t], pred[kept[:, t], t]) for t in (0, 2, 4)])
    assert float(ours(pred, y)) == pytest.approx(expected, abs=1e-9)


@settings(deadline=None, max_examples=50)
@given(
    rows=st.lists(
        st.tuples(st.floats(-1e3, 1e3, width=32), st.floats(-1e3, 1e3, width=32)),
        min_size=1,
        max_size=30,
    )
)
def test_regression_metrics_equal_scikit_learn(rows):
    pred, y = (column(side) for side in zip(*rows, strict=True))
    exact = y.double(), pred.double()
    assert float(mae(pred, y)) == pytest.approx(sk.mean_absolute_error(*exact), abs=1e-6)
    assert float(rmse(pred, y)) == pytest.approx(sk.root_mean_squared_error(*exact), abs=1e-6)
    if len(y.unique()) > 1:
        assert float(r2(pred, y)) == pytest.approx(sk.r2_score(*exact), rel=1e-6, abs=1e-6)
    else:
        assert math.isnan(r2(pred, y))


def test_every_target_by_itself_is_what_the_mean_is_of():
    pred, y = torch.randn(30, 3), torch.rand(30, 3).round()
    y[:, 1], y[4, 2] = 0, torch.nan  # of one class, and with a gap
    task = Task("multilabel", num_outputs=3)
    first, second, third = evaluate_each("roc_auc", pred, y, task)
    assert math.isnan(second)
    assert (first + third) / 2 == pytest.approx(evaluate("roc_auc", pred, y, task))
    single = Task("regression")
    assert third == evaluate("roc_auc", pred[:, 2:], y[:, 2:], Task("binary"))
    each = evaluate_each("mae", pred, y, Task("regression", num_outputs=3))
    assert each[1] == evaluate("mae", pred[:, 1:2], y[:, 1:2], single)


def test_regression_metrics_leave_out_unmeasured_entries_target_by_target():
    pred = torch.tensor([[0.0, 1.0], [0.0, 5.0], [4.0, 9.0]])
    y = torch.tensor([[3.0, 0.0], [4.0, torch.nan], [4.0, torch.nan]])
    assert float(mae(pred, y)) == pytest.approx((7 / 3 + 1) / 2)
    assert float(rmse(pred, y)) == pytest.approx((math.sqrt(25 / 3) + 1) / 2)
    assert float(r2(pred, y)) == pytest.approx(1 - 25 / (2 / 3))  # one value has no variance


def test_only_a_target_of_one_value_has_no_variance():
    one = torch.full((6, 1), 0.1, dtype=torch.float64)
    assert one.sum() / 6 != 0.1  # by rounding
    assert math.isnan(r2(one, one))
    close = 1000 + torch.arange(7.0).reshape(-1, 1) / 1000
    assert float(r2(close, close)) == 1


def test_ranked_metrics_take_what_a_network_gives_in_training():
    pred = torch.tensor([[0.5], [2.0], [-1.0]], dtype=torch.bfloat16, requires_grad=True)
    for ours, _ in RANKED:
        assert float(ours(pred, column([0.0, 1.0, 0.0]))) == 1


def test_accuracy_by_the_largest_logit_and_by_the_sign():
    pred = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0], [9.0, 0.0, 0.0]])
    assert float(accuracy(pred, torch.tensor([0, 2, -100]))) == 0.5
    labels = torch.tensor([[1.0, torch.nan, 0.0], [1.0, 1.0, torch.nan], [1.0, torch.nan, 0.0]])
    assert float(accuracy(pred, labels)) == pytest.approx((2 / 3 + 1 + 1) / 3)


def test_classes_against_the_rest_equal_scikit_learn():
    draw = torch.Generator().manual_seed(0)
    pred, y = torch.randn(300, 4, generator=draw) * 20, torch.randint(4, (300,), generator=draw)
    y[:50] = -100
    probabilities = pred[50:].double().softmax(1)
    probabilities /= probabilities.sum(1, keepdim=True)
    task = Task("multiclass", num_outputs=4)
    expected = sk.roc_auc_score(y[50:], probabilities, multi_class="ovr")
    assert evaluate("roc_auc", pred, y, task) == pytest.approx(expected, abs=1e-6)
    expected = sk.average_precision_score(y[50:], probabilities)
    assert evaluate("ap", pred, y, task) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("common", [0, 1])
def test_ranks_are_counted_from_whichever_side_is_rarer(common):
    draw = torch.Generator().manual_seed(common)
    y = (torch.rand(400, 1, generator=draw) < 0.03).float()
    y, pred = (1 - y if common else y), torch.randint(9, (400, 1), generator=draw).float()
    for ours, theirs in RANKED:
        assert float(ours(pred, y)) == pytest.approx(theirs(y, pred), abs=1e-12)


def test_equal_probabilities_of_a_class_are_ties_whatever_the_order_of_the_others():
    others = torch.tensor([3.0, -4, 1, 2, 0, 0, -1])
    generator = torch.Generator().manual_seed(0)
    rows = [others[torch.randperm(7, generator=generator)] for _ in range(60)]
    pred = torch.nn.functional.pad(torch.stack(rows), (1, 0))  # class 0 has a logit of 0
    y = torch.arange(60) % 2
    assert len(pred.double().log_softmax(1)[:, 0].unique()) > 1  # by rounding alone
    # A row's shares are its logits less what all rows have in common.
    expected = (0.5 + float(roc_auc(pred[:, 1:2], y[:, None].float()))) / 2
    assert evaluate("roc_auc", pred, y, Task("multiclass", num_outputs=8)) == expected


@pytest.mark.parametrize("name", EVERY)
def test_nothing_measured_gives_nan_and_no_exception(name):
    task = Task("regression" if name in ("mae", "rmse", "r2") else "binary")
    for rows in (0, 3):
        value = evaluate(name, torch.zeros(rows, 1), torch.full((rows, 1), torch.nan), task)
        assert math.isnan(value)


@pytest.mark.parametrize("name", EVERY)
def test_a_nan_prediction_is_never_hidden(name):
    pred = torch.tensor([[math.nan, 1.0], [1.0, 0.0], [2.0, 3.0]])
    y = torch.tensor([[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]])
    task = Task("regression" if name in ("mae", "rmse", "r2") else "multilabel", num_outputs=2)
    assert math.isnan(evaluate(name, pred, y, task))
    y[0, 0] = math.nan  # where nothing was measured it hides nothing
    assert not math.isnan(evaluate(name, pred, y, task))


@pytest.mark.parametrize("name", ["roc_auc", "ap"])
def test_a_logit_without_a_probability_is_never_hidden(name):
    pred, y = torch.tensor([[math.inf, 0.0], [0.0, 1.0], [1.0, 0.0]]), torch.tensor([0, 1, 0])
    task = Task("multiclass", num_outputs=2)
    assert math.isnan(evaluate(name, pred, y, task))
    pred[0, 0] = -math.inf  # which is a probability of 0
    assert not math.isnan(evaluate(name, pred, y, task))
    pred[0, 0], y[0] = math.inf, -100  # where nothing was measured it hides nothing
    assert not math.isnan(evaluate(name, pred, y, task))


@pytest.mark.parametrize("name", ["roc_auc", "ap", "accuracy"])
def test_a_nan_prediction_of_classes_is_never_hidden(name):
    pred, y = torch.tensor([[0.0, 1.0], [math.nan, 1.0], [1.0, 0.0]]), torch.tensor([1, 0, 0])
    task = Task("multiclass", num_outputs=2)
    assert math.isnan(evaluate(name, pred, y, task))
    assert evaluate("accuracy", pred, torch.tensor([1, -100, 0]), task) == 1


def test_unknown_and_unfitting_metrics_are_named_with_what_would_fit():
    with pytest.raises(InputError, match=r"unknown metric 'f1'.*roc_auc"):
        higher_is_better("f1")
    with pytest.raises(InputError, match=r"'mae' does not fit a binary task.*roc_auc"):
        evaluate("mae", torch.zeros(1, 1), torch.zeros(1, 1), Task("binary"))


def test_targets_as_the_loss_takes_them():
    pred, y = torch.tensor([[2.0], [-1.0], [0.5]]), torch.tensor([1, 0, 1])
    for name in ("accuracy", "roc_auc", "ap"):
        assert evaluate(name, pred, y, Task("binary")) == 1
    assert evaluate("mae", pred, pred[:, 0], Task("regression")) == 0
    with pytest.raises(InputError, match=r"targets have shape \(2,\)"):
        evaluate("mae", pred, y[:2], Task("regression"))


def test_which_way_is_better():
    assert [name for name in EVERY if higher_is_better(name)] == ["r2", "roc_auc", "ap", "accuracy"]


def test_targets_around_0_have_a_variance():
    y = torch.tensor([[-1.0], [1.0]])
    assert float(r2(y, y)) == 1
