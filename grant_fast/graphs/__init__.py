"""A data set of graphs in a few flat tensors: checked, packed, indexed and stored."""

from .packed import PackedGraphs

__all__ = ["PackedGraphs"]
