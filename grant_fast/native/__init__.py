"""The compiled CPU kernels (`kernels/cpu/`): how Python calls them, and their gradients.

They compute in float32 what `reference.py` defines, straight from the packed dataset: a batch is
its graphs' positions, and no edge is gathered. What they do not take whole, one large graph for
instance, is computed by products of their own (`PRODUCTS`). A machine that had no C compiler when
this package was installed does without them, and PyTorch's operators give the same results more
slowly.
"""

from ..reference import Products
from .csr import Choices, multiplies, spmm, sum_of_chosen
from .dense import mm, mm_columns, takes_products
from .edges import SortedEdges, grouped, pool_weights, sort_edges
from .layer import first_source, flex_conv
from .loading import BUILDS, build, by_rows, is_readable
from .network import Activation, Layer, Network, evaluate, train
from .room import Capacity, fill_room
from .rows import few_rows
from .scores import class_scores, target_scores
from .structure import (
    MAX_NODES,
    MAX_WIDTH,
    NOT_COMPILED,
    PART_ROWS,
    is_watched,
    is_wide,
    takes,
    why_not,
)

#: As `reference.PRODUCTS`, where they can.
PRODUCTS = Products(spmm, mm, mm_columns)

__all__ = [
    "BUILDS",
    "MAX_NODES",
    "MAX_WIDTH",
    "NOT_COMPILED",
    "PART_ROWS",
    "PRODUCTS",
    "Activation",
    "Capacity",
    "Choices",
    "Layer",
    "Network",
    "SortedEdges",
    "build",
    "by_rows",
    "class_scores",
    "evaluate",
    "few_rows",
    "fill_room",
    "first_source",
    "flex_conv",
    "grouped",
    "is_readable",
    "is_watched",
    "is_wide",
    "multiplies",
    "pool_weights",
    "sort_edges",
    "sum_of_chosen",
    "takes",
    "takes_products",
    "target_scores",
    "train",
    "why_not",
]
