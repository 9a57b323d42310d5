"""The hops of wide layers, all κ-1 of them at once; their products are the BLAS's.

    Horner's rule     T = X [W_0 … W_{κ-1}], then  Y = act(T_0 + Â(T_1 + Â(T_2 + …)) + b)
    powers            Z = [X, ÂX, …, Â^{κ-1}X], then  Y = Z [W_0; …; W_{κ-1}]  or  dW = Zᵀ dY

T and Z are workspaces [n, κ, WIDTH]: a row holds all orders of a node, some columns of them. A
program takes BO columns of a tile of small graphs, as in `fused.py`, and keeps its state in
registers; or of one larger graph, block by block as in `blocks.py`, where the workspace itself
carries the state from hop to hop (for Horner's rule T_k becomes T_k + Â T_{k+1}).

            T_0    T_1    T_2   (κ = 3)               Z_0    Z_1    Z_2
      tile │ + ◄─Â─ + ◄─Â─ ∙ │                  tile │ ∙ ─Â─► ∙ ─Â─► ∙ │

Bytes a node and column in float32, a node's bits, scale and tables (20 and less in all) aside:

    kernel           must move       moves
    horner_tiles     4 κ + 4         the same
    powers_tiles     4 + 4 κ         the same
    horner_blocks    4 κ + 4         the same, and 4 (κ-2) written; the caches serve the rest
    powers_blocks    4 + 4 κ         the same; the caches serve the rest

The rest: each hop of a larger graph reads ⌈n/ROWS⌉ times what the hop before has written.
"""

# mypy: ignore-errors
import triton
import triton.language as tl

from .blocks import load_graph, load_scale, sum_sources
from .fused import hop, load_tile
from .tile import finish, has_nan, load_columns, store_columns


@triton.jit
def hop_tile(b_z, b_a, b_scale, NORMALIZE: tl.constexpr, PRECISION: tl.constexpr):
    """`fused.hop`; where it makes a NaN again, with care."""
    b_sum = hop(b_z, b_a, b_scale, NORMALIZE, PRECISION, False)
    if has_nan(b_sum):
        b_sum = hop(b_z, b_a, b_scale, NORMALIZE, PRECISION, True)
    return b_sum


