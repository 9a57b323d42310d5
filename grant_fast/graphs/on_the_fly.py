"""Graphs given as PyG's tensors, packed for the call, where the CPU kernels then take them.

Edges that come again, in the next layer or the next epoch, are not sorted again.
"""

from copy import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .. import native, ops
from ..adjacency import Adjacency, plain_tensor
from ..batches import GraphBatch
from ..batches.edges import LearnedAdjacency
from ..batches.layout import PackedCSR, carried_places, places_of
from ..batches.loose import LooseGraphs
from ..caching import made_once
from ..reference import expand_rows
from .flat import FlatGraphs

#: The hops of graphs of fewer nodes in all are done before their edges are grouped, or the kinds of
#: their nodes found.
LEAST_GROUPED = 2048


def packed(
    graphs: LooseGraphs, weight: Tensor, pooled: bool, backend: str | None
) -> GraphBatch | LooseGraphs:
    """The graphs as a batch of their own, or as they came where that serves nothing.

    Args:
        weight: of the first layer that will read them.
        pooled: whether the graphs are those that the batch vector names; else any runs of nodes
            that no edge leaves, so that large batches need no batch vector, or all nodes as one
            graph where such a run is too large for the kernels' tiles.
        backend: as for `FlexConv`.
    """
    if not ops.takes_network(weight, None, backend):
        return graphs
    x = graphs.x
    if not (_is_plain(x) and _is_plain(graphs.batch)) or x.dim() != 2:
        return graphs
    if x.is_floating_point() and x.dtype != torch.float32:
        return graphs
    of = (len(x), graphs.batch if pooled else None, graphs.num_graphs)
    if parts := _constant_parts(graphs):
        made = made_once(graphs.edges, (*of, *parts), lambda: _of_matrix(graphs, pooled))
        return graphs if made is None else _with_features(made, x)
    edges, values = _edge_list(graphs)
    if not _is_plain(edges) or not (values is None or _is_plain(values)):
        return graphs
    if edges.dtype not in (torch.int64, torch.int32) or edges.dim() != 2 or len(edges) != 2:
        return graphs
    edges = edges.long()
    if values is not None:
        one_an_edge = values.shape in ((edges.shape[1],), (edges.shape[1], 1))
        if not one_an_edge or not values.is_floating_point():
            return graphs
        values = values.float().reshape(-1)
        if values.requires_grad and torch.is_grad_enabled():
            return _learned(graphs, edges, values)
        values = values.detach()
    make = partial(_without_features, graphs, edges, values, pooled)
    made = made_once(graphs.edges, (*of, edges, values), make)
    return graphs if made is None else _with_features(made, x)


def _without_features(
    graphs: LooseGraphs, edges: Tensor, weight: Tensor | None, pooled: bool
) -> GraphBatch | None:
    found = _sorted(graphs, edges, weight, pooled)
    if found is None:
        return None
    flat = FlatGraphs(torch.empty(len(graphs.x), 0, device="cpu"), None, *found)
    flat.cache_bytes = -1  # what is kept for a dataset is dear to make for a call
    flat.groups = len(graphs.x) >= LEAST_GROUPED
    if not flat.groups:
        flat.kinds = None
    flat.scale = flat._scale_in(torch.float32)
    out = flat.batch(slice(None))
    for name in ("num_nodes", "_csrs", "_parts"):  # what later calls share, or fill for others
        getattr(out, name)
    return out


def _with_features(made: GraphBatch, x: Tensor) -> GraphBatch:
    """The graphs with X, sharing what was derived of their edges, and what will be."""
    out = copy(made)
    out.graphs = copy(made.graphs)
    out.graphs.x = x
    # An encoder sees what it was given, where a dataset's integers become int64.
    out._given = x
    # A layer keeps its edges for the backward pass, and X only as autograd is told to.
    out._bare = made
    return out


def _sorted(
    graphs: LooseGraphs, edges: Tensor, weight: Tensor | None, pooled: bool
) -> native.SortedEdges | None:
    nodes = len(graphs.x)
    if pooled:
        return native.sort_edges(edges, weight, graphs.batch, nodes, graphs.num_graphs, nodes)
    return _in_runs(edges, weight, nodes)


def _in_runs(edges: Tensor, weight: Tensor | None, num_nodes: int) -> native.SortedEdges | None:
    """Edges sorted within runs of nodes that no edge leaves; or all nodes as one graph, where such
    a run is too large for the kernels' tiles."""
    found = native.sort_edges(edges, weight, None, num_nodes, 0, native.MAX_NODES)
    if found is not None:
        return found
    one_graph = torch.zeros(num_nodes, dtype=torch.long, device="cpu")
    return native.sort_edges(edges, weight, one_graph, num_nodes, 1, num_nodes)


