"""Scores in the pass that computes the outputs."""

import math

import pytest
import torch
from torch import nn

from grant_fast import FlexGCN, InputError, Task, native, score_graphs
from grant_fast.nn import one_pass
from grant_fast.teaching import graph_residuals
from tests.cases import Case

pytestmark = pytest.mark.skipif(native.build() is None, reason="the kernels were not compiled")


def test_class_scores_of_a_network(build):
    """The scores of a network's outputs, which are then never stored."""
    case = Case()
    case.graphs.y, case.graphs.y_level = torch.randint(0, 4, (case.num_nodes,)), "node"
    case.graphs.y[::5] = -100
    model = FlexGCN(case.graphs.num_features, [17], 4, [3, 2], pool=None)
    model.convs[-1].bias = None
    batch = case.graphs.batch([3, 0, 9, 9, 5])
    with torch.no_grad():
        want = native.class_scores(model.eval()(batch), batch.y, batch.ptr)
        got = one_pass.class_scores(model, batch)
    torch.testing.assert_close(got, want)
    assert one_pass.class_scores(model.train(), batch) is None
    model.eval().convs[-1].weight = nn.Parameter(torch.ones(2, 17, 3))  # none for the last class
    with torch.no_grad():
        assert one_pass.class_scores(model, batch) is None


def test_nodes_are_scored_in_one_pass_and_graphs_are_not(monkeypatch):
    graphs, task = Case().graphs, Task("multiclass", num_outputs=4, level="node")
    graphs.y, graphs.y_level = torch.randint(0, 4, (graphs.num_nodes,)), "node"
    model = FlexGCN(graphs.num_features, [17], 4, [3, 2], pool=None)
    asked, whole = [], one_pass.class_scores
    monkeypatch.setattr(one_pass, "class_scores", lambda *args: asked.append(1) or whole(*args))
    got = score_graphs(model, graphs, task)
    assert asked
    torch.testing.assert_close(got, score_graphs(model, graphs, task, predict=lambda m, b: m(b)))
    asked.clear()
    graphs.y, graphs.y_level = torch.randint(0, 4, (len(graphs),)), "graph"
    with pytest.raises(InputError, match="targets have shape"):
        score_graphs(model, graphs, task)
    assert not asked


def test_a_part_that_a_subclass_changes_is_scored():
    class Muted(FlexGCN):
        def _last_layer(self, h, graphs):
            return 0 * super()._last_layer(h, graphs)

        def _pool(self, out, graphs):
            return 0 * out

    graphs, task = Case().graphs, Task("multiclass", num_outputs=4, level="node")
    graphs.y, graphs.y_level = torch.randint(0, 4, (graphs.num_nodes,)), "node"
    model = Muted(graphs.num_features, [17], 4, [3, 2], pool=None)
    got = score_graphs(model, graphs, task)
    torch.testing.assert_close(got, score_graphs(model, graphs, task, predict=lambda m, b: m(b)))


def test_class_scores_of_outputs_far_below_zero(build):
    pred, y, ptr = torch.randn(20, 3), torch.randint(3, (20,)), torch.tensor([0, 20])
    want = native.class_scores(pred, y, ptr)
    torch.testing.assert_close(native.class_scores(pred - 500, y, ptr), want, rtol=1e-4, atol=0)


def test_class_scores_of_many_graphs(build):
    pred, y, ptr = torch.randn(300, 3), torch.randint(3, (300,)), torch.arange(0, 301, 2)
    pairs = zip(pred.split(2), y.split(2), strict=True)
    alone = [native.class_scores(f, label, ptr[:2]) for f, label in pairs]
    assert torch.equal(native.class_scores(pred, y, ptr), torch.cat(alone))


