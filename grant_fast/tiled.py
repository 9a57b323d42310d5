"""The flexible layer on graphs kept as bits: the operator that the Triton kernels compute.

Registered with a fake and an autograd formula, so that `torch.compile` takes it whole. The kernels
are imported when it first runs.
"""

import torch
from torch import Tensor
from torch.library import custom_op

from .batch import BatchAdjacency


@custom_op("grant_fast::flex_conv_tiles", mutates_args=())
def _flex_conv_tiles(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    ptr: Tensor,
    bits: Tensor,
    tile: Tensor,
    graph: Tensor,
    row: Tensor,
    large_graph: Tensor,
    large_row: Tensor,
    relu: bool,
    rest: bool,
) -> Tensor:
    """Y, [n, h_out]; where there is a `rest`, its rows are left for the caller and are 0."""
    from .kernels import layer

    graphs = layer.Graphs(scale, ptr, bits, tile, graph, row, large_graph, large_row)
    out = (x.new_zeros if rest else x.new_empty)(x.shape[0], weight.shape[2])
    bias = None if bias is None else bias.contiguous()
    return layer.forward(x, weight.contiguous(), bias, graphs, out, relu=relu, dataset_x=False)


@_flex_conv_tiles.register_fake
def _(x, weight, bias, scale, ptr, bits, tile, graph, row, large_graph, large_row, relu, rest):  # type: ignore[no-untyped-def]
    return x.new_empty(x.shape[0], weight.shape[2])


@custom_op("grant_fast::flex_conv_tiles_backward", mutates_args=())
def _flex_conv_tiles_backward(
    grad: Tensor,
    x: Tensor,
    y: Tensor | None,
    weight: Tensor,
    scale: Tensor | None,
    ptr: Tensor,
    bits: Tensor,
    tile: Tensor,
    graph: Tensor,
    row: Tensor,
    large_graph: Tensor,
    large_row: Tensor,
    rest: bool,
    needs_dx: bool,
    needs_dw: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dX, dW, db); one that is not needed is empty. `y` is the output of a layer with a ReLU."""
    from .kernels import layer

    graphs = layer.Graphs(scale, ptr, bits, tile, graph, row, large_graph, large_row)
    grad, weight = grad.contiguous(), weight.contiguous()
    dx, dw, db = x.new_empty(0), weight.new_empty(0), weight.new_empty(0)
    if needs_dx:
        out = (torch.zeros_like if rest else torch.empty_like)(x)
        dx = layer.input_grad(grad, y, weight, graphs, out)
    if needs_dw:
        pair = layer.weight_grad(x, grad, y, weight.shape[0], graphs, dataset_x=False)
        dw, db = (t.to(weight.dtype, copy=True) for t in pair)
    return dx, dw, db


@_flex_conv_tiles_backward.register_fake
def _(  # type: ignore[no-untyped-def]
    grad,
    x,
    y,
    weight,
    scale,
    ptr,
    bits,
    tile,
    graph,
    row,
    large_graph,
    large_row,
    rest,
    needs_dx,
    needs_dw,
):
    dx = torch.empty_like(x) if needs_dx else x.new_empty(0)
    dw = torch.empty_like(weight, memory_format=torch.contiguous_format)
    db = weight.new_empty(weight.shape[2])
    return (dx, dw, db) if needs_dw else (dx, weight.new_empty(0), weight.new_empty(0))


def _setup(ctx, inputs, output):  # type: ignore[no-untyped-def]
    x, weight, bias, *structure, relu, rest = inputs
    # A layer's output is the next one's input: keeping it for the ReLU costs nothing more.
    ctx.save_for_backward(x, output if relu else None, weight, *structure)
    ctx.rest, ctx.has_bias = rest, bias is not None


def _grad(ctx, grad):  # type: ignore[no-untyped-def]
    needs_dx, needs_dw, needs_db = ctx.needs_input_grad[:3]
    dx, dw, db = torch.ops.grant_fast.flex_conv_tiles_backward(
        grad, *ctx.saved_tensors, ctx.rest, needs_dx, needs_dw or needs_db
    )
    return (
        dx if needs_dx else None,
        dw if needs_dw else None,
        db if needs_db and ctx.has_bias else None,
        *[None] * 10,
    )


_flex_conv_tiles.register_autograd(_grad, setup_context=_setup)


def flex_conv_tiles(
    x: Tensor, weight: Tensor, bias: Tensor | None, adjacency: BatchAdjacency, relu: bool
) -> Tensor:
    """act(Σ_k Â^k X W_k + b) of the graphs that bits hold; 0 in the rows of the others."""
    batch = adjacency.batch
    bits, tiles = batch.graphs.bits, batch.tiles
    assert bits is not None and tiles is not None, "dispatch asks for kernels only where these are"
    *tables, rest = tiles
    return torch.ops.grant_fast.flex_conv_tiles(
        x.contiguous(),
        weight,
        bias,
        batch.graphs.scale if adjacency.normalize else None,
        batch.graphs.ptr,
        bits.bits,
        *tables,
        relu,
        rest is not None,
    )
