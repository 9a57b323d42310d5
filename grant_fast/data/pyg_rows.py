"""What graphs hold, by PyG's names: of each attribute all rows in one tensor, graph after graph.

Only attributes are read (`x`, `edge_index`, `y`, `edge_weight`, `edge_attr`, `num_nodes`), so
torch_geometric need not be installed. OGB's own pairs of (graph dictionary, label) are read, too.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..adjacency import plain_tensor
from ..errors import InputError
from ..indexing import tensor_of
from ..tasks import has_labels_outside

#: What graphs may have and a packed dataset does not, and what to do about it.
LEFT_OUT = {
    "edge_type": "if types matter, give only the edges of one type",
    "train_mask": "set y to NaN (a class number to -100) at all nodes that are not for training, "
    "and give missing_labels=True",
}
_NAMES = ("x", "edge_index", "y", "edge_weight", "edge_attr", "num_nodes", *LEFT_OUT)
INTEGERS = {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8}
USUAL = {*INTEGERS, torch.float32, torch.float64, torch.float16, torch.bfloat16}


class Rows(NamedTuple):
    """An attribute of all graphs.

    Args:
        sizes: how many rows each graph has, [G] int64.
        values: the rows; of `edge_index` [2, edges], numbered within each graph.
    """

    sizes: np.ndarray
    values: Tensor


class GraphRows(NamedTuple):
    """What all graphs hold; in `left_out` the first graph with each that is of `LEFT_OUT`."""

    x: Rows
    edge_index: Rows
    edge_weight: Rows | None
    edge_attr: Rows | None
    y: Rows | None
    left_out: dict[str, int]


def rows_of_graphs(data_list: Iterable[Any]) -> GraphRows:
    """Of graphs one by one, in whatever forms each has them.

    Raises:
        InputError: naming the graph and its attribute, for what is missing, or of another shape or
            type than it must be or the others are; for PyG's `HeteroData`.
    """
    graphs = [_attributes(i, data) for i, data in enumerate(data_list)]
    if not graphs:
        raise InputError("the list of graphs is empty: give one or more")
    edges = _edges(graphs)
    return GraphRows(
        x=_features(graphs),
        edge_index=edges,
        edge_weight=_weights(graphs, edges.sizes),
        edge_attr=_edge_rows(graphs, edges.sizes),
        y=_targets(graphs),
        left_out={name: i for name in LEFT_OUT if (i := _first_with(name, graphs)) is not None},
    )


def _attributes(index: int, data: Any) -> Mapping[str, Any]:
    """What one graph has, by PyG's names."""
    if isinstance(data, tuple):
        if len(data) != 2 or not isinstance(data[0], Mapping):
            raise InputError(f"graph {index} is a tuple: give only the Data, with its y")
        graph, label = data  # OGB's GraphPropPredDataset
        labels = torch.as_tensor(label, dtype=torch.float32).reshape(1, -1)
        named = {"x": graph.get("node_feat"), "edge_attr": graph.get("edge_feat")}
        data = {**graph, **named, "y": labels}
    if isinstance(data, Mapping):  # its owner may use it again for the next graph
        return {name: data[name] for name in _NAMES if name in data}
    kind: Any = type(data)
    pygs = _pygs(kind)
    bearer = data if pygs is None else kind
    if hasattr(bearer, "to_homogeneous"):
        raise InputError(
            f"graph {index} is a {kind.__name__}, with nodes of several types: give "
            "data.to_homogeneous(), which has x if all types have the same number of features"
        )
    if hasattr(bearer, "num_graphs") and data.num_graphs != 1:
        raise InputError(
            f"graph {index} is a {kind.__name__} of {data.num_graphs} graphs: give the "
            "graphs one by one, as the data set that was batched, or a_batch.to_data_list()"
        )
    if data is None or isinstance(data, str):
        raise InputError(f"graph {index} is {data!r}: give PyG's Data objects")
    if pygs is None:
        found = {name: getattr(data, name, None) for name in _NAMES}
    else:  # which take long to say what is not there: they are asked for what they have stored
        found = {name: value for name, value in data.to_dict().items() if name in _NAMES}
        found.update({name: getattr(data, name, None) for name in pygs})
    if found.get("edge_index") is None and getattr(data, "adj_t", None) is not None:
        raise InputError(f"graph {index} has adj_t instead of edge_index: drop ToSparseTensor")
    return found


@cache
def _pygs(kind: type) -> tuple[str, ...] | None:
    """Of PyG's `Data`, the names that a subclass answers itself; None of any other class."""
    derived = kind.__mro__
    base = next((i for i, each in enumerate(derived) if "stores_as" in vars(each)), None)
    if base is None:
        return None
    return tuple(name for name in _NAMES if any(name in vars(each) for each in derived[:base]))


def _first_with(name: str, graphs: Sequence[Mapping[str, Any]]) -> int | None:
    """The first graph that has what is left out by this name."""
    return next((i for i, graph in enumerate(graphs) if _is_left_out(name, graph)), None)


