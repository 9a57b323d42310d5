"""Kinds of nodes: the distinct rows of their features, where they are few."""

from torch import Tensor

from .. import native
from ..indexing import distinct_rows

#: Up to so many kinds, what is made of each is computed for all of a dataset at once.
MOST_KINDS = 1024


def find_kinds(x: Tensor) -> tuple[Tensor, Tensor] | None:
    """The distinct rows of X, [m, F], and which of them each row is, [N] int32.

    None where they are more than a quarter of all, and of floats where the CPU kernels do not find
    them, which are the only ones to ask.
    """
    if x.device.type == "cpu" and native.build() is not None:
        return native.few_rows(x)
    if x.is_floating_point():
        return None
    rows, code = distinct_rows(x)
    return (rows, code) if 4 * len(rows) <= len(x) else None
