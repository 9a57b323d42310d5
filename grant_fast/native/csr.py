"""Products of sparse matrices with rows: `kernels/cpu/csr.h`."""

import torch
from torch import Tensor

from .. import reference
from . import loading
from .loading import call, threads


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
    call("csr_matmul", rows, width, int(add_to is not None), threads(), *given, out)
    return out