@pytest.mark.parametrize("classes", [2, 10, 17, 32, 33, 70])
def test_class_scores(build, classes):
    sizes = torch.tensor([0, 1, 16, 33, 100, 5])
    ptr = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    pred = 30 * torch.randn(int(ptr[-1]), classes)
    pred[7] = 1000.0  # no overflow, and no winner
    pred[8, 1] = -1e30
    y = torch.randint(classes, (len(pred),))
    y[::7] = -100
    y[-5:] = -100  # a graph without a label
    got = native.class_scores(pred, y, ptr)
    errors = pred.double().softmax(1) - nn.functional.one_hot(y.clamp(min=0), classes)
    squares = torch.where(y >= 0, errors.square().sum(1), 0.0)
    graph = torch.repeat_interleave(torch.arange(6), sizes)
    sums = torch.zeros(6, dtype=torch.float64).index_add(0, graph, squares)
    count = torch.zeros(6).index_add(0, graph, (y >= 0).float()).clamp(min=1)
    torch.testing.assert_close(got.double(), sums.sqrt() / count, rtol=1e-5, atol=1e-7)
    pred[20, 0] = float("nan")
    y[20] = 1
    dirty = native.class_scores(pred, y, ptr)
    assert dirty.isnan().nonzero().flatten().tolist() == [3]


@pytest.mark.parametrize("columns", [1, 8, 15, 16, 17, 128])
@pytest.mark.parametrize(("sigmoid", "labels"), [(True, True), (False, True), (False, False)])
def test_target_scores(build, columns, sigmoid, labels):
    rows = 131
    pred = 10 * torch.randn(rows, columns)
    pred[3], pred[4] = 1e4, -1e4
    y = torch.randint(2, (rows, columns)).float() if labels else torch.randn(rows, columns)
    y[torch.rand(rows, columns) < 0.3] = torch.nan
    y[5] = torch.nan  # a graph without a target
    g = pred.double().sigmoid() if sigmoid else pred.double()
    known = ~y.isnan()
    errors = torch.where(known, g - y.double(), 0.0)
    want = torch.linalg.vector_norm(errors, dim=1) / known.sum(1).clamp(min=1)
    got = native.target_scores(pred, y, sigmoid=sigmoid, labels=labels)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-7)
    if sigmoid:
        y[6] = torch.arange(columns) % 2
        pred[6] = 20 * (2 * y[6] - 1)  # all certain, and right
        small = math.sqrt(columns) / (1 + math.exp(20)) / columns
        got = native.target_scores(pred, y, sigmoid=True, labels=labels)
        assert float(got[6]) == pytest.approx(small, rel=1e-5)
    pred[7, 0], y[7, 0] = torch.nan, 1.0
    y[8, -1], y[9, 0] = 1.5, -0.5
    got = native.target_scores(pred, y, sigmoid=sigmoid, labels=labels)
    assert got.isnan().nonzero().flatten().tolist() == [7]
    assert (got < 0).nonzero().flatten().tolist() == ([8, 9] if labels else [])


@pytest.mark.parametrize("kind", ["regression", "multilabel"])
@pytest.mark.parametrize("residual", ["gradient", "raw"])
def test_many_targets_are_scored_by_the_kernel_and_mistakes_named_as_ever(
    kind, residual, monkeypatch
):
    task, called = Task(kind, num_outputs=9), []
    kernel = native.target_scores
    monkeypatch.setattr(
        native, "target_scores", lambda *args, **how: called.append(1) or kernel(*args, **how)
    )
    pred, y = torch.randn(20, 9), torch.randint(2, (20, 9)).float()
    y[3, 4] = torch.nan
    got = graph_residuals(pred, y, task, kind=residual)
    assert called
    want = graph_residuals(pred.double(), y.double(), task, kind=residual)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-7)
    assert len(called) == 1  # float64 is PyTorch's
    assert graph_residuals(pred * torch.nan, y, task, kind=residual).isnan().all()
    y[2, 1] = torch.inf
    message = "target in row 2 .* infinite" if kind == "regression" else "needs labels 0 and 1"
    with pytest.raises(InputError, match=message):
        graph_residuals(pred, y, task, kind=residual)
