"""The flexible layer on larger graphs kept as bits: one graph a program, on chip.

A program takes one graph of up to 64 PLANES nodes, as many as have bits in so many planes, and BO
columns of Y. Its state is PLANES blocks of 64 rows, which never leave the chip; a block of A is
spread from its bits when a hop comes to it, and forgotten:

                       sources                 for k = κ-1 … 0:
                  ┌────────┬────────┐             b = Σ_blocks A_block · b    (but the first time)
    64 targets    │  bits  │  bits  │             b = b + X W_k
                  ├────────┼────────┤          Y = act(b + bias)
                  │        │        │
                  └────────┴────────┘

The formulas, dX as the same kernel with Aᵀ and W_kᵀ, and the fixed order of the weights' gradient
are those of `fused.py`. Here a block of rows is as high as Hopper's matrix units want it, and lies
as it is: 4 warps share each product, and a hop's state passes from one to the other through shared
memory. X of more than one plane, which registers cannot hold besides, is read again for each order;
so are the κ sums of the weights' gradient, which a program keeps where it writes them.

Bytes a node in float32: device memory serves what must move in `fused.py`, with 8 PLANES of bits
instead of 8, and W once. The caches serve the rest of what is loaded and stored. For O and I blocks
of columns as there (of dX, O = ⌈h_in/BO⌉), H = κ-1 hops, and K = 1, J = 1 of one plane, else K = κ,
and J = 2 where there are hops:

                   forward             dX (ReLU)           dW, db (ReLU)
    X, dY and Y    4 h_in K O          8 h_out K O         4 h_in K O + 8 h_out J I
    Y, dX          4 h_out             4 h_in
    bits           8 PLANES H O        8 PLANES H O        8 PLANES H I O
    scale          8 H O               8 H O               8 H I O

and for each graph W as in `fused.py` (dW: its sums, 8 κ h_in h_out), and 32 of tables for each
block of columns.
"""

# mypy: ignore-errors
import triton
import triton.language as tl

from .larger import (
    ROWS,
    any_nan,
    careful_hop,
    hop,
    load_graph,
    on_their_sides,
    rows_of,
    zeros,
)
from .tile import (
    add_factors,
    factor,
    finish,
    load_block,
    load_gradient,
    load_weight,
    store_bias_sum,
    store_block,
)
from .weights import load_parts


@triton.jit
def graph_input(
    p_x, node, row, H_IN: tl.constexpr, DATASET_X: tl.constexpr, CODED: tl.constexpr
):  # fmt: skip
    """Where a graph's rows of X begin, or (CODED) those of all kinds."""
    if not CODED:
        p_x += (node if DATASET_X else row) * H_IN
    return p_x


@triton.jit
def input_rows(p_x, p_code, node, size, j: tl.constexpr, H_IN: tl.constexpr, CODED: tl.constexpr):
    """Where block j of X begins, which row from there each of its rows takes, which there are."""
    o, m = rows_of(size, j)
    if CODED:
        o = tl.load(p_code + node + j * ROWS + o, mask=m, other=0).to(tl.int64)
    else:
        p_x += j * ROWS * H_IN
    return p_x, o, m


@triton.jit
def input_block(
    p_x, p_code, p_mask, node, size, j: tl.constexpr, c,
    H_IN: tl.constexpr, BI: tl.constexpr, CODED: tl.constexpr, RELU_IN: tl.constexpr,
):  # fmt: skip
    """Block (j, c) of X, or (RELU_IN) of a `load_gradient`."""
    p, o, m = input_rows(p_x, p_code, node, size, j, H_IN, CODED)
    p_m = p_mask + j * ROWS * H_IN if RELU_IN else p_mask
    return load_gradient(p, p_m, o, m, c, RELU_IN, H_IN, BI)


