"""What is assigned or written to a PackedGraphs, or a batch of it, after it was made."""

import copy
import math
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from grant_fast import FlexConv, FlexGCN, InputError, PackedGraphs, Task, devices, score_graphs
from grant_fast.batches.layout import PackedCSR
from tests.cases import Case

#: What a user may do to graphs, or to a batch of them, before they are read.
TWINS = {
    "none": lambda given: given,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda given: pickle.loads(pickle.dumps(given)),
}


def test_hops_take_no_more_than_their_share_of_a_gpu(monkeypatch):
    graphs = Case().graphs
    needed = graphs.num_nodes * 2 * 5 * 4
    memory = SimpleNamespace(total_memory=8 * needed - 1)
    monkeypatch.setattr(type(graphs), "device", torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: memory)
    assert graphs.hops(2, True) is None
    memory.total_memory += 1
    monkeypatch.setattr(type(graphs), "batch", lambda *where: pytest.fail("it is computed"))
    with pytest.raises(pytest.fail.Exception, match="it is computed"):
        graphs.hops(2, True)


def test_hops_take_no_more_than_their_share_of_the_hosts_memory(monkeypatch):
    graphs = Case().graphs
    needed = graphs.num_nodes * 2 * 5 * 4
    assert devices.memory_of(graphs.device) > 8 * needed
    monkeypatch.setattr(devices, "_HOST_MEMORY", 8 * needed - 1)
    assert graphs.hops(2, True) is None
    monkeypatch.setattr(devices, "_HOST_MEMORY", 8 * needed)
    assert graphs.hops(2, True) is not None


def test_features_are_not_set_anew_where_something_is_kept_of_them():
    case = Case()
    graphs = case.graphs
    graphs.x = graphs.x * 2  # nothing is yet
    torch.testing.assert_close(graphs.hops(2, True)[:, :5], 2 * case.x)
    for name in ("x", "ptr", "adj", "adj_t"):
        with pytest.raises(
            InputError, match=f"derived from {name} are cached already.*pack them again"
        ):
            setattr(graphs, name, getattr(graphs, name))
    kinds = PackedGraphs.from_arrays(torch.zeros(9, 1, dtype=torch.long), [[0], [1]], [0] * 9)
    assert kinds.kinds is not None
    with pytest.raises(InputError, match="derived from x are cached"):
        kinds.x = kinds.x + 1


def test_edges_are_not_set_anew_where_a_scale_is_kept_of_them():
    graphs = Case().graphs
    graphs.to(torch.float32)  # which looks at the scale's dtype
    with pytest.raises(InputError, match="derived from adj are cached"):
        graphs.adj = graphs.adj._replace(weight=2 * graphs.adj.weight)
    graphs.batch([0]).x  # noqa: B018
    with pytest.raises(InputError, match="derived from ptr are cached"):
        graphs.ptr = graphs.ptr.clone()


def test_a_copy_with_other_features_keeps_what_is_derived_of_them_to_itself():
    graphs = Case().graphs
    other = copy.copy(graphs)
    other.x = 3 * graphs.x
    torch.testing.assert_close(3 * graphs.hops(2, True), other.hops(2, True))


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("how", ["none", "subset", "copy", "deepcopy", "pickle"])
def test_stored_edges_that_were_written_to_are_refused(how, weighted):
    graphs, model = Case(weighted=weighted).graphs, FlexGCN(5, 4, 1, orders=[2, 2])
    model(graphs.batch([0, 1]))
    part = graphs[:3] if how == "subset" else TWINS[how](graphs)
    model(part.batch([0]))
    written = part if how in ("deepcopy", "pickle") else graphs
    (written.adj.weight if weighted else written.adj.col).mul_(1)
    for read in (part, written):
        with pytest.raises(InputError, match="packed edges or their weights were written to"):
            model(read.batch([0]))
        with pytest.raises(InputError, match=r"written to.*: pack the graphs again"):
            score_graphs(model, read, Task("regression"))
    if written is not graphs:
        model(graphs.batch([0]))


