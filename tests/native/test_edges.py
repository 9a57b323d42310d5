"""Edges as the compiled CPU kernels read them, and what follows from edges alone."""

import itertools

import pytest
import torch

from grant_fast import PackedGraphs, native
from tests.cases import AWKWARD_SIZES, Case, dense_graphs
from tests.native.checks import close

pytestmark = pytest.mark.skipif(native.build() is None, reason="the kernels were not compiled")


@pytest.mark.parametrize("many", [False, True])
def test_groups_of_edges(build, many):
    """Each row's columns again, in fours; in a sparse dataset the rest are the busy rows'."""
    graphs = dense_graphs(AWKWARD_SIZES, 1) if many else Case(weighted=False).graphs
    for csr in (graphs.adj, graphs.adj_t):
        _, _, _, listed, group, busy_ptr, busy = native.grouped(csr, graphs.ptr)
        assert (group is None) != many
        for node in range(graphs.num_nodes):
            columns = csr.col[csr.rowptr[node] : csr.rowptr[node + 1]].tolist()
            start, end = (node, node + 1) if group is None else group[node : node + 2].tolist()
            found = [column for column in listed[4 * start : 4 * end].tolist() if column >= 0]
            assert found == (columns if group is not None else columns[:4])
        if group is None:
            graph = (
                torch.searchsorted(graphs.ptr, busy_ptr.diff().nonzero().flatten(), right=True) - 1
            )
            rows = (csr.rowptr.diff() > 4).nonzero().flatten()
            assert torch.equal(busy_ptr.diff().nonzero().flatten(), rows) and len(rows)
            assert torch.equal(busy.long(), rows - graphs.ptr[graph])


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("symmetric", [True, False])
def test_edges_sorted(build, symmetric, weighted, named, monkeypatch):
    """As NumPy sorts them for packing; but weights of repeated edges keep their order."""
    case = Case(symmetric=symmetric, weighted=False)
    shuffled = torch.randperm(case.edge_index.shape[1])
    edges, weight = case.edge_index[:, shuffled], None
    if weighted:  # one weight a pair of nodes, so that repeated edges have one order
        weight = edges.double().prod(0).cos().float()
    batch = case.batch if named else None
    made = native.sort_edges(edges, weight, batch, case.num_nodes, case.num_graphs, 4096)
    graph = torch.searchsorted(made.ptr, torch.arange(case.num_nodes), right=True) - 1
    if named:
        assert torch.equal(made.ptr, case.graphs.ptr)
    else:  # cut where no edge crosses, as soon as there are enough for a tile
        low, high = edges.amin(0), edges.amax(0)
        cuts = [i for i in range(case.num_nodes + 1) if not ((low < i) & (high >= i)).any()]
        assert set(made.ptr.tolist()) <= set(cuts) and made.ptr[-1] == case.num_nodes
        assert len(made.ptr) > 2 and all(
            end == min(cut for cut in cuts if cut >= start + 64 or cut == case.num_nodes)
            for start, end in itertools.pairwise(made.ptr.tolist())
        )
    monkeypatch.setattr(native.loading, "library", lambda: None)
    want = PackedGraphs.from_arrays(
        case.x, edges, graph, edge_weight=weight, num_graphs=len(made.ptr) - 1
    )
    assert (made.adj_t is None) == symmetric == (want.adj_t is None)
    same_edges(made, want)


def same_edges(made, want):
    for got, expected in ((made.adj, want.adj), (made.adj_t, want.adj_t)):
        assert (got is None) == (expected is None)
        for a, b in zip(got or (), expected or (), strict=True):
            assert (a is None) == (b is None) and (a is None or torch.equal(a, b))


@pytest.mark.parametrize("weighted", [True, False])
def test_packing_does_not_depend_on_who_sorts_nor_on_the_order_of_the_edges(
    build, weighted, monkeypatch
):
    case = Case()
    edges = case.edge_index.repeat(1, 3)  # with weights of their own
    weight = torch.randn(edges.shape[1]) if weighted else None

    def packed(order):
        listed = None if weight is None else weight[order]
        return PackedGraphs.from_arrays(case.x, edges[:, order], case.batch, None, listed)

    made = packed(torch.randperm(edges.shape[1]))
    monkeypatch.setattr(native.loading, "library", lambda: None)
    same_edges(made, packed(torch.randperm(edges.shape[1])))


@pytest.mark.parametrize("weighted", [True, False])
def test_a_directed_ring_is_not_symmetric(build, weighted):
    """Each node has one edge either way: the sides differ in their columns alone."""
    ring, weight = torch.tensor([[0, 1, 2], [1, 2, 0]]), torch.ones(3) if weighted else None
    made = native.sort_edges(ring, weight, torch.zeros(3).long(), 3, 1, 3)
    assert made.adj.col.tolist() == [2, 0, 1] and made.adj_t.col.tolist() == [1, 2, 0]


@pytest.mark.parametrize(("weight", "symmetric"), [([2.0, 3.0], False), ([2.0, 2.0], True)])
def test_weights_alone_may_tell_the_sides_apart(build, weight, symmetric):
    edges = torch.tensor([[0, 1], [1, 0]])
    made = native.sort_edges(edges, torch.tensor(weight), torch.zeros(2).long(), 2, 1, 2)
    assert (made.adj_t is None) == symmetric
    assert made.adj.weight.tolist() == weight[::-1]


def test_repeated_edges_keep_their_order(build):
    edges, weight = torch.tensor([[0, 0, 1, 0], [1, 1, 1, 1]]), torch.tensor([4.0, 1.0, 3.0, 2.0])
    made = native.sort_edges(edges, weight, torch.zeros(2).long(), 2, 1, 2)
    assert made.adj.weight.tolist() == made.adj_t.weight.tolist() == [4, 1, 2, 3]


def test_edges_that_cannot_be_sorted(build):
    edges = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
    batch = torch.tensor([0, 0, 1, 1])

    def sorts(edges, batch, num_nodes=4, num_graphs=2, most=2):
        return native.sort_edges(edges, None, batch, num_nodes, num_graphs, most) is not None

    assert sorts(edges, batch) and sorts(edges, None)
    pairs = native.sort_edges(edges, None, None, 4, 0, 2)
    assert pairs.ptr.tolist() == [0, 2, 4]  # together they would be too many
    assert not sorts(edges, batch, num_graphs=1)
    assert not sorts(edges, batch.flip(0)) and not sorts(edges, batch - 1)
    assert not sorts(edges, batch, most=1) and not sorts(edges, None, most=1)
    assert not sorts(edges, torch.tensor([0, 1, 1, 1]), most=4)  # an edge joins two graphs
    assert not sorts(edges, torch.zeros(4, dtype=torch.long), most=3)
    for wrong in (-1, 4, 2**62, -(2**62), 2**63 - 1, -(2**63)):
        for row in range(2):
            others = edges.clone()
            others[row, 3] = wrong
            assert not sorts(others, batch) and not sorts(others, None)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("mean", [True, False])
def test_weights_of_a_pooled_layer(build, mean, normalize, weighted):
    case = Case(weighted=weighted)
    rho = torch.zeros(case.num_graphs, case.num_nodes, dtype=torch.float64)
    rho[case.batch, torch.arange(case.num_nodes)] = 1.0
    if mean:
        rho /= rho.sum(1, keepdim=True).clamp(min=1)
    got = case.graphs.pool_weights(4, normalize, mean)
    for k in range(4):
        close(got[k], rho.sum(0))  # graphs are disjoint: a column has one entry
        rho = rho @ case.dense(normalize)
