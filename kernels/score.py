"""The teacher's look at small graphs in one kernel: the whole network, then the size of its error.

A program takes one tile, 32 rows of whole graphs, and keeps it in registers from the features to
the scores. What leaves the chip is 4 bytes a graph, and one addition to a bin of the histogram from
which `select.py` picks:

    X ─► [ Â^k X W_k, b, ReLU ] ─► … ─► Σ_k p_k ⊙ (X W_k) summed by graph ─► f ─► score
          once a hidden layer             p_k = ρÂ^k, the collapsed readout        │
                                                                     histogram ◄──┘

The layers are `fused.py`'s, Horner's rule on a block-diagonal A from bits. BatchNorm is folded into
W and b; X is read through the kinds of atoms where there are such, so a molecule's features are 4
bytes a node and a table that stays in the cache. All weights lie in one flat array, layer after
layer, W [κ, h_in, h_out] and then b [h_out], and in another as `weights.py` has them; every program
reads them all, from the cache.

The score of a graph is ‖∂L/∂f‖₂ over its number of measured labels (`residuals.graph_residuals`);
without pooling it is that of its nodes together.

Bytes: a node 8 of bits, 4 of scale where normalised, and 4 κ of readout weights (none without
pooling) besides its X (4 h_in, or 4 and the table); a graph 24 of tables, its label, and 4 written.
A tile reads 16 of tables and all weights. Labels of nodes are read once a node. Predictions, where
asked for, are written besides.

A is dense here, and 0 · NaN is NaN: a graph whose features overflow spoils its tile. The caller,
who refuses NaN in any case, looks again with the operators that name the right graph.
"""

# mypy: ignore-errors
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..batches.tiles import TILE
from . import layer, weights
from .fused import horner
from .launch import launch, parts, precision
from .select import add_leading
from .tables import slot_rows, tile_slots
from .tile import add_sources, finish, load_block, load_weight, sources, spread_bits, store_block

#: Rows of the block of graphs, at least a tile's slots: the matrix units want 16.
GRAPHS = 16


@triton.jit
def tile_graphs(p_ptr, p_tile, p_graph, i_tile, ROWS: tl.constexpr, GRAPHS: tl.constexpr):
    """A tile's graphs [GRAPHS], whether there is one, and of each row: graph, node, first row."""
    _, m_graph, b_graph, b_node, b_size = tile_slots(p_ptr, p_tile, p_graph, i_tile, GRAPHS)
    _, m_own, o_start, o_node = slot_rows(b_node, b_size, ROWS)
    return b_graph, m_graph, b_size, m_own, o_node.to(tl.int64), o_start


@triton.jit
def errors(
    p_y, b_f, o_row, m_row,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, CLASSES: tl.constexpr, SIGMOID: tl.constexpr,
    RAW: tl.constexpr,
):  # fmt: skip
    """Σ (∂L/∂f)² of each row, and how many of its labels are measured."""
    o_col = tl.arange(0, BLOCK)
    m_col = (o_col < WIDTH)[None, :]
    if CLASSES:
        b_class = tl.load(p_y + o_row, mask=m_row, other=-1)
        m_label = ((b_class >= 0) & m_row)[:, None]
        b_target = (o_col[None, :] == b_class[:, None]).to(tl.float32)
        if not RAW:
            b_f = tl.where(m_col, b_f, float("-inf"))
            b_f = tl.exp(b_f - tl.max(b_f, 1)[:, None])
            b_f = b_f / tl.sum(b_f, 1)[:, None]
    else:
        b_target = load_block(p_y, o_row, m_row, 0, WIDTH, BLOCK)
        m_label = (b_target == b_target) & m_row[:, None] & m_col
        if SIGMOID and not RAW:  # σ(f) − y, of which nothing cancels where the label is certain
            b_other = b_target / (1 + tl.exp(b_f))
            b_f = (1 - b_target) / (1 + tl.exp(-b_f))
            b_target = b_other
    b_error = tl.where(m_label & m_col, b_f - b_target, 0)
    return tl.sum(b_error * b_error, 1), tl.sum(m_label.to(tl.int32), 1)


