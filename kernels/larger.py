"""A graph of 33 to 256 nodes on chip: its rows in blocks of 64, its adjacency from bits, a hop.

What the kernels of a layer (`blocks.py`) and of wide layers' hops (`hops.py`) share: a program has
one such graph, whose state is as many blocks as the graph has planes of bits (`tile.py`).
"""

# mypy: ignore-errors
import triton
import triton.language as tl

from .tile import add_sources, has_nan, sources, spread_words

#: Rows of a block, one for each bit of a word.
ROWS = tl.constexpr(64)


@triton.jit
def load_graph(p_ptr, p_graph, i_graph, num_graphs):
    """A graph's first node, its size, and its first row in the batch."""
    graph = tl.load(p_graph + i_graph)
    node = tl.load(p_ptr + graph)
    size = (tl.load(p_ptr + graph + 1) - node).to(tl.int32)
    return node, size, tl.load(p_graph + num_graphs + i_graph)


@triton.jit
def rows_of(size, j):
    """The rows of block j, counted from its first, and which of them there are."""
    o = tl.arange(0, ROWS)
    return o, o < size - j * ROWS


@triton.jit
def zeros(PLANES: tl.constexpr, BO: tl.constexpr):
    b = ()
    for _ in tl.static_range(PLANES):
        b = b + (tl.zeros([ROWS, BO], tl.float32),)
    return b


@triton.jit
def spread_block(p_bits, num_nodes, node, size, j, i, PRECISION: tl.constexpr):
    """Block (j, i) of A of the graph that begins at `node`."""
    o, m = rows_of(size, j)
    p_word = (p_bits + (num_nodes.to(tl.int64) * i + node + j * ROWS)).to(tl.pointer_type(tl.int32))
    o_word = o[:, None] * 2 + tl.arange(0, 2)[None, :]
    return spread_words(tl.load(p_word + o_word, mask=m[:, None], other=0), PRECISION)


@triton.jit
def load_adjacency(
    p_bits, num_nodes, node, size, j, i, TRANSPOSE: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Block (j, i) of A, or of Aᵀ."""
    if TRANSPOSE:
        b_a = tl.trans(spread_block(p_bits, num_nodes, node, size, i, j, PRECISION))
    else:
        b_a = spread_block(p_bits, num_nodes, node, size, j, i, PRECISION)
    return b_a


@triton.jit
def scaled(b, p_scale, node, size, j, NORMALIZE: tl.constexpr):
    """D^{-1/2} of these nodes, a column, times block j."""
    if NORMALIZE:
        o, m = rows_of(size, j)
        b = b * tl.load(p_scale + node + j * ROWS + o, mask=m, other=0).to(tl.float32)[:, None]
    return b


@triton.jit
def hop(
    b_z, p_bits, p_scale, num_nodes, node, size,
    PLANES: tl.constexpr, BO: tl.constexpr, NORMALIZE: tl.constexpr, TRANSPOSE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Â Z (or Âᵀ Z), blocks in and blocks out."""
    b_sum = zeros(PLANES, BO)
    for i in tl.static_range(PLANES):
        b = scaled(b_z[i], p_scale, node, size, i, NORMALIZE)
        parts = sources(b, PRECISION)
        b_next = ()
        for j in tl.static_range(PLANES):
            tl.debug_barrier()  # else all of A is unpacked at once: registers spill
            b_a = load_adjacency(p_bits, num_nodes, node, size, j, i, TRANSPOSE, PRECISION)
            b_next = b_next + (add_sources(b_sum[j], b_a, parts, False),)
        b_sum = b_next
    b_out = ()
    for j in tl.static_range(PLANES):
        b_out = b_out + (scaled(b_sum[j], p_scale, node, size, j, NORMALIZE),)
    return b_out


@triton.jit
def on_their_sides(b, PLANES: tl.constexpr):
    """Blocks, transposed."""
    b_out = ()
    for j in tl.static_range(PLANES):
        b_out = b_out + (tl.trans(b[j]),)
    return b_out


@triton.jit
def careful_hop(
    b_z, p_bits, p_scale, num_nodes, node, size,
    PLANES: tl.constexpr, BO: tl.constexpr, NORMALIZE: tl.constexpr, TRANSPOSE: tl.constexpr,
):  # fmt: skip
    """`hop` of what need not be finite: of one source after another, only along its edges.

    Blocks lie on their sides, [BO, ROWS]: a thread has few rows, and needs few addresses.
    """
    b_sum = on_their_sides(zeros(PLANES, BO), PLANES)
    for i in range(size):
        b_source = pick(b_z, i, PLANES, BO)
        if NORMALIZE:
            b_source *= tl.load(p_scale + node + i).to(tl.float32)
        b_next = ()
        for j in tl.static_range(PLANES):
            m_edge = edges(p_bits, num_nodes, node, size, j, i, TRANSPOSE)
            b_next = b_next + (b_sum[j] + tl.where(m_edge[None, :], b_source[:, None], 0.0),)
        b_sum = b_next
    b_out = ()
    for j in tl.static_range(PLANES):
        b = scaled(tl.trans(b_sum[j]), p_scale, node, size, j, NORMALIZE)
        b_out = b_out + (tl.trans(b),)
    return b_out


@triton.jit
def pick(b_z, i, PLANES: tl.constexpr, BO: tl.constexpr):
    """Row i of all blocks' rows."""
    o = tl.arange(0, ROWS)
    b = tl.zeros([BO, ROWS], tl.float32)
    for j in tl.static_range(PLANES):
        b += tl.where((o + j * ROWS == i)[None, :], b_z[j], 0.0)
    return tl.sum(b, 1)


@triton.jit
def edges(p_bits, num_nodes, node, size, j, i, TRANSPOSE: tl.constexpr):
    """Which rows of block j have node i as a source (TRANSPOSE: as a target)."""
    o, m = rows_of(size, j)
    if TRANSPOSE:
        b_bit = tl.load(p_bits + num_nodes.to(tl.int64) * j + node + i) >> o
    else:
        p_word = p_bits + num_nodes.to(tl.int64) * (i // 64) + node + j * ROWS
        b_bit = tl.load(p_word + o, mask=m, other=0) >> (i % 64)
    return b_bit & 1 == 1


@triton.jit
def any_nan(b, PLANES: tl.constexpr):
    """`has_nan` of all blocks; opposite infinities may pass for one."""
    b_all = b[0]
    for j in tl.static_range(1, PLANES):
        b_all += b[j]
    return has_nan(b_all)
