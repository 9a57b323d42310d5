"""Hops over CSR: graphs of any size, with weighted and repeated edges, a few rows a program.

    out = act(A Z + T + b)                          `spmm_rows`: a hop, with what stands around it
    dvalue_e = ⟨dZ[row e], Z[column e]⟩             `value_grad_rows`: what an edge's weight gets

A program takes ROWS rows of A and BLOCK columns of Z. It walks along its rows EDGES edges at a
time, so that as many rows of Z are on their way together; a warp reads a row of Z as one piece:

        edges of each row          Z                       Every sum has one order: two runs are
      ┌───────────────┐          ┌───────┐                 bit-equal. Repeated edges are edges like
      │ c v  c v  c v │ ROWS ──► │ row c │ · v             others. Rows and columns are widened to
      │ c v           │          │  ...  │                 64 bits before they are multiplied.
      └───────────────┘          └───────┘

Bytes in float32 for n rows and e edges of width h, in column blocks of BLOCK = 128 or less, with
4-byte indices (T and the sum so far are read only where there are any):

    kernel            must move                         moves
    spmm_rows         8 n + 8 e + 8 h n (T: 12 h n)     8 n + 8 e for each ⌈h/BLOCK⌉, 4 h e of Z,
                                                        and 4 h n out (T: 8 h n)
    value_grad_rows   8 n + 8 e + 8 h n                 8 n + 8 e, Z 4 h e, dZ 4 h for each EDGES
                                                        edges of a row (or part of so many)

Z is gathered: 4 h e bytes are asked for, and the caches decide how many of them the memory sees. A
row is one program's work however long it is: one of 10⁵ edges holds its program up.
"""

# mypy: ignore-errors
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from .launch import cdiv, launch


@triton.jit
def row_edges(p_rowptr, i_rows, num_rows, ROWS: tl.constexpr):
    """This program's rows, whether there are such, and where their edges begin and end."""
    o_row = i_rows.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    m_row = o_row < num_rows
    o_first = tl.load(p_rowptr + o_row, mask=m_row, other=0).to(tl.int64)
    o_last = tl.load(p_rowptr + o_row + 1, mask=m_row, other=0).to(tl.int64)
    return o_row, m_row, o_first, o_last


