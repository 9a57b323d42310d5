"""The paper's formulation with torch-sparse: Y = A^[κ] · diag(X; κ) · W (§4.1).

In every layer, as in the published code, the powers of Â are formed by sparse times sparse
products, and X is copied κ times down the diagonal of a dense matrix.
"""

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch
from torch_geometric.nn import global_mean_pool
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_sparse import SparseTensor, cat, matmul

from .pyg import TAGNet


class PaperNet(TAGNet):
    """The same network with the same weights, computed as the paper writes it."""

    def forward(self, batch: Batch) -> Tensor:
        n = batch.num_nodes
        edges, weight = gcn_norm(batch.edge_index, None, n, add_self_loops=False)
        a = SparseTensor(row=edges[1], col=edges[0], value=weight, sparse_sizes=(n, n))
        x = self.encoder(batch.x)
        for conv, norm, dropout in zip(self.convs, self.norms, self.dropouts, strict=False):
            x = dropout(norm(_layer(conv, a, x)).relu())
        x = _layer(self.convs[-1], a, x)
        return self.head(global_mean_pool(x, batch.batch, batch.num_graphs) if self.pool else x)


def _layer(conv: Any, a: SparseTensor, x: Tensor) -> Tensor:
    order = len(conv.lins)
    powers = [SparseTensor.eye(x.shape[0]), a]
    for _ in range(2, order):
        powers.append(matmul(a, powers[-1]))
    weight = torch.cat([lin.weight.T for lin in conv.lins])
    return matmul(cat(powers[:order], dim=1), torch.block_diag(*[x] * order)) @ weight + conv.bias
