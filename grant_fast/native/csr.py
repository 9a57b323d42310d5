"""Products of sparse matrices with rows: `kernels/cpu/csr.h`."""

from typing import NamedTuple

import torch
from torch import Tensor

from .. import reference
from ..gradients import apply, once_differentiable, one_at_a_time
from ..indexing import sizes_to_ptr
from . import loading
from .loading import aside, call, threads


def multiplies(x: Tensor) -> bool:
    """Whether there is a kernel for what is as X is (dtype, device), with vectors of eight, as AVX
    has them: with shorter ones there is nothing to gain."""
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return False
    return loading.library() is not None and loading.lanes() >= 8


def spmm(
    rowptr: Tensor, col: Tensor, value: Tensor, x: Tensor, add_to: Tensor | None = None
) -> Tensor:
    """`reference.spmm`, by the compiled kernel where that can and is faster."""
    rows, width = rowptr.shape[0] - 1, x.shape[1]
    if not rows or not rowptr.dtype == col.dtype == torch.int32 or not multiplies(x):
        return reference.spmm(rowptr, col, value, x, add_to)
    out = x.new_empty(rows, width) if add_to is None else add_to.contiguous()
    given = (t.contiguous() for t in (rowptr, col, value.to(x.dtype), x))
    call("csr_matmul", rows, width, add_to is not None, threads(), *given, out)
    return out


class Choices(NamedTuple):
    """A [m, N] matrix of ones, as many in each row, and its transpose, in CSR."""

    rowptr: Tensor
    col: Tensor
    rowptr_t: Tensor
    col_t: Tensor
    ones: Tensor

    @classmethod
    def of(cls, rows: Tensor, count: int) -> "Choices":
        """Of what each row chooses of `count`, [m, F] int64."""
        m, width = rows.shape
        chosen = rows.flatten()
        ptr = torch.arange(m + 1, dtype=torch.int32, device="cpu") * width
        ptr_t = sizes_to_ptr(chosen.bincount(minlength=count)).int()
        col_t = chosen.argsort(stable=True).div_(width, rounding_mode="floor").int()
        ones = torch.ones(len(chosen), dtype=torch.float32, device="cpu")
        return cls(ptr, chosen.int(), ptr_t, col_t, ones)


class _SumOfChosen(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table, chosen):  # type: ignore[no-untyped-def]
        ctx.chosen = chosen
        return spmm(chosen.rowptr, chosen.col, chosen.ones, aside(table))

    @staticmethod
    @once_differentiable
    @one_at_a_time
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        chosen = ctx.chosen
        return spmm(chosen.rowptr_t, chosen.col_t, chosen.ones, grad.resolve_neg()), None


def sum_of_chosen(table: Tensor, chosen: Choices) -> Tensor:
    """The sum of the rows of a table [N, h] that each row chooses, [m, h], differentiable once."""
    return apply(_SumOfChosen, table, chosen)
