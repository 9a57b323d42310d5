"""The paper's own formulation of a layer: A^[κ] times a block-diagonal X, times the stacked W."""

import torch
from torch import Tensor

from grant_fast.adjacency import Adjacency

from .vendor import csr_matrix


class PaperLayer:
    """Y = [I Â … Â^{κ-1}] · diag(X; κ) · W + b, as §4.1 of the paper writes it.

    The powers are formed by sparse times sparse products at every call, as they must be for every
    new batch, and X is copied κ times down the diagonal of a dense [κn, κh] matrix.
    """

    def __init__(self, adjacency: Adjacency) -> None:
        self.matrix = csr_matrix(adjacency.csr)

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Y, [n, h_out], of x [n, h_in], weight [κ, h_in, h_out] and bias [h_out]."""
        order = weight.shape[0]
        if order**2 * x.numel() >= 2**31:
            raise ValueError(f"diag(X; κ) would have {order**2 * x.numel():.1e} elements")
        copies = torch.block_diag(*[x] * order)
        return torch.addmm(bias, self.stacked_powers(order) @ copies, weight.flatten(0, 1))

    def stacked_powers(self, order: int) -> Tensor:
        """A^[κ] = [I Â … Â^{κ-1}], sparse [n, κn]."""
        size = self.matrix.shape[0]
        diagonal = torch.arange(size, device=self.matrix.device)
        indices = [torch.stack([diagonal, diagonal])]
        values = [self.matrix.values().new_ones(size)]
        power = self.matrix
        for k in range(1, order):
            if k > 1:
                power = power @ self.matrix
            part = power.to_sparse_coo()
            row, col = part.indices()
            indices.append(torch.stack([row, col + k * size]))
            values.append(part.values())
        stacked = torch.sparse_coo_tensor(
            torch.cat(indices, 1), torch.cat(values), (size, order * size), check_invariants=False
        )
        return stacked.to_sparse_csr()
