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

from . import fused, larger
from .fused import load_tile
from .larger import ROWS, any_nan, load_graph, on_their_sides, rows_of
from .tile import finish, has_nan, load_columns, store_columns


@triton.jit
def load_rows(
    p, row, size, i_col, STRIDE,
    WIDTH: tl.constexpr, BO: tl.constexpr, PLANES: tl.constexpr, ASIDE: tl.constexpr,
):  # fmt: skip
    """Columns of a graph's rows, which begin at `row` and are STRIDE numbers apart, in blocks, or
    (ASIDE) in blocks on their sides."""
    b = ()
    for j in tl.static_range(PLANES):
        o, m = rows_of(size, j)
        b = b + (load_columns(p, row + j * ROWS + o, m, i_col, STRIDE, WIDTH, BO),)
    return on_their_sides(b, PLANES) if ASIDE else b


@triton.jit
def store_rows(
    p, b, row, size, i_col, STRIDE,
    WIDTH: tl.constexpr, BO: tl.constexpr, PLANES: tl.constexpr, ASIDE: tl.constexpr,
):  # fmt: skip
    """The reverse of `load_rows`."""
    if ASIDE:
        b = on_their_sides(b, PLANES)
    for j in tl.static_range(PLANES):
        o, m = rows_of(size, j)
        store_columns(p, b[j], row + j * ROWS + o, m, i_col, STRIDE, WIDTH, BO)


@triton.jit
def hop_tile(
    b_z, b_a, b_scale, p_word, i_tile, ROWS: tl.constexpr, NORMALIZE: tl.constexpr,
    TRANSPOSE: tl.constexpr, PRECISION: tl.constexpr, CAREFUL: tl.constexpr,
):  # fmt: skip
    """`fused.hop`, or with care."""
    if CAREFUL:
        b_sum = fused.careful_hop(b_z, p_word, i_tile, b_scale, ROWS, NORMALIZE, TRANSPOSE)
    else:
        b_sum = fused.hop(b_z, b_a, b_scale, NORMALIZE, PRECISION)
    return b_sum


@triton.jit
def hop_blocks(
    b_z, p_bits, p_scale, num_nodes, node, size,
    PLANES: tl.constexpr, BO: tl.constexpr, NORMALIZE: tl.constexpr, TRANSPOSE: tl.constexpr,
    PRECISION: tl.constexpr, CAREFUL: tl.constexpr,
):  # fmt: skip
    """`larger.hop`, or with care."""
    if CAREFUL:
        b_sum = larger.careful_hop(
            b_z, p_bits, p_scale, num_nodes, node, size, PLANES, BO, NORMALIZE, TRANSPOSE
        )
    else:
        b_sum = larger.hop(
            b_z, p_bits, p_scale, num_nodes, node, size,
            PLANES, BO, NORMALIZE, TRANSPOSE, PRECISION,
        )  # fmt: skip
    return b_sum


@triton.jit
def horner_tile(
    p_t, o_row, m_row, i_col, b_a, b_scale, p_word, i_tile, order,
    WIDTH: tl.constexpr, BO: tl.constexpr, ROWS: tl.constexpr, NORMALIZE: tl.constexpr,
    TRANSPOSE: tl.constexpr, PRECISION: tl.constexpr, CAREFUL: tl.constexpr,
):  # fmt: skip
    """T_0 + Â(T_1 + …) of a tile, on its side."""
    stride = order.to(tl.int64) * WIDTH
    p_t += (order - 1) * WIDTH
    b_y = tl.trans(load_columns(p_t, o_row, m_row, i_col, stride, WIDTH, BO))
    for _ in range(1, order):
        p_t -= WIDTH
        b_t = tl.trans(load_columns(p_t, o_row, m_row, i_col, stride, WIDTH, BO))
        b_y = b_t + hop_tile(
            b_y, b_a, b_scale, p_word, i_tile, ROWS, NORMALIZE, TRANSPOSE, PRECISION, CAREFUL
        )
    return b_y


@triton.jit
def powers_tile(
    b_z, p_z, o_row, m_row, i_col, b_a, b_scale, p_word, i_tile, order,
    WIDTH: tl.constexpr, BO: tl.constexpr, ROWS: tl.constexpr, NORMALIZE: tl.constexpr,
    TRANSPOSE: tl.constexpr, PRECISION: tl.constexpr, CAREFUL: tl.constexpr,
):  # fmt: skip
    """Write ÂX, …, Â^{κ-1}X of a tile, whose X is b_z, on its side; returns the last."""
    stride = order.to(tl.int64) * WIDTH
    for _ in range(1, order):
        p_z += WIDTH
        b_z = hop_tile(
            b_z, b_a, b_scale, p_word, i_tile, ROWS, NORMALIZE, TRANSPOSE, PRECISION, CAREFUL
        )
        store_columns(p_z, tl.trans(b_z), o_row, m_row, i_col, stride, WIDTH, BO)
    return b_z


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
    b_y = horner_tile(
        p_t, o_row, m_row, i_col, b_a, b_scale, p_word, i_tile, order,
        WIDTH, BO, ROWS, NORMALIZE, TRANSPOSE, PRECISION, False,
    )  # fmt: skip
    if has_nan(b_y):
        b_y = horner_tile(
            p_t, o_row, m_row, i_col, b_a, b_scale, p_word, i_tile, order,
            WIDTH, BO, ROWS, NORMALIZE, TRANSPOSE, PRECISION, True,
        )  # fmt: skip
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
    b_last = powers_tile(
        tl.trans(b_z), p_z, o_row, m_row, i_col, b_a, b_scale, p_word, i_tile, order,
        WIDTH, BO, ROWS, NORMALIZE, TRANSPOSE, PRECISION, False,
    )  # fmt: skip
    if has_nan(b_last):
        tl.debug_barrier()  # before other threads write the same rows again
        b_z = load_columns(p_x, o_row, m_row, i_col, X_STRIDE, WIDTH, BO)
        powers_tile(
            tl.trans(b_z), p_z, o_row, m_row, i_col, b_a, b_scale, p_word, i_tile, order,
            WIDTH, BO, ROWS, NORMALIZE, TRANSPOSE, PRECISION, True,
        )  # fmt: skip


