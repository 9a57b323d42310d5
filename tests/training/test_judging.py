"""Metrics of what one run predicts, and of the mean of several."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from grant_fast.tasks import Task
from grant_fast.training.config import RunConfig
from grant_fast.training.judging import judge
from grant_fast.training.metrics import evaluate
from grant_fast.training.model import ModelSpec
from grant_fast.training.predict import Predictor

ROWS = 200
TASKS = {
    "regression": Task("regression"),
    "binary": Task("binary"),
    "multilabel": Task("multilabel", num_outputs=3),
    "multiclass": Task("multiclass", num_outputs=4),
}


def predictor(task: Task, metric: str = "") -> Predictor:
    model: Any = None  # nobody asks it
    return Predictor(model, RunConfig(), ModelSpec(9, "atom", task, None), metric=metric)


def labels(task: Task, seed: int = 0) -> torch.Tensor:
    """Targets, of which a tenth of the rows have none."""
    draw = torch.Generator().manual_seed(seed)
    if task.kind == "multiclass":
        y = torch.randint(task.num_outputs, (ROWS,), generator=draw)
        return y.where(torch.rand(ROWS, generator=draw) > 0.1, -100)
    y = torch.randn(ROWS, task.num_outputs, generator=draw)
    y = y if task.kind == "regression" else (y > 0.5).float()
    return y.where(torch.rand(ROWS, 1, generator=draw) > 0.1, torch.nan)


def outputs(task: Task, seed: int, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(
        ROWS, task.num_outputs, generator=torch.Generator().manual_seed(seed)
    )


@pytest.mark.parametrize("kind", TASKS)
def test_a_single_run_is_judged_by_its_outputs_however_sure_it_is(kind):
    task = TASKS[kind]
    y, pred = labels(task), outputs(task, 1, scale=60)  # whose probabilities are mostly 0 or 1
    found = judge([pred], y, predictor(task))
    assert found is not None and 150 < found.labelled < ROWS and found.level == "graph"
    assert found.metrics == {name: evaluate(name, pred, y, task) for name in found.metrics}
    assert len(found.metrics) == 3 and next(iter(found.metrics)) == found.metric


@pytest.mark.parametrize("kind", TASKS)
def test_several_runs_are_judged_by_the_mean_of_their_answers(kind):
    task, pair = TASKS[kind], [outputs(TASKS[kind], seed).double() for seed in (1, 2)]
    y = labels(task)
    mean = sum(pair) / 2
    if kind == "multiclass":
        mean = ((pair[0].softmax(1) + pair[1].softmax(1)) / 2).log()
    elif kind != "regression":
        mean = ((pair[0].sigmoid() + pair[1].sigmoid()) / 2).logit()
    found = judge([part.float() for part in pair], y, predictor(task))
    assert found is not None
    for name, value in found.metrics.items():
        assert value == pytest.approx(evaluate(name, mean, y, task), abs=1e-6)


def test_the_metric_is_the_run_s_own_and_of_each_target():
    task = Task("regression", num_outputs=2, names=("a", "b"))
    y, pred = labels(task), outputs(task, 3)
    usual, chosen = judge([pred], y, predictor(task)), judge([pred], y, predictor(task, "rmse"))
    assert usual is not None and usual.metric == "r2" and list(usual.metrics) == ["r2"]
    assert chosen is not None and list(chosen.metrics) == ["rmse", "r2"]
    assert list(chosen.each) == ["a", "b"]
    assert all(list(each) == ["rmse", "mae", "r2"] for each in chosen.each.values())
    for name in ("rmse", "r2"):
        mean = sum(each[name] for each in chosen.each.values()) / 2
        assert chosen.metrics[name] == pytest.approx(mean)
    assert chosen.each["b"]["mae"] == pytest.approx(float((pred - y)[:, 1].abs().nanmean()))
    old = replace(predictor(task), config=RunConfig(metric="mae"))  # whose weights do not tell
    assert judge([pred], y, old).metric == "mae"


def test_where_no_label_is_there_is_nothing_to_judge():
    task = TASKS["multilabel"]
    assert judge([outputs(task, 1)], None, predictor(task)) is None
    assert judge([outputs(task, 1)], torch.full((ROWS, 3), torch.nan), predictor(task)) is None
