"""The gradient of rows by kind: dTable[m] = Σ_{i: kind(i) = m} dX[i], in one order.

A few hundred kinds of nodes share the rows of a table (`PackedGraphs.kinds`). To add up where they
point would take atomics, whose order nobody knows, or a sort. Instead a program compares the kinds
of its rows with KINDS of the table's: that is a matrix of zeros and ones, and the sum a product.

      kinds   ┌───────────────┐     ┌──────┐
      of the  │ 1 · · 1 · · · │  @  │ dX   │ rows   =   a share of dTable, added up in their order
      table   │ · · 1 · · 1 · │     │      │
              └───────────────┘     └──────┘
                    rows

Bytes in float32 for n rows of width h and m kinds: must move 4 h n + 4 n + 4 h m; moves
⌈m/KINDS⌉ (4 h n + 4 n ⌈h/BO⌉), from the cache but for the first time, and 8 h m for each share.
"""

# mypy: ignore-errors
import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import cdiv, hop_precision, launch
from .layer import column_block
from .tile import add_sources, load_block, sources, store_block

#: Programs that share the work: about eight a multiprocessor.
PROGRAMS = 1024
#: Kinds that are compared with every row; more are sorted.
MOST = 1024
LARGEST = tl.constexpr(torch.finfo(torch.float32).max)


@triton.jit
def some_rows(
    p_dx, p_kind, o_kind, o_row, num_rows, num_kinds, i_col,
    WIDTH: tl.constexpr, BO: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """These rows of dX, where they are not finite, and 1 where a row is of a kind, else 0."""
    b_kind = tl.load(p_kind + o_row, mask=o_row < num_rows, other=num_kinds)
    b_dx = load_block(p_dx, o_row, b_kind < num_kinds, i_col, WIDTH, BO)
    b_bad = ((b_dx >= -LARGEST) & (b_dx <= LARGEST)) == 0
    b_is = o_kind[:, None] == b_kind[None, :]
    return b_dx, b_bad, b_is.to(tl.float32 if PRECISION == "ieee" else tl.bfloat16)


@triton.jit(do_not_specialize=["num_rows", "num_kinds", "rows_each"])
def sum_by_kind(
    p_dx,  # [num_rows, WIDTH]
    p_kind,  # [num_rows] int32; rows of kind num_kinds are not read
    p_partial,  # [shares, num_kinds, WIDTH] float32
    num_rows,
    num_kinds,
    rows_each,  # rows of a share, a multiple of ROWS
    WIDTH: tl.constexpr,
    BO: tl.constexpr,
    ROWS: tl.constexpr,
    KINDS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    i_share, i_col = tl.program_id(1).to(tl.int64), tl.program_id(2)
    o_kind = tl.program_id(0) * KINDS + tl.arange(0, KINDS)
    o_row = i_share * rows_each + tl.arange(0, ROWS)
    b_sum = tl.zeros([KINDS, BO], tl.float32)
    b_any = tl.zeros([ROWS, BO], tl.int32)
    for i in range(0, rows_each, ROWS):
        b_dx, b_bad, b_is = some_rows(
            p_dx, p_kind, o_kind, o_row + i, num_rows, num_kinds, i_col, WIDTH, BO, PRECISION
        )
        b_any |= b_bad.to(tl.int32)
        b_sum = add_sources(b_sum, b_is, sources(tl.where(b_bad, 0, b_dx), PRECISION), False)
    if tl.max(b_any) > 0:  # rare; times 0 it would be NaN for all kinds
        for i in range(0, rows_each, ROWS):
            _, b_bad, b_is = some_rows(
                p_dx, p_kind, o_kind, o_row + i, num_rows, num_kinds, i_col, WIDTH, BO, PRECISION
            )
            b_reached = tl.dot(b_is, b_bad.to(b_is.dtype), input_precision="ieee")
            b_sum = tl.where(b_reached > 0, float("nan"), b_sum)
    p_partial += i_share * num_kinds.to(tl.int64) * WIDTH
    store_block(p_partial, b_sum, o_kind, o_kind < num_kinds, i_col, WIDTH, BO)


def sum_shape(width: int, num_kinds: int) -> dict[str, int]:
    """Matrix units take 64 kinds at a time on Hopper, 16 a warp elsewhere. Of twice as many, dX is
    read and split half as often."""
    return {"BO": column_block(width), "ROWS": 32, "KINDS": 64 if num_kinds <= 64 else 128}


def sums(dx: Tensor, kind: Tensor, num_kinds: int) -> Tensor:
    """dTable [num_kinds, h] in the dtype of `dx`.

    Of a kind with a row that is not finite it is NaN. Of more kinds than `MOST` each has few
    rows: PyTorch sorts them.

    Args:
        dx: [n, h], contiguous.
        kind: [n] integers; rows of kind num_kinds are left out, and may hold anything.
    """
    if num_kinds > MOST:
        # The kind that counts nowhere is out of range for `padding_idx`: a row more, and cut off.
        return torch.ops.aten.embedding_dense_backward(dx, kind, num_kinds + 1, -1, False)[:-1]
    (rows, width), shape = dx.shape, sum_shape(dx.shape[1], num_kinds)
    if not (rows and width and num_kinds):
        return dx.new_zeros(num_kinds, width)
    others = cdiv(num_kinds, shape["KINDS"]), cdiv(width, shape["BO"])
    blocks = cdiv(rows, shape["ROWS"])
    blocks_each = cdiv(blocks, max(1, PROGRAMS // (others[0] * others[1])))
    shares = cdiv(blocks, blocks_each)
    partial = torch.empty(shares, num_kinds, width, dtype=torch.float32, device=dx.device)
    launch(
        sum_by_kind, (others[0], shares, others[1]), dx, kind.to(torch.int32), partial,
        rows, num_kinds, blocks_each * shape["ROWS"],
        written=(partial,), WIDTH=width, PRECISION=hop_precision(dx.device), **shape,
    )  # fmt: skip
    return partial.sum(0).to(dx.dtype)
