"""The cheap networks of the paper's tables, made of the same parts as the flexible one."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

from .. import ops
from ..batches import GraphBatch
from ..errors import InputError
from ..nn import BatchNorm, FlexConv, FlexGCN


class _Binomial(nn.Module):
    """W [1, in, out] → [C(κ−1, k) 2^{1−κ} W] for k < κ: (Â + I)^{κ−1} XV = Σ_k C(κ−1, k) Â^k XV
    with V = 2^{1−κ} W. The largest eigenvalue of Â + I is 2: a W drawn as for any layer would begin
    with outputs 2^{κ−1} times too large, a V keeps their size. W is what is trained."""

    coefficients: Tensor

    def __init__(self, order: int) -> None:
        super().__init__()
        row = [math.comb(order - 1, k) / 2 ** (order - 1) for k in range(order)]
        self.register_buffer("coefficients", torch.tensor(row).view(-1, 1, 1))

    def forward(self, weight: Tensor) -> Tensor:
        return self.coefficients.to(weight.dtype) * weight


def tie_orders(model: FlexGCN) -> None:
    """Make a flexible GCN a plain one, σ((Â + I)^{κ−1} X W), in place (paper §3).

    All hops of a layer share one matrix, and reach as far as the flexible layer of the same order:
    κ − 1 hops, where the paper's equation has κ. Where the model does not normalise, Â is A.
    """
    for conv in model.convs:
        assert isinstance(conv, FlexConv)
        shared = torch.empty(1, conv.in_channels, conv.out_channels)
        conv.weight = nn.Parameter(shared.uniform_(-1, 1) / conv.in_channels**0.5)
        # "unsafe" is torch's word for a map that changes the shape.
        register_parametrization(conv, "weight", _Binomial(conv.order), unsafe=True)


class VirtualNodeGCN(FlexGCN):
    """A `FlexGCN` with one more node a graph, which hears all nodes and is heard by them.

    Its state v starts as a learned vector; before each layer it is added to every node, and after
    each but the last it becomes σ(BatchNorm(W(v + Σ_i h_i) + b)), at the next layer's width (after
    Gilmer et al., *Neural Message Passing for Quantum Chemistry*, with OGB's addition). As OGB does
    it is normalised whether or not the layers are: it is a sum over all nodes.

    Args: those of `FlexGCN`, all but the widths by keyword.

    **Shapes:** as `FlexGCN`, of a `GraphBatch`.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int | Sequence[int],
        out_channels: int,
        **settings: Any,
    ) -> None:
        super().__init__(in_channels, hidden_channels, out_channels, **settings)
        self.virtual = nn.Parameter(torch.zeros(in_channels))
        widths = [(self._conv(k).in_channels, self._conv(k).out_channels) for k in self._hidden]
        self.updates = nn.ModuleList(
            nn.Sequential(nn.Linear(a, b), BatchNorm(b)) for a, b in widths
        )

    @property
    def _hidden(self) -> range:
        return range(len(self.convs) - 1)

    def forward(self, x: GraphBatch, *others: Any, **named: Any) -> Tensor:  # type: ignore[override]
        """Predictions for a batch of graphs, which must be a `GraphBatch` (else InputError)."""
        if not isinstance(x, GraphBatch) or others or named:
            raise InputError("a network with a virtual node takes a GraphBatch alone")
        gather = x.pooling(mean=False)
        spread = gather.transpose()
        h = self._encode(x)
        v = self.virtual.expand(x.num_graphs, -1)
        for layer in self._hidden:
            h = h + ops.spmm(v, spread)
            v = self.act(self.updates[layer](v + ops.spmm(h, gather)))
            h = self.convs[layer](h, x.adjacency(self.normalize))
            h = self.dropouts[layer](self.act(self.norms[layer](h)))
        return self._last_layer(h + ops.spmm(v, spread), x)
