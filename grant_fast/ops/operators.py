"""The operators: what they mean, what they check, and who computes them.

Each is registered with `torch.library`, with a fake and an autograd formula, so that
`torch.compile` takes it whole. The PyTorch path in `reference.py` serves every device; the Triton
kernels (`tiled.py`, `sparse.py`, `pooled.py`) and those for CPUs (`native/`) stand beside it,
`dispatch.py` chooses, and the choice never changes the meaning.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .. import native, reference
from ..adjacency import Adjacency
from ..batches import GraphBatch
from ..batches.edges import BatchAdjacency
from ..errors import InputError
from ..indexing import take
from . import dispatch, pooled
from .registration import operator
from .sparse import MATRIX, flex_conv_csr, matrix_of, require_transpose
from .tiled import flex_conv_in_dataset, flex_conv_tiles

if TYPE_CHECKING:
    from ..graphs.flat import FlatGraphs


@operator(
    "flex_conv",
    f"(Tensor x, Tensor weight, Tensor? bias, bool compiled, {MATRIX}) -> Tensor",
)
def _flex_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, compiled: bool, *csr: Tensor
) -> Tensor:
    return reference.flex_conv(x, weight, bias, *csr[:3], spmm=_spmm_by(compiled))


def _spmm_by(compiled: bool) -> Callable[..., Tensor]:
    """Who multiplies with a sparse matrix: the compiled kernel where it may, or PyTorch."""
    return native.spmm if compiled else reference.spmm


@_flex_conv.register_fake
def _(x, weight, bias, compiled, *csr):  # type: ignore[no-untyped-def]
    return x.new_empty(x.shape[0], weight.shape[2])


@operator(
    "flex_conv_backward",
    "(Tensor grad, Tensor x, Tensor weight, bool needs_dx, bool needs_dvalue, bool compiled, "
    f"{MATRIX}) -> (Tensor, Tensor, Tensor)",
)
def _flex_conv_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    needs_dx: bool,
    needs_dvalue: bool,
    compiled: bool,
    *csr: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dX, dW, dvalue); one that is not needed is empty."""
    grad, value, spmm = grad.contiguous(), csr[2], _spmm_by(compiled)
    dx, dw = reference.flex_conv_backward(grad, x, weight, *csr, needs_dx=needs_dx, spmm=spmm)
    dvalue = value.new_empty(0)
    if needs_dvalue:
        dvalue = reference.flex_conv_value_grad(grad, x, weight, *csr, spmm=spmm)
    return x.new_empty(0) if dx is None else dx, dw, dvalue


@_flex_conv_backward.register_fake
def _(grad, x, weight, needs_dx, needs_dvalue, compiled, rowptr, col, value, *transposed):  # type: ignore[no-untyped-def]
    dx = torch.empty_like(x) if needs_dx else x.new_empty(0)
    return dx, torch.empty_like(weight), value.new_empty(value.shape if needs_dvalue else 0)


def _flex_conv_setup(ctx, inputs, output):  # type: ignore[no-untyped-def]
    x, weight, _, ctx.compiled, *csr = inputs
    ctx.save_for_backward(x, weight, *csr)


def _flex_conv_grad(ctx, grad):  # type: ignore[no-untyped-def]
    x, weight, *csr = ctx.saved_tensors
    require_transpose(csr[3])
    needs_dx, _, needs_db, _, _, _, needs_dvalue = ctx.needs_input_grad[:7]
    dx, dw, dvalue = torch.ops.grant_fast.flex_conv_backward(
        grad, x, weight, needs_dx, needs_dvalue, ctx.compiled, *csr
    )
    db = grad.sum(0) if needs_db else None
    dvalue = dvalue if needs_dvalue else None
    return dx if needs_dx else None, dw, db, *[None] * 3, dvalue, *[None] * 3


_flex_conv.register_autograd(_flex_conv_grad, _flex_conv_setup)