@triton.jit
def load_all(p, o_row, m_row, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """These rows of a matrix, as a tuple of blocks of columns."""
    blocks = ()
    for c in tl.static_range(0, WIDTH, BLOCK):
        blocks = blocks + (load_block(p, o_row, m_row, c // BLOCK, WIDTH, BLOCK),)
    return blocks


@triton.jit
def convolve(
    b_x, b_a, b_scale, p_weight, p_parts,
    ORDER: tl.constexpr, H_IN: tl.constexpr, H_OUT: tl.constexpr,
    BI: tl.constexpr, BO: tl.constexpr, ROWS: tl.constexpr,
    NORMALIZE: tl.constexpr, RELU: tl.constexpr, PARTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A layer, blocks of X in and blocks of act(Σ_k Â^k X W_k + b) out."""
    x = ()
    for c in tl.static_range(0, H_IN, BI):
        x = x + (tl.trans(b_x[c // BI]),)
    blocks = ()
    for j in tl.static_range(0, H_OUT, BO):
        b_y = horner(
            x, b_a, b_scale, p_weight, p_parts, j // BO,
            ORDER, H_IN, H_OUT, BI, BO, ROWS, NORMALIZE, False, PARTS, PRECISION,
        )  # fmt: skip
        p_bias = p_weight + ORDER * H_IN * H_OUT
        blocks = blocks + (finish(tl.trans(b_y), p_bias, j // BO, True, RELU, H_OUT, BO),)
    return blocks


@triton.jit
def read_out(
    b_x, p_weight, p_pool, num_nodes, o_node, m_row, m_in, b_size,
    ORDER: tl.constexpr, H_IN: tl.constexpr, H_OUT: tl.constexpr,
    BI: tl.constexpr, BO: tl.constexpr, ROWS: tl.constexpr, GRAPHS: tl.constexpr,
    MEAN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The pooled last layer, [GRAPHS, BO]: Σ_k Σ_nodes p_k X W_k + b."""
    b_y = tl.zeros([ROWS, BO], tl.float32)
    for k in range(ORDER):
        p_k = p_pool + num_nodes.to(tl.int64) * k
        b_p = tl.load(p_k + o_node, mask=m_row, other=0)[:, None]
        for c in tl.static_range(0, H_IN, BI):
            b_w = load_weight(p_weight + k * H_IN * H_OUT, c // BI, 0, H_IN, H_OUT, BI, BO)
            b_y = tl.dot(b_p * b_x[c // BI], b_w, b_y, input_precision=PRECISION)
    b_f = tl.zeros([GRAPHS, BO], tl.float32)
    b_in = m_in.to(tl.float32 if PRECISION == "ieee" else tl.bfloat16)
    b_f = add_sources(b_f, b_in, sources(b_y, PRECISION), False)
    o_col = tl.arange(0, BO)
    p_bias = p_weight + ORDER * H_IN * H_OUT
    b_bias = tl.load(p_bias + o_col, mask=o_col < H_OUT, other=0)[None, :]
    b_share = (tl.minimum(b_size, 1) if MEAN else b_size).to(tl.float32)
    return b_f + b_share[:, None] * b_bias


@triton.jit(do_not_specialize=["num_nodes"])
def score_tiles(
    p_x,  # [*, WIDTHS[0]]: rows of the dataset, or (CODED) its kinds
    p_code,  # [num_nodes] int32, the kind of each node
    p_weight,  # flat: W and b of every layer
    p_parts,  # the same W `weights.in_parts` (PARTS), but for a pooled last layer's
    p_pool,  # [κ of the last layer, num_nodes]: p_k = ρÂ^k
    p_y,  # [G, T] or [num_nodes, T] float32, classes too
    p_score,  # [G] float32
    p_count,  # [65536] int32
    p_pred,  # as p_y, [·, WIDTHS[-1]] float32
    p_ptr,  # [G + 1] int64
    p_bits,  # [planes, num_nodes] int64
    p_scale,  # [num_nodes]
    p_tile,  # [tiles + 1] int64
    p_graph,  # [slots] int64
    num_nodes,
    WIDTHS: tl.constexpr,  # of X, of every hidden layer, of f
    ORDERS: tl.constexpr,  # κ of every layer
    BLOCKS: tl.constexpr,  # columns that a block of each of WIDTHS takes
    STARTS: tl.constexpr,  # where each layer's weights begin
    PART_SIZES: tl.constexpr,  # how many numbers each of a layer's parts is
    POOL: tl.constexpr,
    MEAN: tl.constexpr,
    NORMALIZE: tl.constexpr,
    CODED: tl.constexpr,
    CLASSES: tl.constexpr,
    SIGMOID: tl.constexpr,
    RAW: tl.constexpr,
    PREDICT: tl.constexpr,
    ROWS: tl.constexpr,
    GRAPHS: tl.constexpr,
    PARTS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The loop over layers is unrolled: a network of another shape is another kernel."""
    b_graph, m_graph, b_size, m_in, o_node, o_start = tile_graphs(
        p_ptr, p_tile, p_graph, tl.program_id(0), ROWS, GRAPHS
    )
    m_row = o_start >= 0
    b_scale = tl.load(p_scale + o_node, mask=m_row, other=0).to(tl.float32) if NORMALIZE else 1.0
    b_word = tl.load(p_bits + o_node, mask=m_row, other=0) << o_start
    b_a = spread_bits(b_word, ROWS, True, PRECISION)
    o_x = tl.load(p_code + o_node, mask=m_row, other=0).to(tl.int64) if CODED else o_node
    LAST: tl.constexpr = len(ORDERS) - 1
    b_x = load_all(p_x, o_x, m_row, WIDTHS[0], BLOCKS[0])
    for i in tl.static_range(LAST):
        b_x = convolve(
            b_x, b_a, b_scale, p_weight + STARTS[i], p_parts,
            ORDERS[i], WIDTHS[i], WIDTHS[i + 1], BLOCKS[i], BLOCKS[i + 1],
            ROWS, NORMALIZE, True, PARTS, PRECISION,
        )  # fmt: skip
        if PARTS > 0:
            p_parts += PART_SIZES[i] * PARTS
    # The last block takes all of f: errors are reduced along a row.
    if POOL:
        b_f = read_out(
            b_x, p_weight + STARTS[LAST], p_pool, num_nodes, o_node, m_row, m_in, b_size,
            ORDERS[LAST], WIDTHS[LAST], WIDTHS[LAST + 1], BLOCKS[LAST], BLOCKS[LAST + 1],
            ROWS, GRAPHS, MEAN, PRECISION,
        )  # fmt: skip
        o_out, m_out = b_graph, m_graph
    else:
        b_f = convolve(
            b_x, b_a, b_scale, p_weight + STARTS[LAST], p_parts,
            ORDERS[LAST], WIDTHS[LAST], WIDTHS[LAST + 1], BLOCKS[LAST], BLOCKS[LAST + 1],
            ROWS, NORMALIZE, False, PARTS, PRECISION,
        )[0]  # fmt: skip
        o_out, m_out = o_node, m_row
    if PREDICT:
        store_block(p_pred, b_f, o_out, m_out, 0, WIDTHS[LAST + 1], BLOCKS[LAST + 1])
    b_square, b_count = errors(
        p_y, b_f, o_out, m_out, WIDTHS[LAST + 1], BLOCKS[LAST + 1], CLASSES, SIGMOID, RAW
    )
    if not POOL:
        b_count = tl.sum(tl.where(m_in, (b_count > 0)[None, :].to(tl.int32), 0), 1)
        b_square = tl.sum(tl.where(m_in, b_square[None, :], 0), 1)
    b_score = tl.sqrt_rn(b_square) / tl.maximum(b_count, 1)
    tl.store(p_score + b_graph, b_score, mask=m_graph)
    add_leading(p_count, b_score, m_graph)


class Network(NamedTuple):
    """A network as the kernel sees it, in evaluation mode.

    weight: flat float32, W [κ, h_in, h_out] and b [h_out] of every layer, BatchNorm folded.
    widths: of X, of every hidden layer, of f; at most 64.   orders: κ of every layer.
    pool: "mean", "sum", or None for one output a node.   normalize: Â instead of A.
    """

    weight: Tensor
    widths: tuple[int, ...]
    orders: tuple[int, ...]
    pool: str | None
    normalize: bool


class Data(NamedTuple):
    """A dataset as the kernel sees it; see `PackedGraphs` for shapes.

    x: [N, h] float32, or [kinds, h] with code [N] int32.   pool: [κ, N], or None.
    y: float32 [rows, T], NaN where not measured; or classes [rows], negative where not measured.
    """

    x: Tensor
    code: Tensor | None
    pool: Tensor | None
    y: Tensor
    ptr: Tensor
    bits: Tensor
    scale: Tensor


def constants(widths: tuple[int, ...], orders: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """What the kernel derives from a network's shape."""
    blocks = [layer.column_block(width) for width in widths]
    if widths[-1] > 32:
        blocks[-1] = 64
    starts, sizes = [0], []
    for i, (order, h_in, h_out) in enumerate(zip(orders, widths, widths[1:], strict=False)):
        starts.append(starts[-1] + (order * h_in + 1) * h_out)
        sizes.append(weights.size(order, h_in, h_out, _shape(blocks, i), 1))
    return {
        "WIDTHS": widths,
        "ORDERS": orders,
        "BLOCKS": tuple(blocks),
        "STARTS": tuple(starts[:-1]),
        "PART_SIZES": tuple(sizes),
    }


def _shape(blocks: Sequence[int], i: int) -> dict[str, int]:
    """The blocks of layer i's weights."""
    return {"BI": blocks[i], "BO": blocks[i + 1]}


def _in_parts(network: Network, sizes: dict[str, tuple[int, ...]], count: int) -> Tensor:
    """W of every layer that hops, one after another, each `weights.in_parts`."""
    layers = len(network.orders) - (network.pool is not None)
    lengths = [size * count for size in sizes["PART_SIZES"][:layers]]
    out = network.weight.new_empty(sum(lengths), dtype=torch.bfloat16)
    for i, part in enumerate(out.split(lengths)):
        shape = network.orders[i], *network.widths[i : i + 2]
        weight = network.weight[sizes["STARTS"][i] :][: math.prod(shape)].view(shape)
        weights.in_parts(weight, _shape(sizes["BLOCKS"], i), count, lanes=part)
    return out


def score(
    network: Network,
    data: Data,
    tile: Tensor,
    graph: Tensor,
    scores: Tensor,
    counts: Tensor,
    pred: Tensor | None,
    *,
    classes: bool,
    sigmoid: bool,
    raw: bool,
) -> None:
    """Score the graphs of these tiles, each into its own place.

    Args:
        network, data: what and on what.
        tile, graph: see `Tiles`; graphs of up to 32 nodes.
        scores: [G] float32, written where a graph is in `graph`.
        counts: `select.empty_counts`; each scored graph is added to the first half.
        pred: [G, T] or [N, T] float32 for the outputs f, or None.
        classes: y holds class numbers.
        sigmoid: labels are 0 or 1 and f is a logit.
        raw: the error is f − y whatever the task.
    """
    num_tiles = tile.shape[0] - 1
    if num_tiles == 0:
        return
    exact, sizes = precision(scores.dtype, scores.device), constants(network.widths, network.orders)
    count = parts(scores.dtype, exact)
    in_parts = _in_parts(network, sizes, count) if count else None
    launch(
        score_tiles, (num_tiles,),
        data.x, data.code, network.weight, in_parts, data.pool, data.y, scores, counts, pred,
        data.ptr, data.bits, data.scale, tile, graph, data.bits.shape[1],
        written=(scores, counts) if pred is None else (scores, counts, pred),
        **sizes,
        POOL=network.pool is not None, MEAN=network.pool == "mean",
        NORMALIZE=network.normalize, CODED=data.code is not None,
        CLASSES=classes, SIGMOID=sigmoid, RAW=raw,
        PREDICT=pred is not None, ROWS=TILE, GRAPHS=GRAPHS,
        PARTS=count, PRECISION=exact,
    )  # fmt: skip
