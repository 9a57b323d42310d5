"""The end of a scoring pass whose layers went one by one: pooling, the last product, the residual.

For networks too wide for `score.py`. A program takes one graph, whatever its size, and writes
4 bytes for it and one addition to a bin of the histogram from which `select.py` picks:

    pooled networks:   H rows ─► Σ_i p_k[i] h_i ─► Σ_k · W_k + b = f ─► score
                                 `readout.py`      each W_k once a graph, from the cache
    networks for nodes:  f rows ─────────────────────────────────────► score

Bytes in float32 for n nodes and B graphs, 44 bytes of tables, histogram and score a graph aside:

    pooled   must move  4 h n + 4 κ n + 4 T B        the same, 4 κ n for each ⌈h/BLOCK⌉; and 4 κ h T
                                                     of weights a graph, from the cache
    nodes    must move  4 C n and the labels         the same

The operators that it stands for would also write and read the pooled rows, 8 κ h a graph, f, and
some ten times f for the residual.
"""

# mypy: ignore-errors
import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import launch
from .readout import add_rows
from .score import errors
from .select import add_leading
from .tile import load_block


@triton.jit
def pooled_outputs(
    p_x, p_weight, p_bias, p_pool, num_nodes, row, size, node,
    ORDER: tl.constexpr, H_IN: tl.constexpr, H_OUT: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_OUT: tl.constexpr, NODES: tl.constexpr, MEAN: tl.constexpr,
):  # fmt: skip
    """f of a graph, [BLOCK_OUT]: Σ_k (Σ_i p_k[i] x_i) W_k + b."""
    o_out = tl.arange(0, BLOCK_OUT)
    b_f = tl.zeros([BLOCK_OUT], tl.float32)
    for c in range(0, H_IN, BLOCK):
        o_in = c + tl.arange(0, BLOCK)
        m_in = o_in < H_IN
        b_sum = add_rows(
            p_x, p_pool, num_nodes, row, size, node, o_in, m_in, ORDER, H_IN, BLOCK, NODES
        )
        m_w = m_in[:, None] & (o_out < H_OUT)[None, :]
        for k in tl.static_range(ORDER):
            o_w = (k * H_IN + o_in)[:, None] * H_OUT + o_out[None, :]
            b_w = tl.load(p_weight + o_w, mask=m_w, other=0)
            b_f += tl.sum(b_sum[k][:, None] * b_w, 0)
    b_bias = tl.load(p_bias + o_out, mask=o_out < H_OUT, other=0)
    return b_f + (tl.minimum(size, 1) if MEAN else size).to(tl.float32) * b_bias


@triton.jit(do_not_specialize=["num_nodes"])
def score_rows(
    p_x,  # [n, H_IN]: what the last layer takes; without POOL [n, H_OUT], what it gives
    p_weight,  # [ORDER, H_IN, H_OUT] float32
    p_bias,  # [H_OUT] float32
    p_pool,  # [ORDER, num_nodes] float32: p_k = ρÂ^k
    p_y,  # [G, T] or [num_nodes, T] float32, classes too
    p_score,  # [B] float32
    p_count,  # [65536] int32
    p_row,  # [B + 1] int64: the rows of each graph
    p_graph,  # [B] int64: its position in the dataset
    p_ptr,  # [G + 1] int64: the nodes of each graph of the dataset
    num_nodes,
    ORDER: tl.constexpr,
    H_IN: tl.constexpr,
    H_OUT: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    NODES: tl.constexpr,
    POOL: tl.constexpr,
    MEAN: tl.constexpr,
    CLASSES: tl.constexpr,
    SIGMOID: tl.constexpr,
    RAW: tl.constexpr,
):
    i = tl.program_id(0)
    row = tl.load(p_row + i)
    size = (tl.load(p_row + i + 1) - row).to(tl.int32)
    graph = tl.load(p_graph + i)
    node = tl.load(p_ptr + graph)
    if POOL:
        b_f = pooled_outputs(
            p_x, p_weight, p_bias, p_pool, num_nodes.to(tl.int64), row, size, node,
            ORDER, H_IN, H_OUT, BLOCK, BLOCK_OUT, NODES, MEAN,
        )  # fmt: skip
        o = tl.arange(0, 1)
        b_square, b_count = errors(
            p_y, b_f[None, :], graph + o, o == 0, H_OUT, BLOCK_OUT, CLASSES, SIGMOID, RAW
        )
        square, count = tl.sum(b_square, 0), tl.sum(b_count, 0)
    else:
        square, count = 0.0, 0
        for j in range(0, size, NODES):
            o = j + tl.arange(0, NODES)
            b_f = load_block(p_x, row + o, o < size, 0, H_OUT, BLOCK_OUT)
            b_square, b_count = errors(
                p_y, b_f, node + o, o < size, H_OUT, BLOCK_OUT, CLASSES, SIGMOID, RAW
            )
            square += tl.sum(b_square, 0)
            count += tl.sum((b_count > 0).to(tl.int32), 0)
    o = tl.arange(0, 1)
    b_score = tl.sqrt_rn(square + tl.zeros([1], tl.float32)) / tl.maximum(count, 1)
    tl.store(p_score + i + o, b_score)
    add_leading(p_count, b_score, o == 0)


def tail_shape(h_in: int, h_out: int) -> dict[str, int]:
    """At most 1,024 numbers of X or of f, and 2,048 of W, at a time: a program of one warp."""
    block_out = triton.next_power_of_2(h_out)
    block = min(64, triton.next_power_of_2(h_in), 2048 // block_out)
    return {"BLOCK": block, "BLOCK_OUT": block_out, "NODES": min(64, 1024 // max(block, block_out))}


def score(
    x: Tensor,
    head: tuple[Tensor, Tensor, Tensor] | None,
    y: Tensor,
    row: Tensor,
    graph: Tensor,
    ptr: Tensor,
    counts: Tensor,
    *,
    width: int,
    mean: bool,
    classes: bool,
    sigmoid: bool,
    raw: bool,
) -> Tensor:
    """Scores of the B graphs of a batch, [B] float32.

    Args:
        x: [n, h], contiguous: what the last layer takes, or without a head what it gives.
        head: W [κ, h, T], b [T] and p [κ, N], float32 and contiguous; or None.
        y: of the dataset: float32 [G or N, T], NaN where not measured; or float32 classes.
        row: [B + 1] int64, the rows of each graph.  graph: [B] int64, its position in the dataset.
        ptr: [G + 1] int64, the nodes of each graph of the dataset.
        counts: `select.empty_counts`; each graph is added to the first half.
        width: T, the number of outputs.  mean: p is of the mean over each graph.
        classes, sigmoid, raw: as in `score.score`.
    """
    scores = torch.empty(graph.shape[0], dtype=torch.float32, device=x.device)
    if len(scores) == 0:
        return scores
    weight, bias, pool = (None, None, None) if head is None else head
    order, h_in = (1, width) if weight is None else weight.shape[:2]
    launch(
        score_rows, (len(scores),), x, weight, bias, pool, y, scores, counts, row, graph, ptr,
        0 if pool is None else pool.shape[1],
        written=(scores, counts),
        ORDER=order, H_IN=h_in, H_OUT=width, **tail_shape(h_in, width),
        POOL=head is not None, MEAN=mean, CLASSES=classes, SIGMOID=sigmoid, RAW=raw,
    )  # fmt: skip
    return scores
