"""PyG: `TAGConv`, `BatchNorm`, `global_mean_pool`, OGB's `AtomEncoder` and PyG's `DataLoader`."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import BatchNorm, TAGConv, global_mean_pool

from grant_fast import FlexConv, FlexGCN, PackedGraphs
from grant_fast.nn import ATOM_CARDINALITIES
from grant_fast.reference import expand_rows


class TAGNet(nn.Module):
    """The network of `grant_fast.FlexGCN`, layer by layer, in PyG's own parts."""

    def __init__(
        self,
        in_channels: int,
        hidden_channels: Sequence[int],
        out_channels: int,
        orders: Sequence[int],
        norm: bool,
        dropout: float | Sequence[float],
        pool: bool,
        atoms: bool,
        head: int | None = None,
    ) -> None:
        super().__init__()
        self.encoder = atom_encoder(in_channels) if atoms else nn.Identity()
        widths = [in_channels, *hidden_channels, out_channels]
        self.convs = nn.ModuleList(
            TAGConv(a, b, K=order - 1)
            for a, b, order in zip(widths, widths[1:], orders, strict=False)
        )
        self.norms = nn.ModuleList(BatchNorm(h) if norm else nn.Identity() for h in hidden_channels)
        rates = [dropout] * len(hidden_channels) if isinstance(dropout, float) else dropout
        self.dropouts, self.pool = nn.ModuleList(map(nn.Dropout, rates)), pool
        self.head = nn.Identity() if head is None else nn.Linear(out_channels, head)

    def forward(self, batch: Data) -> Tensor:
        x = self.encoder(batch.x)
        for conv, norm, dropout in zip(self.convs, self.norms, self.dropouts, strict=False):
            x = dropout(norm(conv(x, batch.edge_index)).relu())
        x = self.convs[-1](x, batch.edge_index)
        return self.head(global_mean_pool(x, batch.batch, batch.num_graphs) if self.pool else x)


class PlainAtomEncoder(nn.Module):
    """What OGB's `AtomEncoder` computes, where OGB is not installed: one table a column, summed."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.atom_embedding_list = nn.ModuleList(
            nn.Embedding(size, width) for size in ATOM_CARDINALITIES
        )

    def forward(self, x: Tensor) -> Tensor:
        tables = enumerate(self.atom_embedding_list)
        return torch.stack([table(x[:, column]) for column, table in tables]).sum(0)


def atom_encoder(width: int) -> nn.Module:
    """OGB's encoder, or one that computes the same."""
    try:
        from ogb.graphproppred.mol_encoder import AtomEncoder
    except ImportError:
        return PlainAtomEncoder(width)
    return AtomEncoder(width)


def data_list(graphs: PackedGraphs) -> list[Data]:
    """The same graphs as PyG's `Data`, as its users hold them in memory."""
    nodes, edges = graphs.host_ptr.tolist(), graphs.host_edge_ptr.tolist()
    x = graphs.x if graphs.x.is_floating_point() else graphs.x.long()
    target = expand_rows(graphs.adj.rowptr, graphs.num_edges)
    first = graphs.ptr[:-1].repeat_interleave(graphs.num_nodes_per_graph)
    edge_index = torch.stack([graphs.adj.col.long(), target - first[target]])
    rows = nodes if graphs.y_level == "node" else range(len(graphs) + 1)
    out = []
    for i in range(len(graphs)):
        y = None if graphs.y is None else graphs.y[rows[i] : rows[i + 1]].clone()
        own = edge_index[:, edges[i] : edges[i + 1]].clone()
        out.append(Data(x=x[nodes[i] : nodes[i + 1]].clone(), edge_index=own, y=y))
    return out


def _tables(peer: TAGNet) -> list[Any]:
    """The weights of OGB's encoder, or of what computes the same; PyTorch's types know neither."""
    encoder: Any = peer.encoder
    return [table.weight for table in encoder.atom_embedding_list]


def _convs(peer: TAGNet) -> list[Any]:
    """The layers, whose parts PyTorch's types do not know."""
    return list(peer.convs)


def gradients(peer: TAGNet) -> list[Tensor | None]:
    """Of all its weights, in the order and layout of the `FlexGCN` that they were taken from.

    A layer may have been replaced with a `FlexConv`.
    """
    out: list[Tensor | None] = []
    if not isinstance(peer.encoder, nn.Identity):
        out.append(torch.cat([table.grad for table in _tables(peer)]))
    for conv in _convs(peer):
        weight = (
            conv.weight.grad
            if isinstance(conv, FlexConv)
            else torch.stack([lin.weight.grad.T for lin in conv.lins])
        )
        out += [weight, conv.bias.grad]
    out[-1:-1] = [p.grad for p in peer.head.parameters()]  # ours stands inside the last layer
    return out + [p.grad for p in peer.norms.parameters()]


def take_weights(peer: TAGNet, model: FlexGCN) -> None:
    """Copy a `FlexGCN`'s weights, so that both sides compute the same function."""
    with torch.no_grad():
        for tag, flex in zip(_convs(peer), model.convs, strict=True):
            maps: Any = getattr(flex, "parametrizations", None)  # of a last layer with a head
            weight: Any = flex.weight if maps is None else maps.weight.original
            bias = flex.bias if maps is None else maps.bias.original
            for k, lin in enumerate(tag.lins):
                lin.weight.copy_(weight[k].T)
            tag.bias.copy_(bias)
            if maps is not None:
                peer.head.load_state_dict(maps.weight[0].second.state_dict())
        if model.encoder is not None:
            encoder: Any = model.encoder
            parts = encoder.weight.split(encoder.cardinalities)
            for table, ours in zip(_tables(peer), parts, strict=True):
                table.copy_(ours)
