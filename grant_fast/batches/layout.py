"""How a dataset's edges lie in memory."""

from typing import NamedTuple

import torch
from torch import Tensor

from ..indexing import sizes_to_ptr


class PackedCSR(NamedTuple):
    """One direction of every edge: rowptr [N + 1] int64, col [E] int32 *within its graph*,
    weight [E] or None where every weight is 1."""

    rowptr: Tensor
    col: Tensor
    weight: Tensor | None


class DatasetSide(NamedTuple):
    """One direction of a dataset's edges: a `PackedCSR`, and where they are made its groups.

    listed [4·groups], the columns as int16, each row filled up to whole groups of four with -1.
    group [N + 1] int64, the first group of each row; None where every row has one group, as in
    datasets of at most four edges a node. There, of the rows that have more: busy_ptr [N + 1]
    int64, how many of them are before a node, and busy, their places within their graphs, int16;
    None where there are none.
    """

    rowptr: Tensor
    col: Tensor
    weight: Tensor | None
    listed: Tensor | None = None
    group: Tensor | None = None
    busy_ptr: Tensor | None = None
    busy: Tensor | None = None


class DatasetEdges(NamedTuple):
    """A dataset's propagation matrices, diag(scale) A diag(scale), or A where `scale` is None: A by
    target and by source."""

    scale: Tensor | None
    sides: tuple[DatasetSide, DatasetSide]


def carried_places(num_edges: int) -> Tensor:
    """0 … E-1 in the bytes of float32s, [E], for `native.sort_edges` to carry in place of weights:
    sorting moves those and reads none."""
    return torch.arange(num_edges, dtype=torch.int32, device="cpu").view(torch.float32)


def places_of(csr: PackedCSR) -> Tensor:
    """Where each edge was before it was sorted with `carried_places`, [E] int64."""
    assert csr.weight is not None, "the edges were given places"
    return csr.weight.view(torch.int32).long() & 0xFFFFFFFF  # those from 2³¹ on wrapped


def joined_ptr(ptrs: list[Tensor]) -> Tensor:
    """Group boundaries of several lists of groups, one list after another."""
    return sizes_to_ptr(torch.cat([ptr.diff() for ptr in ptrs]))


def joined_csr(parts: list[PackedCSR]) -> PackedCSR:
    """The edges of several datasets, one after another; columns are local and stay as they are."""
    weight, like = None, next((p.weight for p in parts if p.weight is not None), None)
    if like is not None:
        weight = torch.cat(
            [like.new_ones(len(p.col)) if p.weight is None else p.weight for p in parts]
        )
    rowptr = joined_ptr([part.rowptr for part in parts])
    return PackedCSR(rowptr, torch.cat([part.col for part in parts]), weight)