@operator("spmm", f"(Tensor x, bool compiled, {MATRIX}) -> Tensor")
def _spmm(x: Tensor, compiled: bool, *csr: Tensor) -> Tensor:
    return _spmm_by(compiled)(*csr[:3], x.contiguous())


@_spmm.register_fake
def _(x, compiled, rowptr, *others):  # type: ignore[no-untyped-def]
    return x.new_empty(rowptr.shape[0] - 1, x.shape[1])


def _spmm_setup(ctx, inputs, output):  # type: ignore[no-untyped-def]
    ctx.compiled = inputs[1]
    ctx.save_for_backward(*inputs[5:])


def _spmm_grad(ctx, grad):  # type: ignore[no-untyped-def]
    dx = torch.ops.grant_fast.spmm(grad, ctx.compiled, *ctx.saved_tensors, None, None, None)
    return dx, *[None] * 7


_spmm.register_autograd(_spmm_grad, _spmm_setup)


def flex_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    adjacency: Adjacency,
    *,
    relu: bool = False,
    backend: str | None = None,
) -> Tensor:
    """Y = act(Σ_{k<κ} Â^k X W_k + b) (paper §4.1, the flexible GCN layer).

    Args:
        x: X, [n, h_in], floating.
        weight: W, [κ, h_in, h_out], the dtype of `x` (autocast aside).
        bias: b, [h_out], or None.
        adjacency: Â, [n, n], row = target. Its values may require gradients.
        relu: act is a ReLU instead of the identity.
        backend: "auto", "triton", "torch" or "reference", see `dispatch.takes_kernels`.

    Returns:
        Y, [n, h_out]. Differentiable once in x, weight, bias and the adjacency's values; the only
        activation kept for that is `x` itself (and with a ReLU the result). By "reference" it is
        differentiable any number of times, and κ activations are kept.

    Raises:
        InputError: shapes or dtypes that do not fit, or a backend that cannot compute this.
    """
    check_features(x, weight)
    _check_bias(bias, weight)
    if adjacency.num_nodes != x.shape[0]:
        raise InputError(f"x has {x.shape[0]} nodes, but the adjacency has {adjacency.num_nodes}")
    if not autocasts(x):
        return _flex_conv_by(x, weight, bias, adjacency, relu, backend)
    # As for torch.nn.Linear: the products run in autocast's dtype. The hops sum in float32.
    low = x.dtype if x.dtype == torch.float64 else torch.get_autocast_dtype(x.device.type)
    x, weight, bias = x.to(low), weight.to(low), None if bias is None else bias.to(low)
    with torch.autocast(x.device.type, enabled=False):
        return _flex_conv_by(x, weight, bias, adjacency, relu, backend)


def check_features(x: Tensor, weight: Tensor) -> None:
    if x.layout != torch.strided:
        raise InputError("x is a sparse tensor: give x.to_dense()")
    if x.dim() != 2 or weight.dim() != 3 or x.shape[1] != weight.shape[1]:
        raise InputError(
            f"x has shape {tuple(x.shape)}, but this layer takes [num_nodes, {weight.shape[1]}]"
        )
    _check_device("x is", x, weight)
    if not x.is_floating_point():
        raise InputError(f"x is {x.dtype}: cast it to float, or embed categories with an encoder")
    if _are_apart(x, weight):
        raise InputError(f"x is {x.dtype} but the weights are {weight.dtype}: cast one of them")


def _are_apart(one: Tensor, other: Tensor) -> bool:
    """Whether their dtypes do not go together; autocast casts all but float64."""
    casts = autocasts(one) and torch.float64 not in (one.dtype, other.dtype)
    return one.dtype != other.dtype and not casts


def _check_bias(bias: Tensor | None, weight: Tensor) -> None:
    if bias is None:
        return
    if bias.shape != weight.shape[2:]:
        raise InputError(
            f"the bias has shape {tuple(bias.shape)}, but this layer needs [{weight.shape[2]}]: "
            "give one number for each channel of its output"
        )
    _check_device("the bias is", bias, weight)
    if _are_apart(bias, weight):
        raise InputError(
            f"the bias is {bias.dtype} but the weights are {weight.dtype}: cast one of them"
        )