@pytest.mark.parametrize("side", ["adj", "adj_t"])
@pytest.mark.parametrize("kept", [True, False])
def test_nothing_is_made_of_stored_edges_that_were_written_to(kept, side):
    """It would take over what is kept of the old ones."""
    graphs = Case().graphs
    if kept:
        graphs.scale.sum()
    getattr(graphs, side).weight.mul_(2)
    for make in (
        lambda: graphs[1:],
        lambda: graphs[[0, 2]],
        lambda: PackedGraphs.concat([Case().graphs, graphs]),
        lambda: copy.deepcopy(graphs),
        lambda: pickle.dumps(graphs),
        lambda: FlexGCN(5, 4, 1, orders=[2, 2])(graphs.batch([0])),
    ):
        with pytest.raises(InputError, match="packed edges or their weights were written to"):
            make()
    if not kept:
        graphs.x = graphs.x.clone()  # these edges are none the better for that
        with pytest.raises(InputError, match="packed edges or their weights were written to"):
            graphs[1:]
        for name in ("adj", "adj_t"):
            setattr(graphs, name, PackedCSR(*(t.clone() for t in getattr(graphs, name))))
        FlexGCN(5, 4, 1, orders=[2, 2])(graphs[1:].batch([0]))


@pytest.mark.parametrize("where", [slice(None), [2, 0, 1]])
@pytest.mark.parametrize("settings", [{}, {"act": "tanh"}, {"backend": "torch"}])
def test_features_that_learn_are_read_as_they_are(where, settings):
    """Evaluated first, they stayed what they were: in hops of the data set, and in the batch."""
    torch.manual_seed(0)
    edges, of_graph = torch.tensor([[0, 1, 2, 4], [1, 2, 0, 3]]), torch.tensor([0, 0, 0, 1, 1, 2])
    graphs = PackedGraphs.from_arrays(torch.randn(6, 3), edges, of_graph)
    model = FlexGCN(3, 4, 1, orders=[3, 2], **settings)
    batch, order = graphs.batch(where), [0, 1, 2] if where == slice(None) else where

    def check(x):
        with torch.no_grad():
            want = model(x, edges, batch=of_graph)[order]
            for one in (graphs.batch(where), batch, copy.deepcopy(graphs).batch(where)):
                torch.testing.assert_close(model(one), want)

    x = graphs.x.requires_grad_()
    for _ in range(3):
        check(x)
        model(batch).sum().backward()
        assert x.grad.any(1).all()
        with torch.no_grad():
            x -= x.grad
        x.grad = None
    check(x.requires_grad_(False))


def test_hops_are_those_of_the_features():
    graphs = Case().graphs
    before = graphs.hops(3, True).clone()
    graphs.x.mul_(2)
    for again in (copy.deepcopy(graphs), pickle.loads(pickle.dumps(graphs)), graphs):
        torch.testing.assert_close(again.hops(3, True), 2 * before)
    graphs.x.requires_grad_()
    assert graphs.hops(3, True) is None


@pytest.mark.parametrize("again", [TWINS["deepcopy"], TWINS["pickle"]])
@pytest.mark.parametrize("writes", [1, 2, 3, 5])
def test_a_copy_counts_its_own_writes(again, writes):
    graphs = Case().graphs
    for _ in range(writes):
        graphs.x.mul_(1.1)
    graphs.hops(2, True)
    other = again(graphs)
    for _ in range(writes + 1):
        other.x.mul_(3)
        fresh = PackedGraphs(other.x, None, other.ptr, other.adj, other.adj_t)
        torch.testing.assert_close(other.hops(2, True), fresh.hops(2, True))


@pytest.mark.parametrize("encoder", [None, torch.nn.Identity()])
def test_a_batch_has_the_features_that_the_dataset_has(encoder):
    graphs = Case().graphs
    model, batch = FlexGCN(5, 4, 1, orders=[3, 2], encoder=encoder), graphs.batch([2, 0])
    model(batch), batch.x
    graphs.x.mul_(2)
    torch.testing.assert_close(model(batch), model(graphs.batch([2, 0])))
    graphs.x.requires_grad_()
    batch.x.detach().zero_()
    with pytest.raises(InputError, match="read-only, and a model reads x from"):
        model(batch)


def test_targets_may_be_set_anew():
    graphs = PackedGraphs.from_arrays(
        torch.zeros(2, 1), [[], []], [0, 1], y=[0, 4], y_level="graph"
    )
    assert graphs.class_range == (0, 4)
    graphs.y = torch.tensor([1, 2])
    assert graphs.class_range == (1, 2)
    graphs.y[0] = 7
    assert graphs.class_range == (2, 7)
    before = copy.copy(graphs)
    graphs.y[0] = -100
    for one in (graphs, before, copy.deepcopy(graphs), graphs[:]):
        assert one.class_range == (2, 2)


