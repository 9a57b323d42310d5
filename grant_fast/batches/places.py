"""Where the nodes and the edges of a batch's graphs lie, in the batch and in its dataset."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..adjacency import index_dtype
from ..caching import kept_property
from ..indexing import sizes_to_ptr, take, upload


class Places(NamedTuple):
    """Where each graph's rows lie, which are nodes or edges, in tensors on the CPU.

    first, sizes: [B] int64, the first of them in the dataset, and how many they are.
    ptr: [B + 1] int64, where they begin in the batch.
    total: how many rows there are.
    dtype: of numbers of rows, in the dataset or the batch.
    """

    first: Tensor
    sizes: Tensor
    ptr: Tensor
    total: int
    dtype: torch.dtype

    @classmethod
    def of(cls, begin: Tensor, where: Tensor | slice, rows: int) -> "Places":
        """Those of the graphs at `where`, of a dataset of so many rows, whose graphs begin at
        `begin` [G + 1]."""
        first = take(begin[:-1], where)
        sizes = take(begin[1:], where) - first
        ptr = sizes_to_ptr(sizes)
        total = int(ptr[-1])
        return cls(first, sizes, ptr, total, index_dtype(rows, total))

    @property
    def shift(self) -> Tensor:
        """How far a graph's rows are moved from the dataset to the batch, [B] int64."""
        return self.ptr[:-1] - self.first

    @property
    def row(self) -> Tensor:
        """The numbers of the rows, and the next one, [total + 1]."""
        return torch.arange(self.total + 1, dtype=self.dtype, device="cpu")

    @property
    def graph(self) -> Tensor:
        """The graph, within the batch, of each row, [total]."""
        return self.each(torch.arange(len(self.sizes), device="cpu"))

    def each(self, values: Tensor) -> Tensor:
        """What `values` [B] says of the graph of each row, [total], in memory of its own."""
        # Several times faster than to gather them by `graph`.
        return torch.from_numpy(np.repeat(values.numpy(), self.sizes.numpy()))


class DevicePlaces:
    """The same on another device, in one dtype; made of few operators, since each is a launch.

    Args:
        ptr, shift, row: as of `Places`.
    """

    def __init__(self, ptr: Tensor, shift: Tensor, row: Tensor) -> None:
        self.ptr, self.shift, self.row = ptr, shift, row

    @kept_property
    def graph(self) -> Tensor:
        small = self.ptr.dtype == torch.int32
        return torch.searchsorted(self.ptr[1:], self.row[:-1], right=True, out_int32=small)

    def each(self, values: Tensor) -> Tensor:
        return take(values, self.graph)


def in_dataset(places: Places | DevicePlaces) -> Tensor:
    """The row of the dataset that each row of the batch is, [total]."""
    row = places.row[:-1]
    out = places.each(places.shift.to(row.dtype))
    return torch.sub(row, out, out=out)


class Told(NamedTuple):
    """What another device than the CPU is told of a batch: the places of its nodes and its edges,
    and the positions of its graphs in the dataset, [B]."""

    nodes: DevicePlaces
    edges: DevicePlaces
    positions: Tensor

    @classmethod
    def of(cls, nodes: Places, edges: Places, positions: Tensor, device: torch.device) -> "Told":
        """Uploaded as one table: one copy costs as much as each of several would."""
        tables = nodes.ptr, edges.ptr, nodes.shift, edges.shift, positions
        dtype = torch.promote_types(nodes.dtype, edges.dtype)
        together = upload(torch.cat(tables).to(dtype), device)
        ptr, edge_ptr, shift, edge_shift, where = together.split([len(t) for t in tables])
        row = torch.arange(max(nodes.total, edges.total) + 1, dtype=dtype, device=device)
        of_nodes = DevicePlaces(ptr, shift, row[: nodes.total + 1])
        of_edges = DevicePlaces(edge_ptr, edge_shift, row[: edges.total + 1])
        return cls(of_nodes, of_edges, where)
