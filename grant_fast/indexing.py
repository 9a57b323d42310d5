"""Positions of graphs, and index arithmetic over whole tensors in place of loops over graphs."""

import math
import reprlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .errors import InputError

Positions = int | slice | range | Sequence[int] | np.ndarray | Tensor


def count_graphs(dataset: Any) -> int:
    """The length of a dataset; InputError unless it has `len()` and can be indexed."""
    if hasattr(dataset, "stores_as") and not hasattr(dataset, "to_data_list"):
        # PyG's graphs have both: the number of their attributes, and those by name.
        raise InputError(f"a {type(dataset).__name__} is one graph, not a data set: give [data]")
    for name, method in (("length", "__len__"), ("positions", "__getitem__")):
        if not hasattr(dataset, method):
            kind = type(dataset).__name__
            raise InputError(f"a {kind} has no {name}: give a data set with len() and []")
    return len(dataset)


def as_index(where: Any) -> Tensor:
    """A list, array or tensor of positions, or a mask, as a tensor; InputError for what is none of
    them, as a set, and for uint8, which may be either."""
    try:
        index = where if isinstance(where, Tensor) else tensor_of(where)
    except (TypeError, ValueError, RuntimeError) as error:
        shown = reprlib.repr(where)
        raise InputError(f"{shown} is not a list of graph positions: give integers") from error
    if index.dtype == torch.uint8:
        raise InputError("uint8 is a mask or positions: give mask.bool() or positions.long()")
    return index


def flat_integers(index: Tensor) -> Tensor:
    """Positions as int64 of one dimension; InputError for what are none, and lists of lists."""
    if index.numel() == 0:  # an empty list has no dtype of its own
        index = index.long()
    if index.is_floating_point() or index.dim() > 1:
        lists = "" if index.dim() != 2 else " (a DataLoader takes lists of them as batch_sampler=)"
        raise InputError(
            f"graph positions are {index.dtype} of shape {tuple(index.shape)}: "
            f"give a flat list of integers{lists}"
        )
    return index.reshape(-1).long()


def tensor_of(value: Any) -> Tensor:
    """A copy of an array, a data frame's column or a list as a CPU tensor: of any strides, which
    torch may refuse, any machine's byte order, and Python's own numbers in an array of objects."""
    array = np.array(value)
    array = np.array(array.tolist()) if array.dtype == object else array
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))


def as_positions(where: Positions, num_graphs: int) -> Tensor | slice:
    """Positions as a slice (where they are consecutive) or an int64 tensor on the CPU.

    Raises:
        InputError: a position outside the dataset, or something that is no list of positions.
    """
    if isinstance(where, range):
        where = np.arange(where.start, where.stop, where.step)
    if isinstance(where, slice):
        start, stop, step = where.indices(num_graphs)
        if step == 1:
            return slice(start, max(start, stop))
        where = list(range(start, stop, step))
    index = as_index(where).cpu()  # where the sizes are that a batch is laid out by
    if index.dtype == torch.bool:
        if index.shape != (num_graphs,):
            raise InputError(
                f"the mask has shape {tuple(index.shape)}: give one bool for each of the "
                f"{num_graphs} graphs"
            )
        index = index.nonzero().flatten()
    index = flat_integers(index).clone()  # its owner may write the next batch there
    if index.numel():
        low, high = (int(v) for v in torch.aminmax(index))
        if low < -num_graphs or high >= num_graphs:
            wrong = low if low < -num_graphs else high
            raise InputError(f"there is no graph {wrong}: this dataset holds {num_graphs} graphs")
        if low < 0:
            index = torch.where(index < 0, index + num_graphs, index)
        elif high - low == index.numel() - 1 and bool((index.diff() == 1).all()):
            return slice(low, high + 1)  # neighbours: views of the packed arrays, no gathering
    return index


def positions_of(where: Positions, num_graphs: int) -> Tensor:
    """`as_positions` as int64 on the CPU, also where they are consecutive."""
    found = as_positions(where, num_graphs)
    if isinstance(found, slice):
        return torch.arange(found.start, found.stop, device="cpu")
    return found


def distinct_positions(where: Positions | None, num_graphs: int) -> Tensor:
    """Positions of graphs, each once, int64 ascending; of all for None.

    Raises:
        InputError: none, one twice, or what `as_positions` refuses.
    """
    given = slice(None) if where is None else where
    positions = positions_of(given, num_graphs).sort().values
    if len(positions) == 0:
        raise InputError("there are no graphs to train on: ids, or the dataset, is empty")
    repeated = positions[1:][positions.diff() == 0]
    if len(repeated):
        raise InputError(f"ids contains {int(repeated[0])} more than once: give each graph once")
    return positions


