"""The paper's formulation with torch-sparse: Y = A^[κ] · diag(X; κ) · W (§4.1).

The powers of Â are formed by sparse times sparse products, and X is copied κ times down the
diagonal of a dense matrix. Once a batch is what a reader of the formula would do; the published
code forms the powers again in every layer.
"""

import torch
from torch import Tensor
from torch_geometric.data import Batch
from torch_geometric.nn import global_mean_pool
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_sparse import SparseTensor, cat, matmul

from benchmarks.peers.pyg import TAGNet


class PaperNet(TAGNet):
    """The same network with the same weights, computed as the paper writes it."""

    def forward(self, batch: Batch) -> Tensor:
        n = batch.num_nodes
        edges, weight = gcn_norm(batch.edge_index, None, n, add_self_loops=False)
        a = SparseTensor(row=edges[1], col=edges[0], value=weight, sparse_sizes=(n, n))
        powers = [SparseTensor.eye(n)]
        for _ in range(1, max(len(conv.lins) for conv in self.convs)):
            powers.append(matmul(a, powers[-1]))
        x = self.encoder(batch.x)
        for conv, norm in zip(self.convs, self.norms, strict=False):
            x = norm(_layer(conv, powers, x)).relu()
            x = torch.nn.functional.dropout(x, self.dropout, self.training)
        x = _layer(self.convs[-1], powers, x)
        return global_mean_pool(x, batch.batch, batch.num_graphs) if self.pool else x


def _layer(conv: torch.nn.Module, powers: list[SparseTensor], x: Tensor) -> Tensor:
    order = len(conv.lins)
    stacked = cat(powers[:order], dim=1)
    weight = torch.cat([lin.weight.T for lin in conv.lins])
    return matmul(stacked, torch.block_diag(*[x] * order)) @ weight + conv.bias
