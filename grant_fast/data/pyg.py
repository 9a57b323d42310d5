"""Graphs from lists and data sets of PyG `Data` objects, or of anything shaped like them.

Only attributes are read (`x`, `edge_index`, `y`, `edge_weight`, `num_nodes`), so torch_geometric
need not be installed. OGB's own pairs of (graph dictionary, label) are read as well.

What `LEFT_OUT` names is not carried, which a warning says. OGB's `edge_feat` is left
out silently: its dictionaries come as they are, so that users could do nothing about it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
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
_ALWAYS = ("x", "edge_index", "y", "edge_weight")
_MAYBE = ("num_nodes", *LEFT_OUT)
_NAMES = (*_ALWAYS, *_MAYBE)
_INTEGERS = {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8}
_USUAL = {*_INTEGERS, torch.float32, torch.float64, torch.float16, torch.bfloat16}


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
    graphs = [_attributes(i, data) for i, data in enumerate(data_list)]
    if not graphs:
        raise InputError("the list of graphs is empty: give one or more")
    x, num_nodes = _features(graphs)
    edge_index, num_edges = _edges(graphs, num_nodes)
    edge_weight = _weights(graphs, num_edges)
    y, level = _targets(graphs, num_nodes, y_level)
    for name, remedy in LEFT_OUT.items():
        bare = next((i for i, graph in enumerate(graphs) if _is_left_out(name, graph)), None)
        if bare is not None:
            warnings.warn(
                f"graph {bare} has {name}, which is left out: {remedy}, or set it to None",
                stacklevel=stacklevel,
            )
    return GraphArrays(
        x=x,
        edge_index=edge_index,
        batch=batch_vector(num_nodes),
        num_graphs=len(graphs),
        y=y,
        y_level=level,
        edge_weight=edge_weight,
    )


def from_dataset(dataset: Any, y_level: Level | None = None, *, stacklevel: int = 2) -> GraphArrays:
    """Pack an OGB or PyG data set: anything with `len` and integer indexing.

    Args: as `from_data_list`.

    Raises:
        InputError: as `from_data_list`, or the object has no length or no positions.
    """
    size = count_graphs(dataset)
    return from_data_list((dataset[i] for i in range(size)), y_level, stacklevel=stacklevel + 1)


def _attributes(index: int, data: Any) -> Mapping[str, Any]:
    """What one graph has, by PyG's names."""
    if isinstance(data, tuple):
        if len(data) != 2 or not isinstance(data[0], Mapping):
            raise InputError(f"graph {index} is a tuple: give the Data alone, with its y")
        graph, label = data  # OGB's GraphPropPredDataset
        labels = torch.as_tensor(label, dtype=torch.float32).reshape(1, -1)
        data = {**graph, "x": graph.get("node_feat"), "y": labels}
    if isinstance(data, Mapping):  # its owner may use it again for the next graph
        return {name: data[name] for name in _NAMES if name in data}
    # PyG's own take long to say what is not there: they are asked for what they have stored.
    kind = type(data)
    pygs = hasattr(kind, "stores_as")
    names = [*_ALWAYS, *(name for name in data.to_dict() if name in _MAYBE)] if pygs else _NAMES
    bearer = kind if pygs else data
    if hasattr(bearer, "to_homogeneous"):
        raise InputError(
            f"graph {index} is a {kind.__name__}, with nodes of several types: give "
            "data.to_homogeneous(), which has x where all types have as many features"
        )
    if hasattr(bearer, "num_graphs") and data.num_graphs != 1:
        raise InputError(
            f"graph {index} is a {kind.__name__} of {data.num_graphs} graphs: give the "
            "graphs one by one, as the data set that was batched, or a_batch.to_data_list()"
        )
    found = {name: getattr(data, name, None) for name in names}
    if found["edge_index"] is None and getattr(data, "adj_t", None) is not None:
        raise InputError(f"graph {index} has adj_t in place of edge_index: drop ToSparseTensor")
    return found


def _is_left_out(name: str, graph: Mapping[str, Any]) -> bool:
    value = graph.get(name)
    if value is None:
        return False
    if name == "edge_attr":
        return graph.get("edge_weight") is None
    return name != "edge_type" or len(torch.as_tensor(value).unique()) > 1


