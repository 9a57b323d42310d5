"""Batches laid out for the kernels of a GPU: `kernels/cpu/room.h`."""

import ctypes

import torch
from torch import Tensor

from . import loading
from .loading import call


class Capacity(ctypes.Structure):
    """`capacity` of kernels/cpu/room.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("graphs", "rows", "tiles")),
        ("larger", ctypes.c_int64 * 4),
        *((name, ctypes.c_int64) for name in ("numbers", "empty")),
    )


def fill_room(
    capacity: Capacity, positions: Tensor, ptr: Tensor, fits: Tensor, table: Tensor
) -> bool | None:
    """Write the tables of the graphs at `positions` into `table`, as `PaddedBatch` does; whether
    they fit, and None where the kernels were not compiled.

    Args:
        positions: [capacity.graphs] int64.
        ptr, fits: the dataset's, [G + 1] int64 and [G] bool.
        table: [capacity.numbers] int64; nothing is said of what is in it where they do not fit.
    """
    if loading.library() is None:
        return None
    assert positions.dtype == table.dtype == torch.int64, "the kernels read int64"
    memory = torch.empty(5 * capacity.graphs + 1, dtype=torch.int64, device="cpu")
    operands = positions.contiguous(), ptr, fits, table, memory
    return bool(call("fill_room", ctypes.byref(capacity), *operands))