class LearnedGraphs(LooseGraphs):
    """Graphs whose edges have weights that learn, with the edges sorted once for all layers.

    Args:
        graphs: the same, as they came.
        source: [E], of each edge.  weight: [E] float32.
        ptr: as of a `SortedEdges`.
        sides: its sides, and the edges' places before they were sorted, [E] int64; those by target
            twice where both are the same.
    """

    def __init__(
        self,
        graphs: LooseGraphs,
        source: Tensor,
        weight: Tensor,
        ptr: Tensor,
        sides: list[tuple[PackedCSR, Tensor]],
    ) -> None:
        vars(self).update(vars(graphs))
        self._source, self._weight, self._ptr, self._sides = source, weight, ptr, sides

    def _propagation(self, normalize: bool) -> LearnedAdjacency:
        (by_target, place), (by_source, place_t) = self._sides
        value = self._weight.index_select(0, place)
        if normalize:
            source = self._source.index_select(0, place)
            value = Adjacency(by_target.rowptr, source, value, len(self.x)).normalized().csr[2]
        of_place = torch.empty_like(place)
        of_place[place] = torch.arange(len(place), device="cpu")
        adj = by_target._replace(weight=value.detach())
        adj_t = by_source._replace(weight=value.detach()[of_place[place_t]])
        bare = FlatGraphs(self.x.new_empty(len(self.x), 0), None, self._ptr, adj, adj_t)
        return LearnedAdjacency(bare.batch(slice(None)), value)


def _learned(graphs: LooseGraphs, edges: Tensor, weight: Tensor) -> LooseGraphs:
    nodes = len(graphs.x)
    made = made_once(graphs.edges, (nodes, edges), lambda: _with_places(edges, nodes))
    return graphs if made is None else LearnedGraphs(graphs, edges[0], weight, *made)


def _with_places(
    edges: Tensor, num_nodes: int
) -> tuple[Tensor, list[tuple[PackedCSR, Tensor]]] | None:
    """`ptr` and `sides` of `LearnedGraphs`."""
    places = carried_places(edges.shape[1])
    found = _in_runs(edges, places, num_nodes)
    if found is None:
        return None
    sides = (found.adj, found.adj_t or found.adj)
    return found.ptr, [(side, places_of(side)) for side in sides]


def _edge_list(graphs: LooseGraphs) -> tuple[Any, Tensor | None]:
    """`edge_index` and weights; of a sparse matrix both, and weights only where not all are 1."""
    edges, weight = plain_tensor(graphs.edges), graphs.edge_weight
    if isinstance(edges, Adjacency) or getattr(edges, "layout", None) == torch.strided:
        return edges, weight
    rowptr, col, value = Adjacency.from_any(edges, weight, len(graphs.x), torch.float32).csr
    edges = torch.stack([col, expand_rows(rowptr, len(col))])
    return edges, None if bool((value == 1).all()) and not value.requires_grad else value


def _of_matrix(graphs: LooseGraphs, pooled: bool) -> GraphBatch | None:
    edges, values = _edge_list(graphs)
    return _without_features(graphs, edges.long(), values, pooled)


def _constant_parts(graphs: LooseGraphs) -> tuple[Tensor | None, ...]:
    """All that a sparse matrix holds, where that is at hand and does not learn; else nothing."""
    matrix = graphs.edges
    parts = _parts_of(matrix) if graphs.edge_weight is None else ()
    tensors = [part for part in (matrix, *parts) if isinstance(part, Tensor)]
    learns = any(tensor.requires_grad for tensor in tensors)  # of COO, the matrix alone says so
    plain = all(part is None or _is_plain(part) for part in parts)
    return parts if plain and not learns and not any(t.is_inference() for t in tensors) else ()


def _parts_of(matrix: Any) -> tuple[Tensor | None, ...]:
    """What torch's CSR and COO and a `torch_sparse.SparseTensor` hold; nothing of anything else."""
    layout = getattr(matrix, "layout", None)
    if layout == torch.sparse_csr:
        return matrix.crow_indices(), matrix.col_indices(), matrix.values()
    if layout == torch.sparse_coo:
        return matrix._indices(), matrix._values()
    return tuple(matrix.csr()) if hasattr(matrix, "sparse_sizes") else ()


def _is_plain(given: Any) -> bool:
    """Whether it is a tensor that lies in memory, as it is (a negative view does not)."""
    plain = type(given) in (Tensor, nn.Parameter)
    in_rows = plain and given.layout == torch.strided and not given.is_neg()
    return in_rows and given.device.type == "cpu"
