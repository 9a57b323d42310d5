"""Graphs that are not packed: plain tensors, as PyG hands them to a layer."""

from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from ..adjacency import Adjacency, count_to_ptr, pooling_matrix
from ..errors import InputError


class LooseGraphs:
    """Graphs given as PyG's tensors, with what a model reads of a `GraphBatch`; for one call.

    Args:
        x: [n, F].  edges, edge_weight: see `Adjacency.from_any`.
        batch: [n], the graph of every node, in any order; None for a single graph.
        batch_size: number of graphs; read off `batch` (with a host synchronisation) where None.
    """

    node_count: None = None  # all rows are nodes, see `GraphBatch`

    def __init__(
        self,
        x: Tensor,
        edges: Any,
        edge_weight: Tensor | None,
        batch: Tensor | None,
        batch_size: int | None,
    ) -> None:
        given = {"x": x, "edge_weight": edge_weight, "batch": batch}
        for name, value in given.items():
            if (name == "x" or value is not None) and not isinstance(value, Tensor):
                pair = " (of two sets of nodes, as in bipartite graphs, there is no Â)"
                why = pair if isinstance(value, tuple) else ""
                raise InputError(f"{name} is a {type(value).__name__}: give a tensor{why}")
        if isinstance(batch_size, Tensor):
            raise InputError(
                "batch_size is a tensor, but it must be a number of graphs: did you mean batch=…?"
            )
        self.x, self.edges, self.edge_weight = x, edges, edge_weight
        if batch is None:
            if batch_size not in (None, 1):
                raise InputError(f"batch_size is {batch_size}, but no batch vector was given")
            batch, batch_size = torch.zeros(x.shape[0], dtype=torch.long, device=x.device), 1
        else:
            batch_size = _checked_size(batch, batch_size, x.shape[0])
        self.batch, self.num_graphs = batch.long(), batch_size
        #: Of the adjacency's values; a network whose X is categorical sets that of its weights.
        self.dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        self._adjacency: dict[bool, Adjacency] = {}

    def adjacency(self, normalize: bool) -> Adjacency:
        """The propagation matrix, [n, n]: sorted and normalised once for all layers."""
        if normalize not in self._adjacency:
            self._adjacency[normalize] = self._propagation(normalize)
        return self._adjacency[normalize]

    def _propagation(self, normalize: bool) -> Adjacency:
        if isinstance(self.edges, Adjacency):
            if self.edge_weight is not None:
                raise InputError("edge_weight goes only with edge_index: the Adjacency has its own")
            return self.edges  # as it is, like a layer's
        out = Adjacency.from_any(self.edges, self.edge_weight, self.x.shape[0], self.dtype)
        return out.normalized() if normalize else out

    def pooling(self, mean: bool) -> Adjacency:
        ptr = count_to_ptr(self.batch, self.num_graphs, torch.int64)
        return pooling_matrix(self.batch, ptr, self.dtype, mean)


def _checked_size(batch: Tensor, batch_size: int | None, num_nodes: int) -> int:
    """The number of graphs; the range of `batch` is read on the CPU only, as for edges."""
    if batch.shape != (num_nodes,) or batch.is_floating_point() or batch.dtype == torch.bool:
        raise InputError(
            f"batch has shape {tuple(batch.shape)} and dtype {batch.dtype}: "
            f"it must hold one integer for each of the {num_nodes} nodes"
        )
    if batch_size is None:
        batch_size = int(batch.max()) + 1 if batch.numel() else 0
    if not isinstance(batch_size, (Integral, torch.SymInt)) or batch_size < 0:
        raise InputError(f"batch_size is {batch_size!r}: give the number of graphs")
    if batch.device.type == "cpu" and not torch.compiler.is_compiling() and batch.numel():
        low, high = (int(v) for v in torch.aminmax(batch))
        if low < 0 or high >= batch_size:
            wrong = low if low < 0 else high
            raise InputError(
                f"batch names graph {wrong}, but graphs run from 0 to {batch_size - 1}"
            )
    return batch_size
