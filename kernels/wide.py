"""The flexible layer at any width on graphs kept as bits: hops by `hops.py`, products by the BLAS.

Some columns at a time, so that κ copies of them are hardly more than one of all: however high the
order, the workspace is about one copy of X (or Y), in the backward pass as in the forward one.

Bytes a node in float32, c = ⌈κ · width / (one copy)⌉ ≈ κ parts, beside those of the hops: the
products read X c times and write T (4 κ h_out), or read Z (4 κ h_in) and read and write Y c times;
κ products of full width would move the same.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..batches.tiles import TILE
from ..devices import has_hopper_units
from ..reference import backward_hops_at_output_width
from . import hops
from .csr_layer import affine, column_chunks, hops_on_x
from .launch import cdiv, hop_precision, launch, side_by_side
from .layer import Graphs, column_block


def tile_shape(width: int) -> dict[str, int]:
    return {"BO": column_block(width), "ROWS": TILE}


def block_shape(width: int, planes: int, hopper: bool) -> dict[str, int]:
    most = 3 if hopper else 1  # of more planes, registers hold 16 columns
    return {"BO": column_block(width) if planes <= most else 16, "PLANES": planes}


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, graphs: Graphs, *, relu: bool
) -> Tensor:
    """Y = act(Σ_k Â^k X W_k + b), [n, h_out]; rows outside of `graphs` hold anything.

    Args:
        x: [n, h_in], weight: [κ, h_in, h_out], bias: [h_out] or None; contiguous.
    """
    order, h_in, h_out = weight.shape
    if order == 1:
        out = affine(x, weight[0], bias)
        return out.relu_() if relu else out
    if hops_on_x(h_in, h_out):
        for c in column_chunks(h_in, order):
            z, w = powers(x[:, c], order, graphs, False), weight[:, c].flatten(0, 1)
            out = affine(z, w, bias) if not c.start else out.addmm_(z, w)
        return out.relu_() if relu else out
    out = x.new_empty(x.shape[0], h_out)
    for c in column_chunks(h_out, order):
        t = x @ weight[:, :, c].transpose(0, 1).flatten(1)
        horner(t, order, None if bias is None else bias[c], graphs, out[:, c], False, relu)
    return out


def backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    graphs: Graphs,
    rest: Tensor | None,
    *,
    needs_dx: bool,
    needs_dw: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """(dX or None, dW or None) of the nodes of `graphs`, of dX's other rows anything.

    Args:
        grad: dY before the activation, [n, h_out], contiguous.
        rest: the rows outside of `graphs`.
    """
    order, h_in, h_out = weight.shape
    if order == 1:  # no hops: two products
        dx = grad @ weight[0].T if needs_dx else None
        grad = grad if rest is None or not needs_dw else grad.index_fill(0, rest, 0)
        return dx, (x.T @ grad)[None] if needs_dw else None
    dx = torch.empty_like(x) if needs_dx else None
    dw = torch.empty_like(weight) if needs_dw else None
    if needs_dw and backward_hops_at_output_width(h_in, h_out, needs_dx):
        for c in column_chunks(h_out, order):
            g = powers(grad[:, c], order, graphs, True, rest)
            dw_c, w = torch.mm(x.T, g), weight[:, :, c].transpose(0, 1)
            dw[:, :, c] = dw_c.view(w.shape).transpose(0, 1)  # type: ignore[index]
            if dx is not None:
                torch.addmm(dx, g, w.flatten(1).T, beta=int(c.start > 0), out=dx)
        return dx, dw
    for c in column_chunks(h_in, order):
        w = weight[:, c]
        if dw is not None:
            z = powers(x[:, c], order, graphs, False, rest)
            dw[:, c] = torch.mm(z.T, grad).view_as(w)
        if dx is not None:
            t = grad @ w.flatten(0, 1).T
            horner(t, order, None, graphs, dx[:, c], True, False)
    return dx, dw


def horner(
    t: Tensor,
    order: int,
    bias: Tensor | None,
    graphs: Graphs,
    out: Tensor,
    transpose: bool,
    relu: bool,
) -> None:
    """act(T_0 + Â(T_1 + …) + b) into `out` [n, h], a view by columns, of `t` [n, κh]."""
    constants = {"Y_STRIDE": out.stride(0), "BIAS": bias is not None, "RELU": relu}
    constants |= {"WIDTH": out.shape[1], "TRANSPOSE": transpose}
    kernels = hops.horner_tiles, hops.horner_blocks
    _launch(*kernels, (t, bias, out), order, graphs, constants)


def powers(
    x: Tensor, order: int, graphs: Graphs, transpose: bool, rest: Tensor | None = None
) -> Tensor:
    """[X, ÂX, …, Â^{κ-1}X] side by side, [n, κh], of a view by columns; 0 in the rows of `rest`."""
    z = x.new_empty(x.shape[0], order * x.shape[1])
    if rest is not None:
        z.index_fill_(0, rest, 0)
    powers_into(z, x, order, graphs, transpose)
    return z


def powers_into(z: Tensor, x: Tensor, order: int, graphs: Graphs, transpose: bool) -> None:
    """`powers` into the rows of `z` [n, κh] that belong to `graphs`."""
    constants = {"X_STRIDE": x.stride(0), "WIDTH": x.shape[1], "TRANSPOSE": transpose}
    kernels = hops.powers_tiles, hops.powers_blocks
    _launch(*kernels, (x, z), order, graphs, constants)


def _launch(
    small: Any,
    large: Any,
    operands: tuple[Tensor | None, ...],
    order: int,
    graphs: Graphs,
    constants: dict[str, Any],
) -> None:
    out, width = operands[-1], constants["WIDTH"]
    assert out is not None
    constants["NORMALIZE"] = graphs.scale is not None
    constants["PRECISION"] = hop_precision(out.device)
    work = list[Callable[[], None]]()
    for planes, num_graphs, tables in graphs.larger:
        shape = block_shape(width, planes, has_hopper_units(out.device))
        start = partial(
            launch, large, (num_graphs, cdiv(width, shape["BO"])), *operands, *tables, order,
            written=(out,), **constants, **shape,
        )  # fmt: skip
        work.append(start)
    if graphs.num_tiles:
        shape = tile_shape(width)
        start = partial(
            launch, small, (graphs.num_tiles, cdiv(width, shape["BO"])), *operands,
            *graphs.small[:3], order, written=(out,), **constants, **shape,
        )  # fmt: skip
        work.append(start)
    side_by_side(out.device, work)
