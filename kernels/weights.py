"""Weights as the kernels' products take them: in blocks, each split into bfloat16s.

All tiles, and all larger graphs, multiply with the same weights. Split beforehand (`tile.split`),
these cost a program neither arithmetic nor masks, and few addresses:

    W [κ, h_in, h_out] ─► [O, κ, I] blocks, each of PARTS, each of BI · BO numbers

For larger graphs a part lies as it is, [BI, BO]. For tiles, which take it on its side, it lies as
NVIDIA's matrix units do: they multiply 16 by 16 numbers at a time, of which each of a warp's 32
lanes holds 8. These lie side by side, lane after lane, so that a lane loads them at once into the
registers that its product reads, and they pass through no shared memory.

Bytes for O blocks of columns and I of inputs: reads 4 κ h_in h_out, writes 2 PARTS κ O BO I BI for
each way in which they are to lie.
"""

# mypy: ignore-errors
import math
from collections.abc import Sequence
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import cdiv, launch
from .tile import load_weight, split


@triton.jit
def split_weight(
    p_weight,  # [ORDER, H_IN, H_OUT], or (TRANSPOSE) [ORDER, H_OUT, H_IN]
    p_lanes,  # [O, ORDER, I, PARTS, BO · BI] bfloat16, for tiles (LANES)
    p_rows,  # the same for larger graphs (ROWS)
    ORDER: tl.constexpr,
    H_IN: tl.constexpr,
    H_OUT: tl.constexpr,
    BI: tl.constexpr,
    BO: tl.constexpr,
    PARTS: tl.constexpr,
    TRANSPOSE: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
):
    i_col, k, i_in = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    p_weight += k * H_IN * H_OUT
    parts = split(load_weight(p_weight, i_in, i_col, H_IN, H_OUT, BI, BO, TRANSPOSE), PARTS)
    first = ((i_col * ORDER + k) * tl.num_programs(2) + i_in) * (PARTS * BO * BI)
    o_in, o_out = tl.arange(0, BI)[:, None], tl.arange(0, BO)[None, :]
    if LANES:
        o = o_out // 16 * 256 + o_out % 8 * 32 + o_out // 8 % 2 * 2
        o = o + (o_in // 16 * (16 * BO) + o_in // 2 % 4 * 8 + o_in // 8 % 2 * 4 + o_in % 2)
        for t in tl.static_range(PARTS):
            tl.store(p_lanes + first + t * (BO * BI) + o, parts[t])
    if ROWS:
        o = o_in * BO + o_out
        for t in tl.static_range(PARTS):
            tl.store(p_rows + first + t * (BO * BI) + o, parts[t])


@triton.jit
def load_parts(p_parts, BI: tl.constexpr, BO: tl.constexpr, PARTS: tl.constexpr):
    """A block's parts [BI, BO], the largest first."""
    parts = ()
    for t in tl.static_range(PARTS):
        o = tl.arange(0, BI)[:, None] * BO + tl.arange(0, BO)[None, :]
        parts = parts + (tl.load(p_parts + t * (BO * BI) + o),)
    return parts


@triton.jit
def load_lanes(p_parts, BI: tl.constexpr, BO: tl.constexpr, PARTS: tl.constexpr):
    """The same on their sides, [BO, BI], of parts that lie by LANES."""
    parts = ()
    for t in tl.static_range(PARTS):
        b = tl.load(p_parts + t * (BO * BI) + tl.arange(0, BO * BI))
        b = tl.reshape(b, [BI // 16, BO // 16, 8, 4, 2, 2, 2])
        parts = parts + (tl.reshape(tl.permute(b, [1, 5, 2, 0, 4, 3, 6]), [BO, BI]),)
    return parts


def blocks(order: int, h_in: int, h_out: int, shape: dict[str, int]) -> tuple[int, int, int]:
    """How many there are: of columns, of orders, of inputs."""
    return cdiv(h_out, shape["BO"]), order, cdiv(h_in, shape["BI"])


def size(order: int, h_in: int, h_out: int, shape: dict[str, int], parts: int) -> int:
    """How many bfloat16s."""
    return math.prod(blocks(order, h_in, h_out, shape)) * parts * shape["BO"] * shape["BI"]


def in_parts(
    weight: Tensor,
    shape: dict[str, int],
    parts: int,
    *,
    transpose: bool = False,
    lanes: Tensor | bool = False,
    rows: bool = False,
) -> tuple[Tensor | None, Tensor | None]:
    """W in `parts` parts of blocks BI by BO, flat bfloat16: by lanes, for tiles, and by rows, for
    larger graphs; None for what is not asked for.

    Args:
        weight: [κ, h_in, h_out], or (transpose) [κ, h_out, h_in]; contiguous.
        lanes: a tensor of that `size` is written to.
    """
    order, h_in, h_out = weight.shape
    if transpose:
        h_in, h_out = h_out, h_in
    many = size(order, h_in, h_out, shape, parts)
    new = partial(weight.new_empty, many, dtype=torch.bfloat16)
    p_lanes = lanes if isinstance(lanes, Tensor) else new() if lanes else None
    p_rows = new() if rows else None
    launch(
        split_weight, blocks(order, h_in, h_out, shape), weight, p_lanes, p_rows,
        written=tuple(out for out in (p_lanes, p_rows) if out is not None),
        ORDER=order, H_IN=h_in, H_OUT=h_out, BI=shape["BI"], BO=shape["BO"],
        PARTS=parts, TRANSPOSE=transpose, LANES=p_lanes is not None, ROWS=rows,
    )  # fmt: skip
    return p_lanes, p_rows


def in_parts_for(
    takers: Sequence[tuple[dict[str, int], bool]], weight: Tensor, parts: int, *, transpose: bool
) -> list[Tensor | None]:
    """W for kernels that take it `in_parts`: each in blocks of its shape, by lanes or by rows. One
    launch serves those of the same blocks. None for each where there are 0 parts."""
    made: dict[tuple[int, int], tuple[Tensor | None, Tensor | None]] = {}
    for shape, _ in takers if parts else ():
        key = shape["BI"], shape["BO"]
        if key not in made:
            ways = {lanes for other, lanes in takers if (other["BI"], other["BO"]) == key}
            asked = {"lanes": True in ways, "rows": False in ways}
            made[key] = in_parts(weight, shape, parts, transpose=transpose, **asked)
    return [made[shape["BI"], shape["BO"]][not lanes] if parts else None for shape, lanes in takers]
