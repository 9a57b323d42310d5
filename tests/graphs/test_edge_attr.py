"""Features of edges stay with their edges, for models of one's own."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import Tensor

from grant_fast import FlexGCN, GraNTSampler, InputError, PackedGraphs, Task, native
from tests.cases import Case


def packed(weighted: bool = True, columns: int | None = 2, dtype=torch.float32) -> PackedGraphs:
    """Of the awkward graphs, repeated edges among them; each edge's row says which edge it is."""
    case = Case(weighted=weighted)
    count = case.edge_index.shape[1]
    attr = torch.arange(count) if columns is None else torch.arange(columns * count).view(count, -1)
    given = (case.x, case.edge_index, case.batch, case.y, case.edge_weight, case.num_graphs)
    return PackedGraphs.from_arrays(*given, edge_attr=attr.to(dtype))


def listed(edge_index: Tensor, weight: Tensor | None, attr: Tensor) -> list[tuple[float, ...]]:
    """Every edge with all that it has, in an order that says nothing."""
    weight = torch.ones(len(attr)) if weight is None else weight
    attr = attr[:, None] if attr.dim() == 1 else attr
    return sorted(map(tuple, torch.cat([edge_index.T, weight[:, None], attr], 1).tolist()))


def of_graphs(case: Case, attr: Tensor, where: list[int]) -> list[tuple[float, ...]]:
    """What `listed` gives of these graphs, taken from the arrays by a loop over graphs."""
    parts, weights, attrs, start = [], [], [], 0
    first = torch.tensor([0, *case.sizes]).cumsum(0)
    for graph in where:
        mine = case.batch[case.edge_index[0]] == graph
        parts.append(case.edge_index[:, mine] - first[graph] + start)
        attrs.append(attr[mine])
        weights.append(torch.ones(int(mine.sum())) if case.edge_weight is None else
                       case.edge_weight[mine])  # fmt: skip
        start += case.sizes[graph]
    return listed(torch.cat(parts, 1), torch.cat(weights), torch.cat(attrs))


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("columns", [None, 1, 3])
@pytest.mark.parametrize("where", [slice(None), [3, 1, 8, 1], [0], range(5, 11)], ids=str)
def test_every_edge_keeps_its_own_row(where, columns, weighted, compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(native.loading, "library", lambda: None)
    case, graphs = Case(weighted=weighted), packed(weighted, columns)
    count = case.edge_index.shape[1]
    attr = torch.arange(count * (columns or 1)).view(count, -1).float()
    graph_numbers = list(range(case.num_graphs))[where] if isinstance(where, slice) else where
    batch = graphs.batch(where)
    assert batch.edge_attr.shape == (batch.num_edges, *([] if columns is None else [columns]))
    want = of_graphs(case, attr, list(graph_numbers))
    assert listed(batch.edge_index, batch.edge_weight, batch.edge_attr) == want
    again = graphs[where].batch(slice(None))
    assert listed(again.edge_index, again.edge_weight, again.edge_attr) == want


@pytest.mark.parametrize("way", ["save", "concat", "pickle", "copy", "to"])
def test_they_go_wherever_the_graphs_go(way, tmp_path):
    graphs = packed()
    if way == "save":
        graphs.save(tmp_path / "a.gfast")
        out = PackedGraphs.load(tmp_path / "a.gfast")
    elif way == "concat":
        out = PackedGraphs.concat([graphs[:5], graphs[5:]])
    elif way == "pickle":
        out = pickle.loads(pickle.dumps(graphs))
    else:
        out = copy.deepcopy(graphs) if way == "copy" else graphs.to(torch.float64)
    assert torch.equal(out.edge_attr, graphs.edge_attr.to(out.edge_attr.dtype))
    assert out.edge_attr.dtype == (torch.float64 if way == "to" else torch.float32)
    assert torch.equal(out.batch([3]).edge_attr.float(), graphs.batch([3]).edge_attr)


def test_integers_are_kept_narrow_and_index_embeddings():
    graphs = packed(columns=None, dtype=torch.int64)
    assert graphs.edge_attr.dtype == torch.int16 and graphs.batch([3]).edge_attr.dtype == torch.long


def test_a_network_of_ours_reads_none_of_them():
    model = FlexGCN(5, 4, 2, orders=[3, 2])
    assert torch.equal(model(packed().batch([3, 8])), model(Case().graphs.batch([3, 8])))


def test_without_them_there_is_nothing():
    assert Case().graphs.edge_attr is None and Case().graphs.batch([3]).edge_attr is None


def test_writing_into_a_batch_changes_no_dataset():
    graphs = packed()
    before = graphs.edge_attr.clone()
    graphs.batch(slice(None)).edge_attr.zero_()
    assert torch.equal(graphs.edge_attr, before)
    with pytest.raises(InputError, match="edge_attr"):
        graphs.batch([3]).edge_attr = before


def test_a_batch_has_what_the_dataset_has_by_now():
    graphs = packed()
    batch = graphs.batch(slice(None))
    before = batch.edge_attr.clone()
    graphs.edge_attr = 2 * graphs.edge_attr
    assert torch.equal(batch.edge_attr, 2 * before)
    graphs.edge_attr.zero_()
    assert not batch.edge_attr.any()


@pytest.mark.parametrize(
    ("attr", "message"),
    [
        (torch.ones(3, 2), r"edge_attr has shape \(3, 2\).*each of the 2 edges"),
        (torch.ones(2, 1, 1), r"edge_attr has shape \(2, 1, 1\)"),
        (torch.tensor([[1.0], [float("nan")]]), "edge_attr is nan at edge 1, column 0"),
        (torch.ones(2, dtype=torch.complex64), "edge_attr is complex"),
    ],
)
def test_what_fits_no_edges_is_refused(attr, message):
    with pytest.raises(InputError, match=message):
        PackedGraphs.from_arrays(torch.ones(2, 1), [[0, 1], [1, 0]], [0, 0], edge_attr=attr)


def test_parts_with_and_without_are_not_joined():
    with pytest.raises(InputError, match="some parts have edge_attr and some have none"):
        PackedGraphs.concat([packed(), Case().graphs])
    with pytest.raises(InputError, match="differ in the width or type of edge_attr"):
        PackedGraphs.concat([packed(), packed(columns=3)])


def test_a_model_that_reads_them_learns_the_same_from_packed_graphs_as_from_pygs_loader():
    with warnings.catch_warnings():  # PyG's own, at its import
        warnings.simplefilter("ignore")
        pyg = pytest.importorskip("torch_geometric")
        from torch_geometric.nn import GINEConv, global_add_pool
    generator = torch.Generator().manual_seed(0)
    data = []
    for _ in range(40):
        nodes = int(torch.randint(1, 9, (1,), generator=generator))
        data.append(
            pyg.data.Data(
                x=torch.randn(nodes, 3, generator=generator),
                edge_index=torch.randint(nodes, (2, 2 * nodes), generator=generator),
                edge_attr=torch.randn(2 * nodes, 2, generator=generator),
                y=torch.randn(1, 1, generator=generator),
            )
        )
    torch.manual_seed(0)
    net = GINEConv(torch.nn.Linear(3, 1), edge_dim=2)

    def predict(model, batch):
        out = model(batch.x, batch.edge_index, batch.edge_attr)
        return global_add_pool(out, batch.batch, len(batch.ptr) - 1)

    graphs = PackedGraphs.from_data_list(data)
    options = {"epochs": 4, "mode": "global", "predict": predict}
    ours, theirs = (GraNTSampler(d, Task("regression"), 8, **options) for d in (graphs, data))
    for sampler in (ours, theirs):
        sampler.select(net, 0)
    torch.testing.assert_close(ours.scores, theirs.scores)
    assert list(ours) == list(theirs)
    loader = pyg.loader.DataLoader(data, batch_sampler=theirs)
    for mine, batch in zip(map(graphs.batch, ours), loader, strict=True):
        torch.testing.assert_close(predict(net, mine), predict(net, batch))
