"""A batch of graphs: how their edges lie in memory, and what operators and kernels read of them."""

from .batch import GraphBatch

__all__ = ["GraphBatch"]
