"""One layer: `kernels/cpu/layer.h`."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..adjacency import Adjacency
from ..batches.edges import LearnedAdjacency
from ..gradients import apply, once_differentiable, one_at_a_time
from .loading import aside, by_rows, call, threads
from .structure import degree, split

if TYPE_CHECKING:
    from ..graphs.flat import FlatGraphs


class _FlexConv(torch.autograd.Function):
    """Y = act(Σ_k Â^k X W_k + b); `packed`: X has a row for every node of the dataset. `value` are
    the edges' weights where they learn: what is computed with is the adjacency's copy of them."""

    @staticmethod
    def forward(ctx, x, weight, bias, adjacency, relu, packed, value):  # type: ignore[no-untyped-def]
        x, weight, bias = by_rows(x).detach(), aside(weight), None if bias is None else aside(bias)
        order, h_in, h_out = weight.shape
        struct, parts = split(adjacency, 1)
        y = x.new_empty(adjacency.batch.num_nodes, h_out)
        call(
            "flex_conv_forward",
            *(struct, parts, threads(), x, x.stride(0), packed),
            *(order, h_in, h_out, relu, weight, bias, y),
        )
        ctx.save_for_backward(x, weight, y if relu else None)
        ctx.adjacency, ctx.packed = adjacency, packed
        return y

    @staticmethod
    @once_differentiable
    @one_at_a_time
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        x, weight, y = ctx.saved_tensors
        x = by_rows(x)  # a hook of saved tensors may have copied overlapping rows
        order, h_in, h_out = weight.shape
        needs_dx, _, needs_db = ctx.needs_input_grad[:3]
        struct, parts = split(ctx.adjacency, 4 * weight.numel())
        dx = x.new_empty(x.shape) if needs_dx else None  # x's own rows may overlap
        dw = torch.empty_like(weight)
        db = weight.new_empty(h_out) if needs_db else None
        dvalue = None
        if ctx.needs_input_grad[6]:  # without hops it is 0
            dvalue = x.new_zeros(ctx.adjacency.batch.num_edges)
        call(
            "flex_conv_backward",
            *(struct, parts, threads(), x, x.stride(0), ctx.packed),
            *(order, h_in, h_out, y is not None, weight, y),
            *(grad.resolve_neg().contiguous(), dx, dw, db, dvalue),
        )
        return dx, dw, db, None, None, None, dvalue


def flex_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    adjacency: Adjacency,
    relu: bool,
    packed: bool = False,
) -> Tensor:
    """Y = act(Σ_{k<κ} Â^k X W_k + b), [n, h_out], differentiable once in x, weight and bias, and in
    the weights of a `LearnedAdjacency`.

    Args:
        x: X, [n, h_in]; with `packed`, [N, h_in] for all nodes of the dataset, without gradient.
        weight: [κ, h_in, h_out].  bias: [h_out] or None.
        adjacency: of a batch that `takes` says yes to.
        relu: act is a ReLU instead of the identity.
    """
    value = adjacency.value if isinstance(adjacency, LearnedAdjacency) else None
    return apply(_FlexConv, x, weight, bias, adjacency, relu, packed, value)


def first_source(weight: Tensor, graphs: "FlatGraphs", few: bool) -> str:
    """What a first layer of weights [κ, h_in, h_out] on constant features is fastest from.

    "dataset": the features; "hops": the dataset's cached [X, ÂX, …], for one product; "kinds": the
    distinct rows among the features, if they are `few`.
    """
    return ("dataset", "hops", "kinds")[call("first_source", degree(graphs), *weight.shape, few)]
