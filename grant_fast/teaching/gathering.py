"""Which graphs are scored at a time, and how they come together."""

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Subset, default_collate

from ..batches import GraphBatch
from ..errors import InputError, require
from ..graphs import PackedGraphs
from ..indexing import sizes_to_ptr, tensor_of
from .order import batch_sizes

Collate = Callable[[list[Any]], Any]


def scoring_runs(graphs: Any, positions: Tensor | None, size: int | None) -> list[slice]:
    """Which of the graphs (of those at `positions`, if given) to score at a time: so many, or where
    `size` is None as many of a `PackedGraphs` as keep a pass of a `FlexGCN` in the cache.

    Measured on molecules and on dense graphs: times fall until some 2^19 nodes and edges together
    (the compiled kernels stay in the cache by themselves), and do not beyond.
    """
    if size is None and isinstance(graphs, PackedGraphs):
        return graphs.cut(1 << 19, positions, longest=1 << 14)
    size, total = size or 1024, len(graphs if positions is None else positions)
    return [slice(*ends) for ends in pairwise(accumulate(batch_sizes(total, size), initial=0))]


def gather(graphs: Any, chunk: slice | Tensor, collate: Collate | None) -> Any:
    """A batch of the graphs at these positions."""
    if collate is None and isinstance(graphs, PackedGraphs):
        return graphs.batch(chunk)
    if type(graphs) is Subset:  # of a `PackedGraphs`, for one; others may do more
        own = graphs.indices  # a long list as a tensor would cost more than most batches
        part = own[chunk] if isinstance(chunk, slice) else [own[i] for i in chunk.tolist()]
        return gather(graphs.dataset, tensor_of(part), collate)
    # Graphs that are Python objects can only be fetched one by one.
    where = range(chunk.start, chunk.stop) if isinstance(chunk, slice) else chunk.tolist()
    items = [graphs[position] for position in where]
    if collate is not None:
        return collate(items)
    if isinstance(items[0], GraphBatch):  # of a data set around a `PackedGraphs`
        return default_collate(items)
    if not hasattr(items[0], "stores_as"):
        raise InputError(
            f"the graphs are of type {type(items[0]).__name__}, which PyG does not collate: give "
            "collate=, a function that makes a batch, with the targets as its y, of a list of them"
        )
    return require("torch_geometric.data", "pyg").Batch.from_data_list(items)


def node_ranges(batch: Any, size: int) -> Tensor:
    """The node ranges of a batch, from `ptr` or else from the graph number of each node."""
    ptr = getattr(batch, "ptr", None)
    if ptr is not None:
        return ptr
    numbers = getattr(batch, "batch", None)
    if numbers is None:
        raise InputError("a node-level task needs batches with ptr or batch: check collate")
    return sizes_to_ptr(torch.bincount(numbers, minlength=size))
