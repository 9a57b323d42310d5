"""The scoring kernels against the network and the residual in float64, in Triton's interpreter."""

import copy
import math

import pytest
import torch
from torch import Tensor

from benchmarks.scoring_checks import with_statistics
from grant_fast import (
    FlexConv,
    FlexGCN,
    GraNTSampler,
    InputError,
    PackedGraphs,
    Task,
    score_graphs,
    select_graphs,
)
from grant_fast.kernels import select
from grant_fast.nn import AtomEncoder, BatchNorm
from grant_fast.nn.evaluating import evaluating
from grant_fast.teaching import fused
from grant_fast.teaching.residuals import graph_residuals
from grant_fast.teaching.scoring import ScoringPass
from tests.cases import Case, dense_graphs

#: More than eight graphs of one node, and one that is too large for a tile.
SIZES = (3, 0, 32, 9, 1, 33, 5, *[1] * 10, 0)
SMALL = (3, 0, 31, 1, 2)


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRANT_FAST_BACKEND", "triton")


def trained(model: FlexGCN) -> FlexGCN:
    """A model whose batch norms have seen something; in training mode, as a teacher finds it."""
    with_statistics(model)
    return model.train()


def targets(task: Task, rows: int) -> Tensor:
    """Some of them missing; the third row has none."""
    if task.kind == "multiclass":
        y = torch.randint(task.num_outputs, (rows,))
        y[2:3] = -100
        return y
    y = torch.randn(rows, task.num_outputs)
    if task.kind != "regression":
        y = (y > 0).float()
    y[torch.rand(y.shape) < 0.3] = math.nan
    y[2:3] = math.nan
    return y


def with_targets(graphs: PackedGraphs, task: Task) -> PackedGraphs:
    out = copy.copy(graphs)
    out.y_level = task.level
    out.y = targets(task, graphs.num_nodes if task.level == "node" else graphs.num_graphs)
    return out


def truth(model: FlexGCN, graphs: PackedGraphs, task: Task, ids: list[int], kind: str):
    """Scores and outputs by the plain operators, in float64."""
    double, batch = copy.deepcopy(model).double(), graphs.to(dtype=torch.float64).batch(ids)
    double.backend = "torch"
    with evaluating(double):
        pred = double(batch)
    return graph_residuals(pred, batch.y, task, batch.ptr, kind), pred


def check(
    model: FlexGCN, graphs: PackedGraphs, task: Task, kind: str = "gradient", device: str = "cpu"
) -> None:
    graphs = with_targets(graphs, task)
    ids = torch.randperm(graphs.num_graphs).tolist()
    want, outputs = truth(model, graphs, task, ids, kind)
    model, graphs = copy.deepcopy(model).to(device), graphs.to(device)
    assert fused.fits(model, graphs.batch(ids), task)
    modes = [module.training for module in model.modules()]
    scores, pred = score_graphs(
        model, graphs, task, ids=ids, residual=kind, return_predictions=True
    )
    scores, pred = scores.cpu(), pred.cpu()
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, want, rtol=2e-5, atol=2e-6)
    # Outputs are sums that may cancel: their errors are judged by the largest.
    assert float((pred - outputs).abs().max()) <= 1e-5 * max(1.0, float(outputs.abs().max()))
    assert [module.training for module in model.modules()] == modes


