"""The flexible layer on tiles of small graphs: Y = act(Σ_{k<κ} Â^k X W_k + b) on chip.

A program takes one tile, ROWS rows of whole graphs one under another, and BO columns of Y. It
reads its graphs' bits once, spreads them into a block-diagonal A, and never leaves the registers:

        columns = sources                   Horner's rule, its hops at the width of Y:
      ┌─────┬───────┬──┐                      b = X W_{κ-1}
      │ a   │       │  │  graph a             b = Â b + X W_k     for k = κ-2 … 0
      ├─────┼───────┤  │  graph b             Y = act(b + bias)
      │     │   b   │  │  unused rows
      └─────┴───────┴──┘

dX = Σ_k (Âᵀ)^k dY W_kᵀ is the same kernel with Aᵀ (bits spread down columns) and W_kᵀ. The weights'
gradient dW_k = Xᵀ (Âᵀ)^k dY has its own: a program takes a run of tiles and one block of dW, hops
dY, and keeps κ sums in registers; the programs' sums are added in a fixed order afterwards, so two
runs are bit-equal.

Bytes a node in float32, for O = ⌈h_out/BO⌉ and I = ⌈h_in/BI⌉ blocks of columns; t: 8 of bits, 4 of
scale where normalised, and a node's share of the tables of tiles and graphs, below 2:

    kernel          must move                     loads and stores
    forward         4 h_in + 4 h_out + t          (4 h_in + t) O + 4 h_out
    dX (ReLU)       8 h_out + 4 h_in + t          (8 h_out + t) ⌈h_in/BO⌉ + 4 h_in
    dW, db (ReLU)   4 h_in + 8 h_out + t          4 h_in O + 8 h_out I + t I O

Forward and dX load W besides, 4 κ h_in h_out bytes a tile: at 64→64 and κ = 5 that is 82 kB, three
quarters of all that is loaded. Device memory serves W once, and what is in the middle column; the
second-level cache serves the rest, W always, and blocks of columns after the first as long as the
batch's X (dY and Y) fits in it: they run when all tiles have had the first.

A first layer reads X where the dataset holds it: the same 4 h_in, and no copy in the batch's order,
which would cost 8 h_in + 8 more. Embedded kinds of nodes are 4 bytes, each time X is read, instead
of 4 h_in: their table stays in the cache, and X, 8 h_in + 16 to make, is never made.

Nothing is read or written per edge. The gradient writes its sums besides, 4 (κ h_in + 1) h_out
bytes a program, and PyTorch reads them again: up to 512 programs take tiles, 512 more take larger
graphs.
"""

# mypy: ignore-errors
import triton
import triton.language as tl

from .tile import (
    add_others,
    add_sources,
    finish,
    has_nan,
    input_rows,
    load_block,
    load_gradient,
    load_weight,
    no_sums,
    spread_bits,
    store_block,
    store_sums,
)


@triton.jit
def tile_slots(p_ptr, p_tile, p_graph, i_tile, SLOTS: tl.constexpr):
    """A tile's slots, whether they are used, and their graphs: which, first node, size.

    p_ptr: [G + 1], where each graph's nodes begin.  p_tile: [tiles + 1], where each tile's slots
    begin.  p_graph: [slots], a slot's graph.
    """
    o_slot = tl.load(p_tile + i_tile).to(tl.int64) + tl.arange(0, SLOTS)
    m_slot = o_slot < tl.load(p_tile + i_tile + 1)
    b_graph = tl.load(p_graph + o_slot, mask=m_slot, other=0)
    b_node = tl.load(p_ptr + b_graph, mask=m_slot, other=0)
    b_size = tl.load(p_ptr + b_graph + 1, mask=m_slot, other=0) - b_node
    return o_slot, m_slot, b_graph, b_node, b_size


@triton.jit
def tile_rows(p_ptr, p_tile, p_graph, p_row, i_tile, ROWS: tl.constexpr, SLOTS: tl.constexpr):
    """Node of the dataset, row of the batch, first row of its graph, and whether any: [ROWS] each.

    p_row: [slots], the first row in the batch of a slot's graph; the others as in `tile_slots`.
    """
    o_slot, m_slot, _, b_node, b_size = tile_slots(p_ptr, p_tile, p_graph, i_tile, SLOTS)
    b_row = tl.load(p_row + o_slot, mask=m_slot, other=0)
    b_start = tl.cumsum(b_size, 0) - b_size
    o = tl.arange(0, ROWS)
    m_here = (b_start[None, :] <= o[:, None]) & (o[:, None] < (b_start + b_size)[None, :])
    o_start = tl.sum(tl.where(m_here, b_start[None, :], 0), 1)
    o_node = tl.sum(tl.where(m_here, (b_node - b_start)[None, :], 0), 1) + o
    o_row = tl.sum(tl.where(m_here, (b_row - b_start)[None, :], 0), 1) + o
    return o_node, o_row, o_start, tl.sum(m_here.to(tl.int32), 1) > 0


