"""The m largest of N scores: a histogram of their bits instead of a sort; two runs are equal.

A float32's bits, read as an integer, order as the float does once a negative's are flipped. Two
histograms, of the leading 16 bits and then of the trailing 16 among the scores that share the
threshold's leading ones, find the m-th largest score exactly, and how many equal to it are wanted;
a count by blocks says where each block of the answer begins; and the last pass writes it:

    score ──► leading digit ──► histogram ──► digit d of the threshold, how many are still wanted
                  = d       ──► histogram ──► its trailing digit, how many equal ones to take
    each block: above, equal ──► running sums ──► positions, ascending; equal ones from the lowest

Histograms add integers, whose order does not matter. The scoring kernel fills the first one while
it has the scores in hand (`score.py`).

Bytes a score: must move 4 read, and 8 written for each that is picked. Moves 12 read (trailing
digit, count, write), or 16 without the scoring kernel's histogram; up to some ten million scores
those after the first read come from the cache. The histograms are 256 KiB each, of which 1 KiB is
read twice.
"""

# mypy: ignore-errors
import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import cdiv, launch

#: Bins of a histogram: 16 bits.
BINS = 1 << 16
#: Scores that a program takes, and bins that the search for a digit adds up at once, of each 256.
BLOCK, COLUMNS = 1024, 32


@triton.jit
def order_bits(b_score):
    """int32 that order as the scores do; -0 is 0, and an infinity comes first."""
    b = tl.where(b_score == 0, 0.0, b_score).to(tl.int32, bitcast=True)
    return b ^ ((b >> 31) & 0x7FFFFFFF)


@triton.jit
def leading_digit(b_key):
    return (b_key >> 16) + 0x8000


@triton.jit
def add_leading(p_count, b_score, mask):
    """Count scores by the leading half of their bits."""
    tl.atomic_add(p_count + leading_digit(order_bits(b_score)), 1, mask=mask, sem="relaxed")


@triton.jit(do_not_specialize=["size"])
def count_digits(
    p_score,  # [size] float32
    p_count,  # [2, 65536] int32
    p_found,  # [4] int32: leading digit, wanted among its scores, trailing digit, wanted of those
    size,
    TRAILING: tl.constexpr,
    BLOCK: tl.constexpr,
):
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = o < size
    b_score = tl.load(p_score + o, mask=mask, other=0)
    if TRAILING:
        b_key = order_bits(b_score)
        mask = mask & (leading_digit(b_key) == tl.load(p_found))
        tl.atomic_add(p_count + 65536 + (b_key & 0xFFFF), 1, mask=mask, sem="relaxed")
    else:
        add_leading(p_count, b_score, mask)


@triton.jit
def find_place(b_count, above, wanted):
    """The last bin from which the counts up to the end, plus `above`, reach `wanted`.

    And how many are counted behind that bin, `above` among them.
    """
    b_above = above + tl.sum(b_count, 0) - tl.cumsum(b_count, 0)
    m_here = (b_above < wanted) & (b_above + b_count >= wanted)  # of one bin
    o = tl.arange(0, b_count.shape[0])
    return tl.sum(tl.where(m_here, o, 0), 0), tl.sum(tl.where(m_here, b_above, 0), 0)


@triton.jit(do_not_specialize=["m"])
def find_digit(p_count, p_found, m, TRAILING: tl.constexpr, COLUMNS: tl.constexpr):
    """The digit of the m-th largest, and how many of the scores with that digit are wanted.

    First the upper half of the digit is found, among sums of 256 bins.
    """
    wanted = tl.load(p_found + 1) if TRAILING else m
    if TRAILING:
        p_count += 65536
    o_upper = tl.arange(0, 256)
    b_sum = tl.zeros([256, COLUMNS], tl.int32)
    for first in tl.static_range(0, 256, COLUMNS):
        o_lower = first + tl.arange(0, COLUMNS)
        b_sum += tl.load(p_count + o_upper[:, None] * 256 + o_lower[None, :])
    upper, above = find_place(tl.sum(b_sum, 1), 0, wanted)
    lower, above = find_place(tl.load(p_count + upper * 256 + tl.arange(0, 256)), above, wanted)
    tl.store(p_found + 2 * TRAILING, upper * 256 + lower)
    tl.store(p_found + 2 * TRAILING + 1, wanted - above)