@triton.jit
def horner_graph(
    p_t, p_bits, p_scale, num_nodes, node, size, row, i_col, order,
    WIDTH: tl.constexpr, BO: tl.constexpr, PLANES: tl.constexpr, NORMALIZE: tl.constexpr,
    TRANSPOSE: tl.constexpr, PRECISION: tl.constexpr, CAREFUL: tl.constexpr,
):  # fmt: skip
    """T_0 + Â(T_1 + …) of a graph; CAREFUL: on its side."""
    stride = order.to(tl.int64) * WIDTH
    p_t += (order - 1) * WIDTH
    b_y = load_rows(p_t, row, size, i_col, stride, WIDTH, BO, PLANES, CAREFUL)
    for _ in range(1, order):
        p_t -= WIDTH
        b_y = hop_blocks(
            b_y, p_bits, p_scale, num_nodes, node, size,
            PLANES, BO, NORMALIZE, TRANSPOSE, PRECISION, CAREFUL,
        )  # fmt: skip
        b_t = load_rows(p_t, row, size, i_col, stride, WIDTH, BO, PLANES, CAREFUL)
        b_next = ()
        for j in tl.static_range(PLANES):
            b_next = b_next + (b_t[j] + b_y[j],)
        b_y = b_next
    return b_y


@triton.jit
def powers_graph(
    p_x, p_z, p_bits, p_scale, num_nodes, node, size, row, i_col, order,
    WIDTH: tl.constexpr, X_STRIDE: tl.constexpr, BO: tl.constexpr, PLANES: tl.constexpr,
    NORMALIZE: tl.constexpr, TRANSPOSE: tl.constexpr, PRECISION: tl.constexpr,
    CAREFUL: tl.constexpr,
):  # fmt: skip
    """Write X, ÂX, …, Â^{κ-1}X of a graph; returns the last. CAREFUL: on its side."""
    stride = order.to(tl.int64) * WIDTH
    b_z = load_rows(p_x, row, size, i_col, X_STRIDE, WIDTH, BO, PLANES, CAREFUL)
    store_rows(p_z, b_z, row, size, i_col, stride, WIDTH, BO, PLANES, CAREFUL)
    for _ in range(1, order):
        p_z += WIDTH
        b_z = hop_blocks(
            b_z, p_bits, p_scale, num_nodes, node, size,
            PLANES, BO, NORMALIZE, TRANSPOSE, PRECISION, CAREFUL,
        )  # fmt: skip
        store_rows(p_z, b_z, row, size, i_col, stride, WIDTH, BO, PLANES, CAREFUL)
    return b_z


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
    b_y = horner_graph(
        p_t, p_bits, p_scale, num_nodes, node, size, row, i_col, order,
        WIDTH, BO, PLANES, NORMALIZE, TRANSPOSE, PRECISION, False,
    )  # fmt: skip
    if any_nan(b_y, PLANES):
        b_y = horner_graph(
            p_t, p_bits, p_scale, num_nodes, node, size, row, i_col, order,
            WIDTH, BO, PLANES, NORMALIZE, TRANSPOSE, PRECISION, True,
        )  # fmt: skip
        b_y = on_their_sides(b_y, PLANES)
    b_out = ()
    for j in tl.static_range(PLANES):
        b_out = b_out + (finish(b_y[j], p_bias, i_col, BIAS, RELU, WIDTH, BO),)
    store_rows(p_y, b_out, row, size, i_col, Y_STRIDE, WIDTH, BO, PLANES, False)


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
    b_last = powers_graph(
        p_x, p_z, p_bits, p_scale, num_nodes, node, size, row, i_col, order,
        WIDTH, X_STRIDE, BO, PLANES, NORMALIZE, TRANSPOSE, PRECISION, False,
    )  # fmt: skip
    if any_nan(b_last, PLANES):
        tl.debug_barrier()  # before other threads write the same rows again
        powers_graph(
            p_x, p_z, p_bits, p_scale, num_nodes, node, size, row, i_col, order,
            WIDTH, X_STRIDE, BO, PLANES, NORMALIZE, TRANSPOSE, PRECISION, True,
        )  # fmt: skip
