"""Launching the layer's kernels over a batch: small graphs tile by tile, larger ones one by one.

Every choice here is a pure function of shapes, dtype and target, and none depends on the number of
nodes or edges: a new batch compiles nothing.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..batches.tiles import TILE
from ..devices import has_hopper_units
from . import blocks, fused, weights
from .launch import cdiv, launch, parts, precision, side_by_side

#: Programs that compute the weights' gradient of tiles, or that share graphs of as many planes:
#: about four a multiprocessor.
PROGRAMS = 512


class Graphs(NamedTuple):
    """A batch as the kernels see it; see `PackedGraphs`, `BitRows`, `TileRows` and `Tiles`.

    scale: [N] of the dataset, or None where A is not normalised.
    """

    scale: Tensor | None
    ptr: Tensor
    bits: Tensor
    word: Tensor
    row_scale: Tensor
    row: Tensor
    node: Tensor
    one_plane: Tensor
    two_planes: Tensor
    three_planes: Tensor
    four_planes: Tensor

    @property
    def num_tiles(self) -> int:
        return self.row.shape[0] // TILE

    @property
    def small(self) -> tuple[Tensor, ...]:
        """What a kernel for tiles takes."""
        return self.word, self.row_scale, self.row, self.node

    @property
    def larger(self) -> Iterator[tuple[int, int, tuple[Tensor | int | None, ...]]]:
        """Planes that larger graphs have, how many have so many, what a kernel takes of them."""
        larger = self.one_plane, self.two_planes, self.three_planes, self.four_planes
        for planes, graph in enumerate(larger, 1):
            if num_graphs := graph.shape[1]:
                tables = self.ptr, self.bits, self.scale, graph, self.bits.shape[1]
                yield planes, num_graphs, (*tables, num_graphs)


def column_block(width: int) -> int:
    """Columns that a program computes, or takes in at a time: the matrix units want 16 or more."""
    return 16 if width <= 16 else 32


def columns_shape(h_in: int, h_out: int) -> dict[str, int]:
    return {"BI": column_block(h_in), "BO": column_block(h_out)}


def tile_shape(h_in: int, h_out: int) -> dict[str, int]:
    return columns_shape(h_in, h_out) | {"ROWS": TILE}


def block_shape(h_in: int, h_out: int, planes: int, hopper: bool) -> dict[str, int]:
    """Matrix units before Hopper's want more registers for more columns than there are."""
    shape = columns_shape(h_in, h_out) | {"PLANES": planes}
    if not hopper:
        shape["BO"] = 16
        shape["BI"] = 16 if planes == 2 and h_in > 32 else shape["BI"]
    return shape


def tile_grad_shape(h_in: int, h_out: int, order: int) -> dict[str, int]:
    # κ blocks of dW stay in registers all along. Of up to three, two warps have room for 32 inputs
    # at a time, which halves the hops; of more, in one warp, or beside the addresses of rows that
    # do not begin at 16 bytes, 16 leave room for the rest.
    scattered = h_in > 32 and h_in % 4
    inputs = column_block(h_in) if order <= 3 and h_out > 16 and not scattered else 16
    return {"BI": inputs, "BO": column_block(h_out), "ROWS": TILE}


def block_grad_shape(h_in: int, h_out: int, planes: int, hopper: bool) -> dict[str, int]:
    """What is within the registers of each target, as `grant-fast doctor --compile` shows.

    Hopper's matrix units take 64 inputs at a time, those of any target 16. Rows off 16 bytes have
    an address each.
    """
    inputs, columns = 16, 16 if planes == 2 else column_block(h_out)
    if hopper and (h_in > 16 or planes > 1):
        inputs, columns = 64, {3: 32, 4: 16}.get(planes, column_block(h_out))
        if h_in > 32 and (h_in % 4 or h_out % 2):
            inputs, columns = 32 if planes == 1 else 64, 16
    return {"BI": inputs, "BO": columns, "PLANES": planes}


def forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    graphs: Graphs,
    out: Tensor,
    *,
    relu: bool,
    dataset_x: bool,
    code: Tensor | None = None,
) -> Tensor:
    """Y = act(Σ_k Â^k X W_k + b) into the rows of `out` [n, h_out] that belong to `graphs`.

    Args:
        x: [n, h_in] in the batch's order, or (dataset_x) [N, h_in] in the dataset's, or with `code`
            one row for each kind of node; contiguous.
        code: [N] int32, the kind of each node of the dataset.
        weight: [κ, h_in, h_out] and bias [h_out], contiguous.
    """
    layer = (x, code, None, weight, bias, out)
    work = _convolution(layer, graphs, transpose=False, relu=relu, dataset_x=dataset_x)
    side_by_side(x.device, work)
    return out