@triton.jit
def convolve(
    p_x, p_code, p_mask, p_weight, p_parts, p_bits, p_scale, num_nodes, node, size, i_col,
    ORDER: tl.constexpr, H_IN: tl.constexpr, H_OUT: tl.constexpr,
    BI: tl.constexpr, BO: tl.constexpr, PLANES: tl.constexpr,
    NORMALIZE: tl.constexpr, TRANSPOSE: tl.constexpr, CODED: tl.constexpr, RELU_IN: tl.constexpr,
    PARTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Σ_k Â^k X W_k of one graph, in blocks.

    W is taken as in `fused.horner`. What is not finite makes NaN of a column of the whole graph.
    """
    WHOLE: tl.constexpr = PARTS == 0 or PRECISION == "ieee"
    INPUTS: tl.constexpr = (H_IN + BI - 1) // BI
    p_weight += (ORDER - 1) * H_IN * H_OUT
    if not WHOLE:
        PART: tl.constexpr = PARTS * BI * BO
        p_parts += (i_col * ORDER + ORDER - 1) * INPUTS * PART
    x = ()  # of one plane, X is kept
    if PLANES == 1:
        for c in tl.static_range(INPUTS):
            b_x = input_block(p_x, p_code, p_mask, node, size, 0, c, H_IN, BI, CODED, RELU_IN)
            x = x + (factor(b_x, PARTS, PRECISION),)
    b_y = zeros(PLANES, BO)
    for i in range(ORDER):  # not unrolled: the code would be ORDER times as long
        if i > 0:
            b_y = hop(
                b_y, p_bits, p_scale, num_nodes, node, size,
                PLANES, BO, NORMALIZE, TRANSPOSE, PRECISION,
            )  # fmt: skip
        for c in tl.static_range(INPUTS):
            if WHOLE:
                w = load_weight(p_weight, c, i_col, H_IN, H_OUT, BI, BO, TRANSPOSE)
            else:
                w = load_parts(p_parts + c * PART, BI, BO, PARTS)
            b_next = ()
            for j in tl.static_range(PLANES):
                tl.debug_barrier()  # else the compiler mixes the blocks: registers spill
                if PLANES == 1:
                    x_j = x[c]
                else:
                    b_x = input_block(
                        p_x, p_code, p_mask, node, size, j, c, H_IN, BI, CODED, RELU_IN
                    )
                    x_j = factor(b_x, PARTS, PRECISION)
                b_next = b_next + (add_factors(b_y[j], x_j, w, PARTS, PARTS, PRECISION),)
            b_y = b_next
        if WHOLE:
            p_weight -= H_IN * H_OUT
        else:
            p_parts -= INPUTS * PART
    return b_y


@triton.jit
def careful_convolve(
    p_x, p_code, p_mask, p_weight, p_bits, p_scale, num_nodes, node, size, i_col,
    ORDER: tl.constexpr, H_IN: tl.constexpr, H_OUT: tl.constexpr,
    BO: tl.constexpr, PLANES: tl.constexpr,
    NORMALIZE: tl.constexpr, TRANSPOSE: tl.constexpr, CODED: tl.constexpr, RELU_IN: tl.constexpr,
):  # fmt: skip
    """`convolve` of what need not be finite, one column of X after another."""
    p_weight += (ORDER - 1) * H_IN * H_OUT
    b_y = on_their_sides(zeros(PLANES, BO), PLANES)
    for i in range(ORDER):
        if i > 0:
            b_y = careful_hop(
                b_y, p_bits, p_scale, num_nodes, node, size, PLANES, BO, NORMALIZE, TRANSPOSE
            )
        for c in range(H_IN):
            b_w = load_weight(p_weight, c, i_col, H_IN, H_OUT, 1, BO, TRANSPOSE)
            b_next = ()
            for j in tl.static_range(PLANES):
                b_x = input_block(p_x, p_code, p_mask, node, size, j, c, H_IN, 1, CODED, RELU_IN)
                b_next = b_next + (b_y[j] + tl.trans(b_x * b_w),)
            b_y = b_next
        p_weight -= H_IN * H_OUT
    return on_their_sides(b_y, PLANES)


@triton.jit(do_not_specialize=["num_nodes", "num_graphs"])
def flex_conv_blocks(
    p_x,  # as in `flex_conv_tiles`
    p_code,
    p_mask,
    p_weight,
    p_parts,
    p_bias,
    p_y,
    p_ptr,
    p_bits,
    p_scale,
    p_graph,  # [2, num_graphs] int64: graphs, and their first rows in the batch
    num_nodes,
    num_graphs,
    ORDER: tl.constexpr,
    H_IN: tl.constexpr,
    H_OUT: tl.constexpr,
    BI: tl.constexpr,
    BO: tl.constexpr,
    PLANES: tl.constexpr,
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
    node, size, row = load_graph(p_ptr, p_graph, tl.program_id(0), num_graphs)
    if size > 0:  # else it is room that a `PaddedBatch` has left
        p_x = graph_input(p_x, node, row, H_IN, DATASET_X, CODED)
        if RELU_IN:
            p_mask += row * H_IN
        b_y = convolve(
            p_x, p_code, p_mask, p_weight, p_parts, p_bits, p_scale, num_nodes, node, size, i_col,
            ORDER, H_IN, H_OUT, BI, BO, PLANES, NORMALIZE, TRANSPOSE, CODED, RELU_IN,
            PARTS, PRECISION,
        )  # fmt: skip
        if ORDER > 1:
            if any_nan(b_y, PLANES):
                b_y = careful_convolve(
                    p_x, p_code, p_mask, p_weight, p_bits, p_scale, num_nodes, node, size, i_col,
                    ORDER, H_IN, H_OUT, BO, PLANES, NORMALIZE, TRANSPOSE, CODED, RELU_IN,
                )  # fmt: skip
        p_y += row * H_OUT
        for j in tl.static_range(PLANES):
            o, m = rows_of(size, j)
            b = finish(b_y[j], p_bias, i_col, BIAS, RELU, H_OUT, BO)
            store_block(p_y + j * ROWS * H_OUT, b, o, m, i_col, H_OUT, BO)


@triton.jit
def input_factor(
    p_x, p_code, node, size, i_in, j: tl.constexpr,
    H_IN: tl.constexpr, BI: tl.constexpr, CODED: tl.constexpr,
    PARTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Block j of Xᵀ, a `factor`."""
    p, o, m = input_rows(p_x, p_code, node, size, j, H_IN, CODED)
    return factor(tl.trans(load_block(p, o, m, i_in, H_IN, BI)), PARTS, PRECISION)


@triton.jit
def add_weight_grad(
    b_sum, x, p_x, p_code, b_g, node, size, i_in, j: tl.constexpr,
    H_IN: tl.constexpr, BI: tl.constexpr, PLANES: tl.constexpr, CODED: tl.constexpr,
    PARTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A block of dW_k, and what block j of (Âᵀ)^k dY adds to it.

    x: the `input_factor` of one plane; of more, which registers cannot hold, it is made here.
    """
    tl.debug_barrier()  # else the compiler mixes the blocks: registers spill
    if PLANES > 1:
        x = input_factor(p_x, p_code, node, size, i_in, j, H_IN, BI, CODED, PARTS, PRECISION)
    return add_factors(b_sum, x, factor(b_g, 3, PRECISION), PARTS, 3, PRECISION)


@triton.jit
def add_to(
    p_sum, b_sum, i_in, i_col, m_more,
    H_IN: tl.constexpr, H_OUT: tl.constexpr, BI: tl.constexpr, BO: tl.constexpr,
):  # fmt: skip
    """Add a block of dW_k to what is there, or (not m_more) put it there.

    On AMD another thread may have put it there: between two of these there has to be a barrier.
    """
    o = i_in * BI + tl.arange(0, BI)
    m = ((o < H_IN) & m_more) != 0  # triton 3.9's interpreter has made integers of the booleans
    b_sum += load_block(p_sum, o, m, i_col, H_OUT, BO)
    store_block(p_sum, b_sum, o, o < H_IN, i_col, H_OUT, BO)


@triton.jit
def output_grad(
    p_dy, p_y, row, size, i_col, j: tl.constexpr,
    RELU: tl.constexpr, H_OUT: tl.constexpr, BO: tl.constexpr,
):  # fmt: skip
    """Block j of a graph's `load_gradient`."""
    o, m = rows_of(size, j)
    o_first = (row + j * ROWS) * H_OUT
    p_out = p_y + o_first if RELU else p_y
    return load_gradient(p_dy + o_first, p_out, o, m, i_col, RELU, H_OUT, BO)


@triton.jit(do_not_specialize=["num_nodes", "num_graphs", "first"])
def weight_grad_blocks(
    p_x,  # as in `weight_grad_tiles`
    p_code,
    p_dy,
    p_y,
    p_partial,
    p_ptr,
    p_bits,
    p_scale,
    p_graph,  # as above
    num_nodes,
    num_graphs,
    first,  # row of p_partial
    ORDER: tl.constexpr,
    H_IN: tl.constexpr,
    H_OUT: tl.constexpr,
    BI: tl.constexpr,
    BO: tl.constexpr,
    PLANES: tl.constexpr,
    NORMALIZE: tl.constexpr,
    DATASET_X: tl.constexpr,
    CODED: tl.constexpr,
    RELU: tl.constexpr,
    PARTS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    i_col, i_in = tl.program_id(1), tl.program_id(2)
    p_partial += (first + tl.program_id(0)).to(tl.int64) * ((ORDER * H_IN + 1) * H_OUT)
    b_db = tl.zeros([BO], tl.float32)
    for i_graph in range(tl.program_id(0), num_graphs, tl.num_programs(0)):
        m_more = i_graph > tl.program_id(0)
        node, size, row = load_graph(p_ptr, p_graph, i_graph, num_graphs)
        p_input = graph_input(p_x, node, row, H_IN, DATASET_X, CODED)
        b_sum = tl.zeros([BI, BO], tl.float32)
        b_g, x = (), ()
        if PLANES == 1:
            x = input_factor(
                p_input, p_code, node, size, i_in, 0, H_IN, BI, CODED, PARTS, PRECISION
            )
        for j in tl.static_range(PLANES):
            tl.debug_barrier()
            b = output_grad(p_dy, p_y, row, size, i_col, j, RELU, H_OUT, BO)
            b_db += tl.sum(b, 0)
            b_sum = add_weight_grad(
                b_sum, x, p_input, p_code, b, node, size, i_in, j,
                H_IN, BI, PLANES, CODED, PARTS, PRECISION,
            )  # fmt: skip
            b_g = b_g + (b,)
        add_to(p_partial, b_sum, i_in, i_col, m_more, H_IN, H_OUT, BI, BO)
        if ORDER > 1:
            if PLANES > 1:  # read anew, as a hop takes it: both at once spill
                tl.debug_barrier()
                b_g = ()
                for j in tl.static_range(PLANES):
                    b_g = b_g + (output_grad(p_dy, p_y, row, size, i_col, j, RELU, H_OUT, BO),)
            p_sum = p_partial
            for _ in range(1, ORDER):
                b_g = hop(
                    b_g, p_bits, p_scale, num_nodes, node, size,
                    PLANES, BO, NORMALIZE, True, PRECISION,
                )  # fmt: skip
                p_sum += H_IN * H_OUT
                b_sum = tl.zeros([BI, BO], tl.float32)
                for j in tl.static_range(PLANES):
                    b_sum = add_weight_grad(
                        b_sum, x, p_input, p_code, b_g[j], node, size, i_in, j,
                        H_IN, BI, PLANES, CODED, PARTS, PRECISION,
                    )  # fmt: skip
                add_to(p_sum, b_sum, i_in, i_col, m_more, H_IN, H_OUT, BI, BO)
    store_bias_sum(p_partial + ORDER * H_IN * H_OUT, b_db, i_in, i_col, H_OUT, BO)
