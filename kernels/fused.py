"""The flexible layer on tiles of small graphs: Y = act(Σ_{k<κ} Â^k X W_k + b) on chip.

A program takes one tile, ROWS rows of whole graphs one under another, and BO columns of Y. It
reads its rows' bits once, spreads them into a block-diagonal A, and never leaves the registers:

        columns = sources                   Horner's rule, its hops at the width of Y:
      ┌─────┬───────┬──┐                      b = X W_{κ-1}
      │ a   │       │  │  graph a             b = Â b + X W_k     for k = κ-2 … 0
      ├─────┼───────┤  │  graph b             Y = act(b + bias)
      │     │   b   │  │  unused rows
      └─────┴───────┴──┘

All of it lies on its side: bᵀ = bᵀ Âᵀ + W_kᵀ Xᵀ, 16 columns a warp. So a hop's state is the first
factor of its product, which a warp of NVIDIA's takes in from the registers in which the product
before has left it: no shared memory, no barrier. Numbers are split into bfloat16s (`tile.split`).

dX = Σ_k (Âᵀ)^k dY W_kᵀ is the same kernel with Aᵀ (bits spread down columns) and W_kᵀ. The weights'
gradient dW_k = Xᵀ (Âᵀ)^k dY has its own: a program takes a run of tiles and one block of dW, hops
dY, and keeps κ sums in registers; the programs' sums are added in a fixed order afterwards, so two
runs are bit-equal.

Bytes a node in float32, for O = ⌈h_out/BO⌉ and I = ⌈h_in/BI⌉ blocks of columns; t: 12 for each row
of a tile (its word, its scale, where it is in the batch), some 14 a node:

    kernel          must move                     loads and stores
    forward         4 h_in + 4 h_out + t          (4 h_in + t) O + 4 h_out
    dX (ReLU)       8 h_out + 4 h_in + t          (8 h_out + t) ⌈h_in/BO⌉ + 4 h_in
    dW, db (ReLU)   4 h_in + 8 h_out + t          4 h_in O + 8 h_out I + t I O

Forward and dX load W besides, for each tile; on NVIDIA in parts (`weights.py`), 6 bytes a weight of
float32, elsewhere 4: at 64→64 and κ = 5 that is 123 kB or 82 kB, three quarters of all that is
loaded. Device memory serves W once, and what is in the middle column; the second-level cache serves
the rest, W always, and blocks of columns after the first as long as the batch's X (dY and Y) fits
in it: they run when all tiles have had the first.

A first layer reads X where the dataset holds it: the same 4 h_in, and 4 for each row of a tile that
say where, and no copy in the batch's order, which would cost 8 h_in + 8 more. Embedded kinds of
nodes are 4 bytes more, each time X is read, instead of 4 h_in: their table stays in the cache, and
X, 8 h_in + 16 to make, is never made.

Nothing is read or written per edge. The gradient writes its sums besides, 4 (κ h_in + 1) h_out
bytes a share of the graphs, and PyTorch reads them again: tiles are up to ⌈512 / (O I)⌉ shares, and
larger graphs up to 512 more of each number of planes (`blocks.py`).
"""

# mypy: ignore-errors
import triton
import triton.language as tl

from .tile import (
    add_factors,
    add_sources,
    factor,
    finish,
    has_nan,
    load_block,
    load_gradient,
    load_weight,
    sources,
    spread_bits,
    store_bias_sum,
    store_block,
)
from .weights import load_lanes


