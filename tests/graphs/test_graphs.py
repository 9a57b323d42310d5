"""PackedGraphs and GraphBatch: everything that goes in comes out again, in any order."""

import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Subset

from grant_fast import FlexGCN, GraphBatch, InputError, PackedGraphs, reference
from grant_fast.nn import AtomEncoder
from tests.cases import AWKWARD_SIZES, Case, check_equal, to_dense


def edge_list(edge_index, edge_weight=None) -> list[tuple]:
    """Edges as a sorted list: a multiset that can be compared."""
    weights = [1.0] * edge_index.shape[1] if edge_weight is None else edge_weight.tolist()
    return sorted(zip(*edge_index.tolist(), weights, strict=True))


def edges_of(case: Case, graph: int) -> list[tuple]:
    """The edges of one graph in the plain arrays, renumbered from 0."""
    first = sum(case.sizes[:graph])
    inside = case.batch[case.edge_index[0]] == graph
    weight = None if case.edge_weight is None else case.edge_weight[inside]
    return edge_list(case.edge_index[:, inside] - first, weight)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("symmetric", [True, False])
def test_every_graph_is_carried_faithfully(symmetric, weighted):
    case = Case(symmetric=symmetric, weighted=weighted)
    graphs = case.graphs
    assert len(graphs) == len(AWKWARD_SIZES)
    assert graphs.num_nodes_per_graph.tolist() == list(AWKWARD_SIZES)
    assert graphs.num_edges == case.edge_index.shape[1]
    for i in range(len(graphs)):
        one = graphs[i]
        assert isinstance(one, GraphBatch)
        assert (one.num_graphs, one.num_nodes) == (1, AWKWARD_SIZES[i])
        assert torch.equal(one.x, case.x[case.batch == i])
        assert torch.equal(one.y, case.y[i : i + 1])
        assert one.ids.tolist() == [i]
        assert edge_list(one.edge_index, one.edge_weight) == edges_of(case, i)


def test_precision_is_that_of_all_tensors_whatever_is_usual(double_is_usual):
    case = Case()
    graphs = PackedGraphs.from_arrays(
        case.x.long(), case.edge_index, case.batch, case.y, num_graphs=len(case.sizes)
    )
    double = graphs.to(torch.float64)
    assert (graphs.y.dtype, double.y.dtype) == (torch.float32, torch.float64)
    assert double.to(torch.float64) is double


def test_positions_may_come_as_any_array():
    graphs, series = Case().graphs, pytest.importorskip("pandas").Series(range(12))
    for where in (
        np.arange(5)[::-1],
        np.array([4, 3, 2, 1, 0], dtype=">i8"),
        series[4:8],
        series.astype(object),
        series[::-1],
        (series > 5).to_numpy()[::-1],
        (series > 5)[::-1],
    ):
        mask = np.asarray(where).dtype == bool
        expected = np.flatnonzero(where) if mask else np.asarray(where)
        assert graphs.batch(where).ids.tolist() == expected.tolist()


@pytest.mark.parametrize("where", [[3, 0, 9, 3], slice(2, 9), slice(None, None, -1), range(4, 4)])
def test_a_batch_is_its_graphs_one_after_another(where):
    case = Case()
    batch = case.graphs.batch(where)
    order = list(range(12))[where] if isinstance(where, slice) else list(where)
    singles = [case.graphs[i] for i in order]
    assert batch.num_graphs == batch.batch_size == len(batch) == len(order)
    assert batch.num_features == case.x.shape[1]
    assert batch.ids.tolist() == order
    assert batch.ptr.tolist() == np.cumsum([0] + [s.num_nodes for s in singles]).tolist()
    assert batch.batch.tolist() == [b for b, s in enumerate(singles) for _ in range(s.num_nodes)]
    assert torch.equal(batch.x, torch.cat([s.x for s in singles] or [case.x[:0]]))
    assert torch.equal(batch.y, case.y[order])
    shifted = [
        (a + int(start), b + int(start), w)
        for s, start in zip(singles, batch.ptr, strict=False)
        for a, b, w in edge_list(s.edge_index, s.edge_weight)
    ]
    assert edge_list(batch.edge_index, batch.edge_weight) == sorted(shifted)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("where", [slice(None), [8, 1, 5, 2]], ids=["slice", "list"])
def test_adjacency_and_its_transpose_are_the_definition(where, normalize):
    case = Case()
    batch = case.double().batch(where)
    nodes = torch.arange(case.num_nodes)[batch.nodes]
    want = case.dense(normalize)[nodes][:, nodes]
    adjacency = batch.adjacency(normalize)
    for csr, dense in ((adjacency.csr, want), (adjacency.transposed, want.T)):
        torch.testing.assert_close(to_dense(*csr, batch.num_nodes), dense)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("mean", [True, False])
