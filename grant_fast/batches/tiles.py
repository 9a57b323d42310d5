"""Graphs for the kernels: adjacency as bits, and which graphs share a tile.

A small graph's adjacency is one bit an entry: 8 bytes a node up to 64 nodes, whatever its edges.
That holds what CSR holds unless edges carry weights or repeat; such graphs, and ones of more than
`most_nodes` nodes, stay with CSR.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..devices import has_hopper_units
from ..indexing import upload_together
from ..reference import expand_rows
from .layout import PackedCSR

#: Rows of a tile: graphs of up to this many nodes share tiles of this height.
TILE = 32
#: Graphs that one tile may hold. Fuller tables would cost every tile for the sake of tiny graphs.
SLOTS = 8
#: Nodes of the largest graphs kept as bits in one plane, in two, in three, and in four.
PLANES = (64, 128, 192, 256)
#: More nodes than this, and at most so many, have the graphs of one plane, and so on to four.
LARGER = tuple(pairwise((TILE, *PLANES)))
#: Nodes that one program of the readout adds up.
SEGMENT = 2048

_CHUNK = 1 << 24  # edges turned into bits at a time, to bound temporary memory


def most_nodes(device: torch.device) -> int:
    """Nodes of the largest graph kept as bits: beyond, a dense A costs more than its edges do, or
    (GPUs without Hopper's matrix units) its hops do not fit in registers."""
    return PLANES[-1 if device.type == "cpu" or has_hopper_units(device) else 1]


class BitRows(NamedTuple):
    """The edges of a dataset as bits.

    bits: [planes, N] int64. Bit c of bits[w, i] says whether node 64·w + c of node i's graph is a
    source of an edge to it. Planes suffice for the largest graph that fits.
    fits: [G] bool, on the CPU: which graphs' bits say all. The others' bits are meaningless.
    """

    bits: Tensor
    fits: Tensor


def bit_rows(host_ptr: Tensor, adj: PackedCSR) -> BitRows | None:
    """The bits of every graph, on the device of `adj`; None where they could hold no graph, where
    edges are weighted, or int32 counts fewer nodes.

    Args:
        host_ptr: [G + 1] int64 on the CPU, where each graph's nodes begin.
        adj: edges by target, columns ascending within a row.
    """
    if adj.weight is not None or int(host_ptr[-1]) >= 1 << 31:
        return None
    sizes = host_ptr.diff()
    fits = sizes <= most_nodes(adj.col.device)
    if not bool(fits.any()):
        return None
    largest = int(sizes[fits].max())
    num_nodes, num_edges, device = int(host_ptr[-1]), adj.col.shape[0], adj.col.device
    bits = torch.zeros(max(1, -(-largest // 64)), num_nodes, dtype=torch.int64, device=device)
    repeated = torch.zeros(num_nodes, dtype=torch.bool, device=device)
    row = expand_rows(adj.rowptr, num_edges)
    for first in range(0, num_edges, _CHUNK):
        last = min(first + _CHUNK, num_edges)
        target, col = row[first:last], adj.col[first:last].long()
        inside = col < 64 * bits.shape[0]
        # Distinct powers of two add up to their union, and 1 << 63 wraps to the sign bit.
        value = torch.where(inside, 1 << (col & 63), 0)
        where = (col >> 6).clamp_(max=bits.shape[0] - 1) * num_nodes + target
        bits.view(-1).index_add_(0, where, value)
        # Equal columns of a row are neighbours; look one edge back, over the chunk's boundary too.
        back = max(first - 1, 0)
        same = (adj.col[back : last - 1] == adj.col[back + 1 : last]) & (
            row[back : last - 1] == row[back + 1 : last]
        )
        repeated[row[back + 1 : last][same]] = True
    culprits = repeated.cpu().nonzero().flatten()
    fits[torch.searchsorted(host_ptr, culprits, right=True) - 1] = False
    return BitRows(bits, fits) if bool(fits.any()) else None


class Tiles(NamedTuple):
    """How the kernels take a batch of B graphs and n nodes: tables on the device.

    tile: [tiles + 1] int64, where each tile's slots begin.
    graph, row: [slots] int64, the graph (its position in the dataset) and its first row in the
        batch, for the graphs of up to `TILE` nodes, tile after tile.
    one_plane, …, four_planes: [2, graphs] int64, the same for graphs of more nodes, by how many
        planes of bits they have; one program each.
    rest: positions within the batch of the graphs that bits cannot hold, on the CPU; or None.
    """

    tile: Tensor
    graph: Tensor
    row: Tensor
    one_plane: Tensor
    two_planes: Tensor
    three_planes: Tensor
    four_planes: Tensor
    rest: Tensor | None

    @property
    def larger(self) -> tuple[Tensor, ...]:
        return self.one_plane, self.two_planes, self.three_planes, self.four_planes


class TileRows(NamedTuple):
    """Each row of a batch's tiles, [tiles · TILE] each, on the device; see `kernels/tables.py`.

    word: int32, bit j says whether row j of the tile is a source of an edge to it.
    scale: float32, its node's D^{-1/2}.  row: int32, its row of the batch; -1 where unused.
    node: int32, its node of the dataset.
    """

    word: Tensor
    scale: Tensor
    row: Tensor
    node: Tensor


def tile_batch(
    sizes: Tensor, positions: Tensor, first_rows: Tensor, fits: Tensor, device: torch.device
) -> Tiles:
    """Lay a batch out in tiles. Sizes and positions are on the CPU, so nothing waits for a device.

    Args:
        sizes, positions, first_rows: [B] int64, each graph's nodes, its position in the dataset
            and its first row in the batch.
        fits: [G] bool, see `BitRows`.
    """
    n, graph_row = sizes.numpy(), np.stack((positions.numpy(), first_rows.numpy()))
    kind = np.searchsorted((0, TILE, *PLANES), n)
    kind[(n > 0) & ~fits[positions].numpy()] = len(PLANES) + 2
    small, *larger, rest = (np.flatnonzero(kind == k) for k in range(1, len(PLANES) + 3))
    order, tile = pack(n[small], TILE, SLOTS)
    tables = [tile, *graph_row[:, small[order]], *(graph_row[:, where] for where in larger)]
    others = torch.from_numpy(rest) if rest.size else None
    return Tiles._make([*upload_together(tables, device), others])


class Segments(NamedTuple):
    """How the readout's kernels take a batch of B graphs: its rows in S ≥ B runs, on the device.

    ptr: [S + 1] int64, where each segment's rows begin.  start: [S] int64, its first node.
    graph: [S] int64, the graph it belongs to, of the batch.
    graph_ptr: [B + 1] int64, where each graph's segments begin; None where each has one.
    """

    ptr: Tensor
    start: Tensor
    graph: Tensor
    graph_ptr: Tensor | None


def segment_batch(sizes: Tensor, starts: Tensor, device: torch.device) -> Segments:
    """Cut graphs of more than `SEGMENT` nodes into segments; the others are one each.

    Args:
        sizes, starts: [B] int64 on the CPU, each graph's nodes and its first node.
    """
    n = sizes.numpy()
    parts = np.maximum(1, -(-n // SEGMENT))
    graph = np.repeat(np.arange(n.size), parts)
    graph_ptr = np.concatenate([[0], np.cumsum(parts)])
    first = (np.arange(graph.size) - graph_ptr[graph]) * SEGMENT  # within its graph
    length = np.minimum(n[graph] - first, SEGMENT)
    ptr = np.concatenate([[0], np.cumsum(length)])
    tables = [ptr, starts.numpy()[graph] + first, graph, graph_ptr]
    if graph.size == n.size:
        return Segments._make([*upload_together(tables[:3], device), None])
    return Segments._make(upload_together(tables, device))


def pack(sizes: np.ndarray, height: int, slots: int) -> tuple[np.ndarray, np.ndarray]:
    """Share out graphs of 1 … `height` nodes over tiles: largest first, then the largest that fits.

    Only sizes matter, and there are few: one tile's pattern of sizes is repeated as often as the
    counts allow, so the work grows with the number of patterns and not of graphs.

    Returns:
        order [k]: the graphs, tile after tile;  tile [tiles + 1]: where each tile begins.
    """
    by_size = np.argsort(-sizes, kind="stable")
    count = np.bincount(sizes, minlength=height + 1)
    begin = np.concatenate([[0], np.cumsum(count[::-1])])[::-1]  # of size s in by_size: begin[s+1]
    left = count.tolist()
    taken = begin[1:].tolist()
    parts: list[np.ndarray] = [np.empty(0, np.int64)]
    slots_used, repeated = [0], [1]
    there = [size for size in range(height, 0, -1) if left[size]]
    while there:
        pattern, room, free = [], height, slots
        for size in there:
            if size <= room and free:
                many = min(left[size], room // size, free)
                pattern.append((size, many))
                room, free = room - many * size, free - many
        repeats = min(left[size] // many for size, many in pattern)
        shares = []
        for size, many in pattern:
            total = repeats * many
            shares.append(by_size[taken[size] : taken[size] + total])
            taken[size] += total
            left[size] -= total
        there = [size for size in there if left[size]]
        if repeats > 1:
            shares = [np.concatenate([share.reshape(repeats, -1) for share in shares], 1).ravel()]
        parts += shares
        slots_used.append(slots - free)
        repeated.append(repeats)
    return np.concatenate(parts), np.cumsum(np.repeat(slots_used, repeated))