def test_a_class_that_was_written_is_looked_at_as_any_other():
    """Of a node, the kernels took one that the network has no output for without a word."""
    x, edges = torch.randn(6, 3), torch.tensor([[0, 1, 2], [1, 2, 0]])
    graphs = PackedGraphs.from_arrays(x, edges, [0] * 4 + [1] * 2, [0, 1] * 3, y_level="node")
    model, task = FlexGCN(3, 8, 2, orders=[2, 2], pool=None), Task("multiclass", "node", 2)
    score_graphs(model, graphs, task)
    for wrong in (2, -1):
        graphs.y[3] = wrong
        with pytest.raises(InputError, match=rf"class {wrong} is outside 0\.\.1"):
            score_graphs(model, graphs, task)


@pytest.mark.parametrize("where", [slice(None), [3, 1]])
@pytest.mark.parametrize("inference", [False, True])
def test_a_batch_has_the_targets_that_the_dataset_has(where, inference):
    graphs = Case().graphs
    graphs.y = torch.arange(12.0)[:, None]
    batch = graphs.batch(where)
    with torch.inference_mode(inference):
        mean = batch.y.mean()
    graphs.y = graphs.y - mean
    torch.testing.assert_close(batch.y, graphs.y[where])
    graphs.y.mul_(2)
    torch.testing.assert_close(batch.y, graphs.y[where])
    graphs.y = None
    assert batch.y is None


@pytest.mark.parametrize("way", ["copy", "deepcopy", "pickle"])
def test_targets_that_were_written_into_a_batch_stay_there(way):
    graphs = Case().graphs
    graphs.y = torch.arange(12.0)[:, None]
    graphs.y += 1
    batch = graphs.batch([3, 1])
    batch.y[0] = 9
    again = TWINS[way]
    assert again(batch).y.flatten().tolist() == batch.y.flatten().tolist() == [9, 2]
    graphs.y += 1
    assert again(batch).y.flatten().tolist() == batch.y.flatten().tolist() == [5, 3]
    assert graphs.y.flatten().tolist() == list(range(2, 14))


@pytest.mark.parametrize("where", [slice(None), [2, 1]])
@pytest.mark.parametrize("way", ["none", "copy", "deepcopy", "pickle"])
@pytest.mark.parametrize("name", ["edge_weight", "edge_index"])
def test_edges_that_were_written_to_are_refused(name, way, where):
    """No model saw it: the weight of an edge that was set to 0 made no difference to any output."""
    twin = TWINS[way]
    model, layer = FlexGCN(5, 4, 1, orders=[3, 2]), FlexConv(5, 2)
    batch = Case().graphs.batch(where)
    want = model(batch), getattr(batch, name).clone()
    again = twin(batch)
    assert torch.equal(model(again), want[0]) and torch.equal(getattr(again, name), want[1])
    layer(2 * batch.x, batch)
    getattr(batch, name)[..., 0] = 0
    for call in (model, lambda b: layer(b.x, b)):
        with pytest.raises(InputError, match=rf"read-only.*reads {name} from.*edge_weight, batch"):
            call(twin(batch))


def test_no_gradient_is_asked_of_the_weights_in_a_batch():
    batch = Case().graphs.batch([2, 1])
    batch.edge_weight.requires_grad_()
    with pytest.raises(InputError, match=r"reads edge_weight from"):
        FlexGCN(5, 4, 1, orders=[3, 2])(batch)


def test_targets_that_are_set_are_packed_as_those_that_are_given():
    graphs = Case(sizes=(3, 2)).graphs
    for given in ([1, 2], np.array([1, 2]), torch.tensor([1, 2], dtype=torch.int32)):
        graphs.y = given
        assert graphs.y.tolist() == [1, 2] and graphs.y.dtype == torch.int64
    graphs.y = torch.tensor([1.5, math.nan], dtype=torch.float64)
    assert graphs.y.shape == (2, 1) and graphs.y.dtype == torch.float32
    assert graphs.batch([1, 0]).y[1] == 1.5
    graphs.y = torch.arange(5.0)
    assert graphs.y_level == "node" and graphs.batch([1]).y.tolist() == [[3], [4]]
    graphs.y = None
    graphs.y_level = "graph"
    graphs.y = [-100, 3]
    assert graphs.class_range == (3, 3)


def test_targets_of_graphs_in_double_precision_stay_so():
    graphs = Case(sizes=(3, 2)).graphs
    graphs.y = torch.tensor([1.0, 2.0])
    graphs = graphs.to(torch.float64)
    graphs.y = graphs.y / 3
    assert graphs.y.dtype == torch.float64 and graphs.y[0, 0].item() == 1 / 3
    graphs.y = [0, 1]
    graphs.y = torch.tensor([1.0, 2.0], dtype=torch.float64) / 3
    assert graphs.y[0, 0].item() == 1 / 3
    graphs = Case(sizes=(3, 2)).graphs
    graphs.x = (9 * graphs.x).to(torch.int8)
    graphs = graphs.to(torch.float64)
    graphs.y = torch.tensor([1.0, 2.0], dtype=torch.float64) / 3
    assert graphs.y[0, 0].item() == 1 / 3


