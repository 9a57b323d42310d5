"""The operators: what they mean and what they check.

Whoever computes one is registered beside this module (`tiled.py`, `sparse.py`, …), with a fake and
an autograd formula, so that `torch.compile` takes it whole. The CPU kernels, in `native/`, are
called directly, and step aside while a compiler traces. The PyTorch path in `reference.py` serves
every device; `dispatch.py` chooses, and the choice never changes the meaning.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, cast

import torch
from torch import Tensor

from .. import native, reference
from ..adjacency import Adjacency
from ..batches import GraphBatch
from ..batches.edges import BatchAdjacency
from ..errors import InputError
from ..indexing import take
from . import dispatch, embedded, pooled
from .sparse import flex_conv_csr, matrix_of
from .tiled import flex_conv_in_dataset, flex_conv_tiles

if TYPE_CHECKING:
    from ..graphs.flat import FlatGraphs

Source = Literal["dataset", "kinds", "hops", "batch"]


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
        raise InputError(
            f"x has {x.shape[0]} nodes, but the adjacency has {adjacency.num_nodes}: give one row "
            "for each"
        )
    if not autocasts(x):
        return _flex_conv_by(x, weight, bias, adjacency, relu, backend)
    # As for torch.nn.Linear: the products run in autocast's dtype. The hops sum in float32.
    low = x.dtype if x.dtype == torch.float64 else torch.get_autocast_dtype(x.device.type)
    x, weight, bias = x.to(low), weight.to(low), None if bias is None else bias.to(low)
    with torch.autocast(x.device.type, enabled=False):
        return _flex_conv_by(x, weight, bias, adjacency, relu, backend)


def check_features(x: Tensor, weight: Tensor) -> None:
    """Refuse X that a layer of these weights [κ, h_in, h_out] cannot take (InputError)."""
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
    who = dispatch.choose(x, weight, bias, adjacency, backend).who
    if who == "native":
        return native.flex_conv(x, weight, bias, adjacency, relu)
    if who == "tiles":
        return flex_conv_tiles(x, weight, bias, cast(BatchAdjacency, adjacency), relu)
    if who == "reference":
        out = reference.smooth_flex_conv(x, weight, bias, *adjacency.csr)
        return out.relu() if relu else out
    by = "triton" if who == "csr" else dispatch.products_by(backend)
    return flex_conv_csr(x, weight, bias, adjacency, relu, by)


def spmm(x: Tensor, adjacency: Adjacency, backend: str | None = None) -> Tensor:
    """A @ x, [rows, h], differentiable in x; A may be rectangular (a pooling matrix). InputError
    where x has not one row for each column."""
    if x.shape[0] != adjacency.num_cols:
        raise InputError(f"x has {x.shape[0]} nodes, but the matrix is for {adjacency.num_cols}")
    if dispatch.is_reference(backend):
        return reference.smooth_spmm(*adjacency.csr, x)
    matrix, by = matrix_of(adjacency), dispatch.products_by(backend)
    if not autocasts(x):
        return torch.ops.grant_fast.spmm(x, by, *matrix)
    with torch.autocast(x.device.type, enabled=False):
        return torch.ops.grant_fast.spmm(x, by, *matrix)


def autocasts(x: Tensor) -> bool:
    """Whether autocast is on where X lies."""
    device = x.device.type
    # `is_autocast_available` would be the question, but torch 2.11 cannot compile it.
    return device != "meta" and torch.is_autocast_enabled(device)


def reads(
    weight: Tensor,
    batch: GraphBatch,
    normalize: bool,
    backend: str | None,
    encode: "Callable[[FlatGraphs], Tensor] | None" = None,
) -> Source:
    """What a first layer reads: the dataset's X where it lies or, with `encode`, the rows of its
    kinds, by the kernel that hops on chip; the cached [X, ÂX, …]; or the batch's own rows.

    Args:
        weight: W, [κ, h_in, h_out].  normalize, backend: as for `flex_conv`.
        encode: gives a row of X, [m, h_in], for each of a dataset's m kinds of nodes; None where X
            is the dataset's.
    """
    graphs, x = batch.graphs, batch.graphs.x
    adjacency = batch.adjacency(normalize)
    who = dispatch.choose(weight, weight, None, adjacency, backend).who
    one_kernel = who == "tiles" and dispatch.is_fused(weight)
    if encode is not None:
        known = one_kernel and graphs.kinds is not None and not autocasts(weight)
        return "kinds" if known else "batch"
    if x.requires_grad and torch.is_grad_enabled():
        return "batch"
    if one_kernel:
        fits = x.dtype == weight.dtype and x.shape[1] == weight.shape[1]
        return "dataset" if fits and not autocasts(x) else "batch"
    return "batch" if graphs.hops(weight.shape[0], normalize) is None else "hops"


def first_flex_conv(
    source: Source,
    batch: GraphBatch,
    weight: Tensor,
    bias: Tensor | None,
    normalize: bool,
    relu: bool,
    backend: str | None = None,
    encode: "Callable[[FlatGraphs], Tensor] | None" = None,
) -> Tensor:
    """`flex_conv` of what the dataset keeps, gathering no rows; [n, h_out]. Args as for `reads`.

    Raises:
        InputError: the dataset's features are not h_in wide, or they or the bias not of the
            weights' dtype, or device.
    """
    adjacency, graphs = batch.adjacency(normalize), batch.graphs
    _check_bias(bias, weight)
    if source == "dataset":
        return flex_conv_in_dataset(graphs.x, None, weight, bias, adjacency, relu)
    if source == "kinds":
        assert encode is not None and graphs.kinds is not None, "`reads` looked for them"
        x = encode(graphs)
        check_features(x, weight)
        return flex_conv_in_dataset(x, graphs.kinds[1], weight, bias, adjacency, relu)
    (order, h_in, _), hops = weight.shape, graphs.hops(weight.shape[0], normalize)
    assert hops is not None, "`reads` looked for them"
    _check_device("the graphs are", hops, weight)
    if hops.shape[1] != order * h_in:
        raise InputError(f"x has {hops.shape[1] // order} features, but in_channels={h_in}")
    if _are_apart(hops, weight):
        raise InputError(
            f"the graphs are {hops.dtype} but the weights are {weight.dtype}: convert the graphs "
            "with graphs.to(dtype=…), or the model"
        )
    flat, casts = weight.flatten(0, 1), autocasts(hops)
    if not casts and dispatch.choose(hops, weight, bias, adjacency, backend).who == "native":
        return native.flex_conv(hops, flat[None], bias, adjacency, relu, packed=True)
    out = torch.nn.functional.linear(take(hops, batch.nodes), flat.T, bias)
    return out.relu_() if relu else out


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


def embed(table: Tensor, batch: GraphBatch, backend: str | None = None) -> Tensor:
    """table[kind], [n, h]: one row of `table` for each kind of node (`PackedGraphs.kinds`)."""
    kinds = batch.graphs.kinds
    assert kinds is not None, "the dataset has kinds of nodes"
    kind = take(kinds[1], batch.nodes)
    if dispatch.takes_kernels(table, backend):
        return embedded.embed(table, kind)
    return torch.nn.functional.embedding(kind, table)


def takes_network(weight: Tensor, adjacency: Adjacency | None, backend: str | None) -> bool:
    """Whether a network with this first weight can run in one pass (`native.Network`)."""
    return not autocasts(weight) and dispatch.takes_native(weight, adjacency, backend=backend)
