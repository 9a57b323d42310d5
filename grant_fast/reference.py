"""Every operator in plain PyTorch: what the tests trust, and what runs where no kernel does.

Notation follows the paper: Â is the propagation matrix of a batch of graphs (row = target,
column = source), X the node features, W_k the weights of order k < κ, Y the layer's output.
A sparse matrix is three tensors, CSR: `rowptr` [rows + 1], `col` [nnz], `value` [nnz].

`dense_flex_conv` is the definition, formed literally. Everything else is an exact rewrite of it
and is tested equal to it in float64. This module imports torch only.
"""

import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import torch
from torch import Tensor


def dense_flex_conv(x: Tensor, weight: Tensor, bias: Tensor | None, adjacency: Tensor) -> Tensor:
    """Y = Σ_{k<κ} Â^k X W_k + b with Â^k formed: the meaning, not the way to compute it.

    Args:
        x: [n, h_in].  weight: [κ, h_in, h_out].  bias: [h_out] or None.  adjacency: Â, [n, n].
    """
    powers = (torch.linalg.matrix_power(adjacency, k) for k in range(weight.shape[0]))
    out = sum((power @ x @ w for power, w in zip(powers, weight, strict=True)), x.new_zeros(()))
    return out if bias is None else out + bias


@cache
def accept_sparse_csr() -> None:
    """Build one CSR tensor with torch's 'beta state' notice muted: it is given once a process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor(torch.tensor([0, 0]), torch.tensor([]), torch.tensor([]), (1, 1))


def aligned(tensor: Tensor) -> Tensor:
    """A tensor, or a copy where it begins on CUDA off 16 bytes: on such, other sparse products than
    those here have failed."""
    return tensor.clone() if tensor.is_cuda and tensor.data_ptr() % 16 else tensor


def _csr(rowptr: Tensor, col: Tensor, value: Tensor, num_cols: int) -> Tensor:
    accept_sparse_csr()
    size = (rowptr.shape[0] - 1, num_cols)
    arrays = aligned(rowptr), aligned(col), aligned(value)
    return torch.sparse_csr_tensor(*arrays, size, check_invariants=False)


def _is_half(x: Tensor) -> bool:
    return x.dtype in (torch.float16, torch.bfloat16)


def spmm(
    rowptr: Tensor, col: Tensor, value: Tensor, x: Tensor, add_to: Tensor | None = None
) -> Tensor:
    """A @ x for a CSR matrix A, [rows, h]; half precision is summed in float32.

    With `add_to` it is that + A @ x, which may be written there. Deterministic on a CPU: each row
    is reduced by one thread, in the order of its columns.
    """
    rows = rowptr.shape[0] - 1
    if not col.shape[0] or not x.shape[1] or not rows:
        return x.new_zeros(rows, x.shape[1]) if add_to is None else add_to
    if _is_half(x):
        out = spmm(rowptr, col, value.float(), x.float()).to(x.dtype)
        return out if add_to is None else add_to.add_(out)
    matrix = _csr(rowptr, col, value.to(x.dtype), x.shape[0])
    if add_to is not None:
        return torch.addmm(add_to, matrix, x, out=add_to)
    # Two to three times faster than `matrix @ x`, which clears its result first and adds to it; but
    # without MKL, as on ARM, PyTorch multiplies by beta what lies there, which may be NaN.
    new = x.new_empty if x.is_cuda or torch.backends.mkl.is_available() else x.new_zeros
    out = new(rows, x.shape[1])
    return torch.addmm(out, matrix, x, beta=0, out=out)


def mm(x: Tensor, weight: Tensor, add_to: Tensor | None = None) -> Tensor:
    """X W, [n, h_out]; with `add_to` it is that + X W: a bias [h_out], or a matrix, which may be
    written there."""
    if add_to is None:
        return x @ weight
    if add_to.dim() == 2:
        return add_to.addmm_(x, weight)
    # On a GPU the bias goes along; a CPU would copy it first.
    return torch.addmm(add_to, x, weight) if x.is_cuda else (x @ weight).add_(add_to)


def mm_columns(x: Tensor, y: Tensor, out: Tensor) -> None:
    """Xᵀ Y into `out` [h_in, h_out], of X [n, h_in] and Y [n, h_out]."""
    torch.mm(x.T, y, out=out)


class Products(NamedTuple):
    """Who multiplies: functions that mean what those of these names here do."""

    spmm: Callable[..., Tensor]
    mm: Callable[..., Tensor]
    mm_columns: Callable[[Tensor, Tensor, Tensor], None]


PRODUCTS = Products(spmm, mm, mm_columns)


def propagates_first(h_in: int, h_out: int) -> bool:
    """Whether a layer hops at width h_in (Z_k = ÂZ_{k-1}) rather than h_out (Horner's rule)."""
    return h_in <= h_out


def flex_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    rowptr: Tensor,
    col: Tensor,
    value: Tensor,
    *,
    by: Products = PRODUCTS,
) -> Tensor:
    """Y = Σ_{k<κ} Â^k X W_k + b, never forming Â^k and never holding κ copies of X.

    Propagate first, Y = Σ_k Z_k W_k with Z_k = ÂZ_{k-1}, or Horner's rule,
    Y = XW_0 + Â(XW_1 + Â(XW_2 + …)): whichever hops at the smaller width.

    Args:
        by: who multiplies.
    """
    order, h_in, h_out = weight.shape
    if propagates_first(h_in, h_out) or order == 1:
        out, z = by.mm(x, weight[0], bias), x
        for k in range(1, order):
            z = by.spmm(rowptr, col, value, z)
            out = by.mm(z, weight[k], out)
        return out
    out = by.mm(x, weight[order - 1])
    for k in range(order - 2, -1, -1):
        term = by.mm(x, weight[k], None if k else bias)
        out = by.spmm(rowptr, col, value, out, term)
    return out


