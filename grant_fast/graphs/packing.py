"""From plain arrays to the packed layout, with every check that can be made before work is lost."""

import math
from numbers import Number
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import native
from ..adjacency import check_edge_index, check_edge_weight, count_to_ptr, plain_tensor
from ..batches.layout import PackedCSR, carried_places, places_of
from ..errors import InputError, whole_number
from ..indexing import tensor_of
from ..tasks import NOT_MEASURED, Level

#: By how much of the labels' range rounding to float32 may move one.
_ROUNDING = 1e-4


class Packed(NamedTuple):
    """The arrays of a `PackedGraphs`; see there for shapes."""

    x: Tensor
    y: Tensor | None
    ptr: Tensor
    adj: PackedCSR
    adj_t: PackedCSR | None
    y_level: Level
    edge_attr: Tensor | None


def pack_arrays(
    x: Any,
    edge_index: Any,
    batch: Any,
    y: Any,
    edge_weight: Any,
    num_graphs: int | None,
    *,
    edge_attr: Any,
    y_level: Level | None,
    missing_labels: bool,
) -> Packed:
    """Check and pack; arguments and errors as in `PackedGraphs.from_arrays`."""
    x = pack_features(as_tensor("x", x))
    batch = _checked_batch(as_tensor("batch", batch), x.shape[0], num_graphs)
    if num_graphs is None:
        num_graphs = int(batch[-1]) + 1 if batch.numel() else 0
    ptr = count_to_ptr(batch, num_graphs, torch.int64)
    if y is not None:
        y, y_level = pack_targets(
            as_tensor("y", y), num_graphs, x.shape[0], y_level, missing_labels
        )
    edges = _checked_edges(as_tensor("edge_index", edge_index), x.shape[0])
    weight = attr = None
    if edge_weight is not None:
        weight = _checked_weight(edge_weight, edges.shape[1])
    if edge_attr is not None:
        attr = pack_edge_attr(as_tensor("edge_attr", edge_attr), edges.shape[1])
    adj, adj_t, attr = _pack_edges(edges, weight, attr, batch, ptr)
    return Packed(x, y, ptr, adj, adj_t, y_level or "graph", attr)


def as_tensor(name: str, value: Any) -> Tensor:
    """`value` (a tensor, an array, a data frame's column, a list) as a CPU tensor.

    Raises:
        InputError: it is no array of numbers; the message names the argument.
    """
    if isinstance(value, Tensor):
        if value.requires_grad:
            raise InputError(
                f"{name} requires a gradient, but a dataset is constant: give {name}.detach(), or "
                "call the model with tensors"
            )
        if value.layout != torch.strided:
            raise InputError(f"{name} is a sparse tensor: give a dense one")
        tensor = plain_tensor(value).cpu()
    else:
        try:
            tensor = torch.atleast_1d(tensor_of(value))
        except (TypeError, ValueError, RuntimeError) as error:
            why = _other_than_numbers(value) or str(error)
            raise InputError(f"{name} is not an array of numbers: {why}") from error
    if tensor.is_complex():
        raise InputError(f"{name} is complex: give real numbers")
    if tensor.dtype in (torch.uint16, torch.uint32, torch.uint64):  # torch does little with them
        of, tensor = tensor.dtype, tensor.long()
        if of == torch.uint64 and (tensor < 0).any():
            raise InputError(
                f"{name} has numbers of 2^63 or more: give them as float32, or smaller"
            )
    return tensor


def _other_than_numbers(value: Any) -> str:
    """What else is the first in a table, and what to do; empty where that is not the trouble."""
    items = np.array(value, dtype=object)
    for place, item in zip(np.ndindex(items.shape), items.flat, strict=True):
        if not isinstance(item, Number | np.ndarray | list | tuple):
            where = ", ".join(map(str, place))
            return f"{item!r:.40} is at [{where}]; give numbers, and NaN for what is missing"
    return ""


def pack_features(x: Tensor, name: str = "x", thing: str = "node") -> Tensor:
    """[N, F] float32, or integers in the narrowest dtype that holds them; a row a `thing`."""
    x = x[:, None] if x.dim() == 1 else x
    if x.dim() != 2:
        raise InputError(
            f"{name} has shape {tuple(x.shape)}: it must be [num_{thing}s, num_features]"
        )
    if x.is_floating_point():
        x = x.to(torch.float32)  # before the check: what overflows is not finite either
    check_finite(x, name, thing)
    if x.is_floating_point():
        return x
    return x.to(narrowest_integer(x))


def check_finite(x: Tensor, name: str = "x", thing: str = "node") -> None:
    """Refuse a matrix with numbers that are complex, NaN or infinite (InputError)."""
    if x.is_complex():
        raise InputError(f"{name} is complex: give real numbers")
    if x.is_floating_point() and not all_finite(x):
        row, column = (~torch.isfinite(x)).nonzero()[0].tolist()
        raise InputError(
            f"{name} is {x[row, column].item()} at {thing} {row}, column {column}: "
            "impute or drop it before packing"
        )


