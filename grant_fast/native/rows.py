"""The distinct rows of a matrix: `kernels/cpu/rows.h`."""

import torch
from torch import Tensor

from .loading import by_rows, call


def few_rows(x: Tensor) -> tuple[Tensor, Tensor] | None:
    """The distinct rows of a matrix, [m, F], in the order in which they come, and which of them
    each row is, [N] int32.

    None where they are more than a quarter of all rows (or, from 4096 on, of those up to there).
    """
    x = by_rows(x)
    code = x.new_empty(len(x), dtype=torch.int32)
    first = x.new_empty(len(x) // 4, dtype=torch.int64)
    size = x.element_size()
    count = call("few_rows", len(x), x.shape[1] * size, x.stride(0) * size, x, code, first)
    return None if count < 0 else (x.index_select(0, first[:count]), code)