@triton.jit
def hop_rows(
    p_from, p_bits, p_scale, num_nodes, node, size, top, i_col, STRIDE,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, SOURCES: tl.constexpr, BO: tl.constexpr,
    SCALE: tl.constexpr, TRANSPOSE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`blocks.sum_sources`; where it makes a NaN again, with care."""
    b_sum = sum_sources(
        p_from, p_bits, p_scale, num_nodes, node, size, top, i_col, STRIDE,
        WIDTH, ROWS, SOURCES, BO, SCALE, TRANSPOSE, PRECISION, False,
    )  # fmt: skip
    if has_nan(b_sum):
        b_sum = sum_sources(
            p_from, p_bits, p_scale, num_nodes, node, size, top, i_col, STRIDE,
            WIDTH, ROWS, SOURCES, BO, SCALE, TRANSPOSE, PRECISION, True,
        )  # fmt: skip
    return b_sum


@triton.jit(do_not_specialize=["order"])
def horner_tiles(
    p_t,  # T, [n, order, WIDTH]
    p_bias,  # [WIDTH]
    p_y,  # Y: n rows of Y_STRIDE numbers, of which WIDTH are written
    p_word,  # the tables of `flex_conv_tiles`
    p_scale,
    p_row,
    order,
    WIDTH: tl.constexpr,
    Y_STRIDE: tl.constexpr,
    BO: tl.constexpr,
    ROWS: tl.constexpr,
    NORMALIZE: tl.constexpr,
    TRANSPOSE: tl.constexpr,
    BIAS: tl.constexpr,
    RELU: tl.constexpr,
    PRECISION: tl.constexpr,
):
    i_tile, i_col = tl.program_id(0), tl.program_id(1)
    o_row, m_row, b_a, b_scale = load_tile(
        p_word, p_scale, p_row, i_tile, ROWS, NORMALIZE, TRANSPOSE, PRECISION
    )
    stride = order.to(tl.int64) * WIDTH
    p_t += (order - 1) * WIDTH
    b_y = tl.trans(load_columns(p_t, o_row, m_row, i_col, stride, WIDTH, BO))
    for _ in range(1, order):
        p_t -= WIDTH
        b_t = tl.trans(load_columns(p_t, o_row, m_row, i_col, stride, WIDTH, BO))
        b_y = b_t + hop_tile(b_y, b_a, b_scale, NORMALIZE, PRECISION)
    b_y = finish(tl.trans(b_y), p_bias, i_col, BIAS, RELU, WIDTH, BO)
    store_columns(p_y, b_y, o_row, m_row, i_col, Y_STRIDE, WIDTH, BO)


@triton.jit(do_not_specialize=["order"])
def powers_tiles(
    p_x,  # X: n rows of X_STRIDE numbers, of which WIDTH count
    p_z,  # Z, [n, order, WIDTH]
    p_word,
    p_scale,
    p_row,
    order,
    WIDTH: tl.constexpr,
    X_STRIDE: tl.constexpr,
    BO: tl.constexpr,
    ROWS: tl.constexpr,
    NORMALIZE: tl.constexpr,
    TRANSPOSE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    i_tile, i_col = tl.program_id(0), tl.program_id(1)
    o_row, m_row, b_a, b_scale = load_tile(
        p_word, p_scale, p_row, i_tile, ROWS, NORMALIZE, TRANSPOSE, PRECISION
    )
    stride = order.to(tl.int64) * WIDTH
    b_z = load_columns(p_x, o_row, m_row, i_col, X_STRIDE, WIDTH, BO)
    store_columns(p_z, b_z, o_row, m_row, i_col, stride, WIDTH, BO)
    b_z = tl.trans(b_z)
    for _ in range(1, order):
        p_z += WIDTH
        b_z = hop_tile(b_z, b_a, b_scale, NORMALIZE, PRECISION)
        store_columns(p_z, tl.trans(b_z), o_row, m_row, i_col, stride, WIDTH, BO)


@triton.jit(do_not_specialize=["num_nodes", "order"])
def horner_blocks(
    p_t,  # as above; T_1 … T_{κ-2} are overwritten
    p_bias,
    p_y,
    p_ptr,
    p_bits,
    p_scale,
    p_graph,  # [graphs] int64
    p_row,  # [graphs] int64
    num_nodes,
    order,
    WIDTH: tl.constexpr,
    Y_STRIDE: tl.constexpr,
    BO: tl.constexpr,
    ROWS: tl.constexpr,
    SOURCES: tl.constexpr,
    NORMALIZE: tl.constexpr,
    TRANSPOSE: tl.constexpr,
    BIAS: tl.constexpr,
    RELU: tl.constexpr,
    PRECISION: tl.constexpr,
):
    i_col = tl.program_id(1)
    node, size, row = load_graph(p_ptr, p_graph, p_row, tl.program_id(0))
    stride = order.to(tl.int64) * WIDTH
    p_t += row * stride + (order - 1) * WIDTH
    for i in range(1, order):
        p_from = p_t
        p_t -= WIDTH
        for top in range(0, size, ROWS):
            o = top + tl.arange(0, ROWS)
            m = o < size
            b_y = load_columns(p_t, o.to(tl.int64), m, i_col, stride, WIDTH, BO)
            b_y += load_scale(p_scale, node + o, m, NORMALIZE) * hop_rows(
                p_from, p_bits, p_scale, num_nodes, node, size, top, i_col, stride,
                WIDTH, ROWS, SOURCES, BO, NORMALIZE, TRANSPOSE, PRECISION,
            )  # fmt: skip
            if i < order - 1:
                store_columns(p_t, b_y, o.to(tl.int64), m, i_col, stride, WIDTH, BO)
            else:
                b_y = finish(b_y, p_bias, i_col, BIAS, RELU, WIDTH, BO)
                store_columns(p_y, b_y, row + o, m, i_col, Y_STRIDE, WIDTH, BO)
        tl.debug_barrier()  # every row is written before any is read


@triton.jit(do_not_specialize=["num_nodes", "order"])
def powers_blocks(
    p_x,  # as above
    p_z,
    p_ptr,
    p_bits,
    p_scale,
    p_graph,
    p_row,
    num_nodes,
    order,
    WIDTH: tl.constexpr,
    X_STRIDE: tl.constexpr,
    BO: tl.constexpr,
    ROWS: tl.constexpr,
    SOURCES: tl.constexpr,
    NORMALIZE: tl.constexpr,
    TRANSPOSE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    i_col = tl.program_id(1)
    node, size, row = load_graph(p_ptr, p_graph, p_row, tl.program_id(0))
    stride = order.to(tl.int64) * WIDTH
    p_z += row * stride
    for top in range(0, size, ROWS):
        o = top + tl.arange(0, ROWS)
        b_z = load_columns(p_x, row + o, o < size, i_col, X_STRIDE, WIDTH, BO)
        store_columns(p_z, b_z, o.to(tl.int64), o < size, i_col, stride, WIDTH, BO)
    for _ in range(1, order):
        tl.debug_barrier()  # every row is written before any is read
        p_from = p_z
        p_z += WIDTH
        for top in range(0, size, ROWS):
            o = top + tl.arange(0, ROWS)
            m = o < size
            b_z = load_scale(p_scale, node + o, m, NORMALIZE) * hop_rows(
                p_from, p_bits, p_scale, num_nodes, node, size, top, i_col, stride,
                WIDTH, ROWS, SOURCES, BO, NORMALIZE, TRANSPOSE, PRECISION,
            )  # fmt: skip
            store_columns(p_z, b_z, o.to(tl.int64), m, i_col, stride, WIDTH, BO)
