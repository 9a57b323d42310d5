"""Products of many rows with a small matrix: `kernels/cpu/dense.h`."""

from torch import Tensor

from .. import reference
from .csr import has_vectors
from .loading import call, threads
from .structure import is_wide, parts_of


def takes_products(x: Tensor, h_in: int, h_out: int) -> bool:
    """Whether the kernels make rows of `h_out` from rows of `h_in` that are as X is, and back."""
    return has_vectors(x) and not is_wide(h_in, h_out)


def mm(x: Tensor, weight: Tensor, add_to: Tensor | None = None) -> Tensor:
    """`reference.mm`, by the compiled kernel where that can and is faster."""
    (rows, h_in), h_out = x.shape, weight.shape[1]
    if not x.numel() or not takes_products(x, h_in, h_out):
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
    if not out.is_contiguous() or not takes_products(x, h_in, h_out):
        return reference.mm_columns(x, y, out)
    sizes, parts = (rows, h_in, h_out), parts_of(rows, 4 * h_in * h_out + 1)
    call("matmul_columns", *sizes, parts, threads(), x.contiguous(), y.contiguous(), out)
