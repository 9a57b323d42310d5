"""The edges of a batch as a propagation matrix."""

from typing import TYPE_CHECKING

from .adjacency import Adjacency, CSRTensors

if TYPE_CHECKING:
    from .batch import GraphBatch


class BatchAdjacency(Adjacency):
    """The propagation matrix of a batch, which keeps its CSR; here is nothing but the batch.

    So the batch knows nobody who knows it, and what it holds is free as soon as it is.

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

    @property
    def csr(self) -> CSRTensors:  # type: ignore[override]
        return self.batch.csr(False, self.normalize)

    @property
    def transposed(self) -> CSRTensors:
        return self.batch.csr(True, self.normalize)
