"""Edges as the kernels read them: `kernels/cpu/edges.h`."""

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from ..batches.edges import BatchAdjacency
from ..batches.layout import DatasetSide, PackedCSR
from ..indexing import sizes_to_ptr
from . import loading
from .loading import call, pointer, threads
from .structure import split


class _EdgeList(ctypes.Structure):
    """`edge_list` of kernels/cpu/edges.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("nodes", "edges", "graphs", "most")),
        *((name, ctypes.c_void_p) for name in ("source", "target", "weight")),
        ("named", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("batch", "ptr")),
        *((name, ctypes.c_void_p * 2) for name in ("rowptr", "col", "value")),
        ("symmetric", ctypes.c_int64),
    )


class SortedEdges(NamedTuple):
    """Graphs of nodes that begin at ptr, [B + 1], and their edges by target and by source."""

    ptr: Tensor
    adj: PackedCSR
    adj_t: PackedCSR | None


def sort_edges(
    edge_index: Tensor,
    weight: Tensor | None,
    batch: Tensor | None,
    num_nodes: int,
    num_graphs: int,
    max_nodes: int,
) -> SortedEdges | None:
    """Edges in any order as the two sides of a packed dataset.

    Args:
        edge_index: [2, E] int64, source → target.  weight: [E] float32, or None.
        batch: [n] int64, the graph of each node; None takes as graphs runs of nodes that no edge
            leaves, and `num_graphs` for nothing.
        max_nodes: nodes that a graph may have.

    Returns:
        None where `batch` descends, or an edge leaves its graph or the nodes, or a graph has more
        than `max_nodes`; and where the kernels were not compiled.
    """
    if loading.library() is None:
        return None
    source, target = (row.contiguous() for row in edge_index)
    weight = None if weight is None else weight.resolve_neg().contiguous()
    batch = None if batch is None else batch.contiguous()
    edges = source.shape[0]
    ptr = source.new_empty((num_nodes if batch is None else num_graphs) + 1)
    sides = [
        PackedCSR(
            source.new_empty(num_nodes + 1),
            source.new_empty(edges, dtype=torch.int32),
            None if weight is None else torch.empty_like(weight),
        )
        for _ in range(2)
    ]
    counts, given = (num_nodes, edges, num_graphs, max_nodes), (source, target, weight)
    graphs = batch is not None, *map(pointer, (batch, ptr))  # of no nodes there is no pointer
    made = _EdgeList(*counts, *map(pointer, given), *graphs)
    for number, side in enumerate(sides):
        made.rowptr[number], made.col[number], made.value[number] = map(pointer, side)
    if not call("sort_edges", ctypes.byref(made)):
        return None
    return SortedEdges(ptr[: made.graphs + 1], sides[0], None if made.symmetric else sides[1])


def grouped(csr: PackedCSR, ptr: Tensor) -> DatasetSide:
    """One direction of the edges of graphs that begin at `ptr`, [G + 1], with its groups."""
    rowptr, num_nodes, degree = csr.rowptr, csr.rowptr.shape[0] - 1, csr.rowptr.diff()
    few = csr.col.shape[0] <= 4 * num_nodes
    group = None if few else sizes_to_ptr((degree + 3) // 4)
    listed = rowptr.new_empty(
        4 * (num_nodes if group is None else int(group[-1])), dtype=torch.int16
    )
    call("group_edges", num_nodes, rowptr, csr.col, group, listed)
    busy = (degree > 4).nonzero().flatten()
    if group is not None or not len(busy):
        return DatasetSide(*csr, listed, group)
    graph = torch.searchsorted(ptr, busy, right=True) - 1
    busy_ptr = torch.searchsorted(busy, torch.arange(num_nodes + 1, device="cpu"))
    return DatasetSide(*csr, listed, None, busy_ptr, (busy - ptr[graph]).short())


def pool_weights(adjacency: BatchAdjacency, mean: bool, out: Tensor) -> None:
    """p_k = ρÂ^k of a batch's graphs in `out`, [κ, N], which has a column for each of the dataset's
    nodes; ρ is the mean over each graph, or the sum."""
    struct, parts = split(adjacency, 1)
    call("pool_weights", struct, parts, threads(), *out.shape, mean, out)
