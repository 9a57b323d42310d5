"""Scores of a `FlexGCN`, which may be found in one pass, against the paper's definition."""

import copy
import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from grant_fast import FlexGCN
from grant_fast.errors import InputError
from grant_fast.graphs import PackedGraphs
from grant_fast.nn import AtomEncoder
from grant_fast.tasks import Task
from grant_fast.teaching.residuals import graph_residuals
from grant_fast.teaching.scoring import score_graphs
from tests.cases import AWKWARD_SIZES, dense_graphs
from tests.interpreter import TRITON


def by_definition(f: Tensor, y: Tensor, task: Task, kind: str) -> float:
    """The score of one graph, entry by entry in float64, from the paper's section 4.3."""
    total, labels, nodes = 0.0, 0, 0
    columns = y.unsqueeze(1) if y.dim() == 1 else y
    for outputs, label in zip(f.tolist(), columns.tolist(), strict=True):
        known = 0
        if task.kind == "multiclass":
            weights = [math.exp(value) for value in outputs]
            shares = [weight / sum(weights) for weight in weights]
            guess = shares if kind == "gradient" else outputs
            known = int(label[0] != -100)
            wrong = [known * (p - (c == label[0])) for c, p in enumerate(guess)]
        else:
            linked = task.kind != "regression" and kind == "gradient"
            guess = [1 / (1 + math.exp(-value)) for value in outputs] if linked else outputs
            wrong = [0.0 if math.isnan(t) else p - t for p, t in zip(guess, label, strict=True)]
            known = sum(not math.isnan(t) for t in label)
        total += sum(error * error for error in wrong)
        labels += known
        nodes += known > 0
    per_label = task.level == "graph" and task.kind != "multiclass"
    return math.sqrt(total) / max(labels if per_label else nodes, 1)


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("level", ["graph", "node"])
@pytest.mark.parametrize(
    ("kind", "outputs"), [("regression", 2), ("binary", 1), ("multilabel", 3), ("multiclass", 4)]
)
def test_a_network_of_ours_is_scored_as_the_paper_defines(kind, outputs, level, backend) -> None:
    torch.manual_seed(3)
    task = Task(kind, level, outputs)
    graphs = dense_graphs(AWKWARD_SIZES, 5)
    rows = graphs.num_nodes if level == "node" else graphs.num_graphs
    missing = torch.rand(rows, outputs) < 0.3
    missing[1] = True  # one without any label
    y = torch.randn(rows, outputs)
    y = (y if kind == "regression" else (y > 0).float()).masked_fill(missing, math.nan)
    if kind == "multiclass":
        y = torch.randint(outputs, (rows,)).masked_fill(missing[:, 0], -100)
    graphs = PackedGraphs(graphs.x, y, graphs.ptr, graphs.adj, graphs.adj_t, y_level=level)
    model = FlexGCN(
        5, [7], outputs, orders=[3, 2], norm="batch_norm", dropout=0.5, backend=backend,
        pool=None if level == "node" else "mean",
    )  # fmt: skip
    model(graphs.batch(slice(None))).sum().backward()  # batch norm has seen something
    ids = torch.randperm(graphs.num_graphs)
    double = copy.deepcopy(model).double().eval()
    with torch.no_grad():
        f = double(graphs.to(dtype=torch.float64).batch(slice(None)))
    parts = [f[a:b] for a, b in itertools.pairwise(graphs.ptr)] if level == "node" else f[:, None]
    labels = [y[a:b] for a, b in itertools.pairwise(graphs.ptr)] if level == "node" else y[:, None]
    for residual in ("gradient", "raw"):
        scores, pred = score_graphs(
            model, graphs, task, ids=ids, residual=residual, batch_size=5, return_predictions=True
        )
        alone = score_graphs(model, graphs, task, ids=ids, residual=residual, batch_size=5)
        expected = [by_definition(parts[i], labels[i], task, residual) for i in ids.tolist()]
        assert scores.dtype == torch.float32 and scores.shape == (graphs.num_graphs,)
        torch.testing.assert_close(scores, torch.tensor(expected), rtol=2e-5, atol=2e-6)
        torch.testing.assert_close(alone, scores, rtol=2e-6, atol=1e-7)
        outputs_in_order = torch.cat([parts[i] for i in ids.tolist()]).float()
        torch.testing.assert_close(pred, outputs_in_order, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("backend", ["auto", TRITON])
@pytest.mark.parametrize("level", ["graph", "node"])
def test_what_hooks_a_user_gave_a_network_do_is_scored(level, backend) -> None:
    graphs = dense_graphs((3, 5, 2), 5)
    rows = graphs.num_nodes if level == "node" else graphs.num_graphs
    y = torch.arange(rows) % 3
    graphs = PackedGraphs(graphs.x, y, graphs.ptr, graphs.adj, graphs.adj_t, y_level=level)
    task, pool = Task("multiclass", level, 3), None if level == "node" else "mean"
    model = FlexGCN(5, [4], 3, orders=[2, 2], pool=pool, backend=backend)
    kept: list[Tensor] = []
    with model.register_forward_hook(lambda model, inputs, out: kept.append(out)):
        plain = score_graphs(model, graphs, task)
    with torch.no_grad():
        pred = model(graphs.batch(slice(None)))
    torch.testing.assert_close(torch.cat(kept), pred)  # and nobody wrote into them
    ptr = graphs.ptr if level == "node" else None
    torch.testing.assert_close(plain, graph_residuals(pred, y, task, ptr))
    expected = graph_residuals(3 * pred, y, task, ptr)
    with model.register_forward_hook(lambda model, inputs, out: 3 * out):
        torch.testing.assert_close(score_graphs(model, graphs, task), expected)
    of_all = nn.modules.module.register_module_forward_hook
    with of_all(lambda module, inputs, out: 3 * out if module is model else None):
        torch.testing.assert_close(score_graphs(model, graphs, task), expected)
    forward = model.forward
    model.forward = lambda *args: 3 * forward(*args)  # type: ignore[method-assign]
    torch.testing.assert_close(score_graphs(model, graphs, task), expected)


@pytest.mark.parametrize("level", ["graph", "node"])
def test_a_network_that_refuses_to_run_is_not_scored_either(level) -> None:
    graphs = dense_graphs((3, 5, 2), 5)
    graphs.y = torch.arange(graphs.num_nodes if level == "node" else graphs.num_graphs) % 3
    graphs.y_level = level
    model = FlexGCN(5, [4], 3, [2, 2], pool=None if level == "node" else "mean")
    model.normalize = False
    with pytest.raises(InputError, match=r"convs\.0 has normalize=True"):
        score_graphs(model, graphs, Task("multiclass", level, 3))


@pytest.mark.parametrize("backend", [TRITON, "torch"])
def test_categories_that_were_written_to_are_scored_anew(backend) -> None:
    node = torch.arange(60)
    edges = torch.stack([node, node // 6 * 6 + (node + 1) % 6])  # rings of six
    given = edges, node // 6, torch.randn(10, 1)
    graphs = PackedGraphs.from_arrays(torch.randint(3, (60, 2)), *given, y_level="graph")
    encoder, task = AtomEncoder(4, [3, 3]), Task("regression")
    model = FlexGCN(4, [8], 1, [3, 2], encoder=encoder, backend=backend)
    before = score_graphs(model, graphs, task)
    graphs.x.copy_(2 - graphs.x)
    fresh = PackedGraphs.from_arrays(graphs.x.long(), *given, y_level="graph")
    scores = score_graphs(model, graphs, task)
    torch.testing.assert_close(scores, score_graphs(model, fresh, task))
    assert not torch.allclose(scores, before)


def test_predictions_for_classes_come_along_as_the_network_gave_them() -> None:
    graphs = dense_graphs(AWKWARD_SIZES, 3)
    graphs.y = torch.arange(graphs.num_graphs) % 3
    model, task = FlexGCN(3, 4, 3, [2, 2]), Task("multiclass", num_outputs=3)
    scores, pred = score_graphs(model, graphs, task, return_predictions=True)
    torch.testing.assert_close(pred, model(graphs.batch(slice(None))).detach())
    assert scores.equal(graph_residuals(pred, graphs.y, task))
