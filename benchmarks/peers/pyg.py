"""PyG: `TAGConv`, `BatchNorm`, `global_mean_pool`, OGB's `AtomEncoder` and PyG's `DataLoader`."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import BatchNorm, TAGConv, global_mean_pool

from grant_fast import PackedGraphs


class TAGNet(nn.Module):
    """The network of `grant_fast.FlexGCN`, layer by layer, in PyG's own parts."""

    def __init__(
        self,
        in_channels: int,
        hidden_channels: Sequence[int],
        out_channels: int,
        orders: Sequence[int],
        norm: bool,
        dropout: float,
        pool: bool,
        atoms: bool,
    ) -> None:
        super().__init__()
        if atoms:
            from ogb.graphproppred.mol_encoder import AtomEncoder

            self.encoder = AtomEncoder(in_channels)
        else:
            self.encoder = nn.Identity()
        widths = [in_channels, *hidden_channels, out_channels]
        self.convs = nn.ModuleList(
            TAGConv(a, b, K=order - 1)
            for a, b, order in zip(widths, widths[1:], orders, strict=False)
        )
        self.norms = nn.ModuleList(BatchNorm(h) if norm else nn.Identity() for h in hidden_channels)
        self.dropout, self.pool = dropout, pool

    def forward(self, batch: Data) -> Tensor:
        x = self.encoder(batch.x)
        for conv, norm in zip(self.convs, self.norms, strict=False):
            x = norm(conv(x, batch.edge_index)).relu()
            x = nn.functional.dropout(x, self.dropout, self.training)
        x = self.convs[-1](x, batch.edge_index)
        return global_mean_pool(x, batch.batch, batch.num_graphs) if self.pool else x


def data_list(graphs: PackedGraphs) -> list[Data]:
    """The same graphs as PyG's `Data`, as its users hold them in memory."""
    out = []
    for i in range(len(graphs)):
        one = graphs.batch([i])
        x = one.x if one.x.is_floating_point() else one.x.long()
        out.append(Data(x=x.clone(), edge_index=one.edge_index.clone(), y=one.y.clone()))
    return out


def take_weights(peer: TAGNet, model: nn.Module) -> None:
    """Copy a `FlexGCN`'s weights, so that both sides compute the same function."""
    with torch.no_grad():
        for tag, flex in zip(peer.convs, model.convs, strict=True):
            for k, lin in enumerate(tag.lins):
                lin.weight.copy_(flex.weight[k].T)
            tag.bias.copy_(flex.bias)
        if model.encoder is not None:
            tables = [e.weight for e in peer.encoder.atom_embedding_list]
            for table, ours in zip(
                tables, model.encoder.weight.split(model.encoder.cardinalities), strict=True
            ):
                table.copy_(ours)