def test_caches_hold_powers_of_the_propagation_matrix(mean, normalize):
    case = Case()
    graphs, a, x = case.double(), case.dense(normalize), case.x.double()
    rho = torch.zeros(case.num_graphs, case.num_nodes, dtype=torch.float64)
    rho[case.batch, torch.arange(case.num_nodes)] = 1
    if mean:
        rho /= rho.sum(1, keepdim=True).clamp(min=1)
    powers = [torch.linalg.matrix_power(a, k) for k in range(4)]
    torch.testing.assert_close(graphs.hops(2, normalize), torch.cat([x, powers[1] @ x], 1))
    want = torch.cat([p @ x for p in powers], 1)
    torch.testing.assert_close(graphs.hops(4, normalize), want)  # grows the cache
    torch.testing.assert_close(graphs.hops(3, normalize), want[:, :15])
    weights = torch.stack([(rho @ p).sum(0) for p in powers])
    torch.testing.assert_close(graphs.pool_weights(4, normalize, mean), weights)
    matrices = graphs.batch(slice(None)).readout(3, normalize, mean)
    for matrix, power in zip(matrices, powers[:3], strict=True):
        want = rho @ power
        torch.testing.assert_close(to_dense(*matrix.csr, case.num_nodes), want)
        torch.testing.assert_close(to_dense(*matrix.transposed, case.num_graphs), want.T)


def test_indexing_does_what_one_expects():
    graphs = Case().graphs
    assert graphs[-1].ids.tolist() == [11]
    assert graphs[-12].ids.equal(graphs[0].ids)
    part = graphs[[5, 2, -1]]
    assert isinstance(part, PackedGraphs)
    assert part.ids.tolist() == [5, 2, 11]
    assert part[[1]].ids.tolist() == [2]  # identity survives a second selection
    mask = torch.zeros(12, dtype=torch.bool)
    mask[[1, 7]] = True
    assert graphs[mask].ids.tolist() == [1, 7]
    assert graphs[np.array([4])].ids.tolist() == [4]
    for one in (np.int64(4), torch.tensor(4)):
        assert isinstance(graphs[one], GraphBatch) and graphs[one].ids.tolist() == [4]
    assert graphs[2:5].num_graphs == 3
    assert len(graphs[[]]) == 0
    with pytest.raises(IndexError, match="no graph 12: this dataset holds 12"):
        graphs[12]
    with pytest.raises(InputError, match="no graph 12"):
        graphs[[0, 12]]
    with pytest.raises(InputError, match="no graph 12"):
        graphs[range(13)]
    with pytest.raises(InputError, match="no graph -13"):
        graphs.batch([-13])
    with pytest.raises(InputError, match="mask has shape"):
        graphs[torch.ones(3, dtype=torch.bool)]
    with pytest.raises(InputError, match=r"torch\.float32"):
        graphs.batch(torch.tensor([0.5]))
    with pytest.raises(InputError, match=r"torch\.float32"):
        graphs[torch.tensor(0.5)]
    with pytest.raises(InputError, match="a DataLoader takes lists of them as batch_sampler="):
        next(iter(DataLoader(graphs, sampler=[[3, 1], [8]])))
    with pytest.raises(InputError, match="'five' is not a list of graph positions"):
        graphs["five"]


def test_subset_equals_packing_the_subset():
    case = Case()
    part = case.graphs.subset([8, 3, 0])
    again = part.batch(slice(None))
    direct = case.graphs.batch([8, 3, 0])
    for name in ("x", "y", "ptr", "ids", "edge_index", "edge_weight"):
        assert torch.equal(getattr(again, name), getattr(direct, name)), name


def test_concat_joins_and_keeps_identities():
    case = Case()
    first, second = case.graphs[:5], case.graphs[5:]
    joined = PackedGraphs.concat([first, second])
    check_equal(joined, case.graphs)
    assert PackedGraphs.concat([first, first]).ids.tolist() == list(range(10))
    mixed = PackedGraphs.concat([case.graphs, Case(symmetric=True, weighted=False).graphs])
    assert not mixed.is_symmetric
    assert mixed[12 + 9].edge_weight.unique().tolist() == [1.0]