@triton.jit
def compare(p_score, p_found, o, size):
    """Which of these scores are above the threshold, and which equal to it."""
    mask = o < size
    b_key = order_bits(tl.load(p_score + o, mask=mask, other=0))
    threshold = ((tl.load(p_found) - 0x8000) << 16) | tl.load(p_found + 2)
    return mask & (b_key > threshold), mask & (b_key == threshold)


@triton.jit(do_not_specialize=["size"])
def count_picked(
    p_score,
    p_found,
    p_block,  # [2, blocks] int32: scores above the threshold, and equal to it
    size,
    BLOCK: tl.constexpr,
):
    i_block = tl.program_id(0)
    o = i_block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    m_above, m_equal = compare(p_score, p_found, o, size)
    tl.store(p_block + i_block, tl.sum(m_above.to(tl.int32), 0))
    tl.store(p_block + tl.num_programs(0) + i_block, tl.sum(m_equal.to(tl.int32), 0))


@triton.jit(do_not_specialize=["size"])
def write_picked(
    p_score,
    p_found,
    p_ends,  # [2, blocks] int64: the running sums of the blocks' counts
    p_out,  # [m] int64
    size,
    BLOCK: tl.constexpr,
):
    i_block = tl.program_id(0)
    o = i_block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    m_above, m_equal = compare(p_score, p_found, o, size)
    b_equal = m_equal.to(tl.int64)
    above = tl.load(p_ends + i_block) - tl.sum(m_above.to(tl.int64), 0)
    equal = tl.load(p_ends + tl.num_programs(0) + i_block) - tl.sum(b_equal, 0)
    wanted = tl.load(p_found + 3).to(tl.int64)
    m_pick = m_above | (m_equal & (equal + tl.cumsum(b_equal, 0) <= wanted))
    b_place = above + tl.minimum(equal, wanted) + tl.cumsum(m_pick.to(tl.int64), 0) - 1
    tl.store(p_out + b_place, o, mask=m_pick)


def empty_counts(device: torch.device) -> Tensor:
    """Both histograms, [2, 65536] int32, of nothing yet."""
    return torch.zeros(2, BINS, dtype=torch.int32, device=device)


def count_leading(scores: Tensor, counts: Tensor) -> None:
    """Add scores, [N] float32, to the first histogram."""
    if len(scores):
        grid = (cdiv(len(scores), BLOCK),)
        operands = (scores, counts, counts, len(scores))
        launch(count_digits, grid, *operands, written=(counts,), TRAILING=False, BLOCK=BLOCK)


def largest(scores: Tensor, m: int, counts: Tensor | None = None) -> Tensor:
    """Positions of the m largest of `scores`, int64 [m], ascending; nothing waits for the device.

    Args:
        scores: [N], float32 or half precision.
        m: 0 to N.
        counts: `empty_counts` with all of the scores in its first half; counted here if None.
    """
    scores, size = scores.float().contiguous(), len(scores)
    out = torch.empty(m, dtype=torch.int64, device=scores.device)
    if m in (0, size):
        return torch.arange(m, out=out)
    if counts is None:
        counts = empty_counts(scores.device)
        count_leading(scores, counts)
    found = torch.empty(4, dtype=torch.int32, device=scores.device)
    blocks = cdiv(size, BLOCK)
    sums = torch.empty(2, blocks, dtype=torch.int32, device=scores.device)
    once, each = (1,), (blocks,)
    launch(find_digit, once, counts, found, m, written=(found,), TRAILING=False, COLUMNS=COLUMNS)
    operands = (scores, counts, found, size)
    launch(count_digits, each, *operands, written=(counts,), TRAILING=True, BLOCK=BLOCK)
    launch(find_digit, once, counts, found, m, written=(found,), TRAILING=True, COLUMNS=COLUMNS)
    launch(count_picked, each, scores, found, sums, size, written=(sums,), BLOCK=BLOCK)
    ends = sums.cumsum(1)
    launch(write_picked, each, scores, found, ends, out, size, written=(out,), BLOCK=BLOCK)
    return out
