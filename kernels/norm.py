"""Batch normalisation of a batch in training, with the ReLU and the dropout behind it:
y = m act(w (x − μ) / σ + b) / (1 − p), where m is 1 for what dropout leaves and 0 for the rest.

The moments of each column are those of all rows. A program takes them of its share of the rows, by
Welford's update in each place of its block, so that no square of a large mean is lost in rounding;
shares are merged by Chan's formula, in one order:

    x ──► norm_moments ──► mean, Σ (x − mean)² of each share ──► merge_moments ──► μ, 1/σ, variance
    x, μ, 1/σ ──► norm_rows ──► y
    dy, x, μ, 1/σ ──► norm_grad_sums ──► Σ g, Σ g x̂ ──► norm_grad_rows ──► dx

where x̂ = (x − μ) / σ, and g is m dy / (1 − p) where the ReLU let its input by. Nothing is kept for
the backward pass but x, m and μ, 1/σ: what else it needs is made of them.

Bytes in float32 for n rows of width h, and at most 512 shares S of them:

    kernel           must move     moves
    norm_moments     4 n h         4 n h + 8 S h
    merge_moments    –             8 S h + 12 h
    norm_rows        8 n h         8 n h + 16 h for each block of rows, from the cache
    norm_grad_sums   8 n h         8 n h + (8 + 16) S h
    norm_grad_rows   12 n h        12 n h + 24 h for each block of rows, from the cache

and 8 for each program, from the cache: how many rows there are, which the device alone may know.
With dropout, the last three kernels read m besides, n h bytes, which PyTorch has written. PyTorch
reads and writes y once more for a ReLU, and once more for dropout; dy as often.
"""

# mypy: ignore-errors
import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import cdiv, launch
from .tile import load_block, store_block

#: Programs that share the rows of a block of columns: about four a multiprocessor.
SHARES = 512


