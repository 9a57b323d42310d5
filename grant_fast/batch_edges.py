"""The edges of a batch as a propagation matrix."""

from typing import TYPE_CHECKING

from .adjacency import Adjacency, CSRTensors
from .caching import kept_property

if TYPE_CHECKING:
    from .batch import GraphBatch


class BatchAdjacency(Adjacency):
    """The propagation matrix of a batch: its CSR is gathered when asked for, its tiles likewise.

    Args:
        batch: the graphs.
        normalize: Â = D^{-1/2} A D^{-1/2} instead of A.
    """

    def __init__(self, batch: "GraphBatch", normalize: bool) -> None:
        self.batch, self.normalize = batch, normalize
        self.num_cols = batch.num_nodes

    @property
    def num_nodes(self) -> int:
        return self.num_cols

    @kept_property
    def csr(self) -> CSRTensors:
        return self.batch._csr(False, self.normalize)

    @kept_property
    def transposed(self) -> CSRTensors:
        # Only a backward pass reads the transpose; scoring need not gather it.
        return self.csr if self.batch.graphs.is_symmetric else self.batch._csr(True, self.normalize)
