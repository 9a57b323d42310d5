"""Metrics against OGB's own Evaluator, on random and on degenerate inputs."""

import importlib.util
import math
from pathlib import Path

import pytest
import torch

from grant_fast.tasks import Task
from grant_fast.training.metrics import evaluate

EVALUATED = [("ogbg-molhiv", "rocauc", "roc_auc", 1), ("ogbg-molpcba", "ap", "ap", 128)]


@pytest.fixture(scope="module")
def evaluator():
    """Makes OGB's evaluator of a data set, from its file: the package imports all of PyG."""
    pytest.importorskip("pandas")
    package = importlib.util.find_spec("ogb")
    if package is None:
        pytest.skip("ogb is not installed")
    path = Path(package.origin).parent / "graphproppred" / "evaluate.py"
    spec = importlib.util.spec_from_file_location("ogb_evaluate", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Evaluator


def cases(tasks):
    """Logits and labels of many kinds, by name; float64, so that OGB sees what we see."""
    draw = torch.Generator().manual_seed(tasks)
    pred = torch.randn(400, tasks, generator=draw, dtype=torch.float64)
    y = (torch.rand(400, tasks, generator=draw) < 0.15).double()
    missing = torch.rand(400, tasks, generator=draw) < 0.4
    holed = y.masked_fill(missing, torch.nan)
    single = holed.clone()
    single[:, : tasks // 2] = single[:, : tasks // 2].clamp(max=0)  # one class only
    yield "random", pred, y
    yield "missing labels", pred, holed
    yield "one class only in half the tasks", pred, single
    yield "ties", pred.round(), holed
    yield "all equal", torch.zeros_like(pred), holed
    yield "saturated logits", pred * 1e4, holed
    yield "few rows", pred[:60], holed[:60]


@pytest.mark.parametrize(("name", "theirs", "ours", "tasks"), EVALUATED)
def test_ranked_metrics_equal_ogbs(evaluator, name, theirs, ours, tasks):
    judge = evaluator(name)
    task = Task("multilabel", num_outputs=tasks) if tasks > 1 else Task("binary")
    for case, pred, y in cases(tasks):
        expected = judge.eval({"y_true": y.numpy(), "y_pred": pred.numpy()})[theirs]
        assert evaluate(ours, pred, y, task) == pytest.approx(expected, abs=1e-6), case


@pytest.mark.parametrize(("name", "theirs", "ours", "tasks"), EVALUATED)
def test_where_ogb_gives_up_there_is_nan(evaluator, name, theirs, ours, tasks):
    pred, y = torch.randn(20, tasks).double(), torch.zeros(20, tasks).double()
    with pytest.raises(RuntimeError, match="No positively labeled data"):
        evaluator(name).eval({"y_true": y.numpy(), "y_pred": pred.numpy()})
    task = Task("multilabel", num_outputs=tasks) if tasks > 1 else Task("binary")
    assert math.isnan(evaluate(ours, pred, y, task))


def test_rmse_equals_ogbs_with_missing_targets(evaluator):
    pred, y = torch.randn(50, 1).double() * 30, torch.randn(50, 1).double()
    y[::7] = torch.nan
    expected = evaluator("ogbg-molesol").eval({"y_true": y.numpy(), "y_pred": pred.numpy()})
    found = evaluate("rmse", pred, y, Task("regression"))
    assert found == pytest.approx(expected["rmse"], abs=1e-6)