def _is_left_out(name: str, graph: Mapping[str, Any]) -> bool:
    value = graph.get(name)
    if value is None:
        return False
    if name == "train_mask":
        y = graph.get("y")
        return has_labels_outside(torch.as_tensor(value), None if y is None else torch.as_tensor(y))
    return len(torch.as_tensor(value).unique()) > 1


def _features(graphs: Sequence[Mapping[str, Any]]) -> Rows:
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
    return _joined(every)


def _edges(graphs: Sequence[Mapping[str, Any]]) -> Rows:
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
        if edges.dtype not in INTEGERS and edges.numel() > 0:
            raise InputError(f"graph {i}: edge_index is {edges.dtype}: give int64")
        every.append(edges if edges.dtype == torch.int64 else edges.long())
    return _joined(every, dim=1)


def _weights(graphs: Sequence[Mapping[str, Any]], num_edges: np.ndarray) -> Rows | None:
    given = _all_or_none(graphs, "edge_weight")
    if given is None:
        return None
    every = []
    for i, (weight, edges) in enumerate(zip(given, num_edges.tolist(), strict=True)):
        if weight.shape not in ((edges,), (edges, 1)):
            raise InputError(
                f"graph {i}: edge_weight has shape {list(weight.shape)}: give [{edges}], "
                "one for each edge"
            )
        every.append(weight.reshape(edges).float())
    return _joined(every)


def _edge_rows(graphs: Sequence[Mapping[str, Any]], num_edges: np.ndarray) -> Rows | None:
    every = _all_or_none(graphs, "edge_attr")
    if every is None:
        return None
    for i, (attr, edges) in enumerate(zip(every, num_edges.tolist(), strict=True)):
        if attr.dim() not in (1, 2) or attr.shape[0] != edges:
            raise InputError(
                f"graph {i}: edge_attr has shape {list(attr.shape)}: give one row for each of its "
                f"{edges} edges, or set it to None"
            )
    first = next((attr for attr in every if len(attr)), every[0])
    every = [attr if len(attr) else first[:0] for attr in every]  # none say nothing of their kind
    _check_alike("edge_attr", every)
    return _joined([attr.reshape(len(attr), *first.shape[1:]) for attr in every])


def _targets(graphs: Sequence[Mapping[str, Any]]) -> Rows | None:
    given = _all_or_none(graphs, "y")
    if given is None:
        return None
    every = []
    for i, y in enumerate(given):
        if y.dim() > 2:
            raise InputError(f"graph {i}: y has shape {list(y.shape)}: give [rows, targets]")
        every.append(as_targets(y[None] if y.dim() == 0 else y))
    _check_alike("y", every)
    return _joined(every)


def as_targets(y: Tensor) -> Tensor:
    """[rows, T] real numbers, or [rows] integers: class numbers."""
    if y.is_floating_point():
        return y if y.dim() == 2 else y[:, None]
    return y if y.dim() == 1 else y.float()


def _tensors(graphs: Sequence[Mapping[str, Any]], name: str) -> list[Tensor | None]:
    """The attribute of each graph as a real tensor on the CPU, None where it has none."""
    every = []
    for i, graph in enumerate(graphs):
        value = graph.get(name)
        plain = type(value) is Tensor and value.is_cpu and value.layout == torch.strided
        usual = value is None or (plain and value.dtype in USUAL)
        every.append(value if usual else _tensor(i, name, value))
    return every


def _tensor(index: int, name: str, value: Any) -> Tensor:
    try:
        tensor = plain_tensor(value) if isinstance(value, Tensor) else tensor_of(value)
        tensor = tensor.detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"graph {index}: {name} is a {type(value).__name__}, not a tensor or array"
        ) from error
    if tensor.is_complex():
        raise InputError(f"graph {index}: {name} is complex: give real numbers")
    if tensor.layout != torch.strided:
        raise InputError(f"graph {index}: {name} is a sparse tensor: give a dense one")
    if tensor.dtype in USUAL:
        return tensor
    if tensor.dtype == torch.bool:
        return tensor.float() if name == "y" else tensor.to(torch.uint8)
    return tensor.float() if tensor.is_floating_point() else tensor.long()


def _all_or_none(graphs: Sequence[Mapping[str, Any]], name: str) -> list[Tensor] | None:
    """The attribute of each graph; None where no graph has it."""
    every = _tensors(graphs, name)
    for i, value in enumerate(every):
        if (value is None) != (every[0] is None):
            has = "lacks" if value is None else "has"
            raise InputError(
                f"graph {i} {has} {name}, unlike graph 0: give it to all graphs or to none"
            )
    return [value for value in every if value is not None] or None


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


def _joined(every: Sequence[Tensor], dim: int = 0) -> Rows:
    sizes = np.fromiter((value.shape[dim] for value in every), np.int64, len(every))
    return Rows(sizes, torch.cat(list(every), dim).detach())
