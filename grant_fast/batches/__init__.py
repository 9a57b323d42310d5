"""A batch of graphs: how their edges lie in memory, and what operators and kernels read of them."""

from .batch import GraphBatch
from .collate import joined

__all__ = ["GraphBatch", "joined"]
