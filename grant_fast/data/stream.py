"""Many graphs that are packed part by part, into memory or into a file larger than that."""

import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..batches.layout import PackedCSR
from ..errors import InputError
from ..graphs import PackedGraphs
from ..graphs.arrays import GraphArrays
from ..graphs.packing import narrowest_integer
from ..graphs.storage import Spool, save_tensors
from ..indexing import sizes_to_ptr
from ..tasks import Level

_LARGE = ("x", "y", "col", "col_t")
_COUNTS = ("nodes", "degree", "degree_t")
_GROWTH = 1.05


class Part(NamedTuple):
    """Some graphs as they are packed, in NumPy arrays, small enough to send between processes.

    For G graphs of N nodes and E edges: x [N, F], y, nodes [G], degree [N] and col [E] of the edges
    by target, degree_t and col_t by source, or None where the graphs are symmetric. Counts and
    columns are of the narrowest integer type that holds them.
    """

    x: np.ndarray
    y: np.ndarray
    nodes: np.ndarray
    degree: np.ndarray
    col: np.ndarray
    degree_t: np.ndarray | None
    col_t: np.ndarray | None
    y_level: Level


def pack_part(arrays: GraphArrays) -> Part:
    """Check and pack graphs with targets and without edge weights; errors as `from_arrays`."""
    graphs = PackedGraphs.from_graph_arrays(arrays)
    assert graphs.y is not None and graphs.adj.weight is None
    degree, col = _edges(graphs.adj)
    degree_t, col_t = (None, None) if graphs.adj_t is None else _edges(graphs.adj_t)
    x, y, nodes = graphs.x.numpy(), graphs.y.numpy(), _narrow(graphs.ptr.diff())
    return Part(x, y, nodes, degree, col, degree_t, col_t, graphs.y_level)


def _edges(csr: PackedCSR) -> tuple[np.ndarray, np.ndarray]:
    return _narrow(csr.rowptr.diff()), _narrow(csr.col)


def _narrow(values: Tensor) -> np.ndarray:
    return values.to(narrowest_integer(values)).numpy()


def joined(parts: Iterable[Part]) -> PackedGraphs:
    """The graphs of all parts, in memory.

    Raises:
        InputError: there are none.
    """
    sinks = {name: Growing() for name in _LARGE}
    counts, level, symmetric = _fill(sinks, parts)
    large = {name: torch.from_numpy(sink.array()) for name, sink in sinks.items()}
    ptr, rowptr, rowptr_t = (_pointer(counts[name]) for name in _COUNTS)
    back = None if symmetric else PackedCSR(rowptr_t, large["col_t"], None)
    forth = PackedCSR(rowptr, large["col"], None)
    return PackedGraphs(large["x"], large["y"], ptr, forth, back, y_level=level)


def save_parts(parts: Iterable[Part], path: str | os.PathLike[str]) -> None:
    """Write what `joined` gives to `path`, whole or not at all, in the memory of a few parts.

    Raises:
        InputError: there are no parts, or `path` cannot be written.
    """
    with ExitStack() as files:
        folder = Path(path).parent
        sinks = {name: files.enter_context(Spool(folder)) for name in _LARGE}
        counts, level, symmetric = _fill(sinks, parts)
        ptr, rowptr, rowptr_t = (_pointer(counts[name]) for name in _COUNTS)
        tensors: dict[str, Tensor | Spool] = {
            "x": sinks["x"],
            "y": sinks["y"],
            "ptr": ptr,
            "ids": torch.arange(len(ptr) - 1),
            "adj.rowptr": rowptr,
            "adj.col": sinks["col"],
        }
        if not symmetric:
            tensors |= {"adj_t.rowptr": rowptr_t, "adj_t.col": sinks["col_t"]}
        save_tensors(tensors, level, path, {})


class Growing:
    """An array that others are appended to along its first axis.

    It grows by NumPy's `resize`, which for large arrays moves pages and copies nothing; a list of
    parts that are joined in the end would be held twice.
    """

    def __init__(self) -> None:
        self._rows = 0
        self._array: np.ndarray | None = None

    def append(self, values: np.ndarray) -> None:
        """Copy an array of the first one's dtype and trailing shape."""
        rows = self._rows + len(values)
        if self._array is None:
            self._array = np.empty(values.shape, values.dtype)
        if rows > len(self._array):
            grown = (int(_GROWTH * rows), *values.shape[1:])
            self._array.resize(grown, refcheck=False)
        self._array[self._rows : rows] = values
        self._rows = rows

    def array(self) -> np.ndarray:
        """All of them; nothing can be appended any more."""
        assert self._array is not None
        self._array.resize((self._rows, *self._array.shape[1:]), refcheck=False)
        array, self._array = self._array, None
        return array


def _fill(
    sinks: Mapping[str, Growing | Spool], parts: Iterable[Part]
) -> tuple[dict[str, list[np.ndarray]], Level, bool]:
    """Append what is large to the sinks; give the counts, the level, whether all is symmetric."""
    counts: dict[str, list[np.ndarray]] = {name: [] for name in _COUNTS}
    level: Level | None = None
    symmetric = True
    for part in parts:
        level = part.y_level
        symmetric = symmetric and part.col_t is None
        back = (part.degree, part.col) if part.col_t is None else (part.degree_t, part.col_t)
        for name, count in zip(_COUNTS, (part.nodes, part.degree, back[0]), strict=True):
            assert count is not None
            counts[name].append(count)
        sinks["x"].append(part.x)
        sinks["y"].append(part.y)
        sinks["col"].append(part.col.astype(np.int32))
        sinks["col_t"].append(back[1].astype(np.int32))
    if level is None:
        raise InputError("there are no graphs to pack: give at least one part")
    return counts, level, symmetric


def _pointer(counts: list[np.ndarray]) -> Tensor:
    """int64, where each begins, and the end."""
    return sizes_to_ptr(torch.from_numpy(np.concatenate(counts)))
