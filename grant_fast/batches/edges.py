"""The edges of a batch as a propagation matrix."""

from typing import TYPE_CHECKING

from torch import Tensor

from ..adjacency import Adjacency, CSRTensors

if TYPE_CHECKING:
    from .batch import GraphBatch


class BatchAdjacency(Adjacency):
    """The propagation matrix of a batch. The batch keeps the CSR; this only refers to the batch.

    There is no reference cycle, so a batch's memory is freed at once.

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


class LearnedAdjacency(BatchAdjacency):
    """A batch's matrix whose values learn.

    Args:
        batch: all graphs of a dataset whose weights are the values, without their gradient.
        value: the same values, [e] by target, with it.
    """

    def __init__(self, batch: "GraphBatch", value: Tensor) -> None:
        super().__init__(batch, normalize=False)
        self.value = value

    @property
    def csr(self) -> CSRTensors:  # type: ignore[override]
        rowptr, col, _ = super().csr
        return rowptr, col, self.value