@triton.jit
def tile_matrix(
    p_bits, p_scale, o_node, o_start, m_row,
    ROWS: tl.constexpr, NORMALIZE: tl.constexpr, TRANSPOSE: tl.constexpr,
):  # fmt: skip
    """A (or Aᵀ) of one tile, [ROWS, ROWS], and the scale of its rows, [ROWS], or 1."""
    b_scale = tl.load(p_scale + o_node, mask=m_row, other=0).to(tl.float32) if NORMALIZE else 1.0
    b_word = tl.load(p_bits + o_node, mask=m_row, other=0) << o_start
    return spread_bits(b_word, ROWS, TRANSPOSE), b_scale


@triton.jit
def load_tile(
    p_ptr, p_bits, p_scale, p_tile, p_graph, p_row, i_tile,
    ROWS: tl.constexpr, SLOTS: tl.constexpr, NORMALIZE: tl.constexpr, TRANSPOSE: tl.constexpr,
):  # fmt: skip
    """One tile: its nodes, its rows of the batch, which there are, A (or Aᵀ), its rows' scale."""
    o_node, o_row, o_start, m_row = tile_rows(p_ptr, p_tile, p_graph, p_row, i_tile, ROWS, SLOTS)
    b_a, b_scale = tile_matrix(p_bits, p_scale, o_node, o_start, m_row, ROWS, NORMALIZE, TRANSPOSE)
    return o_node, o_row, m_row, b_a, b_scale


@triton.jit
def hop(b_a, b_z, b_scale, NORMALIZE: tl.constexpr, PRECISION: tl.constexpr, REPAIR: tl.constexpr):
    """Â Z of one tile: A Z between two diagonal scales."""
    if NORMALIZE:
        b_z = b_z * b_scale[:, None]
    b_none = tl.zeros_like(b_z)
    b_sum = add_sources(b_none, b_a, b_z, PRECISION, "all")
    if REPAIR:
        if has_nan(b_sum):
            b_sum = add_sources(b_none, b_a, b_z, PRECISION, "finite")
            b_sum = add_others(b_sum, add_sources(b_none, b_a, b_z, PRECISION, "others"))
    return b_sum * b_scale[:, None] if NORMALIZE else b_sum