def test_targets_that_are_set_are_the_graphs_own():
    graphs, y = Case(sizes=(3, 2)).graphs, torch.zeros(2, 1)
    graphs.y = y
    y[0] = 5
    assert graphs.y[0] == 0


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("y", torch.zeros(3), r"y has shape \(3,\): it needs one row for each of the 2 graphs"),
        ("y", torch.zeros(1, 1), "one row for each of the 2 graphs"),
        ("y", torch.tensor([0.0, math.inf]), "y is inf at graph 1"),
        ("y", torch.tensor([0, -1]), "y is -1 at graph 1: classes count from 0"),
        ("y", torch.zeros(2, requires_grad=True), "y requires a gradient"),
        ("y", "none", "y is not an array of numbers|y has shape"),
        ("y_level", "edge", "y_level='edge' does not fit y: set y instead, whose rows decide it"),
        ("y_level", "node", "y_level='node' does not fit y"),
        ("y_level", None, "y_level=None does not fit y"),
        ("ids", torch.arange(3), r"ids must be a tensor \[num_graphs\] of 2 rows"),
        ("ids", None, "ids must be a tensor"),
        ("x", torch.zeros(4, 5), r"x must be a tensor \[num_nodes, num_features\] of 5 rows"),
        ("x", torch.zeros(5), "x must be a tensor"),
        ("x", None, "x must be a tensor"),
        ("x", torch.zeros(5, 5).to_sparse(), r"x is a sparse tensor: give x\.to_dense"),
        ("x", torch.zeros(5, 5, dtype=torch.complex64), "x is complex"),
        ("x", torch.full((5, 5), math.nan), "x is nan at node 0, column 0"),
        ("edge_attr", torch.zeros(1, 2), r"edge_attr has shape \(1, 2\): it needs one row"),
    ],
)
def test_what_does_not_fit_the_graphs_is_refused_and_changes_nothing(
    name, value, message, tmp_path
):
    graphs = Case(sizes=(3, 2)).graphs
    graphs.y = torch.tensor([1.0, 2.0])
    before = getattr(graphs, name)
    with pytest.raises(InputError, match=message):
        setattr(graphs, name, value)
    assert getattr(graphs, name) is before and graphs.y_level == "graph"
    graphs.save(tmp_path / "graphs.gfast")
    assert torch.equal(PackedGraphs.load(tmp_path / "graphs.gfast").y, graphs.y)


def test_a_class_that_means_missing_is_told_what_says_so():
    missing = torch.tensor([0, -100])
    with pytest.raises(InputError, match=r"y is -100 at graph 1.*pass missing_labels=True"):
        PackedGraphs.from_arrays(torch.zeros(2, 1), [[], []], [0, 1], missing, y_level="graph")


@pytest.mark.parametrize("how", ["none", "deepcopy", "pickle"])
@pytest.mark.parametrize("settings", [{}, {"backend": "torch"}, {"pool": "max"}])
def test_categories_that_are_written_to_are_read_as_they_are(how, settings):
    """Kinds of nodes were kept from the first evaluation."""
    torch.manual_seed(0)
    size = 300
    x = torch.cat([torch.randint(2, (size, 3)), torch.zeros(size, 6, dtype=torch.int64)], 1)
    edges = torch.randint(size // 2, (2, size)) * 2 + torch.tensor([[0], [1]])
    edges[1] = edges[0] // 2 * 2 + 1
    of_graph = torch.arange(size) // 2
    graphs = PackedGraphs.from_arrays(x, edges, of_graph, torch.zeros(size // 2, 1))
    model = FlexGCN(16, 8, 1, orders=[3, 2], encoder="atom", **settings).eval()

    def check(graphs):
        batch = graphs.batch(slice(None))
        with torch.no_grad():
            want = model(graphs.x, edges, batch=of_graph)
            torch.testing.assert_close(model(batch), want)
        torch.testing.assert_close(
            score_graphs(model, graphs, Task("regression")), want[:, 0].abs()
        )

    check(graphs)
    assert graphs.kinds is not None
    graphs = TWINS[how](graphs)
    for column, value in ((0, 6), (1, 3), (0, 7)):
        graphs.x[:, column] = value
        check(graphs)
    graphs.x[:, 2] = 1
    torch.testing.assert_close(
        score_graphs(model, graphs, Task("regression")),
        model(graphs.x, edges, batch=of_graph)[:, 0].abs().detach(),
    )
