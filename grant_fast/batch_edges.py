"""The edges of a batch: where its dataset holds them, and gathered as a propagation matrix."""

from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from .adjacency import Adjacency, CSRTensors
from .caching import kept_property

if TYPE_CHECKING:
    from .batch import GraphBatch


class DatasetSide(NamedTuple):
    """One direction of a dataset's edges; `weight` is None where every edge weighs 1, and the rest
    (`packing.EdgeGroups`) where it is not made."""

    rowptr: Tensor
    col: Tensor
    weight: Tensor | None
    listed: Tensor | None
    group: Tensor | None
    busy_ptr: Tensor | None
    busy: Tensor | None


class DatasetEdges(NamedTuple):
    """The edges of a batch's graphs in the arrays of their dataset, by target and by source.

    Graph b owns rows ptr[b] … ptr[b+1]-1 of the batch and as many nodes of the dataset from
    first[b] on; a side's `rowptr` runs over the dataset's nodes, and its `col` counts within a
    graph. The matrix is diag(scale) A diag(scale), or A where `scale` is None.
    """

    ptr: Tensor
    first: Tensor
    scale: Tensor | None
    sides: tuple[DatasetSide, DatasetSide]


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

        def side(transposed: bool) -> DatasetSide:
            csr = graphs.adj_t if transposed and graphs.adj_t is not None else graphs.adj
            groups = graphs.groups(transposed) or (None,) * 4
            return DatasetSide(csr.rowptr, csr.col, csr.weight, *groups)

        scale = graphs.scale if self.normalize else None
        return DatasetEdges(*self.batch.host_rows, scale, (side(False), side(True)))

    @kept_property
    def csr(self) -> CSRTensors:
        return self.batch._csr(False, self.normalize)

    @kept_property
    def transposed(self) -> CSRTensors:
        # Only a backward pass reads the transpose; scoring need not gather it.
        return self.csr if self.batch.graphs.is_symmetric else self.batch._csr(True, self.normalize)
