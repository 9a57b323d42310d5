"""The flat form in which every source hands over its graphs."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..tasks import Level


@dataclass(frozen=True)
class GraphArrays:
    """Many graphs as a few tensors; nodes are numbered through, graph after graph.

    Args:
        x: node features `[N, F]`, float32 or a narrow integer type for categorical columns.
        edge_index: int64 `[2, E]`, source above target, in global node numbers.
        batch: int64 `[N]`, the graph of each node, ascending.
        num_graphs: how many graphs there are; trailing ones may be empty.
        y: targets, one row a graph or a node (see `y_level`), or None.
        y_level: "graph" or "node".
        edge_weight: float32 `[E]` or None where every edge counts 1.
        edge_attr: `[E]` or `[E, D]` float32 or integers, or None.
    """

    x: Tensor
    edge_index: Tensor
    batch: Tensor
    num_graphs: int
    y: Tensor | None = None
    y_level: Level = "graph"
    edge_weight: Tensor | None = None
    edge_attr: Tensor | None = None

    def first(self, num_graphs: int) -> "GraphArrays":
        """The first `num_graphs` graphs. Assumes that edges stay within their graph."""
        if num_graphs >= self.num_graphs:
            return self
        nodes = int(torch.searchsorted(self.batch, num_graphs))
        kept = self.edge_index[0] < nodes
        rows = num_graphs if self.y_level == "graph" else nodes
        return GraphArrays(
            x=self.x[:nodes],
            edge_index=self.edge_index[:, kept],
            batch=self.batch[:nodes],
            num_graphs=num_graphs,
            y=None if self.y is None else self.y[:rows],
            y_level=self.y_level,
            edge_weight=None if self.edge_weight is None else self.edge_weight[kept],
            edge_attr=None if self.edge_attr is None else self.edge_attr[kept],
        )


def concatenate(parts: Iterable[GraphArrays]) -> GraphArrays:
    """Join parts in order, renumbering nodes and graphs.

    The parts are consumed one at a time and their edges wait as int32, half their final size.

    Raises:
        ValueError: there are no parts, or only some of them have targets, or weights or features
            of edges.
    """
    xs, ys, weights, attrs, edges, batches = [], [], [], [], [], []
    num_nodes = num_graphs = 0
    level: Level = "graph"
    for part in parts:
        xs.append(part.x)
        edges.append((num_nodes, part.edge_index.to(torch.int32)))
        batches.append(part.batch + num_graphs)
        if part.y is not None:
            ys.append(part.y)
        if part.edge_weight is not None:
            weights.append(part.edge_weight)
        if part.edge_attr is not None:
            attrs.append(part.edge_attr)
        num_nodes += len(part.x)
        num_graphs += part.num_graphs
        level = part.y_level
    if not xs:
        raise ValueError("nothing to concatenate")
    if any(len(some) not in (0, len(xs)) for some in (ys, weights, attrs)):
        raise ValueError("only some of the parts have targets, edge weights or edge features")

    edge_index = torch.empty(2, sum(local.size(1) for _, local in edges), dtype=torch.int64)
    start = 0
    for offset, local in edges:
        block = edge_index[:, start : start + local.size(1)]
        block.copy_(local).add_(offset)
        start += local.size(1)
    del edges
    return GraphArrays(
        x=torch.cat(xs),
        edge_index=edge_index,
        batch=torch.cat(batches),
        num_graphs=num_graphs,
        y=torch.cat(ys) if ys else None,
        y_level=level,
        edge_weight=torch.cat(weights) if weights else None,
        edge_attr=torch.cat(attrs) if attrs else None,
    )


def batch_vector(nodes_per_graph: np.ndarray) -> Tensor:
    """The graph of each node, int64 `[N]`, from the number of nodes of each graph."""
    return torch.from_numpy(np.repeat(np.arange(len(nodes_per_graph)), nodes_per_graph))
