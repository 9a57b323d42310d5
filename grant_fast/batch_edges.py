"""The edges of a batch: where its dataset holds them, and gathered as a propagation matrix."""

from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from .adjacency import Adjacency, CSRTensors
from .caching import kept_property

if TYPE_CHECKING:
    from .batch import GraphBatch


class DatasetEdges(NamedTuple):
    """The edges of a batch's graphs in the arrays of their dataset, by target and by source.

    Graph b owns rows ptr[b] … ptr[b+1]-1 of the batch and as many nodes of the dataset from
    first[b] on; `rowptr` runs over the dataset's nodes, `row` (None where nodes have many edges)
    and `col` count within a graph, and `value` is None where every edge weighs 1.
    """

    ptr: Tensor
    first: Tensor
    rowptr: Tensor
    row: Tensor | None
    col: Tensor
    value: Tensor | None
    rowptr_t: Tensor
    row_t: Tensor | None
    col_t: Tensor
    value_t: Tensor | None


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
    def in_dataset(self) -> DatasetEdges:
        """The same edges where the dataset holds them: nothing is gathered."""
        graphs = self.batch.graphs
        sides: list[Any] = []
        for transposed in (False, True):
            csr = graphs.adj_t if transposed and graphs.adj_t is not None else graphs.adj
            rows, values = (
                graphs.edge_rows(transposed),
                graphs.edge_values(self.normalize, transposed),
            )
            sides += [csr.rowptr, rows, csr.col, values]
        return DatasetEdges(*self.batch.host_rows, *sides)

    @kept_property
    def csr(self) -> CSRTensors:
        return self.batch._csr(False, self.normalize)

    @kept_property
    def transposed(self) -> CSRTensors:
        # Only a backward pass reads the transpose; scoring need not gather it.
        return self.csr if self.batch.graphs.is_symmetric else self.batch._csr(True, self.normalize)