def check_tail(
    model: FlexGCN, graphs: PackedGraphs, task: Task, kind: str = "gradient", device: str = "cpu"
) -> None:
    """Of networks too wide for one kernel, or of edges that it cannot hold."""
    graphs = with_targets(graphs, task)
    ids = torch.randperm(graphs.num_graphs).tolist()
    want, _ = truth(model, graphs, task, ids, kind)
    model, graphs = copy.deepcopy(model).to(device), graphs.to(device)
    assert not fused.fits(model, graphs.batch(ids), task)
    assert fused.tail_fits(model, graphs, task)
    positions, two_chunks = torch.tensor(ids), 1 + len(ids) // 2
    look = ScoringPass(graphs, task, positions, residual=kind, batch_size=two_chunks)
    scores, counts, _ = look(model)
    torch.testing.assert_close(scores.cpu(), want, rtol=5e-5, atol=5e-6)
    picked = select.largest(scores, len(ids) // 2, counts)
    best = select_graphs(scores.cpu(), len(ids) // 2, backend="torch")
    assert picked.tolist() == best.tolist()
    assert int(counts[0].sum()) >= len(ids)


@pytest.mark.parametrize("width", [7, 70])
def test_kernels_write_float32_whatever_is_usual(width, double_is_usual):
    graphs, task = dense_graphs(SMALL, width), Task("regression")
    graphs.y = torch.randn(len(SMALL), 1).float()
    model = trained(FlexGCN(width, width, 1, orders=[2, 2]).float())
    assert score_graphs(model, graphs, task).dtype == torch.float32
    assert graphs.batch(slice(None)).tile_rows.scale.dtype == torch.float32


TASKS = [
    Task("regression"),
    Task("regression", num_outputs=3),
    Task("binary"),
    Task("multilabel", num_outputs=12),
    Task("multiclass", num_outputs=5),
]


@pytest.mark.parametrize(
    ("width", "check_scores"), [(7, check), (70, check_tail)], ids=["one kernel", "the tail"]
)
@pytest.mark.parametrize("level", ["graph", "node"])
@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.kind}-{task.num_outputs}")
def test_every_kind_of_task(task, level, width, check_scores):
    task = Task(task.kind, level, task.num_outputs)
    pool = None if level == "node" else "mean"
    model = FlexGCN(5, [width], task.num_outputs, orders=[2, 2], norm="batch_norm", pool=pool)
    for kind in ("gradient", "raw") if task.kind != "regression" else ("gradient",):
        check_scores(trained(model), dense_graphs(SMALL, 5), task, kind)


@pytest.mark.parametrize("width", [7, 70])
def test_nothing_cancels_where_a_right_label_is_certain(width):
    graphs, model = dense_graphs((3, 31, 1), 5), FlexGCN(5, width, 2, orders=[2, 2])
    last = model.convs[1]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(torch.tensor([20.0, -20.0]))
    graphs.y = torch.tensor([[1.0, 0.0]]).repeat(3, 1)
    scores = score_graphs(model, graphs, Task("multilabel", num_outputs=2))
    assert scores.tolist() == pytest.approx([0.5**0.5 / (1 + math.exp(20))] * 3, rel=1e-5)


@pytest.mark.parametrize(
    ("widths", "orders", "pool", "normalize", "norm", "bias"),
    [
        ((1, 17, 1), (4, 1), "sum", True, None, True),
        ((40, 16, 64), (3, 2), "mean", False, "batch_norm", False),
        ((9, 27, 32, 33), (2, 3, 2), "mean", True, "batch_norm", True),
        ((40, 9, 10), (4, 3), None, True, None, False),
        ((5, 3), (3,), "mean", True, None, True),
    ],
    ids=["narrow", "wide ends", "three layers", "nodes", "one layer"],
)
def test_networks_that_fit(widths, orders, pool, normalize, norm, bias):
    settings = {"orders": orders, "norm": norm, "pool": pool, "bias": bias, "dropout": 0.5}
    model = FlexGCN(widths[0], widths[1:-1], widths[-1], normalize=normalize, **settings)
    task = Task("regression", "node" if pool is None else "graph", widths[-1])
    check(trained(model), dense_graphs((4, 31, 0, 2), widths[0]), task)


@pytest.mark.parametrize("many", [False, True], ids=["few kinds of atoms", "many"])
def test_atoms_are_embedded(many):
    graphs = dense_graphs(SIZES, 1, symmetric=True)
    kinds = torch.randint(3, (graphs.num_nodes if many else 4, 4), dtype=torch.int8)
    atoms = PackedGraphs(
        kinds[torch.arange(graphs.num_nodes) % len(kinds)],
        None, graphs.ptr, graphs.adj, graphs.adj_t,
    )  # fmt: skip
    encoder = AtomEncoder(9, (3, 3, 3, 3))
    model = FlexGCN(9, [27, 18], 1, orders=[4, 3, 2], norm="batch_norm", encoder=encoder)
    assert (atoms.kinds is None) == many
    check(trained(model), atoms, Task("binary"))


TAILS = [
    ({"hidden_channels": 70, "orders": [2, 5], "pool": "sum", "bias": False}, 12),
    ({"hidden_channels": 33, "orders": [1, 1], "normalize": False, "norm": "layer_norm"}, 64),
    ({"hidden_channels": 7, "orders": [2, 3, 2], "act": "tanh", "dropout": 0.5}, 1),
    ({"hidden_channels": 130, "orders": [2, 3], "encoder": torch.nn.Linear(5, 5)}, 3),
]


@pytest.mark.parametrize(("settings", "outputs"), TAILS)
def test_tails_of_every_shape_over_edges_of_every_kind(settings, outputs):
    model = FlexGCN(5, out_channels=outputs, **settings)
    for graphs in (Case().graphs, dense_graphs((3, 0, 260, 1, 65), 5)):
        check_tail(trained(model), graphs, Task("regression", num_outputs=outputs))


def test_classes_beyond_the_task_are_refused_by_every_path():
    task = Task("multiclass", num_outputs=3)
    graphs = with_targets(dense_graphs(SMALL, 5), task)
    graphs.y[1] = 3
    for width in (7, 70):
        with pytest.raises(InputError, match="class"):
            score_graphs(FlexGCN(5, width, 3, orders=[2, 2]), graphs, task)


def test_the_histogram_counts_every_score_and_selects_like_a_sort():
    task = Task("regression")
    graphs = with_targets(dense_graphs(SIZES, 5), task)
    graphs.y = targets(task, len(SIZES)).nan_to_num(1.0)
    model = trained(FlexGCN(5, [7], 1, orders=[3, 2]))
    sampler = GraNTSampler(graphs, task, 4, epochs=3, mode="global", start_ratio=0.4)
    sampler.select(model, 0)
    want, _ = truth(model, graphs, task, list(range(len(SIZES))), "gradient")
    torch.testing.assert_close(sampler.scores, want, rtol=2e-5, atol=2e-6)
    order = torch.sort(sampler.scores, descending=True, stable=True).indices
    assert sampler.selected.tolist() == order[: math.ceil(0.4 * len(SIZES))].sort().values.tolist()
    _, counts = sampler._score(model)
    assert int(counts[0].sum()) == len(SIZES)


@pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")
def test_a_nan_names_the_graph_it_is_in_although_it_shares_a_tile():
    task = Task("regression")
    graphs = dense_graphs((3, 4, 5, 6), 5)
    graphs.x[graphs.ptr[2]] = 3e38
    graphs.y = torch.zeros(4, 1)
    model = FlexGCN(5, [7], 1, orders=[3, 2], act="relu")
    torch.nn.init.constant_(model.convs[0].weight, 100)
    with pytest.raises(InputError, match=r"id 2 is NaN or infinite \(so for 1 of 4"):
        score_graphs(model, graphs, task)


@pytest.mark.parametrize(
    "settings",
    [
        {"hidden_channels": [33]},
        {"act": "tanh"},
        {"norm": "layer_norm"},
        {"pool": "max"},
        {"orders": [6, 2]},
        {"in_channels": 65},
        {"encoder": torch.nn.Linear(5, 5)},
        {"out_channels": 2},
    ],
    ids="-".join,
)
def test_other_networks_go_layer_by_layer_with_the_same_result(settings):
    task = Task("regression")
    graphs = with_targets(dense_graphs((3, 0, 32, 9), settings.get("in_channels", 5)), task)
    arguments = {"in_channels": 5, "hidden_channels": [7], "out_channels": 1, "orders": [3, 2]}
    model = FlexGCN(**(arguments | settings))
    assert not fused.fits(model, graphs.batch(slice(None)), task)
    if "out_channels" not in settings:
        want, _ = truth(model, graphs, task, [2, 1, 3], "gradient")
        got = score_graphs(model, graphs, task, ids=[2, 1, 3])
        torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("settings", [{"affine": False}, {"track_running_stats": False}], ids=str)
def test_norms_that_are_no_affine_map_go_layer_by_layer(settings):
    task = Task("regression")
    graphs = with_targets(dense_graphs((3, 5, 9), 5), task)
    model = FlexGCN(5, [7], 1, orders=[3, 2], norm="batch_norm")
    model.norms[0] = BatchNorm(7, **settings)
    want, _ = truth(model, graphs, task, [0, 1, 2], "gradient")
    torch.testing.assert_close(score_graphs(model, graphs, task), want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("width", [7, 70], ids=["one kernel", "the tail"])
@pytest.mark.parametrize("wrong", ["in_channels", "encoder", "last", "weight", "norm"])
def test_networks_that_do_not_fit_together_are_refused_as_by_pytorch(wrong, width):
    """Where the kernels would read beyond the weights or the features."""
    task = Task("regression")
    graphs = with_targets(dense_graphs((3, 5, 9), 9), task)
    encoder = AtomEncoder(8) if wrong == "encoder" else None
    in_channels = {"in_channels": 10, "encoder": 12}.get(wrong, 9)
    how = {"orders": [3, 2], "norm": "batch_norm", "encoder": encoder}
    model = FlexGCN(in_channels, [width], 1, **how)
    if encoder is not None:
        graphs.x = graphs.x.long().clamp(0, 1)
    if wrong == "last":
        model.convs[1] = FlexConv(width - 1, 1, order=2)
    if wrong == "weight":
        model.convs[1].weight = torch.nn.Parameter(torch.randn(2, width - 1, 1))
    if wrong == "norm":
        model.norms[0] = BatchNorm(width + 1)
    for backend in ("torch", "triton"):
        model.backend = backend
        with pytest.raises(
            (InputError, RuntimeError), match=r"channels|shape|size of tensor|running_mean"
        ):
            score_graphs(model, graphs, task)
