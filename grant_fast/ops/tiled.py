"""The flexible layer on graphs kept as bits: the operator that the Triton kernels compute.

Registered with a fake and an autograd formula, so that `torch.compile` takes it whole. The kernels
are imported when it first runs. Graphs of a batch that bits cannot hold go through the kernels for
CSR, within the same operator: their rows are taken out, computed, and put in their place.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..batches import GraphBatch
from ..batches.edges import BatchAdjacency
from .dispatch import is_fused
from .registration import operator
from .sparse import masked, matrix_of, require_transpose

if TYPE_CHECKING:
    from ..kernels import layer

#: What the operator takes of a batch: `layer.Graphs`, the rows of the graphs that bits cannot hold,
#: and their CSR, as in `sparse.MATRIX`.
STRUCTURE = (
    "Tensor? scale, Tensor ptr, Tensor bits, Tensor word, Tensor row_scale, Tensor row, "
    "Tensor node, Tensor one_plane, Tensor two_planes, Tensor three_planes, Tensor four_planes, "
    "Tensor? rest, Tensor? rowptr, Tensor? col, Tensor? value, "
    "Tensor? rowptr_t, Tensor? col_t, Tensor? value_t"
)
_GRAPHS = 11  # so many of them, from the first, are `layer.Graphs`


@operator(
    "flex_conv_tiles",
    "(Tensor x, Tensor? code, Tensor? index, Tensor weight, Tensor? bias, "
    f"int? rows, bool relu, {STRUCTURE}) -> Tensor",
)
def _flex_conv_tiles(
    x: Tensor,
    code: Tensor | None,
    index: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    rows: int | None,
    relu: bool,
    *structure: Any,
) -> Tensor:
    """Y, [n, h_out].

    Args:
        x: [n, h_in]; where `rows` says what n is, for the nodes of the dataset, [N, h_in], or with
            `code` for their kinds.
        code: [N] int32, the kind of each node.
        index: [n] int32 or int64, the row of `x` that each row of the batch takes: for the graphs
            that bits cannot hold, and for the gradient of the kinds. None where neither asks.
        structure: see `STRUCTURE`.
    """
    from ..kernels import csr, csr_layer, layer, wide

    graphs, (rest, *matrices) = layer.Graphs(*structure[:_GRAPHS]), structure[_GRAPHS:]
    weight, bias = weight.contiguous(), None if bias is None else bias.contiguous()
    if is_fused(weight):
        out = x.new_empty(x.shape[0] if rows is None else rows, weight.shape[2])
        place = {"dataset_x": rows is not None, "code": code}
        layer.forward(x, weight, bias, graphs, out, relu=relu, **place)
    else:
        out = wide.forward(x, weight, bias, graphs, relu=relu)
    if rest is not None:
        part = x.index_select(0, rest if index is None else index.index_select(0, rest))
        part = csr_layer.forward(part, weight, bias, csr.CSR(*matrices[:3]), relu=relu)
        out.index_copy_(0, rest, part)
    return out


@_flex_conv_tiles.register_fake
def _(x, code, index, weight, bias, rows, relu, *structure):  # type: ignore[no-untyped-def]
    return x.new_empty(x.shape[0] if rows is None else rows, weight.shape[2])


@operator(
    "flex_conv_tiles_backward",
    "(Tensor grad, Tensor x, Tensor? code, Tensor? index, Tensor? y, Tensor weight, "
    "bool in_dataset, bool needs_dx, bool needs_dw, "
    f"{STRUCTURE}) -> (Tensor, Tensor, Tensor)",
)
def _flex_conv_tiles_backward(
    grad: Tensor,
    x: Tensor,
    code: Tensor | None,
    index: Tensor | None,
    y: Tensor | None,
    weight: Tensor,
    in_dataset: bool,
    needs_dx: bool,
    needs_dw: bool,
    *structure: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dX, dW, db); one that is not needed is empty. `y` is the output of a layer with a ReLU.

    With `code`, dX is that of the kinds.
    """
    from ..kernels import csr, csr_layer, kinds, layer, wide

    graphs, (rest, *matrices) = layer.Graphs(*structure[:_GRAPHS]), structure[_GRAPHS:]
    grad, weight = grad.contiguous(), weight.contiguous()
    dx, dw, db = x.new_empty(0), weight.new_empty(0), weight.new_empty(0)
    if is_fused(weight):
        out = grad.new_empty(grad.shape[0], x.shape[1]) if needs_dx else None
        settings = {"needs_dw": needs_dw, "dataset_x": in_dataset, "code": code}
        pair = layer.backward(grad, y, x, weight, graphs, out, **settings)
        dx = dx if out is None else out
        if pair is not None:
            dw, db = (t.to(weight.dtype) for t in pair)
    else:
        grad, y = masked(grad, y), None
        parts = wide.backward(grad, x, weight, graphs, rest, needs_dx=needs_dx, needs_dw=needs_dw)
        dx, dw = (empty if t is None else t for t, empty in zip(parts, (dx, dw), strict=True))
        db = grad.sum(0) if needs_dw else db
    if rest is not None:
        a, a_t = csr.CSR(*matrices[:3]), csr.CSR(*matrices[3:])
        g = masked(grad.index_select(0, rest), None if y is None else y.index_select(0, rest))
        part = x.index_select(0, rest if index is None else index.index_select(0, rest))
        dx_rest, dw_rest = csr_layer.backward(g, part, weight, a, a_t, needs_dx=needs_dx)
        if dx_rest is not None:
            dx.index_copy_(0, rest, dx_rest)
        if needs_dw:
            dw += dw_rest
            if is_fused(weight):  # whose kernel summed the other rows only
                db += g.sum(0)
    if needs_dx and index is not None:
        dx = kinds.sums(dx, index, len(x))  # without padding (`PaddedBatch`), of kind len(x)
    return dx, dw, db


