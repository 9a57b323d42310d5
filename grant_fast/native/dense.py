"""Products of many rows with a small matrix: `kernels/cpu/dense.h`."""

import torch
from torch import Tensor

from .. import reference
from .csr import multiplies
from .loading import call, threads
from .structure import parts_of

#: With fewer rows, to call the kernel and to lay out W for it may take longer than it saves. A part
#: of the rows, which a thread takes, has as many.
LEAST_ROWS = 512
#: The narrower width of W up to which the kernels multiply. Beside MKL it is more if the processor
#: has AVX-512 and is not Intel's: on an AMD EPYC, MKL took twice as long as they do.
MOST, MOST_BESIDE_MKL = 128, 512


def takes_products(x: Tensor, rows: int, h_in: int, h_out: int) -> bool:
    """Whether the kernels make so many rows of `h_out` from those of `h_in`, as X is, and back."""
    narrower = min(h_in, h_out)  # of a single column a vector would be wasted on it
    if rows < LEAST_ROWS or narrower < 2 or not multiplies(x):
        return False
    return narrower <= MOST or (narrower <= MOST_BESIDE_MKL and outruns_blas())


def outruns_blas() -> bool:
    """Whether PyTorch's BLAS is MKL, on a processor with AVX-512 that is not Intel's."""
    return torch.backends.mkl.is_available() and bool(call("outruns_mkl"))


def mm(x: Tensor, weight: Tensor, add_to: Tensor | None = None) -> Tensor:
    """`reference.mm`, by the compiled kernel where that can and is faster."""
    (rows, h_in), h_out = x.shape, weight.shape[1]
    if not takes_products(x, rows, h_in, h_out):
        return reference.mm(x, weight, add_to)
    begun = None if add_to is None else add_to.contiguous()
    if begun is None or begun.dim() == 1:  # a bias is the same for all rows, and stays as it is
        out, step = x.new_empty(rows, h_out), 0
    else:
        out, step = begun, h_out
    given = (x.contiguous(), weight, *weight.stride(), begun, step, out)
    call("matmul", rows, h_in, h_out, threads(), *given)
    return out


def mm_columns(x: Tensor, y: Tensor, out: Tensor) -> None:
    """`reference.mm_columns`, by the compiled kernel where that can and is faster."""
    (rows, h_in), h_out = x.shape, y.shape[1]
    if not out.is_contiguous() or not takes_products(x, rows, h_in, h_out):
        return reference.mm_columns(x, y, out)
    sizes, parts = (rows, h_in, h_out), parts_of(rows, 4 * h_in * h_out, LEAST_ROWS)
    call("matmul_columns", *sizes, parts, threads(), x.contiguous(), y.contiguous(), out)