def test_concat_refuses_what_does_not_belong_together():
    case = Case()
    arrays = case.x, case.edge_index, case.batch
    classes = PackedGraphs.from_arrays(*arrays, torch.arange(12), num_graphs=12)
    values = PackedGraphs.from_arrays(*arrays, torch.ones(12, 2), num_graphs=12)
    integers = PackedGraphs.from_arrays(torch.ones_like(case.x).long(), *arrays[1:], num_graphs=12)
    for parts, what in (
        ([classes, values], "width or type of y"),
        ([values, integers], "some have none"),
        ([PackedGraphs.from_arrays(*arrays, num_graphs=12), integers], "width or type of x"),
        ([case.graphs, Case(num_features=2).graphs], "differ in num_features"),
        ([case.graphs, case.graphs.to("meta")], r"and on meta: move each with \.to\('cpu'\)"),
        ([], "nothing to concatenate"),
    ):
        with pytest.raises(InputError, match=what):
            PackedGraphs.concat(parts)


@pytest.mark.parametrize("weighted", [False, True])
def test_categorical_graphs_in_float64_are_computed_in_float64(weighted, tmp_path):
    case = Case(weighted=weighted)
    x, batch = torch.arange(case.num_nodes) % 3, case.batch
    edges, weight = case.edge_index, case.edge_weight
    graphs = PackedGraphs.from_arrays(x, edges, batch, edge_weight=weight, num_graphs=12)
    graphs = graphs.to(dtype=torch.float64)
    every, a = range(12), case.dense(True)
    model = FlexGCN(4, 6, 2, [3, 2], pool=None, encoder=AtomEncoder(4, [3])).double()
    first, last = model.convs
    h = reference.dense_flex_conv(model.encoder(x[:, None]), first.weight, first.bias, a).relu()
    h = reference.dense_flex_conv(h, last.weight, last.bias, a)
    loose = model(x[:, None], edges, weight, batch)
    graphs.save(tmp_path / "set.gfast")
    joined = PackedGraphs.concat([graphs[:5], graphs[5:]])
    loaded = PackedGraphs.load(tmp_path / "set.gfast", verify=True)
    same = (graphs, graphs.to("cpu")[every], joined, loaded)
    for out in (*(model(one.batch(every)) for one in same), loose):
        torch.testing.assert_close(out, h, rtol=1e-12, atol=1e-12)


def test_degrees_are_summed_in_float32_where_the_graphs_are_shorter():
    nodes, edges = 2, torch.ones(2, 3000).long()
    arrays = torch.ones(nodes, 1), edges, torch.zeros(nodes).long()
    graphs = PackedGraphs.from_arrays(*arrays, edge_weight=torch.ones(3000))
    low = graphs.to(dtype=torch.bfloat16).scale
    torch.testing.assert_close(low.float(), graphs.scale, rtol=0.01, atol=0)


def test_to_changes_dtype_and_device_and_nothing_else():
    case = Case(y_level="node")
    double = case.graphs.to(dtype=torch.float64)
    assert double.x.dtype == double.adj.weight.dtype == double.scale.dtype == torch.float64
    assert double.ids.dtype == torch.int64
    assert case.graphs.to(torch.float64).x.dtype == torch.float64  # as of a module
    assert case.graphs.to("cpu") is case.graphs
    meta = case.graphs.to("meta")
    assert meta.device.type == "meta" and meta.num_edges == case.graphs.num_edges
    batch = case.graphs.batch([1, 2])
    assert batch.to("cpu", non_blocking=True) is batch
    integers = PackedGraphs.from_arrays(
        torch.ones(2, 1).long(), torch.empty(2, 0), torch.zeros(2).long()
    )
    assert integers.to(dtype=torch.float64).scale.dtype == torch.float64
    assert integers.to(dtype=torch.float64).to("meta").scale.dtype == torch.float64
    assert integers.to(dtype=torch.float64).x.dtype == torch.uint8
    half = case.graphs.to(dtype=torch.float16)
    assert (half.x.dtype, half.y.dtype, double.y.dtype) == (torch.half, torch.float, torch.double)
    assert torch.equal(half.y, case.graphs.y)
    for wrong in (torch.int64, torch.complex64, "float64"):
        with pytest.raises(InputError, match=r"dtype is .*: give torch\.float32"):
            case.graphs.to(dtype=wrong)


def test_node_level_targets_follow_their_nodes():
    case = Case(y_level="node")
    assert torch.equal(
        case.graphs.batch([9, 3]).y, torch.cat([case.y[case.batch == 9], case.y[case.batch == 3]])
    )


@pytest.mark.parametrize("wrap", ["plain", "subset", "concat"])
def test_torch_dataloader_takes_packed_graphs_as_they_are(wrap):
    graphs = Case().graphs
    dataset = {
        "plain": graphs,
        "subset": Subset(graphs, list(range(12))),
        "concat": ConcatDataset([graphs]),
    }[wrap]
    batches = list(DataLoader(dataset, batch_sampler=[[3, 1], [8]]))
    assert [b.ids.tolist() for b in batches] == [[3, 1], [8]]
    assert torch.equal(batches[0].x, graphs.batch([3, 1]).x)
    assert sum(len(b) for b in DataLoader(dataset, batch_size=5, shuffle=True)) == 12