@triton.jit(do_not_specialize=["num_rows"])
def spmm_rows(
    p_rowptr,  # [num_rows + 1] int32 or int64
    p_col,  # [e], the same
    p_value,  # [e]
    p_z,  # rows of Z_STRIDE numbers, of which WIDTH count
    p_term,  # T: rows of TERM_STRIDE numbers (TERM); may be the output
    p_bias,  # [WIDTH] (BIAS)
    p_out,  # rows of OUT_STRIDE numbers
    num_rows,
    WIDTH: tl.constexpr,
    Z_STRIDE: tl.constexpr,
    TERM_STRIDE: tl.constexpr,
    OUT_STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    EDGES: tl.constexpr,
    TERM: tl.constexpr,
    BIAS: tl.constexpr,
    RELU: tl.constexpr,
):
    o_row, m_row, o_first, o_last = row_edges(p_rowptr, tl.program_id(0), num_rows, ROWS)
    o_col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m_col = o_col < WIDTH
    b_sum = tl.zeros([ROWS, BLOCK], tl.float32)
    for i in range(0, tl.max(o_last - o_first), EDGES):
        for j in tl.static_range(EDGES):
            o_edge = o_first + i + j
            m_edge = o_edge < o_last
            o_source = tl.load(p_col + o_edge, mask=m_edge, other=0).to(tl.int64)
            b_value = tl.load(p_value + o_edge, mask=m_edge, other=0).to(tl.float32)
            o_z = o_source[:, None] * Z_STRIDE + o_col[None, :]
            b_z = tl.load(p_z + o_z, mask=m_edge[:, None] & m_col[None, :], other=0)
            b_sum += b_value[:, None] * b_z.to(tl.float32)
    mask = m_row[:, None] & m_col[None, :]
    if TERM:
        o_term = o_row[:, None] * TERM_STRIDE + o_col[None, :]
        b_sum += tl.load(p_term + o_term, mask=mask, other=0).to(tl.float32)
    if BIAS:
        b_sum += tl.load(p_bias + o_col, mask=m_col, other=0).to(tl.float32)[None, :]
    if RELU:
        b_sum = tl.where(b_sum < 0, 0, b_sum)  # keeps a NaN, as torch does
    o_out = o_row[:, None] * OUT_STRIDE + o_col[None, :]
    tl.store(p_out + o_out, b_sum.to(p_out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_rows"])
def value_grad_rows(
    p_rowptr,  # as above
    p_col,
    p_dz,  # rows of DZ_STRIDE numbers, of which WIDTH count
    p_z,  # rows of Z_STRIDE numbers
    p_out,  # [e] float32, added to where ADD
    num_rows,
    WIDTH: tl.constexpr,
    DZ_STRIDE: tl.constexpr,
    Z_STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    EDGES: tl.constexpr,
    ADD: tl.constexpr,
):
    o_row, _, o_first, o_last = row_edges(p_rowptr, tl.program_id(0), num_rows, ROWS)
    for i in range(0, tl.max(o_last - o_first), EDGES):
        o_edge = o_first[:, None] + i + tl.arange(0, EDGES)[None, :]
        m_edge = o_edge < o_last[:, None]
        o_source = tl.load(p_col + o_edge, mask=m_edge, other=0).to(tl.int64)
        b_sum = tl.zeros([ROWS, EDGES], tl.float32)
        for c in range(0, WIDTH, BLOCK):
            o_col = c + tl.arange(0, BLOCK)
            m_col = o_col < WIDTH
            o_dz = o_row[:, None] * DZ_STRIDE + o_col[None, :]
            m_dz = (o_first + i < o_last)[:, None] & m_col[None, :]
            b_dz = tl.load(p_dz + o_dz, mask=m_dz, other=0).to(tl.float32)
            o_z = o_source[:, :, None] * Z_STRIDE + o_col[None, None, :]
            m_z = m_edge[:, :, None] & m_col[None, None, :]
            b_z = tl.load(p_z + o_z, mask=m_z, other=0).to(tl.float32)
            b_sum += tl.sum(b_dz[:, None, :] * b_z, 2)
        if ADD:
            b_sum += tl.load(p_out + o_edge, mask=m_edge, other=0)
        tl.store(p_out + o_edge, b_sum, mask=m_edge)


class CSR(NamedTuple):
    """A matrix as its rows: rowptr [rows + 1], col [e] (int32 or int64), value [e] float."""

    rowptr: Tensor
    col: Tensor
    value: Tensor


#: Edges of a row that are on their way together.
EDGES = 4


def spmm_shape(width: int) -> dict[str, int]:
    """512 numbers a program: 16 bytes a thread for each edge, whatever the width."""
    block = min(128, triton.next_power_of_2(width))
    return {"BLOCK": block, "ROWS": min(128, 512 // block), "EDGES": EDGES}


def value_grad_shape(width: int) -> dict[str, int]:
    block = min(64, triton.next_power_of_2(width))
    return {"BLOCK": block, "ROWS": min(128, 256 // block), "EDGES": EDGES}


def spmm(
    csr: CSR,
    z: Tensor,
    *,
    out: Tensor | None = None,
    term: Tensor | None = None,
    bias: Tensor | None = None,
    relu: bool = False,
) -> Tensor:
    """act(A Z + T + b) into `out` [rows, h], which may be `term`; made if not given.

    Args:
        z: [columns, h]; `term`, `out`: [rows, h]. Their columns lie side by side, their rows
            anywhere.
        bias: [h].
    """
    rows, width = csr.rowptr.shape[0] - 1, z.shape[1]
    if out is None:
        out = z.new_empty(rows, width)
    if not rows or not width:
        return out
    shape = spmm_shape(width)
    grid = (cdiv(rows, shape["ROWS"]), cdiv(width, shape["BLOCK"]))
    launch(
        spmm_rows, grid, *csr, z, term, bias, out, rows, written=(out,),
        WIDTH=width, Z_STRIDE=z.stride(0), OUT_STRIDE=out.stride(0),
        TERM_STRIDE=0 if term is None else term.stride(0),
        TERM=term is not None, BIAS=bias is not None, RELU=relu, **shape,
    )  # fmt: skip
    return out


def value_grad(csr: CSR, dz: Tensor, z: Tensor, out: Tensor, *, add: bool) -> None:
    """⟨dZ[row e], Z[column e]⟩ of every entry e into `out` [e] float32, or added to it.

    Args:
        dz: [rows, h];  z: [columns, h]; with columns side by side.
    """
    rows, width = csr.rowptr.shape[0] - 1, z.shape[1]
    if not rows or not csr.col.shape[0]:
        return
    shape = value_grad_shape(width)
    launch(
        value_grad_rows, (cdiv(rows, shape["ROWS"]),),
        csr.rowptr, csr.col, dz, z, out, rows, written=(out,),
        WIDTH=width, DZ_STRIDE=dz.stride(0), Z_STRIDE=z.stride(0), ADD=add, **shape,
    )  # fmt: skip
