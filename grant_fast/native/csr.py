"""Products of sparse matrices with rows: `kernels/cpu/csr.h`."""

import torch
from torch import Tensor

from .. import reference
from . import loading
from .loading import call, threads

#: Narrower rows are as fast with PyTorch's product.
LEAST_WIDTH = 16


def multiplies(x: Tensor, width: int) -> bool:
    """Whether the kernel hops with rows of `width` that are as X is: dtype, device."""
    return width >= LEAST_WIDTH and has_vectors(x)


def has_vectors(x: Tensor) -> bool:
    """Whether there is a kernel for what is as X is, with vectors of eight, as AVX has them: with
    shorter ones there is nothing to gain."""
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return False
    return loading.library() is not None and loading.lanes() >= 8


def spmm(
    rowptr: Tensor, col: Tensor, value: Tensor, x: Tensor, add_to: Tensor | None = None
) -> Tensor:
    """`reference.spmm`, by the compiled kernel where that can and is faster."""
    rows, width = rowptr.shape[0] - 1, x.shape[1]
    if not rows or rowptr.dtype != torch.int32 or not multiplies(x, width):
        return reference.spmm(rowptr, col, value, x, add_to)
    out = x.new_empty(rows, width) if add_to is None else add_to.contiguous()
    given = (t.contiguous() for t in (rowptr, col, value.to(x.dtype), x))
    call("csr_matmul", rows, width, int(add_to is not None), threads(), *given, out)
    return out
