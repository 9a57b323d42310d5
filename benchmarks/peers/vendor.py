"""The vendor's sparse product (MKL, cuSPARSE, rocSPARSE) through torch, its transpose cached."""

from typing import Any

import torch
from torch import Tensor

from grant_fast.adjacency import Adjacency, CSRTensors


class _Hop(torch.autograd.Function):
    """Â x, and Âᵀ g backwards: autograd's own formula would transpose Â at every step."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, transposed: Tensor) -> Tensor:
        ctx.transposed = transposed
        return matrix @ x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.transposed @ grad, None, None


class VendorLayer:
    """Y = Σ_k Z_k W_k + b with Z_k = Â Z_{k-1}, every hop one sparse product.

    Args:
        adjacency: Â, normalised; both directions are made into torch's CSR here, once.
    """

    def __init__(self, adjacency: Adjacency) -> None:
        self.matrix = csr_matrix(adjacency.csr)
        self.transposed = csr_matrix(adjacency.transposed)

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Y, [n, h_out], of x [n, h_in], weight [κ, h_in, h_out] and bias [h_out]."""
        out = torch.addmm(bias, x, weight[0])
        for w in weight[1:]:
            x = _Hop.apply(x, self.matrix, self.transposed)
            out = out + x @ w
        return out


def csr_matrix(csr: CSRTensors) -> Tensor:
    """A square matrix as torch's sparse CSR."""
    rowptr, col, value = csr
    size = rowptr.shape[0] - 1
    return torch.sparse_csr_tensor(rowptr, col, value, (size, size), check_invariants=False)