@triton.jit
def load_row(p, i_col, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """A block of one row of numbers, [1, BLOCK]."""
    o_col = i_col * BLOCK + tl.arange(0, BLOCK)
    return tl.load(p + o_col, mask=o_col < WIDTH, other=0).to(tl.float32)[None, :]


@triton.jit
def store_row(p, b, i_col, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    o_col = i_col * BLOCK + tl.arange(0, BLOCK)
    tl.store(p + o_col, b, mask=o_col < WIDTH)


@triton.jit
def load_norm(p_stats, p_weight, p_bias, i_col, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """μ, 1/σ, w and b of a block of columns, [1, BLOCK] each."""
    b_mu = load_row(p_stats, i_col, WIDTH, BLOCK)
    b_rstd = load_row(p_stats + WIDTH, i_col, WIDTH, BLOCK)
    b_weight = load_row(p_weight, i_col, WIDTH, BLOCK)
    return b_mu, b_rstd, b_weight, load_row(p_bias, i_col, WIDTH, BLOCK)


@triton.jit
def let_by(b_grad, b_x, b_weight, b_bias, RELU: tl.constexpr):
    """g, from dy and x̂."""
    if RELU:
        b_grad = tl.where(b_x * b_weight + b_bias <= 0, 0, b_grad)  # lets a NaN by, as torch does
    return b_grad


@triton.jit
def kept(
    b, p_keep, scale, o, m, i_col,
    DROPS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """What dropout leaves of a block; what it drops that is not finite is NaN, as in torch."""
    if DROPS:
        b *= load_block(p_keep, o, m, i_col, WIDTH, BLOCK) * scale
    return b


@triton.jit(do_not_specialize=["share"])
def norm_moments(
    p_x,  # [n, WIDTH]
    p_partial,  # [shares, 2, WIDTH]: mean, Σ (x − mean)²
    p_count,  # int64: how many of the n rows there are
    share,  # rows of a program
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i_share, i_col = tl.program_id(0).to(tl.int64), tl.program_id(1)
    first, num_rows = i_share * share, tl.load(p_count)
    b_mean, b_sum = tl.zeros([ROWS, BLOCK], tl.float32), tl.zeros([ROWS, BLOCK], tl.float32)
    b_count = tl.zeros([ROWS], tl.float32)
    for i in range(0, share, ROWS):
        o = first + i + tl.arange(0, ROWS)
        m = (i + tl.arange(0, ROWS) < share) & (o < num_rows)
        b_x = load_block(p_x, o, m, i_col, WIDTH, BLOCK)
        b_d = tl.where(m[:, None], b_x - b_mean, 0)
        b_count += m.to(tl.float32)
        b_mean += b_d / (i // ROWS + 1)
        b_sum += tl.where(m[:, None], b_d * (b_x - b_mean), 0)
    b_total, b_all = merged(b_mean, b_sum, b_count)
    p_partial += i_share * (2 * WIDTH)
    store_row(p_partial, b_total, i_col, WIDTH, BLOCK)
    store_row(p_partial + WIDTH, b_all, i_col, WIDTH, BLOCK)


@triton.jit
def merged(b_mean, b_sum, b_count):
    """Mean and Σ (x − mean)² of all that is counted, [BLOCK] each, from those of the rows."""
    b_many = b_count[:, None]
    b_total = tl.sum(b_mean * b_many, 0) / tl.maximum(tl.sum(b_count, 0), 1)
    b_d = b_mean - b_total[None, :]
    return b_total, tl.sum(b_sum + b_many * b_d * b_d, 0)


@triton.jit(do_not_specialize=["share", "shares"])
def merge_moments(
    p_partial,
    p_stats,  # [3, WIDTH]: μ, 1/σ, and the variance without bias
    p_count,
    share,
    shares,
    eps,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i_col, o, num_rows = tl.program_id(0), tl.arange(0, ROWS), tl.load(p_count)
    b_mean = load_block(p_partial, 2 * o, o < shares, i_col, WIDTH, BLOCK)
    b_sum = load_block(p_partial, 2 * o + 1, o < shares, i_col, WIDTH, BLOCK)
    b_count = tl.maximum(tl.minimum(share, num_rows - o.to(tl.int64) * share), 0)
    b_mu, b_all = merged(b_mean, b_sum, tl.where(o < shares, b_count, 0).to(tl.float32))
    rows = num_rows.to(tl.float32)
    store_row(p_stats, b_mu, i_col, WIDTH, BLOCK)
    store_row(p_stats + WIDTH, 1 / tl.sqrt(b_all / rows + eps), i_col, WIDTH, BLOCK)
    store_row(p_stats + 2 * WIDTH, b_all / (rows - 1), i_col, WIDTH, BLOCK)


@triton.jit
def norm_rows(
    p_x,  # [n, WIDTH]
    p_stats,  # as above
    p_weight,  # [WIDTH]
    p_bias,  # [WIDTH]
    p_keep,  # m, [n, WIDTH] uint8 (DROPS)
    p_out,  # [n, WIDTH]
    p_count,
    scale,  # 1 / (1 − p)
    RELU: tl.constexpr,
    DROPS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i_col, num_rows = tl.program_id(1), tl.load(p_count)
    o = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    b_mu, b_rstd, b_weight, b_bias = load_norm(p_stats, p_weight, p_bias, i_col, WIDTH, BLOCK)
    b_x = load_block(p_x, o, o < num_rows, i_col, WIDTH, BLOCK)
    b_y = (b_x - b_mu) * b_rstd * b_weight + b_bias
    if RELU:
        b_y = tl.where(b_y < 0, 0, b_y)  # keeps a NaN, as torch does
    b_y = kept(b_y, p_keep, scale, o, o < num_rows, i_col, DROPS, WIDTH, BLOCK)
    store_block(p_out, b_y, o, o < num_rows, i_col, WIDTH, BLOCK)


@triton.jit(do_not_specialize=["share"])
def norm_grad_sums(
    p_grad,  # [n, WIDTH]
    p_x,
    p_stats,
    p_weight,
    p_bias,
    p_keep,
    p_partial,  # [shares, 2, WIDTH]: Σ g, Σ g x̂
    p_count,
    share,
    scale,
    RELU: tl.constexpr,
    DROPS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i_share, i_col = tl.program_id(0).to(tl.int64), tl.program_id(1)
    first, num_rows = i_share * share, tl.load(p_count)
    b_mu, b_rstd, b_weight, b_bias = load_norm(p_stats, p_weight, p_bias, i_col, WIDTH, BLOCK)
    b_db, b_dw = tl.zeros([ROWS, BLOCK], tl.float32), tl.zeros([ROWS, BLOCK], tl.float32)
    for i in range(0, share, ROWS):
        o = first + i + tl.arange(0, ROWS)
        m = (i + tl.arange(0, ROWS) < share) & (o < num_rows)
        b_x = (load_block(p_x, o, m, i_col, WIDTH, BLOCK) - b_mu) * b_rstd
        b_g = load_block(p_grad, o, m, i_col, WIDTH, BLOCK)
        b_g = kept(b_g, p_keep, scale, o, m, i_col, DROPS, WIDTH, BLOCK)
        b_g = let_by(b_g, b_x, b_weight, b_bias, RELU)
        b_db += b_g
        b_dw += tl.where(m[:, None], b_g * b_x, 0)
    p_partial += i_share * (2 * WIDTH)
    store_row(p_partial, tl.sum(b_db, 0), i_col, WIDTH, BLOCK)
    store_row(p_partial + WIDTH, tl.sum(b_dw, 0), i_col, WIDTH, BLOCK)


@triton.jit
def norm_grad_rows(
    p_grad,
    p_x,
    p_stats,
    p_weight,
    p_bias,
    p_keep,
    p_sums,  # [2, WIDTH]: Σ g, Σ g x̂
    p_dx,  # [n, WIDTH]
    p_count,
    scale,
    RELU: tl.constexpr,
    DROPS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i_col, num_rows = tl.program_id(1), tl.load(p_count)
    o = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    b_mu, b_rstd, b_weight, b_bias = load_norm(p_stats, p_weight, p_bias, i_col, WIDTH, BLOCK)
    b_x = (load_block(p_x, o, o < num_rows, i_col, WIDTH, BLOCK) - b_mu) * b_rstd
    b_g = load_block(p_grad, o, o < num_rows, i_col, WIDTH, BLOCK)
    b_g = kept(b_g, p_keep, scale, o, o < num_rows, i_col, DROPS, WIDTH, BLOCK)
    b_g = let_by(b_g, b_x, b_weight, b_bias, RELU)
    rows = num_rows.to(tl.float32)
    b_g -= load_row(p_sums, i_col, WIDTH, BLOCK) / rows
    b_g -= b_x * (load_row(p_sums + WIDTH, i_col, WIDTH, BLOCK) / rows)
    store_block(p_dx, b_g * (b_rstd * b_weight), o, o < num_rows, i_col, WIDTH, BLOCK)


def norm_shape(width: int) -> dict[str, int]:
    """2,048 numbers at a time, 16 a thread."""
    block = min(64, triton.next_power_of_2(width))
    return {"ROWS": min(128, 2048 // block), "BLOCK": block}


def merge_shape() -> dict[str, int]:
    return {"ROWS": SHARES, "BLOCK": 8}


def batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    keep: Tensor | None,
    eps: float,
    count: Tensor | None,
    relu: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Y [n, h] in the dtype of `x`, and [3, h] float32: μ, 1/σ, and the variance without bias.

    Args:
        x: [n, h], contiguous; two rows at least.
        weight, bias: [h], contiguous.
        keep, scale: m, [n, h] uint8, contiguous, and 1 / (1 − p); None: nothing is dropped.
        count: [1] int64, how many rows there are, two at least: the last of the n are then left
            out, and nothing is written to theirs of Y. None: there are all.
    """
    width, grid, share, constants, partial = _shares(x)
    count = _rows(x, count)
    launch(norm_moments, grid, x, partial, count, share, written=(partial,), **constants)
    stats = partial.new_empty(3, width)
    shape = merge_shape()
    launch(
        merge_moments, (cdiv(width, shape["BLOCK"]),), partial, stats, count, share, len(partial),
        eps, written=(stats,), WIDTH=width, **shape,
    )  # fmt: skip
    out = torch.empty_like(x)
    launch(
        norm_rows, (cdiv(len(x), constants["ROWS"]), grid[1]),
        x, stats, weight, bias, keep, out, count, scale,
        written=(out,), RELU=relu, DROPS=keep is not None, **constants,
    )  # fmt: skip
    return out, stats


def batch_norm_grad(
    grad: Tensor,
    x: Tensor,
    stats: Tensor,
    weight: Tensor,
    bias: Tensor,
    keep: Tensor | None,
    count: Tensor | None,
    relu: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """dX [n, h], and [2, h] float32: db, dw. Operands are as in, and of, `batch_norm`."""
    _, grid, share, constants, partial = _shares(x)
    count, operands = _rows(x, count), (grad, x, stats, weight, bias, keep)
    constants |= {"RELU": relu, "DROPS": keep is not None}
    launch(
        norm_grad_sums, grid, *operands, partial, count, share, scale,
        written=(partial,), **constants,
    )  # fmt: skip
    sums, out = partial.sum(0), torch.empty_like(x)
    launch(
        norm_grad_rows, (cdiv(len(x), constants["ROWS"]), grid[1]),
        *operands, sums, out, count, scale, written=(out,), **constants,
    )  # fmt: skip
    return out, sums


def _rows(x: Tensor, count: Tensor | None) -> Tensor:
    return x.new_full((1,), len(x), dtype=torch.int64) if count is None else count


def _shares(x: Tensor) -> tuple[int, tuple[int, int], int, dict[str, int], Tensor]:
    """Columns; the grid of shares; rows of one; constants; a workspace for two sums of each."""
    rows, width = x.shape
    constants = {"WIDTH": width, **norm_shape(width)}
    share = cdiv(cdiv(rows, SHARES), constants["ROWS"]) * constants["ROWS"]
    shares = cdiv(rows, share)
    partial = x.new_empty((shares, 2, width), dtype=torch.float32)
    grid = shares, cdiv(width, constants["BLOCK"])
    return width, grid, share, constants, partial
