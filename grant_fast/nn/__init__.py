"""Flexible graph convolutions as ordinary modules."""

from . import one_pass
from .conv import FlexConv
from .gcn import FlexGCN, is_plain
from .modules import ACTIVATIONS, ATOM_CARDINALITIES, NORMS, AtomEncoder, BatchNorm

__all__ = [
    "ACTIVATIONS",
    "ATOM_CARDINALITIES",
    "NORMS",
    "AtomEncoder",
    "BatchNorm",
    "FlexConv",
    "FlexGCN",
    "is_plain",
    "one_pass",
]
