"""Graphs given as PyG's tensors, packed for one call, where the CPU kernels then take them."""

from typing import Any

import torch
from torch import Tensor, nn

from . import native, ops
from .adjacency import Adjacency, plain_tensor
from .batch import GraphBatch
from .flat import FlatGraphs
from .loose import LooseGraphs
from .reference import expand_rows


def packed(
    graphs: LooseGraphs, weight: Tensor, pooled: bool, backend: str | None
) -> GraphBatch | LooseGraphs:
    """The graphs as a batch of their own, or as they came where that serves nothing.

    Args:
        weight: of the first layer that will read them.
        pooled: whether the graphs are those that the batch vector names; else any runs of nodes
            that no edge leaves, so that large batches need no batch vector.
        backend: as for `FlexConv`.
    """
    if not ops.takes_network(weight, None, backend):
        return graphs
    x, (edges, values) = graphs.x, _edge_list(graphs)
    given = [x, edges, graphs.batch] + ([] if values is None else [values])
    if not all(_is_plain(t) for t in given):
        return graphs
    if x.dim() != 2 or (x.is_floating_point() and x.dtype != torch.float32):
        return graphs
    if edges.dtype not in (torch.int64, torch.int32) or edges.dim() != 2 or len(edges) != 2:
        return graphs
    if values is not None:
        learned = values.requires_grad and torch.is_grad_enabled()
        one_an_edge = values.shape in ((edges.shape[1],), (edges.shape[1], 1))
        if learned or not one_an_edge or not values.is_floating_point():
            return graphs
        values = values.detach().float().reshape(-1)
    batch = graphs.batch if pooled else None
    found = native.sort_edges(
        edges.long(), values, batch, len(x), graphs.num_graphs, native.MAX_NODES
    )
    if found is None:
        return graphs
    flat = FlatGraphs(x, None, *found)
    flat.cache_bytes, flat.kinds = -1, None  # what is kept for a dataset is dear to make for a call
    flat.scale = flat._scale_in(torch.float32)
    return flat.batch(slice(None))


def _edge_list(graphs: LooseGraphs) -> tuple[Any, Tensor | None]:
    """`edge_index` and weights; of a sparse matrix both, and weights only where not all are 1."""
    edges, weight = plain_tensor(graphs.edges), graphs.edge_weight
    if isinstance(edges, Adjacency) or getattr(edges, "layout", None) == torch.strided:
        return edges, weight
    matrix = Adjacency.from_any(edges, weight, len(graphs.x), torch.float32)
    rowptr, col, value = matrix.csr
    edges = torch.stack([col, expand_rows(rowptr, len(col))])
    return edges, None if bool((value == 1).all()) and not value.requires_grad else value


def _is_plain(given: Any) -> bool:
    """Whether it is a tensor that lies in memory."""
    plain = type(given) in (Tensor, nn.Parameter)
    return plain and given.device.type == "cpu" and given.layout == torch.strided