def all_finite(x: Tensor) -> bool:
    """Whether no entry is NaN or infinite: `isfinite` takes 30 times as long, and memory."""
    return not x.numel() or all(map(math.isfinite, torch.aminmax(x)))  # a NaN is both of them


def narrowest_integer(x: Tensor) -> torch.dtype:
    """The smallest integer dtype that holds every entry."""
    if x.dtype == torch.bool or not x.numel():
        return torch.uint8
    low, high = (int(v) for v in torch.aminmax(x))
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32):
        limits = torch.iinfo(dtype)
        if limits.min <= low and high <= limits.max:
            return dtype
    return torch.int64


def _checked_batch(batch: Tensor, num_nodes: int, num_graphs: int | None) -> Tensor:
    if batch.shape != (num_nodes,) or batch.is_floating_point():
        raise InputError(
            f"batch has shape {tuple(batch.shape)} and dtype {batch.dtype}: "
            f"it must hold one integer for each of the {num_nodes} nodes"
        )
    batch = batch.long()
    if num_graphs is not None:
        whole_number("num_graphs", num_graphs, least=0)
    if num_nodes == 0:
        return batch
    if (batch.diff() < 0).any():
        node = int((batch.diff() < 0).nonzero()[0]) + 1
        raise InputError(
            f"batch goes down from {batch[node - 1]} to {batch[node]} at node {node}: "
            "sort the nodes by graph"
        )
    if batch[0] < 0 or (num_graphs is not None and batch[-1] >= num_graphs):
        wrong = int(batch[0] if batch[0] < 0 else batch[-1])
        raise InputError(f"batch names graph {wrong}, but num_graphs is {num_graphs}")
    return batch


def pack_targets(
    y: Tensor,
    num_graphs: int,
    num_nodes: int,
    level: Level | None,
    missing_labels: bool,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Level]:
    """`y` as floats [rows, T] or int64 [rows], and whether a row is a graph or a node."""
    rows = y.shape[0] if y.dim() else -1
    if level not in ("graph", "node", None):
        raise InputError(f"unknown y_level {level!r}: choose 'graph' or 'node'")
    if level is None:
        if num_graphs == num_nodes == rows:
            raise InputError("y fits both graphs and nodes: give y_level='graph' or y_level='node'")
        level = "node" if rows == num_nodes else "graph"
    expected = num_graphs if level == "graph" else num_nodes
    if y.dim() not in (1, 2) or rows != expected:
        raise InputError(
            f"y has shape {tuple(y.shape)}: it needs one row for each of the {num_graphs} graphs "
            f"(or of the {num_nodes} nodes)"
        )
    if not y.is_floating_point() and y.dtype != torch.bool and y.dim() == 1:
        classes = y.long()
        wrong = (classes < 0) & ((classes != NOT_MEASURED) | (not missing_labels))
        if wrong.any():
            row = int(wrong.nonzero()[0])
            hint = (
                f"where none was measured, give {NOT_MEASURED} and missing_labels=True; numbers "
                "that are no classes are floating point: give y.float()"
            )
            if classes[row] == NOT_MEASURED:
                hint = f"pass missing_labels=True if {NOT_MEASURED} is 'not measured'"
            raise InputError(f"y is {classes[row]} at {level} {row}: classes count from 0 ({hint})")
        return classes.contiguous(), level
    given = y = y if y.dim() == 2 else y[:, None]
    if missing_labels and not y.is_floating_point() and y.dtype != torch.bool:
        y = y.long()
        missing = y == NOT_MEASURED
        of_two = ((y == 0) | (y == 1) | missing).all(0)  # columns where it is no number
        y = y.to(dtype).masked_fill(missing & of_two, torch.nan)
    y = y.to(dtype).contiguous()
    bad = torch.isinf(y) if missing_labels else ~torch.isfinite(y)
    if bad.any():
        row, column = bad.nonzero()[0].tolist()
        hint = "" if missing_labels else ", or pass missing_labels=True if NaN is 'not measured'"
        raise InputError(
            f"y is {y[row, column].item()} at {level} {row}, column {column}: drop it{hint}"
        )
    if y.numel() and torch.isnan(y).all():
        raise InputError("y holds no label at all, every entry is NaN: leave it out")
    for column in range(y.shape[1]):
        check_rounding(given[:, column], y[:, column], f"column {column} of y")
    return y, level


def check_rounding(given: Tensor, rounded: Tensor, what: str) -> None:
    """Refuse labels [rows], NaN where not measured, whose differences are rounded away in float32.

    Args:
        what: where they are, for the message.

    Raises:
        InputError: they are too alike for their size.
    """
    if given.is_floating_point() and given.dtype != torch.float64:
        return
    where = ~rounded.isnan()
    known = given.double()[where]
    if not len(known):
        return
    low, high = torch.aminmax(known)
    if low < high and (rounded[where] - known).abs().max() > _ROUNDING * (high - low):
        raise InputError(
            f"{what} varies too little for its size, so float32 rounds the differences away: "
            f"subtract its mean, some {float(known.mean()):.6g}, from every label"
        )