# Each of these takes one attribute of all graphs: what can be checked of all of them together is,
# and then the graph of the first culprit is looked up.


def _features(graphs: Sequence[Mapping[str, Any]]) -> tuple[Tensor, np.ndarray]:
    """x of all nodes, and how many nodes each graph has."""
    every = []
    for i, x in enumerate(_tensors(graphs, "x")):
        if x is None:
            raise InputError(
                f"graph {i} has no x: give node features, such as ones of shape [num_nodes, 1]"
            )
        if x.dim() != 2:
            raise InputError(f"graph {i}: x has shape {list(x.shape)}: give [num_nodes, features]")
        every.append(x)
    _check_alike("x", every)
    for i, (graph, x) in enumerate(zip(graphs, every, strict=True)):
        told = graph.get("num_nodes")
        if told is not None and int(told) != x.shape[0]:
            raise InputError(
                f"graph {i}: x has {x.shape[0]} rows and num_nodes is {int(told)}: "
                "give one row for each node"
            )
    num_nodes, joined = _joined(every)
    if joined.is_floating_point():
        joined = joined.float()
        if (found := _first(~joined.isfinite(), num_nodes)) is not None:
            raise InputError(
                f"graph {found[0]}: x is NaN or infinite at node {found[1]}: clean the features"
            )
    return joined, num_nodes


def _edges(graphs: Sequence[Mapping[str, Any]], num_nodes: np.ndarray) -> tuple[Tensor, np.ndarray]:
    """edge_index, numbered through all nodes, and how many edges each graph has."""
    every = []
    for i, edges in enumerate(_tensors(graphs, "edge_index")):
        if edges is None:
            raise InputError(
                f"graph {i} has no edge_index: give int64 [2, edges], [2, 0] without edges"
            )
        if edges.dim() != 2 or edges.shape[0] != 2:
            raise InputError(
                f"graph {i}: edge_index has shape {list(edges.shape)}: give [2, edges]"
            )
        if edges.dtype not in _INTEGERS and edges.numel() > 0:
            raise InputError(f"graph {i}: edge_index is {edges.dtype}: give int64")
        every.append(edges if edges.dtype == torch.int64 else edges.long())
    num_edges, joined = _joined(every, dim=1)
    nodes = torch.from_numpy(np.repeat(num_nodes, num_edges))
    outside = (joined < 0) | (joined >= nodes)
    if (found := _first(outside.T, num_edges)) is not None:
        raise InputError(
            f"graph {found[0]}: edge_index names node {int(joined.T[outside.T][0])} of "
            f"{num_nodes[found[0]]}: number the nodes of each graph from 0"
        )
    first_node = np.cumsum(num_nodes) - num_nodes
    return joined.add_(torch.from_numpy(np.repeat(first_node, num_edges))), num_edges


def _weights(graphs: Sequence[Mapping[str, Any]], num_edges: np.ndarray) -> Tensor | None:
    every = []
    for i, (weight, edges) in enumerate(
        zip(_all_or_none(graphs, "edge_weight"), num_edges.tolist(), strict=True)
    ):
        if weight is None:
            return None
        if weight.shape not in ((edges,), (edges, 1)):
            raise InputError(
                f"graph {i}: edge_weight has shape {list(weight.shape)}: give [{edges}], "
                "one for each edge"
            )
        every.append(weight.reshape(edges).float())
    joined = _joined(every)[1]
    if (found := _first(~joined.isfinite(), num_edges)) is not None:
        raise InputError(
            f"graph {found[0]}: edge_weight is NaN or infinite at edge {found[1]}: drop that edge"
        )
    return joined


