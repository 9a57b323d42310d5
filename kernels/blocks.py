"""The flexible layer on larger graphs kept as bits: one graph a program, block by block.

A graph of more than one tile does not fit in registers. A program owns a scratch of two [height,
BO] buffers, which it uses again for every graph it takes and which therefore stays in the cache;
each hop reads one buffer and writes the other:

                          sources                  for k = κ-1 … 0:
                   ┌──────┬──────┬──────┐             for each block of rows:
    block of rows  │ bits │ bits │ bits │                b = Σ_blocks A_block · from[block]
                   ├──────┼──────┼──────┤                b = Â b + X W_k
                   │      │      │      │                to[rows] = b   (the last time: Y)
                   └──────┴──────┴──────┘             swap from and to

The formulas, dX as the same kernel with Aᵀ and W_kᵀ, and the fixed order of the weights' gradient
are those of `fused.py`.

Bytes a node in float32: device memory serves what must move in `fused.py`, with 8 ⌈n/64⌉ of bits
instead of 8, and W once. The caches serve the rest of what is loaded and stored. For O and I blocks
of columns as there (of dX, O = ⌈h_in/BO⌉), R = ⌈n/ROWS⌉ and S = ⌈n/SOURCES⌉ blocks of a graph:

                   forward             dX (ReLU)           dW, db (ReLU)
    X, dY and Y    4 h_in κ O          8 h_out κ O         4 h_in κ O + 8 h_out I
    Y, dX          4 h_out             4 h_in
    scratch        4 BO (1+R)(κ-1) O   4 BO (1+R)(κ-1) O   4 BO (1+R)(κ-1) I O
    bits           4 S (κ-1) O         8 R (κ-1) O         8 R (κ-1) I O
    scale          4 κ O               4 κ O               4 κ I O

and W, 4 κ h_in h_out for each of a graph's R blocks of rows (dW: none, but its sums, as there), and
32 of tables for each graph and block of columns.
"""

# mypy: ignore-errors
import triton
import triton.language as tl

from .tile import (
    add_others,
    add_sources,
    add_split_product,
    finish,
    has_nan,
    load_block,
    load_columns,
    load_gradient,
    load_weight,
    no_sums,
    sources,
    spread_bytes,
    store_block,
    store_sums,
)


