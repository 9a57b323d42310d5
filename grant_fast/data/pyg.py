"""Graphs from lists and data sets of PyG `Data` objects, or of anything shaped like them.

Only attributes are read (`x`, `edge_index`, `y`, `edge_weight`, `num_nodes`), so torch_geometric
need not be installed. OGB's own pairs of (graph dictionary, label) are read as well.

What `LEFT_OUT` names is not carried, which a warning says. OGB's `edge_feat` is left
out silently: its dictionaries come as they are, so that users could do nothing about it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from ..indexing import count_graphs
from ..tasks import Level
from .arrays import GraphArrays, batch_vector

#: What graphs may have and a packed dataset does not, and what to do about it.
LEFT_OUT = {
    "edge_attr": "put it into edge_weight where it is one number an edge (more are not carried, "
    "see the README's Limits)",
    "edge_type": "give the edges of one type alone where types matter",
    "train_mask": "set y to NaN (a class number to -100) at all nodes that are not for training, "
    "and give missing_labels=True",
}
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def from_data_list(
    data_list: Iterable[Any], y_level: Level | None = None, *, stacklevel: int = 2
) -> GraphArrays:
    """Pack graphs, keeping their order, edges (directed, repeated, self loops) and empty graphs.

    Args:
        data_list: objects with `x` `[n, F]`, `edge_index` `[2, e]`, and as they have them `y` and
            `edge_weight` `[e]`; whatever one graph has, all must have.
        y_level: whether a row of `y` belongs to a graph or to a node. By default graph, unless
            every `y` has one row a node and some graph has more than one.
        stacklevel: of the warning that a graph has what is left out (`LEFT_OUT`).

    Returns:
        x float32 or the integer type given; y float32 `[rows, T]`, or int64 `[rows]` where every
        `y` is an integer vector: class numbers. (OGB's integer `[1, T]` are labels: float32.)

    Raises:
        InputError: naming the graph and its attribute, for what is missing, of a wrong shape or
            type, not finite, or out of range; for PyG's `HeteroData`.
    """
    if hasattr(data_list, "edge_index"):
        remedy = "a_batch.to_data_list()" if hasattr(data_list, "to_data_list") else "[data]"
        raise InputError(f"a {type(data_list).__name__} is no list of graphs: give {remedy}")
    graphs = [_Graph.read(i, data) for i, data in enumerate(data_list)]
    if not graphs:
        raise InputError("the list of graphs is empty: give one or more")
    first = graphs[0]
    for graph in graphs:
        graph.compare(first)
    for name, remedy in LEFT_OUT.items():
        bare = next((graph.index for graph in graphs if name in graph.left_out), None)
        if bare is not None:
            warnings.warn(
                f"graph {bare} has {name}, which is left out: {remedy}, or set it to None",
                stacklevel=stacklevel,
            )
    sizes = np.array([graph.num_nodes for graph in graphs], dtype=np.int64)
    offsets = np.cumsum(sizes) - sizes
    edge_index = torch.cat(
        [graph.edge_index + offset for graph, offset in zip(graphs, offsets.tolist(), strict=True)],
        dim=1,
    )
    level = y_level or _infer_level(graphs)
    y = None if first.y is None else torch.cat([graph.rows_of_y(level) for graph in graphs])
    weights = [graph.edge_weight for graph in graphs if graph.edge_weight is not None]
    return GraphArrays(
        x=torch.cat([graph.x for graph in graphs]),
        edge_index=edge_index,
        batch=batch_vector(sizes),
        num_graphs=len(graphs),
        y=y,
        y_level=level,
        edge_weight=torch.cat(weights) if weights else None,
    )


def from_dataset(dataset: Any, y_level: Level | None = None, *, stacklevel: int = 2) -> GraphArrays:
    """Pack an OGB or PyG data set: anything with `len` and integer indexing.

    Args: as `from_data_list`.

    Raises:
        InputError: as `from_data_list`, or the object has no length or no positions.
    """
    size = count_graphs(dataset)
    return from_data_list((dataset[i] for i in range(size)), y_level, stacklevel=stacklevel + 1)


class _Graph:
    """One graph, checked as far as it can be by itself."""

    def __init__(
        self,
        index: int,
        x: Tensor,
        edge_index: Tensor,
        y: Tensor | None,
        edge_weight: Tensor | None,
        left_out: set[str],
    ) -> None:
        self.index = index
        self.x = x
        self.edge_index = edge_index
        self.y = y
        self.edge_weight = edge_weight
        self.left_out = left_out
        self.num_nodes = len(x)

    @classmethod
    def read(cls, index: int, data: Any) -> _Graph:
        if isinstance(data, tuple) and len(data) == 2:  # OGB's GraphPropPredDataset
            graph, label = data
            labels = torch.as_tensor(label, dtype=torch.float32).reshape(1, -1)
            found = {**graph, "x": graph.get("node_feat"), "y": labels}
        elif isinstance(data, Mapping):
            found = dict(data)
        elif hasattr(data, "to_homogeneous"):
            raise InputError(
                f"graph {index} is a {type(data).__name__}, with nodes of several types: give "
                "data.to_homogeneous(), which has x where all types have as many features"
            )
        elif getattr(data, "num_graphs", 1) != 1:
            raise InputError(
                f"graph {index} is a {type(data).__name__} of {data.num_graphs} graphs: give the "
                "graphs one by one, as the data set that was batched, or a_batch.to_data_list()"
            )
        else:
            names = ("x", "edge_index", "y", "edge_weight", "num_nodes", *LEFT_OUT)
            found = {name: getattr(data, name, None) for name in names}
        x = _features(index, found.get("x"), found.get("num_nodes"))
        edge_index = found.get("edge_index")
        if edge_index is None and getattr(data, "adj_t", None) is not None:
            raise InputError(f"graph {index} has adj_t in place of edge_index: drop ToSparseTensor")
        edge_index = _edges(index, edge_index, len(x))
        y = None if found.get("y") is None else _targets(index, found["y"])
        weight = found.get("edge_weight")
        if weight is not None:
            weight = _weights(index, weight, edge_index.size(1))
        left_out = {name for name in LEFT_OUT if found.get(name) is not None}
        if weight is not None:
            left_out.discard("edge_attr")
        if "edge_type" in left_out and len(torch.as_tensor(found["edge_type"]).unique()) < 2:
            left_out.discard("edge_type")
        return cls(index, x, edge_index, y, weight, left_out)

    def compare(self, first: _Graph) -> None:
        """Check that this graph has what the first one has, in the same width and type."""
        for name in ("y", "edge_weight"):
            mine, other = getattr(self, name), getattr(first, name)
            if (mine is None) != (other is None):
                has = "lacks" if mine is None else "has"
                raise InputError(
                    f"graph {self.index} {has} {name}, unlike graph {first.index}: "
                    "give it to all graphs or to none"
                )
        for name in ("x", "y"):
            mine, other = getattr(self, name), getattr(first, name)
            if mine is None:
                continue
            if _width(mine) != _width(other):
                raise InputError(
                    f"graph {self.index}: {name} has {_width(mine)} columns and graph "
                    f"{first.index} has {_width(other)}: all must have the same"
                )
            if mine.is_floating_point() != other.is_floating_point():
                raise InputError(
                    f"graph {self.index}: {name} is {mine.dtype} and graph {first.index} has "
                    f"{other.dtype}: convert all to one type"
                )

    def rows_of_y(self, level: Level) -> Tensor:
        assert self.y is not None
        expected = self.num_nodes if level == "node" else 1
        if len(self.y) != expected:
            rows = len(self.y)
            several = rows > 1 and _width(self.y) == 1
            hint = f"; {rows} targets of a graph are y of shape [1, {rows}]" if several else ""
            raise InputError(
                f"graph {self.index}: y has {rows} rows where the {level} level needs "
                f"{expected}: give y as [{expected}, targets], or set y_level{hint}"
            )
        return self.y


def _width(tensor: Tensor) -> int:
    return tensor.size(1) if tensor.dim() > 1 else 1


def _tensor(index: int, name: str, value: Any) -> Tensor:
    try:
        tensor = torch.as_tensor(value).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"graph {index}: {name} is a {type(value).__name__}, not a tensor or array"
        ) from error
    if tensor.is_complex():
        raise InputError(f"graph {index}: {name} is complex: give real numbers")
    if tensor.is_floating_point():
        return tensor.float()
    return tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor


def _features(index: int, value: Any, num_nodes: Any) -> Tensor:
    if value is None:
        raise InputError(
            f"graph {index} has no x: give node features, such as ones of shape [num_nodes, 1]"
        )
    x = _tensor(index, "x", value)
    if x.dim() != 2:
        raise InputError(f"graph {index}: x has shape {list(x.shape)}: give [num_nodes, features]")
    if num_nodes is not None and int(num_nodes) != len(x):
        raise InputError(
            f"graph {index}: x has {len(x)} rows and num_nodes is {int(num_nodes)}: "
            "give one row for each node"
        )
    if x.is_floating_point() and not bool(x.isfinite().all()):
        node = int((~x.isfinite()).any(1).nonzero()[0])
        raise InputError(f"graph {index}: x is NaN or infinite at node {node}: clean the features")
    return x


def _edges(index: int, value: Any, num_nodes: int) -> Tensor:
    if value is None:
        raise InputError(
            f"graph {index} has no edge_index: give int64 [2, edges], [2, 0] without edges"
        )
    edge_index = _tensor(index, "edge_index", value)
    if edge_index.dim() != 2 or edge_index.size(0) != 2:
        raise InputError(
            f"graph {index}: edge_index has shape {list(edge_index.shape)}: give [2, edges]"
        )
    if edge_index.dtype not in _INTEGERS and edge_index.numel() > 0:
        raise InputError(f"graph {index}: edge_index is {edge_index.dtype}: give int64")
    edge_index = edge_index.long()
    outside = (edge_index < 0) | (edge_index >= num_nodes)
    if bool(outside.any()):
        node = int(edge_index[outside][0])
        raise InputError(
            f"graph {index}: edge_index names node {node} of {num_nodes}: "
            "number the nodes of each graph from 0"
        )
    return edge_index


def _weights(index: int, value: Any, num_edges: int) -> Tensor:
    weight = _tensor(index, "edge_weight", value).float()
    if weight.dim() == 2 and weight.size(1) == 1:
        weight = weight[:, 0]
    if weight.shape != (num_edges,):
        raise InputError(
            f"graph {index}: edge_weight has shape {list(weight.shape)}: give [{num_edges}], "
            "one for each edge"
        )
    if not bool(weight.isfinite().all()):
        edge = int((~weight.isfinite()).nonzero()[0])
        raise InputError(
            f"graph {index}: edge_weight is NaN or infinite at edge {edge}: drop that edge"
        )
    return weight


def _targets(index: int, value: Any) -> Tensor:
    """y as float32 [rows, T], or int64 [rows] for a vector of integers."""
    y = _tensor(index, "y", value)
    if y.dim() == 0:
        y = y[None]
    if y.dim() > 2:
        raise InputError(f"graph {index}: y has shape {list(y.shape)}: give [rows, targets]")
    if y.is_floating_point():
        if bool(y.isinf().any()):
            raise InputError(f"graph {index}: y is infinite: give numbers, NaN where not measured")
        return y if y.dim() == 2 else y[:, None]
    return y.long() if y.dim() == 1 else y.float()


def _infer_level(graphs: list[_Graph]) -> Level:
    if any(graph.y is None for graph in graphs):
        return "graph"
    if all(len(graph.y) == 1 for graph in graphs if graph.y is not None):
        return "graph"
    return "node"