def backward(
    dy: Tensor,
    y: Tensor | None,
    x: Tensor,
    weight: Tensor,
    graphs: Graphs,
    dx: Tensor | None,
    *,
    needs_dw: bool,
    dataset_x: bool,
    code: Tensor | None = None,
) -> tuple[Tensor, Tensor] | None:
    """dX = Σ_k (Âᵀ)^k dY W_kᵀ into `dx` [n, h_in], if any, and (if asked) in float32 (dW, db):
    dW_k = Xᵀ (Âᵀ)^k dY, [κ, h_in, h_out], and db = dYᵀ 1, [h_out].

    Args:
        dy, y: [n, h_out]; dY counts where `y` (if any) is positive.
        x, code, weight: as in `forward`.
    """
    work, sums = list[Callable[[], None]](), None
    if dx is not None:
        layer = (dy, None, y, weight, None, dx)
        work += _convolution(layer, graphs, transpose=True, relu=False, dataset_x=False)
    if needs_dw:
        more, sums = _weight_gradient(x, code, dy, y, len(weight), graphs, dataset_x)
        work += more
    side_by_side(dy.device, work)
    if sums is None:
        return None
    return sums[:, :-1].sum(0).view(weight.shape), sums[:, -1].sum(0)


def _convolution(
    layer: tuple[Tensor, Tensor | None, Tensor | None, Tensor, Tensor | None, Tensor],
    graphs: Graphs,
    *,
    transpose: bool,
    relu: bool,
    dataset_x: bool,
) -> list[Callable[[], None]]:
    """What is to be launched for `forward`, or (transpose) for dX."""
    x, code, mask, weight, bias, out = layer
    order, h_in, h_out = weight.shape
    if transpose:
        h_in, h_out = h_out, h_in
    constants = _constants(x, code, (order, h_in, h_out), graphs, dataset_x)
    constants |= {"TRANSPOSE": transpose, "RELU_IN": mask is not None}
    constants |= {"BIAS": bias is not None, "RELU": relu}
    if order == 1:  # no hop mixes rows: what is not finite stays where it is, but in parts
        constants["PARTS"] = 0
    hopper = has_hopper_units(x.device)
    pieces: list[tuple[Any, int, tuple[Any, ...], dict[str, int], bool]] = [
        (blocks.flex_conv_blocks, many, tables, block_shape(h_in, h_out, planes, hopper), False)
        for planes, many, tables in graphs.larger
    ]
    if graphs.num_tiles:
        shape = tile_shape(h_in, h_out)
        pieces.append((fused.flex_conv_tiles, graphs.num_tiles, graphs.small, shape, True))
    takers = [(shape, by_lanes) for *_, shape, by_lanes in pieces]
    split = weights.in_parts_for(takers, weight, constants["PARTS"], transpose=transpose)
    return [
        partial(
            launch, kernel, (many, cdiv(h_out, shape["BO"])),
            x, code, mask, weight, in_parts, bias, out, *tables,
            written=(out,), **constants, **shape,
        )
        for (kernel, many, tables, shape, _), in_parts in zip(pieces, split, strict=True)
    ]  # fmt: skip


def _weight_gradient(
    x: Tensor,
    code: Tensor | None,
    dy: Tensor,
    y: Tensor | None,
    order: int,
    graphs: Graphs,
    dataset_x: bool,
) -> tuple[list[Callable[[], None]], Tensor]:
    """What is to be launched for dW and db, and the workspace [programs, κ h_in + 1, h_out] where
    each program's share goes, db's in the last row: then they are added in their order."""
    h_in, h_out = x.shape[1], dy.shape[1]
    shape = tile_grad_shape(h_in, h_out, order)
    blocks_of_dw = cdiv(h_out, shape["BO"]), cdiv(h_in, shape["BI"])
    tiles_each = max(1, cdiv(graphs.num_tiles, cdiv(PROGRAMS, math.prod(blocks_of_dw))))
    shares = cdiv(graphs.num_tiles, tiles_each)
    programs = shares + sum(min(PROGRAMS, many) for _, many, _ in graphs.larger)
    size = (programs, order * h_in + 1, h_out)
    sums = x.new_empty(size, dtype=torch.float32)
    constants = _constants(x, code, (order, h_in, h_out), graphs, dataset_x)
    constants["RELU"] = y is not None
    work, first = list[Callable[[], None]](), shares
    for planes, num_graphs, tables in graphs.larger:
        block = block_grad_shape(h_in, h_out, planes, has_hopper_units(x.device))
        grid = (min(PROGRAMS, num_graphs), cdiv(h_out, block["BO"]), cdiv(h_in, block["BI"]))
        start = partial(
            launch, blocks.weight_grad_blocks, grid, x, code, dy, y, sums, *tables, first,
            written=(sums,), **constants, **block,
        )  # fmt: skip
        work.append(start)
        first += grid[0]
    if graphs.num_tiles:
        start = partial(
            launch, fused.weight_grad_tiles, (shares, *blocks_of_dw), x, code, dy, y, sums,
            *graphs.small, graphs.num_tiles, tiles_each,
            written=(sums,), **constants, **shape,
        )  # fmt: skip
        work.append(start)
    return work, sums


def _constants(
    x: Tensor, code: Tensor | None, sizes: tuple[int, ...], graphs: Graphs, dataset_x: bool
) -> dict[str, Any]:
    """What all kernels of a layer are specialised by."""
    exact = precision(x.dtype, x.device)
    return {
        **dict(zip(("ORDER", "H_IN", "H_OUT"), sizes, strict=True)),
        "NORMALIZE": graphs.scale is not None,
        "DATASET_X": dataset_x,
        "CODED": code is not None,
        "PARTS": parts(x.dtype, exact),
        "PRECISION": exact,
    }