@triton.jit
def load_adjacency(
    p_bits, num_nodes, node, size, top, left,
    ROWS: tl.constexpr, SOURCES: tl.constexpr, TRANSPOSE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A[top: top + ROWS, left: left + SOURCES] of the graph that begins at `node`, or of its Aᵀ."""
    BITS: tl.constexpr = ROWS if TRANSPOSE else SOURCES
    o_row = left + tl.arange(0, SOURCES) if TRANSPOSE else top + tl.arange(0, ROWS)
    i_bit = top if TRANSPOSE else left
    o_plane = num_nodes.to(tl.int64) * (i_bit // 64) + node
    p_byte = (p_bits + o_plane).to(tl.pointer_type(tl.uint8)) + i_bit % 64 // 8
    o_byte = o_row[:, None] * 8 + tl.arange(0, BITS // 8)[None, :]
    b_byte = tl.load(p_byte + o_byte, mask=(o_row < size)[:, None], other=0)
    b_a = spread_bytes(b_byte, PRECISION)
    return tl.trans(b_a) if TRANSPOSE else b_a


@triton.jit
def sum_sources(
    p_from, p_bits, p_scale, num_nodes, node, size, top, i_col, STRIDE,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, SOURCES: tl.constexpr, BO: tl.constexpr,
    SCALE: tl.constexpr, TRANSPOSE: tl.constexpr, PRECISION: tl.constexpr, CAREFUL: tl.constexpr,
):  # fmt: skip
    """Rows top … top + ROWS - 1 of A @ from (or Aᵀ @ from) of the graph that begins at `node`.

    p_from: the graph's own rows, STRIDE numbers apart, scaled already or (SCALE) not.
    """
    b_sum = tl.zeros([ROWS, BO], tl.float32)
    b_others = b_sum
    for left in range(0, size, SOURCES):
        o_source = left + tl.arange(0, SOURCES)
        m_source = o_source < size
        b_z = load_columns(p_from, o_source.to(tl.int64), m_source, i_col, STRIDE, WIDTH, BO)
        if SCALE:
            b_z *= load_scale(p_scale, node + o_source, m_source, True)
        b_a = load_adjacency(
            p_bits, num_nodes, node, size, top, left, ROWS, SOURCES, TRANSPOSE, PRECISION
        )
        finite = sources(b_z, PRECISION, "finite" if CAREFUL else "all")
        b_sum = add_sources(b_sum, b_a, finite, False)
        if CAREFUL:
            b_others = add_sources(b_others, b_a, sources(b_z, PRECISION, "others"), False)
    return add_others(b_sum, b_others) if CAREFUL else b_sum


@triton.jit
def load_graph(p_ptr, p_graph, p_row, i_graph):
    """A graph's first node, its size, and its first row in the batch."""
    graph = tl.load(p_graph + i_graph)
    node = tl.load(p_ptr + graph)
    size = (tl.load(p_ptr + graph + 1) - node).to(tl.int32)
    return node, size, tl.load(p_row + i_graph)


@triton.jit
def graph_input(
    p_x, node, row, H_IN: tl.constexpr, DATASET_X: tl.constexpr, CODED: tl.constexpr
):  # fmt: skip
    """Where a graph's rows of X begin, or (CODED) those of all kinds."""
    if not CODED:
        p_x += (node if DATASET_X else row) * H_IN
    return p_x


@triton.jit
def input_rows(p_code, node, o, m, CODED: tl.constexpr):
    """The row of X, counted from `graph_input`, that each row of a graph takes."""
    return tl.load(p_code + node + o, mask=m, other=0).to(tl.int64) if CODED else o


@triton.jit
def load_scale(p_scale, o_node, m_row, NORMALIZE: tl.constexpr):
    """D^{-1/2} of these nodes as a column, or 1."""
    if NORMALIZE:
        b_scale = tl.load(p_scale + o_node, mask=m_row, other=0).to(tl.float32)[:, None]
    else:
        b_scale = 1.0
    return b_scale


@triton.jit
def convolve(
    p_x, p_code, p_mask, p_weight, p_bias, p_y, p_scratch, p_bits, p_scale,
    num_nodes, height, node, size, row, i_col,
    ORDER: tl.constexpr, H_IN: tl.constexpr, H_OUT: tl.constexpr,
    BI: tl.constexpr, BO: tl.constexpr, ROWS: tl.constexpr, SOURCES: tl.constexpr,
    NORMALIZE: tl.constexpr, TRANSPOSE: tl.constexpr, DATASET_X: tl.constexpr,
    CODED: tl.constexpr, RELU_IN: tl.constexpr, BIAS: tl.constexpr, RELU: tl.constexpr,
    PARTS: tl.constexpr, PRECISION: tl.constexpr, CAREFUL: tl.constexpr,
):  # fmt: skip
    """The layer on one graph; the sum of Y's blocks, which has a NaN where Y has one.

    What is not finite makes NaN of a column of the whole graph, but where the hops are CAREFUL.
    """
    SPLIT: tl.constexpr = 0 if CAREFUL or ORDER == 1 else PARTS
    p_x = graph_input(p_x, node, row, H_IN, DATASET_X, CODED)
    if RELU_IN:
        p_mask += row * H_IN
    b_all = tl.zeros([ROWS, BO], tl.float32)
    for i in range(ORDER):  # not unrolled: the code would be ORDER times as long
        k = ORDER - 1 - i
        p_from = p_scratch + (k + 1) % 2 * height * BO
        for top in range(0, size, ROWS):
            o = top + tl.arange(0, ROWS)
            m = o < size
            b_scale = load_scale(p_scale, node + o, m, NORMALIZE)
            b_y = tl.zeros([ROWS, BO], tl.float32)
            if i > 0:
                b_y = b_scale * sum_sources(
                    p_from, p_bits, p_scale, num_nodes, node, size, top, 0, BO,
                    BO, ROWS, SOURCES, BO, False, TRANSPOSE, PRECISION, CAREFUL,
                )  # fmt: skip
            o_x = input_rows(p_code, node, o, m, CODED)
            p_w = p_weight + k * (H_IN * H_OUT)
            for c in range(0, H_IN, BI):
                b_x = load_gradient(p_x, p_mask, o_x, m, c // BI, RELU_IN, H_IN, BI)
                b_w = load_weight(p_w, c // BI, i_col, H_IN, H_OUT, BI, BO)
                b_y = add_split_product(b_y, b_x, b_w, SPLIT, SPLIT, PRECISION)
            if k > 0:
                store_block(p_scratch + k % 2 * height * BO, b_y * b_scale, o, m, 0, BO, BO)
            else:
                b_all += b_y
                b_y = finish(b_y, p_bias, i_col, BIAS, RELU, H_OUT, BO)
                store_block(p_y + row * H_OUT, b_y, o, m, i_col, H_OUT, BO)
        tl.debug_barrier()  # every row is written before any is read, and read before rewritten
    return b_all


@triton.jit(do_not_specialize=["num_nodes", "num_graphs", "height"])
def flex_conv_blocks(
    p_x,  # as in `flex_conv_tiles`
    p_code,
    p_mask,
    p_weight,
    p_bias,
    p_y,
    p_scratch,  # [programs, column blocks, 2, height, BO] float32
    p_ptr,
    p_bits,
    p_scale,
    p_graph,  # [num_graphs] int64
    p_row,  # [num_graphs] int64
    num_nodes,
    num_graphs,
    height,
    ORDER: tl.constexpr,
    H_IN: tl.constexpr,
    H_OUT: tl.constexpr,
    BI: tl.constexpr,
    BO: tl.constexpr,
    ROWS: tl.constexpr,
    SOURCES: tl.constexpr,
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
    i_col = tl.program_id(1)
    i_program = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + i_col
    p_scratch += i_program * (2 * height * BO)
    for i_graph in range(tl.program_id(0), num_graphs, tl.num_programs(0)):
        node, size, row = load_graph(p_ptr, p_graph, p_row, i_graph)
        b_all = convolve(
            p_x, p_code, p_mask, p_weight, p_bias, p_y, p_scratch, p_bits, p_scale,
            num_nodes, height, node, size, row, i_col,
            ORDER, H_IN, H_OUT, BI, BO, ROWS, SOURCES, NORMALIZE, TRANSPOSE, DATASET_X,
            CODED, RELU_IN, BIAS, RELU, PARTS, PRECISION, False,
        )  # fmt: skip
        if ORDER > 1:
            if has_nan(b_all):
                convolve(
                    p_x, p_code, p_mask, p_weight, p_bias, p_y, p_scratch, p_bits, p_scale,
                    num_nodes, height, node, size, row, i_col,
                    ORDER, H_IN, H_OUT, BI, BO, ROWS, SOURCES, NORMALIZE, TRANSPOSE, DATASET_X,
                    CODED, RELU_IN, BIAS, RELU, PARTS, PRECISION, True,
                )  # fmt: skip


@triton.jit(do_not_specialize=["num_nodes", "num_graphs", "height", "first"])
def weight_grad_blocks(
    p_x,  # as in `weight_grad_tiles`
    p_code,
    p_dy,
    p_y,
    p_partial,
    p_scratch,  # [programs, column blocks, input blocks, 2, height, BO] float32
    p_ptr,
    p_bits,
    p_scale,
    p_graph,
    p_row,
    num_nodes,
    num_graphs,
    height,
    first,  # row of p_partial
    ORDER: tl.constexpr,
    H_IN: tl.constexpr,
    H_OUT: tl.constexpr,
    BI: tl.constexpr,
    BO: tl.constexpr,
    ROWS: tl.constexpr,
    SOURCES: tl.constexpr,
    NORMALIZE: tl.constexpr,
    DATASET_X: tl.constexpr,
    CODED: tl.constexpr,
    RELU: tl.constexpr,
    PARTS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    i_col, i_in = tl.program_id(1), tl.program_id(2)
    i_program = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + i_col
    p_scratch += (i_program * tl.num_programs(2) + i_in) * (2 * height * BO)
    b_dw, b_db = no_sums(ORDER, BI, BO)
    for i_graph in range(tl.program_id(0), num_graphs, tl.num_programs(0)):
        node, size, row = load_graph(p_ptr, p_graph, p_row, i_graph)
        p_input = graph_input(p_x, node, row, H_IN, DATASET_X, CODED)
        p_grad = p_dy + row * H_OUT
        p_out = p_y + row * H_OUT if RELU else p_y
        b_next = ()
        for k in tl.static_range(ORDER):
            p_from = p_scratch + (k + 1) % 2 * height * BO
            b_sum = b_dw[k]
            for top in range(0, size, ROWS):
                o = top + tl.arange(0, ROWS)
                m = o < size
                b_scale = load_scale(p_scale, node + o, m, NORMALIZE)
                if k == 0:
                    b_g = load_gradient(p_grad, p_out, o, m, i_col, RELU, H_OUT, BO)
                    b_db += tl.sum(b_g, 0)
                else:
                    b_g = b_scale * sum_sources(
                        p_from, p_bits, p_scale, num_nodes, node, size, top, 0, BO,
                        BO, ROWS, SOURCES, BO, False, True, PRECISION, False,
                    )  # fmt: skip
                if k < ORDER - 1:
                    store_block(p_scratch + k % 2 * height * BO, b_g * b_scale, o, m, 0, BO, BO)
                o_x = input_rows(p_code, node, o, m, CODED)
                b_x = tl.trans(load_block(p_input, o_x, m, i_in, H_IN, BI))
                b_sum = add_split_product(b_sum, b_x, b_g, PARTS, 3, PRECISION)
            b_next = b_next + (b_sum,)
            tl.debug_barrier()
        b_dw = b_next
    i_program = first + tl.program_id(0)
    store_sums(p_partial, b_dw, b_db, i_program, i_in, i_col, ORDER, H_IN, H_OUT, BI, BO)