def _check_device(name: str, x: Tensor, weight: Tensor) -> None:
    if x.device != weight.device:
        raise InputError(
            f"{name} on {x.device} but the weights are on {weight.device}: move one with "
            ".to(device)"
        )


def _flex_conv_by(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    adjacency: Adjacency,
    relu: bool,
    backend: str | None,
) -> Tensor:
    if dispatch.is_reference(backend):
        out = reference.smooth_flex_conv(x, weight, bias, *adjacency.csr)
        return out.relu() if relu else out
    if not dispatch.takes_kernels(x, backend):
        if _is_readable(bias) and dispatch.takes_native(x, adjacency, weight, backend):
            return native.flex_conv(x, weight, bias, adjacency, relu)
        matrix, compiled = matrix_of(adjacency), dispatch.allows_native(backend)
        out = torch.ops.grant_fast.flex_conv(x.contiguous(), weight, bias, compiled, *matrix)
        return out.relu_() if relu else out
    if isinstance(adjacency, BatchAdjacency) and adjacency.batch.tiles is not None:
        return flex_conv_tiles(x, weight, bias, adjacency, relu)
    return flex_conv_csr(x, weight, bias, adjacency, relu)


def _is_readable(bias: Tensor | None) -> bool:
    """Whether the CPU kernels could add it, where they take the weights."""
    return bias is None or native.is_readable(bias)


def is_one_kernel(weight: Tensor, batch: GraphBatch, backend: str | None) -> bool:
    """Whether `flex_conv` is one kernel that reads each row of X once, whatever the order."""
    if not dispatch.takes_kernels(weight, backend):
        return False
    return dispatch.is_fused(weight) and batch.tiles is not None


def spmm(x: Tensor, adjacency: Adjacency, backend: str | None = None) -> Tensor:
    """A @ x, [rows, h], differentiable in x; A may be rectangular (a pooling matrix). InputError
    where x has not one row for each column."""
    if x.shape[0] != adjacency.num_cols:
        raise InputError(f"x has {x.shape[0]} nodes, but the matrix is for {adjacency.num_cols}")
    if dispatch.is_reference(backend):
        return reference.smooth_spmm(*adjacency.csr, x)
    matrix, compiled = matrix_of(adjacency), dispatch.allows_native(backend)
    if not autocasts(x):
        return torch.ops.grant_fast.spmm(x, compiled, *matrix)
    with torch.autocast(x.device.type, enabled=False):
        return torch.ops.grant_fast.spmm(x, compiled, *matrix)


def autocasts(x: Tensor) -> bool:
    device = x.device.type
    # `is_autocast_available` would be the question, but torch 2.11 cannot compile it.
    return device != "meta" and torch.is_autocast_enabled(device)


