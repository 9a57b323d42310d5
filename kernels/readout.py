"""The collapsed readout: pooled[g, k] = Σ_{i in g} p_k[i] x[i], with p_k = ρÂ^k a number a node.

ρ(Σ_k Â^k X W_k) = Σ_k (ρÂ^k) X W_k: a linear pooling turns a last layer into this and one product
a graph. A program takes BLOCK columns of a segment, that is of a graph, or of some thousand nodes
of a larger one, whose segments are then added up in their order by the same kernel:

        p [κ, N]: nodes of the dataset         x: rows of the batch
      ┌───────────────────────────┐           ┌───────┐
      │ p_0 p_0 p_0               │ ◄ segment │ x     │ NODES at a time, read once for all κ sums
      │ p_1 p_1 p_1               │           │ x     │
      └───────────────────────────┘           └───────┘

Bytes in float32 for n nodes of width h and B graphs, 32 bytes of tables a graph aside:

    kernel              must move                   moves
    readout_rows        4 h n + 4 κ n + 4 κ h B     the same, 4 κ n for each ⌈h/BLOCK⌉
    readout_grad_rows   4 h n + 4 κ n + 4 κ h B     the same, 4 κ n for each ⌈h/BLOCK⌉

κ sparse products would read x κ times (write dX κ times, and add it up), and 8 bytes of indices
and values a node and order.
"""

# mypy: ignore-errors
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import cdiv, launch


@triton.jit
def segment(p_ptr, p_start, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """A program's first row of the batch, its number of rows, its first node, and its columns."""
    i = tl.program_id(0)
    row = tl.load(p_ptr + i)
    size = (tl.load(p_ptr + i + 1) - row).to(tl.int32)
    o_col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    return row, size, tl.load(p_start + i), o_col, o_col < WIDTH


@triton.jit
def add_rows(
    p_x, p_weight, num_nodes, row, size, node, o_col, m_col,
    ORDER: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, NODES: tl.constexpr,
):  # fmt: skip
    """Σ_i p_k[node + i] x[row + i] over i < size, [BLOCK] for each k."""
    b_sum = ()
    for _ in tl.static_range(ORDER):
        b_sum = b_sum + (tl.zeros([BLOCK], tl.float32),)
    for i in range(0, size, NODES):
        o = i + tl.arange(0, NODES)
        m = o < size
        o_x = (row + o)[:, None] * WIDTH + o_col[None, :]
        b_x = tl.load(p_x + o_x, mask=m[:, None] & m_col[None, :], other=0).to(tl.float32)
        b_next = ()
        for k in tl.static_range(ORDER):
            b_p = tl.load(p_weight + k * num_nodes + node + o, mask=m, other=0).to(tl.float32)
            b_next = b_next + (b_sum[k] + tl.sum(b_p[:, None] * b_x, 0),)
        b_sum = b_next
    return b_sum


@triton.jit(do_not_specialize=["num_nodes"])
def readout_rows(
    p_x,  # [n, WIDTH]
    p_weight,  # p, [ORDER, num_nodes]
    p_out,  # [segments, ORDER, WIDTH]
    p_ptr,  # [segments + 1] int64: where each segment's rows begin
    p_start,  # [segments] int64: its first node, a column of p
    num_nodes,
    ORDER: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    NODES: tl.constexpr,
):
    row, size, node, o_col, m_col = segment(p_ptr, p_start, WIDTH, BLOCK)
    num_nodes = num_nodes.to(tl.int64)
    b_sum = add_rows(
        p_x, p_weight, num_nodes, row, size, node, o_col, m_col, ORDER, WIDTH, BLOCK, NODES
    )
    p_out += tl.program_id(0).to(tl.int64) * (ORDER * WIDTH)
    for k in tl.static_range(ORDER):
        b_out = b_sum[k].to(p_out.dtype.element_ty)
        tl.store(p_out + k * WIDTH + o_col, b_out, mask=m_col)


@triton.jit(do_not_specialize=["num_nodes"])
def readout_grad_rows(
    p_grad,  # [graphs, ORDER, WIDTH]
    p_weight,  # as above
    p_dx,  # [n, WIDTH]
    p_ptr,
    p_start,
    p_graph,  # [segments] int64: the graph that a segment belongs to
    num_nodes,
    ORDER: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    NODES: tl.constexpr,
):
    row, size, node, o_col, m_col = segment(p_ptr, p_start, WIDTH, BLOCK)
    num_nodes = num_nodes.to(tl.int64)
    p_grad += tl.load(p_graph + tl.program_id(0)) * (ORDER * WIDTH)
    b_grad = ()
    for k in tl.static_range(ORDER):
        b_k = tl.load(p_grad + k * WIDTH + o_col, mask=m_col, other=0).to(tl.float32)
        b_grad = b_grad + (b_k,)
    for i in range(0, size, NODES):
        o = i + tl.arange(0, NODES)
        m = o < size
        b_dx = tl.zeros([NODES, BLOCK], tl.float32)
        for k in tl.static_range(ORDER):
            b_p = tl.load(p_weight + k * num_nodes + node + o, mask=m, other=0).to(tl.float32)
            b_dx += b_p[:, None] * b_grad[k][None, :]
        o_x = (row + o)[:, None] * WIDTH + o_col[None, :]
        b_dx = b_dx.to(p_dx.dtype.element_ty)
        tl.store(p_dx + o_x, b_dx, mask=m[:, None] & m_col[None, :])


def readout_shape(width: int) -> dict[str, int]:
    """32 nodes, or 1,024 numbers, a program of one warp: at 64 nodes ptxas would spill."""
    block = min(64, triton.next_power_of_2(width))
    return {"BLOCK": block, "NODES": min(32, 1024 // block)}


def readout(
    x: Tensor, weights: Tensor, ptr: Tensor, start: Tensor, graph_ptr: Tensor | None
) -> Tensor:
    """pooled [B, κ·h] in the dtype of `x`.

    Args:
        x: [n, h], contiguous.  weights: p, [κ, N], contiguous.
        ptr, start: [S + 1] and [S] int64, the segments' rows and first nodes.
        graph_ptr: [B + 1] int64, each graph's segments; None where a graph is one segment.
    """
    segments, order, width = start.shape[0], weights.shape[0], x.shape[1]
    whole = graph_ptr is None
    out = x.new_empty(segments, order * width, dtype=x.dtype if whole else torch.float32)
    if segments and width:
        _launch(readout_rows, (x, weights, out, ptr, start), out, segments, width)
    if graph_ptr is None:
        return out
    ones = torch.ones(1, segments, dtype=torch.float32, device=x.device)
    return readout(out, ones, graph_ptr, graph_ptr[:-1], None).to(x.dtype)


def readout_grad(
    grad: Tensor, weights: Tensor, ptr: Tensor, start: Tensor, graph: Tensor, out: Tensor
) -> Tensor:
    """dX [n, h] into `out`, from the gradient of pooled [B, κ·h]; `graph`: [S] int64."""
    segments, width = start.shape[0], out.shape[1]
    if segments and width:
        operands = (grad, weights, out, ptr, start, graph)
        _launch(readout_grad_rows, operands, out, segments, width)
    return out


def _launch(
    kernel: Any, operands: tuple[Tensor, ...], out: Tensor, segments: int, width: int
) -> None:
    shape = readout_shape(width)
    order, num_nodes = operands[1].shape
    launch(
        kernel, (segments, cdiv(width, shape["BLOCK"])), *operands, num_nodes,
        written=(out,), ORDER=order, WIDTH=width, **shape,
    )  # fmt: skip