def sizes_to_ptr(sizes: Tensor) -> Tensor:
    """[0, s_0, s_0 + s_1, …], [len(sizes) + 1] int64."""
    ptr = torch.zeros(sizes.shape[0] + 1, dtype=torch.int64, device=sizes.device)
    torch.cumsum(sizes, 0, out=ptr[1:])
    return ptr


def neighbours(
    until: Callable[[int], int], count: int, most: int, longest: int | None = None
) -> list[slice]:
    """Positions 0 to count - 1 in runs that cost `most` at the most; a single one may cost more.

    Args:
        until: what all positions before a given one cost together.
        most: what a run may cost.
        longest: how many positions it may have; None does not limit that.

    Returns:
        All positions in order; one empty run where there are none.
    """
    runs, start = [], 0
    while start < count:
        last = count if longest is None else min(count, start + longest)
        fit = bisect_right(range(start + 1, last + 1), until(start) + most, key=until)
        runs.append(slice(start, start + max(1, fit)))
        start = runs[-1].stop
    return runs or [slice(0, 0)]


def take(source: Tensor, rows: Tensor | slice) -> Tensor:
    """`source[rows]`: a view for a slice, and several times faster than indexing for a tensor."""
    return source[rows] if isinstance(rows, slice) else source.index_select(0, rows)


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on `device`; nothing waits where it comes from the host.

    CUDA copies behind the host's back from pinned memory alone: from other memory the host may have
    to wait until the stream has come so far. The host itself must wait for what comes from there.
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=device.type != "cpu")


def cut(table: Any, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """A table, a tensor or an array of 8-byte numbers, as parts of these shapes.

    Each begins at a multiple of 16 bytes, as the kernels want it: see `room` for how many numbers
    all take.
    """
    parts, begin = [], 0
    for shape in shapes:
        size = math.prod(shape)
        parts.append(table[begin : begin + size].reshape(shape))
        begin += size + size % 2
    return parts


def room(shapes: Sequence[tuple[int, ...]]) -> int:
    """How many numbers a table has that is `cut` into these shapes."""
    return sum(size + size % 2 for size in map(math.prod, shapes))


def upload_together(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Integers as int64 tensors on `device`, by one copy: each of several would cost as much."""
    shapes = [array.shape for array in arrays]
    table = np.empty(room(shapes), np.int64)
    for part, array in zip(cut(table, shapes), arrays, strict=True):
        part[...] = array
    return cut(upload(torch.from_numpy(table), device), shapes)


def repeat(values: Tensor, counts: Tensor, total: int, device: torch.device) -> Tensor:
    """`values` [k], the i-th `counts[i]` times, [total], on `device`."""
    # NumPy's is an order of magnitude faster for short runs, but does not know bfloat16.
    if device.type == "cpu" and values.dtype != torch.bfloat16:
        return torch.from_numpy(np.repeat(values.numpy(), counts.numpy()))
    values, counts = upload(values, device), upload(counts, device)
    return torch.repeat_interleave(values, counts, output_size=total)


def spans(
    starts: Tensor, sizes: Tensor, ptr: Tensor, total: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """start_i, start_i + 1, …, start_i + size_i - 1 for every i, one after another, [total]."""
    out = repeat((starts - ptr[:-1]).to(dtype), sizes, total, device)
    return out.add_(torch.arange(total, device=device, dtype=dtype))


def distinct_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct rows of an integer matrix, [m, F], and which of them each row is, [N] int32."""
    known, code = torch.unique(_row_keys(x), return_inverse=True)
    somewhere = torch.arange(len(x), device=x.device)  # of equal rows whichever comes last
    return x[torch.empty_like(known).scatter_(0, code, somewhere)], code.to(torch.int32)


def _row_keys(x: Tensor) -> Tensor:
    """A number for each row of an integer matrix, [N] int64, the same for equal rows alone."""
    key, below = torch.zeros(x.shape[0], dtype=torch.int64, device=x.device), 1
    low, high = (bound.tolist() for bound in torch.aminmax(x, dim=0))
    for column, first, last in zip(x.unbind(1), low, high, strict=True):
        span = last - first + 1
        if below * span >= 2**62:  # their numbers would be too large: count what there is
            (key, below), (column, span), first = _numbered(key), _numbered(column), 0
        key.mul_(span).add_(column).sub_(first)
        below *= span
    return key


def _numbered(values: Tensor) -> tuple[Tensor, int]:
    """Which of the distinct values each one is, [N] int64, and how many there are."""
    distinct, number = torch.unique(values, return_inverse=True)
    return number, len(distinct)