def hops_product(
    batch: GraphBatch,
    weight: Tensor,
    bias: Tensor | None,
    normalize: bool,
    relu: bool,
    backend: str | None = None,
) -> Tensor | None:
    """act(Σ_{k<κ} Â^k X W_k + b) of the dataset's constant features, which need not be gathered.

    It is one product with the cached [X, ÂX, …]; or the kernel that hops on chip, which reads X
    where the dataset holds it, and κ times less than the cache.

    Args:
        batch: B graphs of n nodes in all.
        weight: W, [κ, h_in, h_out].  bias: b, [h_out] or None.
        normalize, relu, backend: as for `flex_conv`.

    Returns:
        [n, h_out]; None where the dataset keeps no such cache (`PackedGraphs.hops`), where X has
        a gradient, or where the kernel needs X cast.

    Raises:
        InputError: the dataset's features are not h_in wide, or they or the bias not of the
            weights' dtype, or device.
    """
    order, h_in, _ = weight.shape
    adjacency, x = batch.adjacency(normalize), batch.graphs.x
    _check_bias(bias, weight)
    if x.requires_grad and torch.is_grad_enabled():
        return None
    if is_one_kernel(weight, batch, backend):
        if x.dtype != weight.dtype or x.shape[1] != h_in or autocasts(x):
            return None
        return flex_conv_in_dataset(x, None, weight, bias, adjacency, relu)
    hops = batch.graphs.hops(order, normalize)
    if hops is None:
        return None
    _check_device("the graphs are", hops, weight)
    if hops.shape[1] != order * h_in:
        raise InputError(f"x has {hops.shape[1] // order} features, but in_channels={h_in}")
    if _are_apart(hops, weight):
        raise InputError(
            f"the graphs are {hops.dtype} but the weights are {weight.dtype}: convert the graphs "
            "with graphs.to(dtype=…), or the model"
        )
    flat = weight.flatten(0, 1)
    readable = _is_readable(bias) and not autocasts(hops)
    if readable and dispatch.takes_native(hops, adjacency, weight, backend):
        return native.flex_conv(hops, flat[None], bias, adjacency, relu, packed=True)
    out = torch.nn.functional.linear(take(hops, batch.nodes), flat.T, bias)
    return out.relu_() if relu else out


def embedded_flex_conv(
    encode: "Callable[[FlatGraphs], Tensor]",
    batch: GraphBatch,
    weight: Tensor,
    bias: Tensor | None,
    normalize: bool,
    relu: bool,
    backend: str | None = None,
) -> Tensor | None:
    """`flex_conv` of embedded kinds of nodes, by the kernel that reads 4 bytes a node for them.

    Args:
        encode: gives a row of X, [m, h_in], for each of a dataset's m kinds of nodes.
        weight, bias, normalize, relu, backend: as for `hops_product`.

    Returns:
        [n, h_out]; None where there are no kinds, or X has to be made.
    """
    kinds, adjacency = batch.graphs.kinds, batch.adjacency(normalize)
    if kinds is None or autocasts(weight) or not is_one_kernel(weight, batch, backend):
        return None
    x = encode(batch.graphs)
    check_features(x, weight)
    _check_bias(bias, weight)
    return flex_conv_in_dataset(x, kinds[1], weight, bias, adjacency, relu)


def readout(
    x: Tensor,
    batch: GraphBatch,
    order: int,
    normalize: bool,
    mean: bool,
    backend: str | None = None,
) -> Tensor:
    """[ρX, ρÂX, …, ρÂ^{κ-1}X], [B, κh]: what a pooled last layer of order κ is a product with.

    Args:
        x: [n, h], the batch's nodes; differentiable in it.
        mean: ρ is the mean over each graph instead of the sum; an empty graph gives 0.
        backend: as for `flex_conv`.

    Raises:
        InputError: x has not one row for each node.
    """
    if x.shape[0] != batch.num_nodes:
        raise InputError(f"x has {x.shape[0]} nodes, but the batch has {batch.num_nodes}")
    if dispatch.takes_kernels(x, backend):
        return pooled.readout(x, batch, order, normalize, mean)
    return torch.cat([spmm(x, rho, backend) for rho in batch.readout(order, normalize, mean)], 1)


def embed(table: Tensor, batch: GraphBatch) -> Tensor:
    """table[kind], [n, h]: one row of `table` for each kind of node (`PackedGraphs.kinds`)."""
    kinds = batch.graphs.kinds
    assert kinds is not None, "the dataset has kinds of nodes"
    return torch.nn.functional.embedding(take(kinds[1], batch.nodes), table)


def takes_network(weight: Tensor, adjacency: Adjacency | None, backend: str | None) -> bool:
    """Whether a network with this first weight can run in one pass (`native.Network`)."""
    return not autocasts(weight) and dispatch.takes_native(weight, adjacency, backend=backend)
