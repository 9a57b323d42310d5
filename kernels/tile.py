"""What the kernels share: a block of a matrix, a block of A from bits, one product with it.

The adjacency of a graph is one bit an entry: bit c of word w of a node says whether node 64·w + c
of its graph is a source of an edge to it. Word w of every node lies in plane w, [planes, N] int64,
so a graph of up to 64 nodes costs 8 bytes a node. A = bits and Â = D^{-1/2} A D^{-1/2}: the two
scales stay outside of the product, which keeps A exact in any format of the matrix units.

Prefixes: i_ index, o_ offsets, m_ mask, b_ block of values, p_ pointer.
"""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def load_columns(p, o_row, m_row, i_col, STRIDE, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Columns [i_col · BLOCK, …) of WIDTH in rows STRIDE numbers apart: float32, 0 outside."""
    o_col = i_col * BLOCK + tl.arange(0, BLOCK)
    mask = m_row[:, None] & (o_col < WIDTH)[None, :]
    return tl.load(p + o_row[:, None] * STRIDE + o_col[None, :], mask=mask, other=0).to(tl.float32)


@triton.jit
def store_columns(p, b, o_row, m_row, i_col, STRIDE, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """The reverse of `load_columns`, rounded to the stored dtype."""
    o_col = i_col * BLOCK + tl.arange(0, BLOCK)
    mask = m_row[:, None] & (o_col < WIDTH)[None, :]
    tl.store(p + o_row[:, None] * STRIDE + o_col[None, :], b.to(p.dtype.element_ty), mask=mask)


@triton.jit
def load_block(p, o_row, m_row, i_col, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """`load_columns` of a matrix that has WIDTH columns and no gaps."""
    return load_columns(p, o_row, m_row, i_col, WIDTH, WIDTH, BLOCK)


@triton.jit
def store_block(p, b, o_row, m_row, i_col, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """`store_columns` of a matrix that has WIDTH columns and no gaps."""
    store_columns(p, b, o_row, m_row, i_col, WIDTH, WIDTH, BLOCK)


@triton.jit
def finish(
    b_y,
    p_bias,
    i_col,
    BIAS: tl.constexpr,
    RELU: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """act(b_y + bias)."""
    if BIAS:
        o_col = i_col * BLOCK + tl.arange(0, BLOCK)
        b_y += tl.load(p_bias + o_col, mask=o_col < WIDTH, other=0).to(tl.float32)[None, :]
    if RELU:
        b_y = tl.where(b_y < 0, 0, b_y)  # keeps a NaN, as torch does
    return b_y


@triton.jit
def load_gradient(
    p_dy, p_y, o_row, m_row, i_col, RELU: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    """A block of dL/d(the layer before its activation): dY, and 0 where a ReLU let nothing by."""
    b_dy = load_block(p_dy, o_row, m_row, i_col, WIDTH, BLOCK)
    if RELU:
        b_dy = tl.where(load_block(p_y, o_row, m_row, i_col, WIDTH, BLOCK) <= 0, 0, b_dy)
    return b_dy


@triton.jit
def load_weight(
    p_weight,
    i_in,
    i_out,
    H_IN: tl.constexpr,
    H_OUT: tl.constexpr,
    BI: tl.constexpr,
    BO: tl.constexpr,
    TRANSPOSE: tl.constexpr = False,
):
    """Block (i_in, i_out) of one order's weights, as float32; they lie as [H_IN, H_OUT], or
    (TRANSPOSE) as [H_OUT, H_IN]."""
    o_in, o_out = i_in * BI + tl.arange(0, BI), i_out * BO + tl.arange(0, BO)
    mask = (o_in < H_IN)[:, None] & (o_out < H_OUT)[None, :]
    if TRANSPOSE:
        p_weight += o_in[:, None] + o_out[None, :] * H_IN
    else:
        p_weight += o_in[:, None] * H_OUT + o_out[None, :]
    return tl.load(p_weight, mask=mask, other=0).to(tl.float32)


@triton.jit
def store_bias_sum(p_db, b_db, i_in, i_col, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Write a block of db, if these are the first inputs: programs of all inputs have the same."""
    o_col = i_col * BLOCK + tl.arange(0, BLOCK)
    tl.store(p_db + o_col, b_db, mask=o_col < tl.where(i_in == 0, WIDTH, 0))


@triton.jit
def spread_bits(b_word, BITS: tl.constexpr, ACROSS: tl.constexpr, PRECISION: tl.constexpr):
    """The low BITS ≤ 32 bits of each word as a row (ACROSS: as a column) of zeros and ones."""
    b_word = b_word.to(tl.int32)
    o_bit = tl.arange(0, BITS)
    b_bits = (b_word[None, :] >> o_bit[:, None]) if ACROSS else (b_word[:, None] >> o_bit[None, :])
    b_bits &= 1
    if PRECISION == "ieee":
        b_a = b_bits.to(tl.float32)
    else:
        b_a = (b_bits * 0x3F80).to(tl.int16).to(tl.bfloat16, bitcast=True)
    return b_a


@triton.jit
def spread_words(b_word, PRECISION: tl.constexpr):
    """int32 words [rows, words] as zeros and ones [rows, 32 · words], lowest bits first.

    Two bits at a time, as the halves of an int32; a thread has all of a word.
    """
    b_half = tl.join(b_word, b_word >> 16).reshape([b_word.shape[0], 2 * b_word.shape[1]])
    b_two = (b_half & 0xFFFF) | ((b_half & 0xFFFF) << 15)
    p = ()
    for i in tl.static_range(8):
        p = p + (((b_two >> (2 * i)) & 0x10001) * 0x3F80,)
    b_even = tl.join(tl.join(p[0], p[4]), tl.join(p[2], p[6]))
    b_odd = tl.join(tl.join(p[1], p[5]), tl.join(p[3], p[7]))
    b_pairs = tl.join(b_even, b_odd).reshape([b_word.shape[0], 16 * b_word.shape[1]])
    b_a = tl.join(b_pairs.to(tl.int16), (b_pairs >> 16).to(tl.int16))
    b_a = b_a.reshape([b_word.shape[0], 32 * b_word.shape[1]]).to(tl.bfloat16, bitcast=True)
    return b_a.to(tl.float32) if PRECISION == "ieee" else b_a


@triton.jit
def split(b, PARTS: tl.constexpr):
    """float32 as a sum of bfloat16s, the largest first: of three parts, exactly (8 bits each).

    Each is the upper half of what is left, as it stands: no conversion, whose result would be the
    same.
    """
    parts = ()
    for _ in tl.static_range(PARTS):
        b_bits = b.to(tl.int32, bitcast=True)
        parts = parts + ((b_bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True),)
        b -= (b_bits & -0x10000).to(tl.float32, bitcast=True)
    return parts


@triton.jit
def add_product(b_sum, left, right, LEFT: tl.constexpr, RIGHT: tl.constexpr, PARTS: tl.constexpr):
    """b_sum + the product of two sums of LEFT and of RIGHT bfloat16s, to the accuracy of PARTS.

    The smallest come first. Of three parts what is left out is some 2^-22 of a term.
    """
    for t in tl.static_range(PARTS):
        for i in tl.static_range(LEFT):
            if PARTS - 1 - t - i >= 0 and PARTS - 1 - t - i < RIGHT:
                b_sum = tl.dot(left[i], right[PARTS - 1 - t - i], b_sum)
    return b_sum


@triton.jit
def factor(b, PARTS: tl.constexpr, PRECISION: tl.constexpr):
    """A block of numbers of so many parts (see `split`) as `add_factors` takes it: in parts, or
    whole (0 parts: of numbers that need not be finite, of which a split would make NaN)."""
    LIMIT: tl.constexpr = 3 if PRECISION == "tf32x3" else 2
    COUNT: tl.constexpr = PARTS if PARTS < LIMIT else LIMIT
    return b if PARTS == 0 or PRECISION == "ieee" else split(b, COUNT)


@triton.jit
def add_factors(
    b_sum, left, right, LEFT: tl.constexpr, RIGHT: tl.constexpr, PRECISION: tl.constexpr
):
    """b_sum + the product of two blocks, each a `factor` of so many parts."""
    LIMIT: tl.constexpr = 3 if PRECISION == "tf32x3" else 2
    L: tl.constexpr = LEFT if LEFT < LIMIT else LIMIT
    R: tl.constexpr = RIGHT if RIGHT < LIMIT else LIMIT
    if LEFT == 0 or PRECISION == "ieee":
        b_sum = tl.dot(left, right, b_sum, input_precision=PRECISION)
    else:
        b_sum = add_product(b_sum, left, right, L, R, LIMIT)
    return b_sum


@triton.jit
def sources(b_z, PRECISION: tl.constexpr):
    """Z as the parts that `add_sources` multiplies with a block A of zeros and ones, for float32.

    Such an A is exact in bfloat16, and Z is a sum of three bfloat16s: three products make a float32
    one, at less than the cost of two in TF32, and what a matrix unit gave out it takes in again
    from where it lies. "tf32" leaves the smallest part out; "ieee" is for matrix units that take
    float32 (AMD's), and for the interpreter.
    """
    return (b_z,) if PRECISION == "ieee" else split(b_z, 3 if PRECISION == "tf32x3" else 2)


@triton.jit
def add_sources(b_sum, b_a, parts, AFTER: tl.constexpr):
    """b_sum + A @ Z (AFTER: b_sum + Z @ A) of `sources`, the smallest first."""
    for i in tl.static_range(len(parts)):
        b_part = parts[len(parts) - 1 - i]
        if AFTER:
            b_sum = tl.dot(b_part, b_a, b_sum, input_precision="ieee")
        else:
            b_sum = tl.dot(b_a, b_part, b_sum, input_precision="ieee")
    return b_sum


@triton.jit
def has_nan(b_sum):
    """Whether a sum over all sources has to be made again, with care.

    A sparse product never multiplies by 0, a dense one does, and 0 · NaN and 0 · ∞ are NaN: what is
    not finite reaches rows, and graphs, that have no edge from it. That always shows in the result.
    It is rare: the sum is made again in the shortest code, one source, or one input, after another.
    The weights' gradient goes without: it adds up all nodes, and its order 0 has lost the column
    anyway.
    """
    return tl.max((b_sum != b_sum).to(tl.int32)) > 0