def _checked_edges(edge_index: Tensor, num_nodes: int) -> Tensor:
    if edge_index.numel() == 0 and edge_index.dim() == 2 and edge_index.shape[0] == 2:
        edge_index = edge_index.long()  # an empty list of edges has no dtype of its own
    check_edge_index(edge_index, num_nodes)
    return edge_index.long()


def pack_edge_attr(attr: Tensor, num_edges: int) -> Tensor:
    """edge_attr, [E] or [E, D], in the dtypes of features."""
    if attr.dim() not in (1, 2) or attr.shape[0] != num_edges:
        raise InputError(
            f"edge_attr has shape {tuple(attr.shape)}: it needs one row for each of the "
            f"{num_edges} edges"
        )
    return pack_features(attr, "edge_attr", "edge").view(attr.shape)


def _checked_weight(edge_weight: Any, num_edges: int) -> Tensor:
    weight = as_tensor("edge_weight", edge_weight).to(torch.float32)
    weight = check_edge_weight(weight, num_edges)
    if not all_finite(weight):
        edge = int((~torch.isfinite(weight)).nonzero()[0])
        raise InputError(f"edge_weight is {weight[edge].item()} at edge {edge}: drop that edge")
    return weight


def _pack_edges(
    edges: Tensor, weight: Tensor | None, attr: Tensor | None, batch: Tensor, ptr: Tensor
) -> tuple[PackedCSR, PackedCSR | None, Tensor | None]:
    """The edges by target, by source (None where that is the same), and `attr` by target."""
    num_nodes, num_graphs = batch.shape[0], ptr.shape[0] - 1
    carried = weight if attr is None else carried_places(edges.shape[1])
    found = native.sort_edges(edges, carried, batch, num_nodes, num_graphs, num_nodes)
    if found is not None:
        adj, adj_t = found.adj, found.adj_t
    else:
        _check_within_graphs(edges, batch)
        adj, adj_t = _sorted_by_numpy(edges, carried, batch, ptr)
    if attr is not None:
        attr = attr[places_of(adj)]
        adj, adj_t = _at_places(adj, weight), adj_t and _at_places(adj_t, weight)
    elif weight is not None:
        adj, adj_t = _with_repeated_ordered(adj), adj_t and _with_repeated_ordered(adj_t)
    return adj, None if adj_t is None or _equal(adj, adj_t) else adj_t, attr


def _at_places(csr: PackedCSR, weight: Tensor | None) -> PackedCSR:
    """Edges that were sorted with their places, with the weights from there."""
    return csr._replace(weight=None if weight is None else weight[places_of(csr)])


def _equal(one: PackedCSR, other: PackedCSR) -> bool:
    pairs = zip(one, other, strict=True)
    return all(a is None or b is None or torch.equal(a, b) for a, b in pairs)


def _with_repeated_ordered(csr: PackedCSR) -> PackedCSR:
    """Edges between the same two nodes by their weights, however they were listed."""
    rowptr, col, weight = csr
    again = col.new_zeros(len(col) + 1, dtype=torch.bool)  # whether an edge repeats the one before
    torch.eq(col[1:], col[:-1], out=again[1:-1])
    again[rowptr] = False  # what is before a row's first edge is in another row
    if weight is None or not again.any():
        return csr
    at = (again[:-1] | again[1:]).nonzero().flatten()
    group, weight = (~again[at]).cumsum(0), weight.clone()
    order = np.lexsort((weight[at].numpy(), group.numpy()))
    weight[at] = weight[at][torch.from_numpy(order)]
    return PackedCSR(rowptr, col, weight)


def _check_within_graphs(edges: Tensor, batch: Tensor) -> None:
    source, target = edges
    crossing = batch[source] != batch[target]
    if crossing.any():
        edge = int(crossing.nonzero()[0])
        raise InputError(
            f"edge {edge} joins node {source[edge]} of graph {batch[source[edge]]} to node "
            f"{target[edge]} of graph {batch[target[edge]]}: edges stay within a graph"
        )


def _sorted_by_numpy(
    edges: Tensor, weight: Tensor | None, batch: Tensor, ptr: Tensor
) -> tuple[PackedCSR, PackedCSR]:
    """What `native.sort_edges` does, several times more slowly."""
    num_nodes, first_node = batch.shape[0], ptr[batch]

    def csr(row: Tensor, col: Tensor) -> PackedCSR:
        order = torch.from_numpy(np.argsort((row * num_nodes + col).numpy(), kind="stable"))
        local = (col - first_node[col]).to(torch.int32)[order]
        rowptr = count_to_ptr(row, num_nodes, torch.int64)
        return PackedCSR(rowptr, local, None if weight is None else weight[order])

    source, target = edges
    return csr(target, source), csr(source, target)