def smooth_spmm(rowptr: Tensor, col: Tensor, value: Tensor, x: Tensor) -> Tensor:
    """`spmm` in operators that PyTorch differentiates any number of times, in both modes, and maps.

    It holds a row of x for every stored entry: [nnz, h].
    """
    if _is_half(x):
        return smooth_spmm(rowptr, col, value.float(), x.float()).to(x.dtype)
    sources = x.index_select(0, col.long())  # which torch 2.6 wants to map
    terms = value.to(x.dtype)[:, None] * sources
    zeros = x.new_zeros(rowptr.shape[0] - 1, x.shape[1])
    return zeros.index_add(0, expand_rows(rowptr, col.shape[0]), terms)


def smooth_flex_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, rowptr: Tensor, col: Tensor, value: Tensor
) -> Tensor:
    """`flex_conv` over `smooth_spmm`. PyTorch keeps every Â^k X for the backward pass."""
    z = x
    out = x @ weight[0]
    for k in range(1, weight.shape[0]):
        z = smooth_spmm(rowptr, col, value, z)
        out = out + z @ weight[k]
    return out if bias is None else out + bias


def backward_hops_at_output_width(h_in: int, h_out: int, needs_dx: bool) -> bool:
    """Whether the backward pass hops dY (κ-1 hops at h_out serve dX and dW both).

    The other way recomputes Z_k for dW and runs Horner for dX: hops at h_in, twice if both.
    """
    return h_out <= (2 * h_in if needs_dx else h_in)


def flex_conv_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    rowptr: Tensor,
    col: Tensor,
    value: Tensor,
    rowptr_t: Tensor,
    col_t: Tensor,
    value_t: Tensor,
    *,
    needs_dx: bool,
    by: Products = PRODUCTS,
) -> tuple[Tensor | None, Tensor]:
    """(dX or None, dW) of `flex_conv`, from X alone: nothing of the forward pass was kept.

    dX = Σ_k (Âᵀ)^k dY W_kᵀ and dW_k = (Â^k X)ᵀ dY = Xᵀ (Âᵀ)^k dY.
    """
    return backward_by_hops(
        grad,
        x,
        weight,
        partial(by.spmm, rowptr, col, value),
        partial(by.spmm, rowptr_t, col_t, value_t),
        lambda out, z: by.spmm(rowptr_t, col_t, value_t, z, out),
        needs_dx=needs_dx,
        by=by,
    )


def backward_by_hops(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    hop: Callable[[Tensor], Tensor],
    hop_t: Callable[[Tensor], Tensor],
    add_hop_t: Callable[[Tensor, Tensor], Tensor],
    *,
    needs_dx: bool,
    by: Products = PRODUCTS,
) -> tuple[Tensor | None, Tensor]:
    """`flex_conv_backward` over any hops.

    Args:
        hop, hop_t: Z → ÂZ and Z → ÂᵀZ.
        add_hop_t: (T, Z) → T + ÂᵀZ, which may be written into T.
        by: who multiplies otherwise.
    """
    order, h_in, h_out = weight.shape
    dw = torch.empty_like(weight)
    if backward_hops_at_output_width(h_in, h_out, needs_dx):
        dx = by.mm(grad, weight[0].T) if needs_dx else None
        by.mm_columns(x, grad, dw[0])
        for k in range(1, order):
            grad = hop_t(grad)  # (Âᵀ)^k dY
            by.mm_columns(x, grad, dw[k])
            if dx is not None:
                dx = by.mm(grad, weight[k].T, dx)
        return dx, dw
    z = x
    by.mm_columns(z, grad, dw[0])
    for k in range(1, order):
        z = hop(z)  # Â^k X
        by.mm_columns(z, grad, dw[k])
    if not needs_dx:
        return None, dw
    dx = by.mm(grad, weight[order - 1].T)
    for k in range(order - 2, -1, -1):
        dx = add_hop_t(by.mm(grad, weight[k].T), dx)
    return dx, dw


def flex_conv_value_grad(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    rowptr: Tensor,
    col: Tensor,
    value: Tensor,
    rowptr_t: Tensor,
    col_t: Tensor,
    value_t: Tensor,
    *,
    by: Products = PRODUCTS,
) -> Tensor:
    """∂L/∂value, [nnz]: for an edge source j → target i, Σ_{k≥1} ⟨dZ_k[i], Z_{k-1}[j]⟩.

    Z_k = Â^k X and dZ_{k-1} = dY W_{k-1}ᵀ + Âᵀ dZ_k. The one place that holds κ copies of X: it
    runs only where the edge weights themselves are learned.
    """
    order = weight.shape[0]
    zs = [x]
    for _ in range(order - 2):
        zs.append(by.spmm(rowptr, col, value, zs[-1]))
    row = expand_rows(rowptr, col.shape[0])
    out = torch.zeros_like(value)
    dz = by.mm(grad, weight[order - 1].T)
    for k in range(order - 1, 0, -1):
        # index_select gathers rows up to four times faster than indexing does
        out += dz.index_select(0, row).mul_(zs[k - 1].index_select(0, col)).sum(1)
        if k > 1:
            dz = by.spmm(rowptr_t, col_t, value_t, dz, by.mm(grad, weight[k - 1].T))
    return out


def expand_rows(rowptr: Tensor, nnz: int) -> Tensor:
    """The row of every stored entry of a CSR matrix, [nnz], in the dtype of `rowptr`."""
    rows = torch.arange(rowptr.shape[0] - 1, device=rowptr.device, dtype=rowptr.dtype)
    return torch.repeat_interleave(rows, rowptr.diff(), output_size=nnz)
