"""The flexible layer on graphs kept as bits: the operator that the Triton kernels compute.

Registered with a fake and an autograd formula, so that `torch.compile` takes it whole. The kernels
are imported when it first runs. Graphs of a batch that bits cannot hold go through the kernels for
CSR, within the same operator: their rows are taken out, computed, and put in their place.
"""

import torch
from torch import Tensor
from torch.library import custom_op

from .batch_edges import BatchAdjacency
from .dispatch import is_fused
from .sparse import masked, require_transpose, transposed_if_needed


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
    rest: Tensor | None,
    rowptr: Tensor | None,
    col: Tensor | None,
    value: Tensor | None,
    rowptr_t: Tensor | None,
    col_t: Tensor | None,
    value_t: Tensor | None,
    relu: bool,
) -> Tensor:
    """Y, [n, h_out]. `rest`: the rows of the graphs that bits cannot hold; then their CSR."""
    from .kernels import csr, csr_layer, layer, wide

    graphs = layer.Graphs(scale, ptr, bits, tile, graph, row, large_graph, large_row)
    weight, bias = weight.contiguous(), None if bias is None else bias.contiguous()
    if is_fused(weight):
        out = x.new_empty(x.shape[0], weight.shape[2])
        layer.forward(x, weight, bias, graphs, out, relu=relu, dataset_x=False)
    else:
        out = wide.forward(x, weight, bias, graphs, relu=relu)
    if rest is not None:
        matrix = csr.CSR(rowptr, col, value)
        part = csr_layer.forward(x.index_select(0, rest), weight, bias, matrix, relu=relu)
        out.index_copy_(0, rest, part)
    return out


@_flex_conv_tiles.register_fake
def _(x, weight, bias, *structure_and_relu):  # type: ignore[no-untyped-def]
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
    rest: Tensor | None,
    rowptr: Tensor | None,
    col: Tensor | None,
    value: Tensor | None,
    rowptr_t: Tensor | None,
    col_t: Tensor | None,
    value_t: Tensor | None,
    needs_dx: bool,
    needs_dw: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dX, dW, db); one that is not needed is empty. `y` is the output of a layer with a ReLU."""
    from .kernels import csr, csr_layer, layer, wide

    graphs = layer.Graphs(scale, ptr, bits, tile, graph, row, large_graph, large_row)
    grad, weight = grad.contiguous(), weight.contiguous()
    dx, dw, db = x.new_empty(0), weight.new_empty(0), weight.new_empty(0)
    if is_fused(weight):
        if needs_dx:
            dx = layer.input_grad(grad, y, weight, graphs, torch.empty_like(x))
        if needs_dw:
            pair = layer.weight_grad(x, grad, y, weight.shape[0], graphs, dataset_x=False)
            dw, db = (t.to(weight.dtype, copy=True) for t in pair)
    else:
        grad, y = masked(grad, y), None
        parts = wide.backward(grad, x, weight, graphs, rest, needs_dx=needs_dx, needs_dw=needs_dw)
        dx, dw = (empty if t is None else t for t, empty in zip(parts, (dx, dw), strict=True))
        db = grad.sum(0) if needs_dw else db
    if rest is not None:
        matrices = csr.CSR(rowptr, col, value), csr.CSR(rowptr_t, col_t, value_t)
        g = masked(grad.index_select(0, rest), None if y is None else y.index_select(0, rest))
        x = x.index_select(0, rest)
        dx_rest, dw_rest = csr_layer.backward(g, x, weight, *matrices, needs_dx=needs_dx)
        if dx_rest is not None:
            dx.index_copy_(0, rest, dx_rest)
        if needs_dw:
            dw += dw_rest
            if is_fused(weight):  # whose own sum has the other rows alone
                db += g.sum(0)
    return dx, dw, db


@_flex_conv_tiles_backward.register_fake
def _(grad, x, y, weight, *structure_and_needs):  # type: ignore[no-untyped-def]
    needs_dx, needs_dw = structure_and_needs[-2:]
    dx = torch.empty_like(x) if needs_dx else x.new_empty(0)
    dw = torch.empty_like(weight, memory_format=torch.contiguous_format)
    db = weight.new_empty(weight.shape[2])
    return (dx, dw, db) if needs_dw else (dx, weight.new_empty(0), weight.new_empty(0))


def _setup(ctx, inputs, output):  # type: ignore[no-untyped-def]
    x, weight, bias, *structure, relu = inputs
    # A layer's output is the next one's input: keeping it for the ReLU costs nothing more.
    ctx.save_for_backward(x, output if relu else None, weight, *structure)
    ctx.has_bias = bias is not None


def _grad(ctx, grad):  # type: ignore[no-untyped-def]
    rest, rowptr_t = ctx.saved_tensors[-7], ctx.saved_tensors[-3]
    if rest is not None:
        require_transpose(rowptr_t)
    needs_dx, needs_dw, needs_db = ctx.needs_input_grad[:3]
    dx, dw, db = torch.ops.grant_fast.flex_conv_tiles_backward(
        grad, *ctx.saved_tensors, needs_dx, needs_dw or needs_db
    )
    return (
        dx if needs_dx else None,
        dw if needs_dw else None,
        db if needs_db and ctx.has_bias else None,
        *[None] * 16,
    )


_flex_conv_tiles.register_autograd(_grad, setup_context=_setup)


def flex_conv_tiles(
    x: Tensor, weight: Tensor, bias: Tensor | None, adjacency: BatchAdjacency, relu: bool
) -> Tensor:
    """act(Σ_k Â^k X W_k + b) of a batch whose edges are kept as bits."""
    operands = (x.contiguous(), weight, bias, *structure(adjacency), relu)
    return torch.ops.grant_fast.flex_conv_tiles(*operands)


def structure(adjacency: BatchAdjacency) -> tuple[Tensor | None, ...]:
    """What the operator takes of a batch: tables of the tiles, and rows and CSR of the rest."""
    batch = adjacency.batch
    bits, tiles = batch.graphs.bits, batch.tiles
    assert bits is not None and tiles is not None, "only unweighted graphs have these"
    *tables, _ = tiles
    scale = batch.graphs.scale if adjacency.normalize else None
    others: tuple[Tensor | None, ...] = (None,) * 7
    if batch.rest is not None:
        graphs, rows = batch.rest
        part = graphs.adjacency(adjacency.normalize)
        others = (rows, *part.csr, *transposed_if_needed(part))
    return (scale, batch.graphs.ptr, bits.bits, *tables, *others)
