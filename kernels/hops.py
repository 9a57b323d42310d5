"""The hops of wide layers, all κ-1 of them at once; their products are the BLAS's.

    Horner's rule     T = X [W_0 … W_{κ-1}], then  Y = act(T_0 + Â(T_1 + Â(T_2 + …)) + b)
    powers            Z = [X, ÂX, …, Â^{κ-1}X], then  Y = Z [W_0; …; W_{κ-1}]  or  dW = Zᵀ dY

T and Z are workspaces [n, κ, WIDTH]: a row holds all orders of a node, some columns of them. A
program takes BO columns of a tile of small graphs, as in `fused.py`, or of one larger graph, as in
`blocks.py`, and keeps its state on chip.

            T_0    T_1    T_2   (κ = 3)               Z_0    Z_1    Z_2
      tile │ + ◄─Â─ + ◄─Â─ ∙ │                  tile │ ∙ ─Â─► ∙ ─Â─► ∙ │

Bytes a node and column in float32, a node's bits, scale and tables (of tiles 12 a row; of larger
graphs 8 for each plane and hop, 8 a hop and 32 a graph) aside:

    kernel                             must move    moves
    horner_tiles, horner_blocks        4 κ + 4      the same
    powers_tiles, powers_blocks        4 + 4 κ      the same
"""

# mypy: ignore-errors
import triton
import triton.language as tl

from . import blocks
from .blocks import ROWS, any_nan, load_graph, rows_of
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
def hop_blocks(
    b_z, p_bits, p_scale, num_nodes, node, size,
    PLANES: tl.constexpr, BO: tl.constexpr, NORMALIZE: tl.constexpr, TRANSPOSE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """`blocks.hop`; where it makes a NaN again, with care."""
    b_sum = blocks.hop(
        b_z, p_bits, p_scale, num_nodes, node, size,
        PLANES, BO, NORMALIZE, TRANSPOSE, PRECISION,
    )  # fmt: skip
    if any_nan(b_sum, PLANES):
        b_sum = blocks.careful_hop(
            b_z, p_bits, p_scale, num_nodes, node, size,
            PLANES, BO, NORMALIZE, TRANSPOSE, PRECISION,
        )  # fmt: skip
    return b_sum


@triton.jit
def load_rows(
    p, row, size, i_col, STRIDE,
    WIDTH: tl.constexpr, BO: tl.constexpr, PLANES: tl.constexpr,
):  # fmt: skip
    """Columns of a graph's rows, which begin at `row` and are STRIDE numbers apart, in blocks."""
    b = ()
    for j in tl.static_range(PLANES):
        o, m = rows_of(size, j)
        b = b + (load_columns(p, row + j * ROWS + o, m, i_col, STRIDE, WIDTH, BO),)
    return b


@triton.jit
def store_rows(
    p, b, row, size, i_col, STRIDE,
    WIDTH: tl.constexpr, BO: tl.constexpr, PLANES: tl.constexpr,
):  # fmt: skip
    """The reverse of `load_rows`."""
    for j in tl.static_range(PLANES):
        o, m = rows_of(size, j)
        store_columns(p, b[j], row + j * ROWS + o, m, i_col, STRIDE, WIDTH, BO)


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


@triton.jit(do_not_specialize=["num_nodes", "num_graphs", "order"])
def horner_blocks(
    p_t,  # as above
    p_bias,
    p_y,
    p_ptr,
    p_bits,
    p_scale,
    p_graph,  # as in `flex_conv_blocks`
    num_nodes,
    num_graphs,
    order,
    WIDTH: tl.constexpr,
    Y_STRIDE: tl.constexpr,
    BO: tl.constexpr,
    PLANES: tl.constexpr,
    NORMALIZE: tl.constexpr,
    TRANSPOSE: tl.constexpr,
    BIAS: tl.constexpr,
    RELU: tl.constexpr,
    PRECISION: tl.constexpr,
):
    i_col = tl.program_id(1)
    node, size, row = load_graph(p_ptr, p_graph, tl.program_id(0), num_graphs)
    stride = order.to(tl.int64) * WIDTH
    p_t += (order - 1) * WIDTH
    b_y = load_rows(p_t, row, size, i_col, stride, WIDTH, BO, PLANES)
    for _ in range(1, order):
        p_t -= WIDTH
        b_y = hop_blocks(
            b_y, p_bits, p_scale, num_nodes, node, size,
            PLANES, BO, NORMALIZE, TRANSPOSE, PRECISION,
        )  # fmt: skip
        b_t = load_rows(p_t, row, size, i_col, stride, WIDTH, BO, PLANES)
        b_next = ()
        for j in tl.static_range(PLANES):
            b_next = b_next + (b_t[j] + b_y[j],)
        b_y = b_next
    b_out = ()
    for j in tl.static_range(PLANES):
        b_out = b_out + (finish(b_y[j], p_bias, i_col, BIAS, RELU, WIDTH, BO),)
    store_rows(p_y, b_out, row, size, i_col, Y_STRIDE, WIDTH, BO, PLANES)


@triton.jit(do_not_specialize=["num_nodes", "num_graphs", "order"])
def powers_blocks(
    p_x,  # as above
    p_z,
    p_ptr,
    p_bits,
    p_scale,
    p_graph,
    num_nodes,
    num_graphs,
    order,
    WIDTH: tl.constexpr,
    X_STRIDE: tl.constexpr,
    BO: tl.constexpr,
    PLANES: tl.constexpr,
    NORMALIZE: tl.constexpr,
    TRANSPOSE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    i_col = tl.program_id(1)
    node, size, row = load_graph(p_ptr, p_graph, tl.program_id(0), num_graphs)
    stride = order.to(tl.int64) * WIDTH
    b_z = load_rows(p_x, row, size, i_col, X_STRIDE, WIDTH, BO, PLANES)
    store_rows(p_z, b_z, row, size, i_col, stride, WIDTH, BO, PLANES)
    for _ in range(1, order):
        p_z += WIDTH
        b_z = hop_blocks(
            b_z, p_bits, p_scale, num_nodes, node, size,
            PLANES, BO, NORMALIZE, TRANSPOSE, PRECISION,
        )  # fmt: skip
        store_rows(p_z, b_z, row, size, i_col, stride, WIDTH, BO, PLANES)