@triton.jit
def horner(
    b_x, b_a, b_scale, p_weight, i_col,
    ORDER: tl.constexpr, H_IN: tl.constexpr, H_OUT: tl.constexpr,
    BI: tl.constexpr, BO: tl.constexpr, ROWS: tl.constexpr,
    NORMALIZE: tl.constexpr, PRECISION: tl.constexpr, REPAIR: tl.constexpr,
):  # fmt: skip
    """Block i_col of Σ_k Â^k X W_k of one tile, [ROWS, BO]; b_x: the blocks of X, BI wide."""
    p_weight += (ORDER - 1) * H_IN * H_OUT
    b_y = tl.zeros([ROWS, BO], tl.float32)
    for i in range(ORDER):  # not unrolled: the code would be ORDER times as long
        if i > 0:
            b_y = hop(b_a, b_y, b_scale, NORMALIZE, PRECISION, REPAIR)
        for c in tl.static_range(0, H_IN, BI):
            b_w = load_weight(p_weight, c // BI, i_col, H_IN, H_OUT, BI, BO)
            b_y = tl.dot(b_x[c // BI], b_w, b_y, input_precision=PRECISION)
        p_weight -= H_IN * H_OUT
    return b_y


@triton.jit
def flex_conv_tiles(
    p_x,  # [*, H_IN]: rows of the batch, of the dataset (DATASET_X), or its kinds (CODED)
    p_code,  # [num_nodes] int32, the kind of each node (CODED)
    p_mask,  # [n, H_IN]: the input counts only where this is positive (RELU_IN)
    p_weight,  # [ORDER, H_IN, H_OUT]
    p_bias,  # [H_OUT]
    p_y,  # [n, H_OUT]
    p_ptr,  # [G + 1] int64
    p_bits,  # [planes, num_nodes] int64
    p_scale,  # [num_nodes]
    p_tile,  # [tiles + 1] int32
    p_graph,  # [slots] int64
    p_row,  # [slots] int64
    ORDER: tl.constexpr,
    H_IN: tl.constexpr,
    H_OUT: tl.constexpr,
    BI: tl.constexpr,
    BO: tl.constexpr,
    ROWS: tl.constexpr,
    SLOTS: tl.constexpr,
    NORMALIZE: tl.constexpr,
    TRANSPOSE: tl.constexpr,
    DATASET_X: tl.constexpr,
    CODED: tl.constexpr,
    RELU_IN: tl.constexpr,
    BIAS: tl.constexpr,
    RELU: tl.constexpr,
    PRECISION: tl.constexpr,
):
    i_tile, i_col = tl.program_id(0), tl.program_id(1)
    o_node, o_row, m_row, b_a, b_scale = load_tile(
        p_ptr, p_bits, p_scale, p_tile, p_graph, p_row, i_tile, ROWS, SLOTS, NORMALIZE, TRANSPOSE
    )
    o_x = input_rows(p_code, o_node, o_row, m_row, DATASET_X, CODED)
    b_x = ()
    for c in tl.static_range(0, H_IN, BI):
        b_x = b_x + (load_gradient(p_x, p_mask, o_x, m_row, c // BI, RELU_IN, H_IN, BI),)
    b_y = horner(
        b_x, b_a, b_scale, p_weight, i_col,
        ORDER, H_IN, H_OUT, BI, BO, ROWS, NORMALIZE, PRECISION, True,
    )  # fmt: skip
    b_y = finish(b_y, p_bias, i_col, BIAS, RELU, H_OUT, BO)
    store_block(p_y, b_y, o_row, m_row, i_col, H_OUT, BO)


@triton.jit(do_not_specialize=["num_tiles", "tiles_each"])
def weight_grad_tiles(
    p_x,  # as above
    p_code,
    p_dy,  # [n, H_OUT]
    p_y,  # [n, H_OUT], where RELU
    p_partial,  # [programs, ORDER · H_IN + 1, H_OUT]: each program's dW, and db below it
    p_ptr,
    p_bits,
    p_scale,
    p_tile,
    p_graph,
    p_row,
    num_tiles,
    tiles_each,
    ORDER: tl.constexpr,
    H_IN: tl.constexpr,
    H_OUT: tl.constexpr,
    BI: tl.constexpr,
    BO: tl.constexpr,
    ROWS: tl.constexpr,
    SLOTS: tl.constexpr,
    NORMALIZE: tl.constexpr,
    DATASET_X: tl.constexpr,
    CODED: tl.constexpr,
    RELU: tl.constexpr,
    PRECISION: tl.constexpr,
):
    i_col, i_in = tl.program_id(1), tl.program_id(2)
    b_dw, b_db = no_sums(ORDER, BI, BO)
    i_first = tl.program_id(0) * tiles_each
    for i_tile in range(i_first, tl.minimum(i_first + tiles_each, num_tiles)):
        o_node, o_row, m_row, b_a, b_scale = load_tile(
            p_ptr, p_bits, p_scale, p_tile, p_graph, p_row, i_tile, ROWS, SLOTS, NORMALIZE, True
        )
        o_x = input_rows(p_code, o_node, o_row, m_row, DATASET_X, CODED)
        b_x = tl.trans(load_block(p_x, o_x, m_row, i_in, H_IN, BI))
        b_g = load_gradient(p_dy, p_y, o_row, m_row, i_col, RELU, H_OUT, BO)
        b_db += tl.sum(b_g, 0)
        b_sum = (tl.dot(b_x, b_g, b_dw[0], input_precision=PRECISION),)
        for k in tl.static_range(1, ORDER):
            b_g = hop(b_a, b_g, b_scale, NORMALIZE, PRECISION, False)
            b_sum = b_sum + (tl.dot(b_x, b_g, b_dw[k], input_precision=PRECISION),)
        b_dw = b_sum
    i_program = tl.program_id(0)
    store_sums(p_partial, b_dw, b_db, i_program, i_in, i_col, ORDER, H_IN, H_OUT, BI, BO)
