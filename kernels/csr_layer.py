"""The flexible layer over CSR: its hops by `csr.py`, its products by the BLAS.

The hops run at the narrower of the two widths: Y = Σ_k Z_k W_k with Z_k = ÂZ_{k-1}, or Horner's
rule Y = XW_0 + Â(XW_1 + Â(XW_2 + …)), where a hop adds the next term, and the last one the bias and
the ReLU. Every formula is that of `reference.py`; X is all that a backward pass needs.
"""

from functools import partial

import torch
from torch import Tensor

from ..reference import backward_by_hops
from .csr import CSR, spmm, value_grad


def hops_on_x(h_in: int, h_out: int) -> bool:
    """Whether hops run on X. At equal widths Horner's rule does: its last hop writes Y itself."""
    return h_in < h_out


def column_chunks(width: int, order: int) -> list[slice]:
    """Columns in equal parts of 16 or more, of which κ copies are hardly more than one of all."""
    each = max(16, width // order // 16 * 16)
    parts = -(-width // each)
    each = -(-width // parts // 16) * 16
    return [slice(first, min(first + each, width)) for first in range(0, width, each)]


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, csr: CSR, *, relu: bool) -> Tensor:
    """Y = act(Σ_k Â^k X W_k + b), [n, h_out].

    Args:
        x: [n, h_in], weight: [κ, h_in, h_out], bias: [h_out] or None; contiguous.
    """
    order, h_in, h_out = weight.shape
    if order == 1 or hops_on_x(h_in, h_out):
        out, z = affine(x, weight[0], bias), x
        for k in range(1, order):
            z = spmm(csr, z)
            out.addmm_(z, weight[k])
        return out.relu_() if relu else out
    out = x @ weight[order - 1]
    for k in range(order - 2, 0, -1):
        term = x @ weight[k]
        out = spmm(csr, out, term=term, out=term)
    term = x @ weight[0]
    return spmm(csr, out, term=term, out=term, bias=bias, relu=relu)


def affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x @ weight if bias is None else torch.addmm(bias, x, weight)


def backward(
    grad: Tensor, x: Tensor, weight: Tensor, csr: CSR, csr_t: CSR, *, needs_dx: bool
) -> tuple[Tensor | None, Tensor]:
    """(dX or None, dW): dX = Σ_k (Âᵀ)^k dY W_kᵀ and dW_k = (Â^k X)ᵀ dY = Xᵀ (Âᵀ)^k dY.

    Args:
        grad: dY before the activation, [n, h_out], contiguous.
    """
    return backward_by_hops(
        grad,
        x,
        weight,
        partial(spmm, csr),
        partial(spmm, csr_t),
        lambda term, z: spmm(csr_t, z, term=term, out=term),
        needs_dx=needs_dx,
    )


def backward_with_values(
    grad: Tensor, x: Tensor, weight: Tensor, csr: CSR, csr_t: CSR
) -> tuple[Tensor, Tensor, Tensor]:
    """(dX, dW, dvalue): for an edge j → i, dvalue = Σ_{k≥1} ⟨dZ_k[i], Z_{k-1}[j]⟩.

    Z_k = Â^k X and dZ_{k-1} = dY W_{k-1}ᵀ + Âᵀ dZ_k, some columns at a time: one row of a workspace
    holds all orders of a node, so that an edge's sum over the hops is one inner product. Each order
    begins at 16 bytes, which the kernels ask for.
    """
    (order, h_in, _), nodes = weight.shape, x.shape[0]
    dx, dw = torch.empty_like(x), torch.empty_like(weight)
    dvalue = torch.zeros_like(csr.value, dtype=torch.float32)
    for c in column_chunks(h_in, order):
        width = c.stop - c.start
        w = torch.nn.functional.pad(weight[:, c], (0, 0, 0, -width % 8))
        dz = torch.mm(grad, w.flatten(0, 1).T).view(nodes, order, w.shape[1])
        z = torch.empty_like(dz)
        z[:, 0, :width], z[:, :, width:] = x[:, c], 0
        for k in range(1, order):
            spmm(csr, z[:, k - 1, :width], out=z[:, k, :width])
        for k in range(order - 2, -1, -1):
            term = dz[:, k, :width]
            spmm(csr_t, dz[:, k + 1, :width], term=term, out=term)
        dx[:, c] = dz[:, 0, :width]
        dw[:, c] = torch.mm(z.flatten(1).T, grad).view_as(w)[:, :width]
        if order > 1:
            rows = dz[:, 1:].flatten(1), z[:, :-1].flatten(1)
            value_grad(csr, *rows, dvalue, add=c.start > 0)
    return dx, dw, dvalue.to(csr.value.dtype)
