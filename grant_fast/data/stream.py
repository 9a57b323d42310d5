"""Many graphs, packed part by part, in little more memory than they take in the end."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from ..graphs import PackedGraphs
from ..packing import PackedCSR
from .arrays import GraphArrays

_GROWTH = 1.05


class Growing:
    """A tensor that parts are appended to along its first axis.

    It grows by NumPy's `resize`, which for large arrays moves pages and copies nothing; a list of
    parts and `torch.cat` would hold everything twice.
    """

    def __init__(self) -> None:
        self._rows = 0
        self._array: np.ndarray | None = None

    def append(self, part: Tensor) -> None:
        """Copy a part, on the CPU, of the first one's dtype and trailing shape."""
        values = part.numpy()
        rows = self._rows + len(values)
        if self._array is None:
            self._array = np.empty(values.shape, values.dtype)
        if rows > len(self._array):
            grown = (int(_GROWTH * rows), *values.shape[1:])
            self._array.resize(grown, refcheck=False)
        self._array[self._rows : rows] = values
        self._rows = rows

    def tensor(self) -> Tensor:
        """All parts; nothing can be appended any more."""
        assert self._array is not None
        self._array.resize((self._rows, *self._array.shape[1:]), refcheck=False)
        array, self._array = self._array, None
        return torch.from_numpy(array)


def packed(chunks: Iterable[GraphArrays]) -> PackedGraphs:
    """What `PackedGraphs.concat` would make of the chunks, packed one at a time.

    Args:
        chunks: with targets and without edge weights.

    Raises:
        InputError: there are none.
    """
    names = ("x", "y", "nodes", "degree", "col", "degree_t", "col_t")
    fields = {name: Growing() for name in names}
    level, symmetric = None, True
    for chunk in chunks:
        part = PackedGraphs.from_graph_arrays(chunk)
        assert part.y is not None and part.adj.weight is None
        transposed = part.adj_t or part.adj
        symmetric = symmetric and part.is_symmetric
        level = part.y_level
        values = (part.x, part.y, part.ptr.diff(), *_edges(part.adj), *_edges(transposed))
        for name, value in zip(names, values, strict=True):
            fields[name].append(value)
    if level is None:
        raise InputError("there are no graphs to pack: give at least one chunk")
    x, y, nodes, degree, col, degree_t, col_t = (fields[name].tensor() for name in names)
    return PackedGraphs(
        x=x,
        y=y,
        ptr=_pointer(nodes),
        ids=torch.arange(len(nodes)),
        adj=PackedCSR(_pointer(degree), col, None),
        adj_t=None if symmetric else PackedCSR(_pointer(degree_t), col_t, None),
        y_level=level,
    )


def _edges(csr: PackedCSR) -> tuple[Tensor, Tensor]:
    return csr.rowptr.diff(), csr.col


def _pointer(counts: Tensor) -> Tensor:
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])
