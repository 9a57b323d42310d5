"""Graphs from lists and data sets of PyG `Data` objects, or of anything shaped like them.

What `LEFT_OUT` names is not carried, which a warning says.
"""

import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from ..graphs.arrays import GraphArrays, batch_vector
from ..graphs.packing import all_finite, check_rounding
from ..indexing import count_graphs
from ..tasks import Level
from .pyg_rows import LEFT_OUT, GraphRows, Rows, rows_of_graphs
from .pyg_stored import stored_rows


def from_data_list(
    data_list: Iterable[Any], y_level: Level | None = None, *, stacklevel: int = 2
) -> GraphArrays:
    """Pack graphs, keeping their order, edges (directed, repeated, self loops) and empty graphs.

    Args:
        data_list: objects with `x` `[n, F]`, `edge_index` `[2, e]`, and as they have them `y`,
            `edge_weight` `[e]` and `edge_attr` `[e]` or `[e, D]`; whatever one graph has, all must
            have.
        y_level: whether a row of `y` belongs to a graph or to a node. By default graph, unless
            every `y` has one row a node and some graph has more than one.
        stacklevel: of the warning that a graph has what is left out (`LEFT_OUT`).

    Returns:
        x and edge_attr float32 or the integer type given; y float32 `[rows, T]`, or int64 `[rows]`
        where every `y` is an integer vector: class numbers. (OGB's integer `[1, T]` are labels:
        float32.)

    Raises:
        InputError: naming the graph and its attribute, for what is missing, of a wrong shape or
            type, not finite, or out of range; for PyG's `HeteroData`.
    """
    if isinstance(data_list, torch.utils.data.Dataset) and hasattr(data_list, "__len__"):
        return from_dataset(data_list, y_level, stacklevel=stacklevel + 1)
    if hasattr(data_list, "edge_index"):
        remedy = "a_batch.to_data_list()" if hasattr(data_list, "to_data_list") else "[data]"
        raise InputError(f"a {type(data_list).__name__} is not a list of graphs: give {remedy}")
    is_series = isinstance(data_list, Iterable) or hasattr(data_list, "__getitem__")
    if isinstance(data_list, str) or not is_series:
        raise InputError(f"{data_list!r} is not a list of graphs: give PyG's Data objects")
    return _arrays(rows_of_graphs(data_list), y_level, stacklevel + 1)


def from_dataset(dataset: Any, y_level: Level | None = None, *, stacklevel: int = 2) -> GraphArrays:
    """Pack an OGB or PyG data set: anything with `len` and integer indexing.

    Args: as `from_data_list`.

    Raises:
        InputError: as `from_data_list`, or the object has no length or no positions.
    """
    size = count_graphs(dataset)
    rows = stored_rows(dataset)
    if rows is None:
        rows = rows_of_graphs(dataset[i] for i in range(size))
    return _arrays(rows, y_level, stacklevel + 1)


def _arrays(rows: GraphRows, y_level: Level | None, stacklevel: int) -> GraphArrays:
    num_nodes = rows.x.sizes
    y, level = _targets(rows.y, num_nodes, y_level)
    arrays = GraphArrays(
        x=_features("x", "node", rows.x),
        edge_index=_edges(rows.edge_index, num_nodes),
        batch=batch_vector(num_nodes),
        num_graphs=len(num_nodes),
        y=y,
        y_level=level,
        edge_weight=None if rows.edge_weight is None else _weights(rows.edge_weight),
        edge_attr=rows.edge_attr and _features("edge_attr", "edge", rows.edge_attr),
    )
    for name, graph in rows.left_out.items():
        if name == "train_mask" and level == "graph" and y is not None:
            continue  # it is of nodes
        warnings.warn(
            f"graph {graph} has {name}, which is left out: {LEFT_OUT[name]}, or set it to None",
            stacklevel=stacklevel,
        )
    return arrays


# Each of these checks one attribute of all graphs together; then the first culprit is looked up.


def _features(name: str, thing: str, x: Rows) -> Tensor:
    if not x.values.is_floating_point():
        return x.values
    values = x.values.float()
    remedy = "clean the features" + (", or set it to None" if name == "edge_attr" else "")
    _check_finite(name, thing, Rows(x.sizes, values), remedy)
    return values


def _edges(edges: Rows, num_nodes: np.ndarray) -> Tensor:
    """edge_index, numbered through all nodes."""
    nodes = torch.from_numpy(np.repeat(num_nodes, edges.sizes))
    outside = (edges.values < 0) | (edges.values >= nodes)
    if (found := _first(outside.T, edges.sizes)) is not None:
        raise InputError(
            f"graph {found[0]}: edge_index names node {int(edges.values.T[outside.T][0])} of "
            f"{num_nodes[found[0]]}: number the nodes of each graph from 0"
        )
    first_node = np.cumsum(num_nodes) - num_nodes
    # Rows are joined, and so nobody else's: this may be most of the memory.
    return edges.values.long().add_(torch.from_numpy(np.repeat(first_node, edges.sizes)))


def _weights(weight: Rows) -> Tensor:
    _check_finite("edge_weight", "edge", weight, "drop that edge")
    return weight.values


def _check_finite(name: str, thing: str, rows: Rows, remedy: str) -> None:
    sizes, values = rows
    if not all_finite(values) and (found := _first(~values.isfinite(), sizes)) is not None:
        graph, place = found
        raise InputError(
            f"graph {graph}: {name} is NaN or infinite, in float32, at {thing} {place}: {remedy}"
        )


def _targets(
    y: Rows | None, num_nodes: np.ndarray, level: Level | None
) -> tuple[Tensor | None, Level]:
    """y as float32 [rows, T], or int64 [rows] where all are vectors of integers; and its level."""
    if y is None:
        return None, level or "graph"
    rows, values = y
    # The level of most graphs, so that an odd one among them is the one that is named.
    level = level or ("node" if (rows == num_nodes).sum() > (rows == 1).sum() else "graph")
    expected = num_nodes if level == "node" else np.ones_like(rows)
    if (rows != expected).any():
        i = int((rows != expected).argmax())
        several = rows[i] > 1 and (values.dim() == 1 or values.shape[1] == 1)
        hint = f"; {rows[i]} targets of a graph are y of shape [1, {rows[i]}]" if several else ""
        raise InputError(
            f"graph {i}: y has {rows[i]} rows where the {level} level needs {expected[i]}: "
            f"give y as [{expected[i]}, targets], or set y_level{hint}"
        )
    if not values.is_floating_point():
        return values.long(), level
    given, values = values, values.float()
    if (found := _first(values.isinf(), rows)) is not None:
        raise InputError(
            f"graph {found[0]}: y is infinite: give numbers, or NaN where not measured"
        )
    for column, (one, rounded) in enumerate(zip(_columns(given), _columns(values), strict=True)):
        check_rounding(one, rounded, f"column {column} of y")
    return values, level


def _columns(values: Tensor) -> Tensor:
    """[columns, rows]"""
    return values.reshape(len(values), -1).T


def _first(bad: Tensor, sizes: np.ndarray) -> tuple[int, int] | None:
    """Of rows that are `sizes` of each graph, the first bad one: its graph, and its place there."""
    if not bad.any():
        return None
    row = int(bad.nonzero()[0, 0])
    ends = np.cumsum(sizes)
    graph = int(np.searchsorted(ends, row, side="right"))
    return graph, row - int(ends[graph] - sizes[graph])
