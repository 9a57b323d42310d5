"""What the kernels read of each row of a tile, laid out once for a batch.

A tile is 32 rows of whole graphs; its tables say which graphs (`Tiles`). Finding a row's node and
its bits from those takes longer than a layer does, so it is done once and not in every kernel:

    tile 0 │ graph 7, rows 40 … 52 │ graph 2, rows 0 … 17 │ unused │      ◄ `Tiles`
           │ word, scale, row, node │ … one of each a row  │ 0 0 -1 0 │    ◄ `TileRows`

Bytes: reads 8 of bits and 4 of scale a node, 32 a graph and 16 a tile; writes 16 for each of a
tile's 32 rows.
"""

# mypy: ignore-errors
import torch
import triton
import triton.language as tl
from torch import Tensor

from ..batches.tiles import SLOTS, TILE, TileRows, Tiles
from .launch import launch


@triton.jit
def tile_slots(p_ptr, p_tile, p_graph, i_tile, SLOTS: tl.constexpr):
    """A tile's slots, whether they are used, and their graphs: which, first node, size.

    p_ptr: [G + 1], where each graph's nodes begin.  p_tile: [tiles + 1], where each tile's slots
    begin.  p_graph: [slots], a slot's graph.
    """
    o_slot = tl.load(p_tile + i_tile) + tl.arange(0, SLOTS)
    m_slot = o_slot < tl.load(p_tile + i_tile + 1)
    b_graph = tl.load(p_graph + o_slot, mask=m_slot, other=0)
    b_node = tl.load(p_ptr + b_graph, mask=m_slot, other=0)
    b_size = tl.load(p_ptr + b_graph + 1, mask=m_slot, other=0) - b_node
    return o_slot, m_slot, b_graph, b_node, b_size


@triton.jit
def slot_rows(b_node, b_size, ROWS: tl.constexpr):
    """Where in a tile each slot's graph begins; which rows are its own, [SLOTS, ROWS]; and of each
    row, where its graph begins (-1: it has none), and its node."""
    b_start = tl.cumsum(b_size, 0) - b_size
    o = tl.arange(0, ROWS)
    m_own = (b_start[:, None] <= o[None, :]) & (o[None, :] < (b_start + b_size)[:, None])
    # A thread has all slots of a row, of which one at most is not 0.
    o_start = tl.sum(tl.where(m_own, b_start[:, None].to(tl.int32) + 1, 0), 0) - 1
    o_node = tl.sum(tl.where(m_own, (b_node - b_start)[:, None].to(tl.int32), 0), 0) + o
    return b_start, m_own, o_start, o_node


@triton.jit
def lay_out_tiles(
    p_word,  # [tiles · ROWS] int32, and the three below as well: `TileRows`
    p_scales,
    p_rows,
    p_nodes,
    p_bits,  # [planes, num_nodes] int64
    p_scale,  # [num_nodes]
    p_ptr,  # [G + 1] int64
    p_tile,  # [tiles + 1] int64
    p_graph,  # [slots] int64
    p_row,  # [slots] int64, the first row in the batch of a slot's graph
    ROWS: tl.constexpr,
    SLOTS: tl.constexpr,
):
    i_tile = tl.program_id(0)
    o_slot, m_slot, _, b_node, b_size = tile_slots(p_ptr, p_tile, p_graph, i_tile, SLOTS)
    b_row = tl.load(p_row + o_slot, mask=m_slot, other=0)
    b_start, m_own, o_start, o_node = slot_rows(b_node, b_size, ROWS)
    o, m_row = tl.arange(0, ROWS), o_start >= 0
    o_row = tl.sum(tl.where(m_own, (b_row - b_start)[:, None].to(tl.int32), 0), 0) + o
    b_word = tl.load(p_bits + o_node, mask=m_row, other=0) << o_start
    b_scale = tl.load(p_scale + o_node, mask=m_row, other=0).to(tl.float32)
    o += i_tile * ROWS
    tl.store(p_word + o, b_word.to(tl.int32))
    tl.store(p_scales + o, b_scale)
    tl.store(p_rows + o, tl.where(m_row, o_row, -1))
    tl.store(p_nodes + o, tl.where(m_row, o_node, 0))


@torch.compiler.disable
def lay_out(tiles: Tiles, ptr: Tensor, bits: Tensor, scale: Tensor) -> TileRows:
    """The rows of a batch's tiles.

    Args:
        tiles: of the batch.
        ptr, bits, scale: of the dataset, see `PackedGraphs` and `BitRows`.
    """
    num_tiles = tiles.tile.shape[0] - 1
    size = num_tiles * TILE
    word, row, node = torch.empty(3, size, dtype=torch.int32, device=ptr.device)
    out = TileRows(word, torch.empty(size, dtype=torch.float32, device=ptr.device), row, node)
    if num_tiles:
        tables = (bits, scale, ptr, tiles.tile, tiles.graph, tiles.row)
        launch(
            lay_out_tiles, (num_tiles,), *out, *tables, written=tuple(out), ROWS=TILE, SLOTS=SLOTS
        )
    return out
