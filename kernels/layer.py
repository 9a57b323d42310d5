"""Launching the layer's kernels over a batch: small graphs tile by tile, larger ones one by one.

Every choice here is a pure function of shapes, dtype and target, and none depends on the number of
nodes or edges: a new batch compiles nothing.
"""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from ..tiles import TILE
from . import blocks, fused
from .launch import launch, parts, precision

#: Programs that share the weights' gradient, and the larger graphs: about four a multiprocessor.
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
    large_graph: Tensor
    large_row: Tensor

    @property
    def num_tiles(self) -> int:
        return self.row.shape[0] // TILE

    @property
    def num_large(self) -> int:
        return self.large_graph.shape[0]

    @property
    def height(self) -> int:
        """Rows that a larger graph may have."""
        return 64 * self.bits.shape[0]

    @property
    def small(self) -> tuple[Tensor, ...]:
        """What a kernel for tiles takes."""
        return self.word, self.row_scale, self.row, self.node

    @property
    def large(self) -> tuple[Tensor | int | None, ...]:
        """What a kernel for larger graphs takes."""
        tables = self.ptr, self.bits, self.scale, self.large_graph, self.large_row
        return *tables, self.bits.shape[1]


def column_block(width: int) -> int:
    """Columns that a program computes, or takes in at a time: the matrix units want 16 or more."""
    return 16 if width <= 16 else 32


def tile_shape(h_in: int, h_out: int) -> dict[str, int]:
    return {"BI": column_block(h_in), "BO": column_block(h_out), "ROWS": TILE}


def block_shape(h_in: int, h_out: int) -> dict[str, int]:
    return {"BI": column_block(h_in), "BO": column_block(h_out), "ROWS": 64, "SOURCES": 32}


def tile_grad_shape(h_out: int) -> dict[str, int]:
    # κ blocks of dW stay in registers all along: 16 inputs at a time leave room for the rest.
    return {"BI": 16, "BO": column_block(h_out), "ROWS": TILE}


def block_grad_shape(h_out: int) -> dict[str, int]:
    return {"BI": 16, "BO": column_block(h_out), "ROWS": 64, "SOURCES": 32}


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
    return _convolve(layer, graphs, transpose=False, relu=relu, dataset_x=dataset_x)


def input_grad(dy: Tensor, y: Tensor | None, weight: Tensor, graphs: Graphs, out: Tensor) -> Tensor:
    """dX = Σ_k (Âᵀ)^k dY W_kᵀ into `out` [n, h_in]; dY counts where `y` (if any) is positive."""
    transposed = weight.transpose(1, 2).contiguous()
    layer = (dy, None, y, transposed, None, out)
    return _convolve(layer, graphs, transpose=True, relu=False, dataset_x=False)


def _convolve(
    layer: tuple[Tensor, Tensor | None, Tensor | None, Tensor, Tensor | None, Tensor],
    graphs: Graphs,
    *,
    transpose: bool,
    relu: bool,
    dataset_x: bool,
) -> Tensor:
    x, code, mask, weight, bias, out = layer
    order, h_in, h_out = weight.shape
    constants = _constants(x, code, weight.shape, graphs, dataset_x)
    constants |= {"TRANSPOSE": transpose, "RELU_IN": mask is not None}
    constants |= {"BIAS": bias is not None, "RELU": relu}
    columns = triton.cdiv(h_out, column_block(h_out))
    if graphs.num_tiles:
        launch(
            fused.flex_conv_tiles, (graphs.num_tiles, columns), *layer, *graphs.small,
            written=(out,), **constants, **tile_shape(h_in, h_out),
        )  # fmt: skip
    if graphs.num_large:
        shape = block_shape(h_in, h_out)
        grid = (min(PROGRAMS, graphs.num_large), columns)
        scratch = _scratch(x, graphs.height, shape["BO"], order, *grid)
        launch(
            blocks.flex_conv_blocks, grid, *layer, scratch, *graphs.large,
            graphs.num_large, graphs.height, written=(out, scratch), **constants, **shape,
        )  # fmt: skip
    return out


def weight_grad(
    x: Tensor,
    dy: Tensor,
    y: Tensor | None,
    order: int,
    graphs: Graphs,
    *,
    dataset_x: bool,
    code: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(dW [κ, h_in, h_out], db [h_out]) in float32: dW_k = Xᵀ (Âᵀ)^k dY, db = dYᵀ 1.

    `x` and `code` are as in `forward`. Each program's share goes to a workspace, whose rows are
    then added in their order.
    """
    h_in, h_out = x.shape[1], dy.shape[1]
    tiles_each = max(1, triton.cdiv(graphs.num_tiles, PROGRAMS))
    tile_programs = triton.cdiv(graphs.num_tiles, tiles_each)
    large_programs = min(PROGRAMS, graphs.num_large)
    size = (tile_programs + large_programs, order * h_in + 1, h_out)
    partial = x.new_empty(size, dtype=torch.float32)
    constants = _constants(x, code, (order, h_in, h_out), graphs, dataset_x)
    constants["RELU"] = y is not None
    if graphs.num_tiles:
        shape = tile_grad_shape(h_out)
        grid = (tile_programs, triton.cdiv(h_out, shape["BO"]), triton.cdiv(h_in, shape["BI"]))
        launch(
            fused.weight_grad_tiles, grid, x, code, dy, y, partial, *graphs.small,
            graphs.num_tiles, tiles_each, written=(partial,), **constants, **shape,
        )  # fmt: skip
    if graphs.num_large:
        shape = block_grad_shape(h_out)
        grid = (large_programs, triton.cdiv(h_out, shape["BO"]), triton.cdiv(h_in, shape["BI"]))
        scratch = _scratch(x, graphs.height, shape["BO"], order, *grid)
        launch(
            blocks.weight_grad_blocks, grid, x, code, dy, y, partial, scratch, *graphs.large,
            graphs.num_large, graphs.height, tile_programs, written=(partial, scratch),
            **constants, **shape,
        )  # fmt: skip
    total = partial.sum(0)
    return total[:-1].view(order, h_in, h_out), total[-1]


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


def _scratch(x: Tensor, height: int, columns: int, order: int, *programs: int) -> Tensor:
    size = (*programs, 2, height, columns) if order > 1 else (0,)
    return x.new_empty(size, dtype=torch.float32)