def _targets(
    graphs: Sequence[Mapping[str, Any]], num_nodes: np.ndarray, level: Level | None
) -> tuple[Tensor | None, Level]:
    """y as float32 [rows, T], or int64 [rows] where all are vectors of integers; and its level."""
    every = []
    for i, y in enumerate(_all_or_none(graphs, "y")):
        if y is None:
            return None, level or "graph"
        if y.dim() > 2:
            raise InputError(f"graph {i}: y has shape {list(y.shape)}: give [rows, targets]")
        if y.dim() == 0:
            y = y[None]
        if y.is_floating_point():
            every.append(y if y.dim() == 2 else y[:, None])
        else:
            every.append(y if y.dim() == 1 else y.float())
    _check_alike("y", every)
    rows, joined = _joined(every)
    level = level or ("graph" if (rows == 1).all() else "node")
    expected = num_nodes if level == "node" else np.ones_like(rows)
    if (rows != expected).any():
        i = int((rows != expected).argmax())
        several = rows[i] > 1 and _width(joined) == 1
        hint = f"; {rows[i]} targets of a graph are y of shape [1, {rows[i]}]" if several else ""
        raise InputError(
            f"graph {i}: y has {rows[i]} rows where the {level} level needs {expected[i]}: "
            f"give y as [{expected[i]}, targets], or set y_level{hint}"
        )
    if not joined.is_floating_point():
        return joined.long(), level
    joined = joined.float()
    if (found := _first(joined.isinf(), rows)) is not None:
        raise InputError(f"graph {found[0]}: y is infinite: give numbers, NaN where not measured")
    return joined, level


def _tensors(graphs: Sequence[Mapping[str, Any]], name: str) -> list[Tensor | None]:
    """The attribute of each graph as a real tensor on the CPU, None where it has none."""
    every = []
    for i, graph in enumerate(graphs):
        value = graph.get(name)
        plain = type(value) is Tensor and value.is_cpu and value.layout == torch.strided
        usual = value is None or (plain and value.dtype in _USUAL)
        every.append(value if usual else _tensor(i, name, value))
    return every


def _tensor(index: int, name: str, value: Any) -> Tensor:
    try:
        tensor = torch.as_tensor(value).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"graph {index}: {name} is a {type(value).__name__}, not a tensor or array"
        ) from error
    if tensor.is_complex():
        raise InputError(f"graph {index}: {name} is complex: give real numbers")
    if tensor.layout != torch.strided:
        raise InputError(f"graph {index}: {name} is a sparse tensor: give a dense one")
    if tensor.dtype in _USUAL:
        return tensor
    if tensor.dtype == torch.bool:
        return tensor.to(torch.uint8)
    return tensor.float() if tensor.is_floating_point() else tensor.long()


def _all_or_none(graphs: Sequence[Mapping[str, Any]], name: str) -> list[Tensor | None]:
    every = _tensors(graphs, name)
    for i, value in enumerate(every):
        if (value is None) != (every[0] is None):
            has = "lacks" if value is None else "has"
            raise InputError(
                f"graph {i} {has} {name}, unlike graph 0: give it to all graphs or to none"
            )
    return every


def _check_alike(name: str, every: Sequence[Tensor]) -> None:
    """All have the width and the kind of number of the first one."""
    first = every[0]
    width, floating = _width(first), first.is_floating_point()
    for i, value in enumerate(every):
        if _width(value) != width:
            raise InputError(
                f"graph {i}: {name} has {_width(value)} columns and graph 0 has {width}: "
                "all must have the same"
            )
        if value.is_floating_point() != floating:
            raise InputError(
                f"graph {i}: {name} is {value.dtype} and graph 0 has {first.dtype}: "
                "convert all to one type"
            )


def _width(tensor: Tensor) -> int:
    return tensor.shape[1] if tensor.dim() > 1 else 1


def _joined(every: Sequence[Tensor], dim: int = 0) -> tuple[np.ndarray, Tensor]:
    """How many rows each has, and all of them in one."""
    sizes = np.fromiter((value.shape[dim] for value in every), np.int64, len(every))
    return sizes, torch.cat(list(every), dim).detach()


def _first(bad: Tensor, sizes: np.ndarray) -> tuple[int, int] | None:
    """Of rows that are `sizes` of each graph, the first bad one: its graph, and its place there."""
    if not bad.any():
        return None
    row = int(bad.nonzero()[0, 0])
    ends = np.cumsum(sizes)
    graph = int(np.searchsorted(ends, row, side="right"))
    return graph, row - int(ends[graph] - sizes[graph])
