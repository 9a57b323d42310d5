"""The collapsed readout as an operator: what the Triton kernels compute of a last layer.

Registered with a fake and an autograd formula, so that `torch.compile` takes it whole. The kernels
are imported when it first runs.
"""

import torch
from torch import Tensor

from ..batches import GraphBatch
from .registration import operator


@operator(
    "readout",
    "(Tensor x, Tensor weights, Tensor ptr, Tensor start, Tensor graph, Tensor? graph_ptr) "
    "-> Tensor",
)
def _readout(
    x: Tensor,
    weights: Tensor,
    ptr: Tensor,
    start: Tensor,
    graph: Tensor,
    graph_ptr: Tensor | None,
) -> Tensor:
    """pooled, [B, κ·h]; see `Segments` for the tables."""
    from ..kernels import readout

    return readout.readout(x.contiguous(), weights, ptr, start, graph_ptr)


@_readout.register_fake
def _(x, weights, ptr, start, graph, graph_ptr):  # type: ignore[no-untyped-def]
    graphs = start.shape[0] if graph_ptr is None else graph_ptr.shape[0] - 1
    return x.new_empty(graphs, weights.shape[0] * x.shape[1])


@operator(
    "readout_backward",
    "(Tensor grad, Tensor weights, Tensor ptr, Tensor start, Tensor graph, SymInt rows) -> Tensor",
)
def _readout_backward(
    grad: Tensor, weights: Tensor, ptr: Tensor, start: Tensor, graph: Tensor, rows: int
) -> Tensor:
    from ..kernels import readout

    out = grad.new_empty(rows, grad.shape[1] // weights.shape[0])
    return readout.readout_grad(grad.contiguous(), weights, ptr, start, graph, out)


@_readout_backward.register_fake
def _(grad, weights, ptr, start, graph, rows):  # type: ignore[no-untyped-def]
    return grad.new_empty(rows, grad.shape[1] // weights.shape[0])


def _setup(ctx, inputs, output):  # type: ignore[no-untyped-def]
    x, weights, ptr, start, graph, _ = inputs
    ctx.save_for_backward(weights, ptr, start, graph)
    ctx.rows = x.shape[0]


def _grad(ctx, grad):  # type: ignore[no-untyped-def]
    dx = torch.ops.grant_fast.readout_backward(grad, *ctx.saved_tensors, ctx.rows)
    return dx, None, None, None, None, None


_readout.register_autograd(_grad, _setup)


def readout(x: Tensor, batch: GraphBatch, order: int, normalize: bool, mean: bool) -> Tensor:
    """[ρX, ρÂX, …, ρÂ^{κ-1}X], [B, κ·h], by the kernels; X is no part of what is kept."""
    weights = batch.graphs.pool_weights(order, normalize, mean)
    return torch.ops.grant_fast.readout(x, weights, *batch.segments)
