"""From graphs to batches: packing a data set, and putting a shuffled batch together.

What is checked is all that a layer and a loss will read: X, Y, the graph of each node, and the
edges, by what one hop makes of random numbers. The answer is found graph by graph, with dense
matrices in float64.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from grant_fast import GraphBatch, PackedGraphs
from grant_fast.reference import expand_rows

from .work import Side, Work


def collate_work(graphs: PackedGraphs, size: int) -> Work:
    """A shuffled batch with everything that a layer reads: X, Y and the normalised adjacency."""
    from torch_geometric.data import Batch

    from .peers.pyg import data_list

    data = cache(lambda: data_list(graphs.to("cpu")))
    checked = torch.randperm(len(graphs))[:size]

    def draw() -> Tensor:
        return torch.randperm(len(graphs))[:size]

    def ours(ids: Tensor) -> GraphBatch:
        batch = graphs.batch(ids)
        batch.x, batch.y, batch.batch  # noqa: B018
        batch.adjacency(True).csr  # noqa: B018
        return batch

    def pyg(ids: Tensor) -> Any:
        return Batch.from_data_list([data()[i] for i in ids.tolist()]).to(graphs.device)

    def of_pyg() -> list[Tensor]:
        batch = pyg(checked)
        return _contents(batch.x, batch.y, batch.batch, *_normalised(batch.edge_index, batch.x))

    def exact() -> list[Tensor]:
        return _exact(data()[i] for i in checked.tolist())

    sides = {
        "grant_fast": lambda: Side(lambda: ours(draw()), lambda: _of_ours(ours(checked))),
        "PyG": lambda: Side(lambda: pyg(draw()), of_pyg),
    }
    return Work("grant_fast", sides, exact, facts=_sizes(graphs) | {"batch size": size})


def pack_work(graphs: PackedGraphs) -> Work:
    """A list of PyG's `Data` made into one data set: packed, or as PyG's own collated storage."""
    from torch_geometric.data import InMemoryDataset

    from .peers.pyg import data_list

    data = data_list(graphs.to("cpu"))

    def ours() -> PackedGraphs:
        return PackedGraphs.from_data_list(data, missing_labels=True)

    def pyg() -> tuple[Any, dict[str, Tensor]]:
        return InMemoryDataset.collate(data)

    def of_pyg() -> list[Tensor]:
        whole, ends = pyg()
        first, sizes = ends["x"][:-1], ends["x"].diff()
        edges = whole.edge_index + first.repeat_interleave(ends["edge_index"].diff())
        owner = torch.arange(len(data)).repeat_interleave(sizes)
        return _contents(whole.x, whole.y, owner, *_normalised(edges, whole.x))

    sides = {
        "grant_fast": lambda: Side(ours, lambda: _of_ours(ours().batch(slice(None)))),
        "PyG": lambda: Side(pyg, of_pyg),
    }
    return Work("grant_fast", sides, lambda: _exact(data), facts=_sizes(graphs))


def _sizes(graphs: PackedGraphs) -> dict[str, int]:
    return {"graphs": len(graphs), "nodes": graphs.num_nodes, "edges": graphs.num_edges}


def _of_ours(batch: GraphBatch) -> list[Tensor]:
    assert batch.y is not None
    rowptr, col, value = batch.adjacency(True).csr
    target = expand_rows(rowptr, len(col))
    return _contents(batch.x, batch.y, batch.batch, col, target, value)


def _normalised(edge_index: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Source, target and weight of every edge of Â, in float64, of PyG's edges."""
    source, target = edge_index
    scale = _inverse_root(target.bincount(minlength=len(x)).double())
    return source, target, scale[source] * scale[target]


def _contents(
    x: Tensor, y: Tensor, owner: Tensor, source: Tensor, target: Tensor, value: Tensor
) -> list[Tensor]:
    """X, Y, the graph of each node, and Âz: what `_exact` gives, on the CPU."""
    z = _numbers(len(x)).to(x.device)
    hop = torch.zeros_like(z).index_add_(0, target, value.double()[:, None] * z[source])
    return [t.double().cpu() for t in (x, y.double().nan_to_num(_NOT_MEASURED), owner, hop)]


def _exact(graphs: Iterable[Any]) -> list[Tensor]:
    """The same of these `Data`, one after another."""
    data = list(graphs)
    sizes = [len(one.x) for one in data]
    hops = []
    for one, z in zip(data, _numbers(sum(sizes)).split(sizes), strict=True):
        source, target = one.edge_index
        dense = torch.zeros(len(z), len(z), dtype=torch.float64)
        dense.index_put_((target, source), dense.new_ones(()), accumulate=True)
        scale = _inverse_root(dense.sum(1))
        hops.append(scale[:, None] * (dense @ (scale[:, None] * z)))
    y = torch.cat([one.y for one in data]).double().nan_to_num(_NOT_MEASURED)
    owner = torch.arange(len(data)).repeat_interleave(torch.tensor(sizes))
    return [torch.cat([one.x for one in data]).double(), y, owner.double(), torch.cat(hops)]


def _inverse_root(degree: Tensor) -> Tensor:
    """D^{-1/2}; 0 where nothing comes in, as everywhere."""
    return degree.rsqrt().where(degree > 0, 0.0)


_NOT_MEASURED = -7.0  # a number that no label is, for NaN


def _numbers(rows: int) -> Tensor:
    """The same for the same number of rows, [rows, 4], every time."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, 4, generator=generator, dtype=torch.float64)