@triton.jit
def load_tile(
    p_word, p_scale, p_row, i_tile,
    ROWS: tl.constexpr, NORMALIZE: tl.constexpr, TRANSPOSE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile's rows of the batch, which there are, A (or Aᵀ) on its side, its rows' scale or 1."""
    o = i_tile * ROWS + tl.arange(0, ROWS)
    o_row = tl.load(p_row + o)
    b_a = spread_bits(tl.load(p_word + o), ROWS, not TRANSPOSE, PRECISION)
    b_scale = tl.load(p_scale + o) if NORMALIZE else 1.0
    return o_row.to(tl.int64), o_row >= 0, b_a, b_scale


@triton.jit
def tile_input(
    p_code, p_node, o_row, m_row, i_tile,
    ROWS: tl.constexpr, DATASET_X: tl.constexpr, CODED: tl.constexpr,
):  # fmt: skip
    """The row of X that each row of a tile takes: its own, its node's, or its kind's (CODED)."""
    o_x = o_row
    if DATASET_X or CODED:
        o_x = tl.load(p_node + i_tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    if CODED:
        o_x = tl.load(p_code + o_x, mask=m_row, other=0).to(tl.int64)
    return o_x


@triton.jit
def hop(b_z, b_a, b_scale, NORMALIZE: tl.constexpr, PRECISION: tl.constexpr):
    """Â Z of one tile: A Z between two diagonal scales. All lie on their sides: b_z is [BO, ROWS],
    b_a [sources, targets]."""
    if NORMALIZE:
        b_z = b_z * b_scale[None, :]
    b_sum = add_sources(tl.zeros_like(b_z), b_a, sources(b_z, PRECISION), True)
    return b_sum * b_scale[None, :] if NORMALIZE else b_sum


@triton.jit
def careful_hop(
    b_z, p_word, i_tile, b_scale,
    ROWS: tl.constexpr, NORMALIZE: tl.constexpr, TRANSPOSE: tl.constexpr,
):  # fmt: skip
    """`hop` of what need not be finite: of one source after another, only along its edges."""
    o = tl.arange(0, ROWS)
    p_word += i_tile * ROWS
    b_word = tl.load(p_word + o)
    if NORMALIZE:
        b_z = b_z * b_scale[None, :]
    b_sum = tl.zeros_like(b_z)
    for i in range(ROWS):
        b_bit = (tl.load(p_word + i) >> o) if TRANSPOSE else (b_word >> i)
        b_source = tl.sum(tl.where((o == i)[None, :], b_z, 0.0), 1)
        b_sum += tl.where((b_bit & 1 == 1)[None, :], b_source[:, None], 0.0)
    return b_sum * b_scale[None, :] if NORMALIZE else b_sum


@triton.jit
def horner(
    b_x, b_a, b_scale, p_weight, p_parts, i_col,
    ORDER: tl.constexpr, H_IN: tl.constexpr, H_OUT: tl.constexpr,
    BI: tl.constexpr, BO: tl.constexpr, ROWS: tl.constexpr,
    NORMALIZE: tl.constexpr, TRANSPOSE: tl.constexpr,
    PARTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Block i_col of Σ_k Â^k X W_k of one tile, on its side: [BO, ROWS].

    b_x: the blocks of X, [BI, ROWS] each, of numbers of so many PARTS (see `factor`). Their W is
    in p_parts (`weights.py`), that of 0 parts in p_weight. What is not finite makes NaN of a column
    of the whole tile.
    """
    WHOLE: tl.constexpr = PARTS == 0 or PRECISION == "ieee"
    INPUTS: tl.constexpr = (H_IN + BI - 1) // BI
    p_weight += (ORDER - 1) * H_IN * H_OUT
    if not WHOLE:
        PART: tl.constexpr = PARTS * BI * BO
        p_parts += (i_col * ORDER + ORDER - 1) * INPUTS * PART
    x = ()
    for c in tl.static_range(INPUTS):
        x = x + (factor(b_x[c], PARTS, PRECISION),)
    b_y = tl.zeros([BO, ROWS], tl.float32)
    for i in range(ORDER):  # not unrolled: the code would be ORDER times as long
        if i > 0:
            b_y = hop(b_y, b_a, b_scale, NORMALIZE, PRECISION)
        for c in tl.static_range(INPUTS):
            if WHOLE:
                b_w = load_weight(p_weight, c, i_col, H_IN, H_OUT, BI, BO, TRANSPOSE)
                w = tl.trans(b_w)
            else:
                w = load_lanes(p_parts + c * PART, BI, BO, PARTS)
            b_y = add_factors(b_y, w, x[c], PARTS, PARTS, PRECISION)
        if WHOLE:
            p_weight -= H_IN * H_OUT
        else:
            p_parts -= INPUTS * PART
    return b_y


@triton.jit
def careful_horner(
    p_x, p_mask, o_x, m_row, p_word, i_tile, b_scale, p_weight, i_col,
    ORDER: tl.constexpr, H_IN: tl.constexpr, H_OUT: tl.constexpr,
    BO: tl.constexpr, ROWS: tl.constexpr,
    NORMALIZE: tl.constexpr, TRANSPOSE: tl.constexpr, RELU_IN: tl.constexpr,
):  # fmt: skip
    """`horner` of what need not be finite, one column of X after another."""
    p_weight += (ORDER - 1) * H_IN * H_OUT
    b_y = tl.zeros([BO, ROWS], tl.float32)
    for i in range(ORDER):
        if i > 0:
            b_y = careful_hop(b_y, p_word, i_tile, b_scale, ROWS, NORMALIZE, TRANSPOSE)
        for c in range(H_IN):
            b_x = load_gradient(p_x, p_mask, o_x, m_row, c, RELU_IN, H_IN, 1)
            b_w = load_weight(p_weight, c, i_col, H_IN, H_OUT, 1, BO, TRANSPOSE)
            b_y += tl.trans(b_x * b_w)
        p_weight -= H_IN * H_OUT
    return b_y


@triton.jit
def flex_conv_tiles(
    p_x,  # [*, H_IN]: rows of the batch, of the dataset (DATASET_X), or its kinds (CODED)
    p_code,  # [num_nodes] int32, the kind of each node (CODED)
    p_mask,  # [n, H_IN]: the input counts only where this is positive (RELU_IN)
    p_weight,  # [ORDER, H_IN, H_OUT], or (TRANSPOSE) [ORDER, H_OUT, H_IN]
    p_parts,  # the same `weights.in_parts` (PARTS)
    p_bias,  # [H_OUT]
    p_y,  # [n, H_OUT]
    p_word,  # [tiles · ROWS] int32, and the three below as well: see `TileRows`
    p_scale,
    p_row,
    p_node,
    ORDER: tl.constexpr,
    H_IN: tl.constexpr,
    H_OUT: tl.constexpr,
    BI: tl.constexpr,
    BO: tl.constexpr,
    ROWS: tl.constexpr,
    NORMALIZE: tl.constexpr,
    TRANSPOSE: tl.constexpr,
    DATASET_X: tl.constexpr,
    CODED: tl.constexpr,
    RELU_IN: tl.constexpr,
    BIAS: tl.constexpr,
    RELU: tl.constexpr,
    PARTS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    i_tile, i_col = tl.program_id(0), tl.program_id(1)
    o_row, m_row, b_a, b_scale = load_tile(
        p_word, p_scale, p_row, i_tile, ROWS, NORMALIZE, TRANSPOSE, PRECISION
    )
    o_x = tile_input(p_code, p_node, o_row, m_row, i_tile, ROWS, DATASET_X, CODED)
    b_x = ()
    for c in tl.static_range(0, H_IN, BI):
        b_x = b_x + (tl.trans(load_gradient(p_x, p_mask, o_x, m_row, c // BI, RELU_IN, H_IN, BI)),)
    b_y = horner(
        b_x, b_a, b_scale, p_weight, p_parts, i_col,
        ORDER, H_IN, H_OUT, BI, BO, ROWS, NORMALIZE, TRANSPOSE, PARTS, PRECISION,
    )  # fmt: skip
    if ORDER > 1:
        if has_nan(b_y):
            b_y = careful_horner(
                p_x, p_mask, o_x, m_row, p_word, i_tile, b_scale, p_weight, i_col,
                ORDER, H_IN, H_OUT, BO, ROWS, NORMALIZE, TRANSPOSE, RELU_IN,
            )  # fmt: skip
    b_y = finish(tl.trans(b_y), p_bias, i_col, BIAS, RELU, H_OUT, BO)
    store_block(p_y, b_y, o_row, m_row, i_col, H_OUT, BO)


@triton.jit(do_not_specialize=["num_tiles", "tiles_each"])
def weight_grad_tiles(
    p_x,  # as above
    p_code,
    p_dy,  # [n, H_OUT]
    p_y,  # [n, H_OUT], where RELU
    p_partial,  # [programs, ORDER · H_IN + 1, H_OUT]: each program's dW, and db below it
    p_word,
    p_scale,
    p_row,
    p_node,
    num_tiles,
    tiles_each,
    ORDER: tl.constexpr,
    H_IN: tl.constexpr,
    H_OUT: tl.constexpr,
    BI: tl.constexpr,
    BO: tl.constexpr,
    ROWS: tl.constexpr,
    NORMALIZE: tl.constexpr,
    DATASET_X: tl.constexpr,
    CODED: tl.constexpr,
    RELU: tl.constexpr,
    PARTS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    i_col, i_in = tl.program_id(1), tl.program_id(2)
    b_dw, b_db = (), tl.zeros([BO], tl.float32)
    for _ in tl.static_range(ORDER):
        b_dw = b_dw + (tl.zeros([BO, BI], tl.float32),)  # transposed
    i_first = tl.program_id(0) * tiles_each
    for i_tile in range(i_first, tl.minimum(i_first + tiles_each, num_tiles)):
        o_row, m_row, b_a, b_scale = load_tile(
            p_word, p_scale, p_row, i_tile, ROWS, NORMALIZE, True, PRECISION
        )
        o_x = tile_input(p_code, p_node, o_row, m_row, i_tile, ROWS, DATASET_X, CODED)
        x = factor(load_block(p_x, o_x, m_row, i_in, H_IN, BI), PARTS, PRECISION)
        b_g = load_gradient(p_dy, p_y, o_row, m_row, i_col, RELU, H_OUT, BO)
        b_db += tl.sum(b_g, 0)
        b_g = tl.trans(b_g)
        b_next = ()
        for k in tl.static_range(ORDER):
            if k > 0:
                b_g = hop(b_g, b_a, b_scale, NORMALIZE, PRECISION)
            # NVIDIA's matrix units cut what they add up: a sum of many tiles would lose a little
            # with each of them, always towards zero. So one tile is theirs, the sum is not.
            b_tile = tl.zeros([BO, BI], tl.float32)
            b_tile = add_factors(b_tile, factor(b_g, 3, PRECISION), x, 3, PARTS, PRECISION)
            b_next = b_next + (b_dw[k] + b_tile,)
            if k < ORDER - 1:
                tl.debug_barrier()  # else the compiler mixes the orders: registers spill
        b_dw = b_next
    p_partial += tl.program_id(0).to(tl.int64) * ((ORDER * H_IN + 1) * H_OUT)
    o_in = i_in * BI + tl.arange(0, BI)
    for k in tl.static_range(ORDER):
        store_block(
            p_partial, tl.trans(b_dw[k]), k * H_IN + o_in, o_in < H_IN, i_col, H_OUT, BO
        )  # fmt: skip
    store_bias_sum(p_partial + ORDER * H_IN * H_OUT, b_db, i_in, i_col, H_OUT, BO)