@_flex_conv_tiles_backward.register_fake
def _(grad, x, code, index, y, weight, in_dataset, needs_dx, needs_dw, *structure):  # type: ignore[no-untyped-def]
    dx = torch.empty_like(x) if needs_dx else x.new_empty(0)
    dw = torch.empty_like(weight, memory_format=torch.contiguous_format)
    db = weight.new_empty(weight.shape[2])
    return (dx, dw, db) if needs_dw else (dx, weight.new_empty(0), weight.new_empty(0))


def _setup(ctx, inputs, output):  # type: ignore[no-untyped-def]
    x, code, index, weight, _, rows, relu, *structure = inputs
    # A layer's output is the next one's input: keeping it for the ReLU costs nothing more.
    ctx.save_for_backward(x, code, index, output if relu else None, weight, *structure)
    ctx.in_dataset = rows is not None


def _grad(ctx, grad):  # type: ignore[no-untyped-def]
    operands, structure = ctx.saved_tensors[:5], ctx.saved_tensors[5:]
    rest, *matrices = structure[_GRAPHS:]
    if rest is not None:
        require_transpose(matrices[3])
    needs_dx, _, _, needs_dw, needs_db = ctx.needs_input_grad[:5]
    needs = needs_dx, needs_dw or needs_db
    dx, dw, db = torch.ops.grant_fast.flex_conv_tiles_backward(
        grad, *operands, ctx.in_dataset, *needs, *structure
    )
    return (
        dx if needs_dx else None,
        None,
        None,
        dw if needs_dw else None,
        db if needs_db else None,
        *[None] * (2 + len(structure)),
    )


_flex_conv_tiles.register_autograd(_grad, _setup)


def flex_conv_tiles(
    x: Tensor, weight: Tensor, bias: Tensor | None, adjacency: BatchAdjacency, relu: bool
) -> Tensor:
    """act(Σ_k Â^k X W_k + b) of a batch whose edges are kept as bits."""
    operands = (x.contiguous(), None, None, weight, bias, None, relu, *structure(adjacency))
    return torch.ops.grant_fast.flex_conv_tiles(*operands)


def flex_conv_in_dataset(
    x: Tensor,
    code: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    adjacency: BatchAdjacency,
    relu: bool,
) -> Tensor:
    """`flex_conv_tiles` of the dataset's X, read where it lies: no batch of it is gathered.

    Args:
        x: [N, h_in], without gradient; or, with `code`, one row for each kind of node, of which the
            gradient is taken.
        code: [N] int32, the kind of each node (`PackedGraphs.kinds`).
        weight: of a layer that is one kernel (`dispatch.is_fused`).
    """
    batch, index = adjacency.batch, None
    learned = code is not None and x.requires_grad and torch.is_grad_enabled()
    if learned or batch.rest is not None:
        nodes = batch.nodes
        if code is not None:
            index = batch.of_nodes(code, len(x))
        elif isinstance(nodes, slice):
            return flex_conv_tiles(x[nodes], weight, bias, adjacency, relu)
        else:
            index = nodes
    rows = batch.num_nodes
    operands = (x.contiguous(), code, index, weight, bias, rows, relu, *structure(adjacency))
    return torch.ops.grant_fast.flex_conv_tiles(*operands)


def kernel_graphs(batch: GraphBatch, normalize: bool) -> "layer.Graphs":
    """A batch of unweighted graphs as the kernels see it."""
    from ..kernels import layer

    graphs, tiles, rows = batch.graphs, batch.tiles, batch.tile_rows
    assert graphs.bits is not None and tiles is not None and rows is not None
    scale = graphs.scale if normalize else None
    word, row_scale, row, node = rows
    tables = graphs.bits.bits, word, row_scale, row, node
    return layer.Graphs(scale, graphs.kernel_ptr, *tables, *tiles.larger)


def structure(adjacency: BatchAdjacency) -> tuple[Tensor | None, ...]:
    """`STRUCTURE`: tables of the tiles, and rows and CSR of the rest."""
    batch = adjacency.batch
    others: tuple[Tensor | None, ...] = (None,) * 7
    if batch.rest is not None:
        graphs, rows = batch.rest
        others = (rows, *matrix_of(graphs.adjacency(adjacency.normalize)))
    return (*kernel_graphs(batch, adjacency.normalize), *others)