@pytest.mark.parametrize("wrap", [lambda graphs: graphs, lambda graphs: ConcatDataset([graphs])])
def test_workers_are_refused(wrap):
    """With each of their batches they would send the whole dataset back."""
    with pytest.raises(InputError, match=r"needs no workers.*num_workers=0"):
        next(iter(DataLoader(wrap(Case().graphs), batch_size=3, num_workers=1)))


def test_integer_features_index_embeddings():
    graphs = PackedGraphs.from_arrays(torch.arange(6).view(3, 2), [[0], [1]], [0, 0, 1])
    assert graphs.x.dtype == graphs[[1]].x.dtype == torch.uint8
    batch = graphs.batch([1, 0])
    assert batch.x.dtype == torch.int64 and batch.x.tolist() == [[4, 5], [0, 1], [2, 3]]
    model = FlexGCN(4, 4, 1, [2, 2], encoder=nn.Sequential(nn.Embedding(6, 2), nn.Flatten()))
    torch.testing.assert_close(
        model(batch), model(batch.x, batch.edge_index, batch=batch.batch, batch_size=2)
    )


def test_dataloader_refuses_to_mix_datasets():
    loader = DataLoader(ConcatDataset([Case().graphs, Case(seed=1).graphs]), batch_size=24)
    with pytest.raises(InputError, match="several datasets"):
        next(iter(loader))


def test_repr_counts():
    text = repr(Case(sizes=(3, 2)).graphs)
    assert text.startswith("PackedGraphs(num_graphs=2, num_nodes=5, num_edges=")
    assert repr(Case(sizes=(3, 2)).graphs[0]) == "GraphBatch(num_graphs=1, num_nodes=3)"


def test_a_million_small_graphs_fit_and_batch_quickly():
    # 25 nodes and 50 directed edges each, the size of a molecule; nine categories a node. A tenth
    # of the million: bytes grow with the number of graphs, the time of a batch does not.
    num_graphs, size = 100_000, 25
    node = torch.arange(num_graphs * size).view(num_graphs, size)
    source = torch.stack([node.roll(1, 1), node.roll(-1, 1)], 2)
    edge_index = torch.stack([source, node[:, :, None].expand_as(source)]).flatten(1)
    x = torch.zeros(num_graphs * size, 9, dtype=torch.uint8)
    batch = torch.arange(num_graphs).repeat_interleave(size)
    graphs = PackedGraphs.from_arrays(x, edge_index, batch, torch.zeros(num_graphs))
    assert graphs.is_symmetric
    tensors = [graphs.x, graphs.y, graphs.ptr, graphs.ids, *graphs.adj[:2]]
    assert sum(t.numel() * t.element_size() for t in tensors) * 10 < 1e9
    times = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a busy machine should not fail this
    for _ in range(7):
        start = time.perf_counter()
        picked = graphs.batch(torch.randint(num_graphs, (1000,)))
        assert picked.x.shape[0] == picked.batch.shape[0] == picked.adjacency(True).num_nodes
        times.append(time.perf_counter() - start)
    torch.set_num_threads(threads)
    assert min(times) < 0.02


def test_half_precision_datasets_work():
    for dtype in (torch.bfloat16, torch.float16):
        graphs = Case().graphs.to(dtype=dtype)
        model = FlexGCN(5, 4, 2, orders=[3, 2]).to(dtype)
        assert model(graphs.batch([3, 1, 8])).dtype == dtype


def test_notes_on_a_dataset_go_along():
    graphs = Case().graphs
    graphs.meta = {"task": "regression"}
    for other in (graphs[1:3], graphs.to(torch.float64)):
        assert other.meta == graphs.meta


def test_what_was_noted_of_targets_goes_with_them():
    graphs = Case().graphs
    graphs.meta = {"task": {}, "metric": "rmse", "targets": ["a"], "name": "n"}
    graphs.y = torch.zeros(len(graphs), 1)
    assert graphs.meta == {"name": "n"}


def test_the_range_of_classes_that_were_measured():
    graphs = Case().graphs
    for y, expected in (([-100] * 12, (0, 0)), ([-100, 4, *[2] * 10], (2, 4))):
        graphs.y = torch.tensor(y)
        assert graphs.class_range == expected


def test_flat_tensors_without_edges_are_told_of_the_constructors():
    with pytest.raises(InputError, match="takes flat tensors here"):
        PackedGraphs(torch.ones(2, 3), None, torch.tensor([0, 2]))
