"""The propagation matrix of a batch of graphs, and every form in which a user may hand it over."""

from typing import Any

import torch
from torch import Tensor

from .errors import InputError
from .reference import accept_sparse_csr, expand_rows

CSRTensors = tuple[Tensor, Tensor, Tensor]
_INTEGERS = {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8}


def index_dtype(*sizes: int) -> torch.dtype:
    """int32 where every index fits: half the bytes, and what sparse libraries like best."""
    return torch.int32 if all(size < 2**31 for size in sizes) else torch.int64


class Adjacency:
    """A sparse matrix in CSR, with its transpose given, or made when first asked for.

    Row = target and column = source, so that A @ x carries features along the edges, as in PyG.
    Duplicate entries add up. Rectangular matrices are allowed: pooling is one.

    Args:
        rowptr: [rows + 1], int32 or int64.  col: [nnz], the same dtype.  value: [nnz], floating.
        num_cols: columns of the matrix.
        transposed: the CSR of the transpose, if at hand. Its values carry no gradient.

    Raises:
        InputError: rowptr and col are of two dtypes.
    """

    def __init__(
        self,
        rowptr: Tensor,
        col: Tensor,
        value: Tensor,
        num_cols: int,
        transposed: CSRTensors | None = None,
    ) -> None:
        self.csr: CSRTensors = (rowptr, col, value)
        for rows, cols, _ in (self.csr, transposed or self.csr):
            if rows.dtype != cols.dtype:  # whoever multiplies reads both as one of them
                raise InputError(
                    f"rowptr is {rows.dtype} but col is {cols.dtype}: make both the same"
                )
        self.num_cols = num_cols
        self._transposed = transposed

    @property
    def num_nodes(self) -> int:
        return self.csr[0].shape[0] - 1

    @property
    def transposed(self) -> CSRTensors:
        """The CSR of Aᵀ; sorted once, stably, so that results never depend on timing."""
        if self._transposed is None:
            self._transposed = self._sorted_by_column()
        return self._transposed

    def _sorted_by_column(self) -> CSRTensors:
        rowptr, col, value = self.csr
        row = expand_rows(rowptr, col.shape[0])
        order = torch.argsort(col, stable=True)
        first = count_to_ptr(col, self.num_cols, rowptr.dtype)
        return first, row[order], value.detach()[order]

    def transpose(self) -> "Adjacency":
        """Aᵀ; its own transpose is this matrix."""
        return Adjacency(*self.transposed, self.num_nodes, self.csr)

    def normalized(self) -> "Adjacency":
        """Â = D^{-1/2} A D^{-1/2} with D the weighted in-degree, as PyG's `gcn_norm`.

        No self loops are added; a node of degree 0 (or, with negative weights, below) keeps a zero
        row, where PyG would give NaN below 0.
        """
        rowptr, col, value = self.csr
        row = expand_rows(rowptr, col.shape[0])
        degree = value.new_zeros(self.num_nodes).index_add(0, row, value)
        scale = inverse_sqrt(degree)
        return Adjacency(rowptr, col, scale[row] * value * scale[col], self.num_cols)

    @classmethod
    def from_edge_index(
        cls, edge_index: Tensor, edge_weight: Tensor | None, num_nodes: int, dtype: torch.dtype
    ) -> "Adjacency":
        """From PyG's `edge_index` [2, E] (source row, target row) and `edge_weight` [E] or None."""
        check_edge_index(edge_index, num_nodes)
        if edge_weight is None:
            edge_weight = torch.ones(edge_index.shape[1], dtype=dtype, device=edge_index.device)
        else:
            edge_weight = check_edge_weight(edge_weight, edge_index.shape[1]).to(dtype)
        small = index_dtype(num_nodes, edge_index.shape[1])
        source, target = edge_index
        order = torch.argsort(target, stable=True)
        rowptr = count_to_ptr(target, num_nodes, small)
        return cls(rowptr, source[order].to(small), edge_weight[order], num_nodes)

    @classmethod
    def from_any(
        cls, edges: Any, edge_weight: Tensor | None, num_nodes: int, dtype: torch.dtype
    ) -> "Adjacency":
        """From any form PyG's layers accept.

        `edges` is an `edge_index` [2, E] (a tensor or a PyG `EdgeIndex`), or, as everywhere in
        PyG, the *transposed* sparse adjacency (row = target): a torch sparse tensor or a
        `torch_sparse.SparseTensor`. `edge_weight` is floating point: integers in its place are
        most likely the graph vector of a network that is called with (x, edge_index, batch).

        Raises:
            InputError: another type, a wrong shape or dtype, or indices outside the graph.
        """
        if edge_weight is not None and edge_weight.dim() == 2 and edge_weight.shape[1] > 1:
            raise InputError(
                f"edge_weight has shape {tuple(edge_weight.shape)}: give one number per edge; edge "
                "features (edge_attr) are not supported"
            )
        if edge_weight is not None and not edge_weight.is_floating_point():
            raise InputError(
                f"edge_weight is {edge_weight.dtype}: weights must be floating point, such as "
                "edge_weight.float(); if you meant batch=…, give it to FlexGCN by name (a layer "
                "takes none)"
            )
        if isinstance(edges, Tensor) and edges.layout == torch.strided:
            return cls.from_edge_index(plain_tensor(edges), edge_weight, num_nodes, dtype)
        if edge_weight is not None:
            raise InputError(
                "edge_weight goes only with edge_index: a sparse matrix has its own values"
            )
        if isinstance(edges, Tensor):
            if edges.layout in (torch.sparse_bsr, torch.sparse_bsc) or edges.dense_dim():
                raise InputError(
                    f"the sparse adjacency is {tuple(edges.shape)} in blocks or rows of several "
                    "numbers: give one number for each edge, as in torch.sparse_csr"
                )
            accept_sparse_csr()
            edges = (edges.clone() if edges.is_inference() else edges).to_sparse_csr()
            rowptr, col, value = edges.crow_indices(), edges.col_indices(), edges.values()
            shape = tuple(edges.shape)
        elif hasattr(edges, "csr") and hasattr(edges, "sparse_sizes"):  # torch_sparse
            rowptr, col, value = edges.csr()
            shape = tuple(edges.sparse_sizes())
            value = torch.ones(col.shape[0], device=col.device) if value is None else value
        else:
            raise InputError(
                f"edge_index is a {type(edges).__name__}: give a [2, num_edges] tensor, a torch "
                "sparse tensor or a torch_sparse.SparseTensor"
            )
        if shape != (num_nodes, num_nodes):
            raise InputError(
                f"the sparse adjacency is {shape[0]} x {shape[1]}, but x has {num_nodes} nodes: "
                "give one row and one column for each"
            )
        small = index_dtype(num_nodes, col.shape[0])
        rowptr, col, value = rowptr.to(small), col.to(small), value.to(dtype)
        # The operators take them as they lie in memory.
        return cls(rowptr.contiguous(), col.contiguous(), value.contiguous(), num_nodes)


def plain_tensor(edges: Any) -> Any:
    """`edges`, of PyG's EdgeIndex the plain tensor: cheaper to index and to compile."""
    return edges.as_tensor() if hasattr(edges, "as_tensor") else edges


def count_to_ptr(index: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Where each of `size` groups begins once `index` is sorted, [size + 1]."""
    count = torch.zeros(size + 1, dtype=torch.int64, device=index.device)
    count.scatter_add_(0, index.long() + 1, torch.ones_like(index, dtype=torch.int64))
    return count.cumsum(0).to(dtype)


def inverse_sqrt(degree: Tensor) -> Tensor:
    """degree^{-1/2}, and 0 where the degree is 0 or below, but NaN where it is NaN; elsewhere its
    gradient is finite."""
    empty = degree <= 0
    return torch.where(empty, 0, torch.where(empty, 1, degree).rsqrt())


def pooling_matrix(batch: Tensor, ptr: Tensor, dtype: torch.dtype, mean: bool) -> Adjacency:
    """ρ, [num_graphs, n]; `batch` need not be sorted. An empty graph's row is empty."""
    small = index_dtype(batch.shape[0])
    sizes = ptr.diff().to(dtype)
    weight = 1 / sizes if mean else torch.ones_like(sizes)
    node = torch.argsort(batch, stable=True)
    value_t = weight[batch]
    rowptr_t = torch.arange(batch.shape[0] + 1, device=batch.device, dtype=small)
    return Adjacency(
        ptr.to(small),
        node.to(small),
        value_t[node],
        batch.shape[0],
        (rowptr_t, batch.to(small), value_t),
    )


def check_edge_index(edge_index: Tensor, num_nodes: int) -> None:
    """Raise InputError unless `edge_index` is an integer [2, E] tensor within the nodes.

    The range is read on the CPU only: elsewhere reading it would stop the device.
    """
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise InputError(f"edge_index has shape {tuple(edge_index.shape)}: it must be [2, E]")
    if edge_index.dtype not in _INTEGERS:
        raise InputError(f"edge_index is {edge_index.dtype}: it must hold integers, as int64")
    if edge_index.device.type != "cpu" or torch.compiler.is_compiling() or not edge_index.numel():
        return
    low, high = torch.aminmax(edge_index)
    if low < 0 or high >= num_nodes:
        edge = ((edge_index < 0) | (edge_index >= num_nodes)).any(0).nonzero()[0].item()
        source, target = edge_index[:, int(edge)].tolist()
        raise InputError(
            f"edge {edge} is {source} → {target}, but nodes run from 0 to {num_nodes - 1}, "
            "the rows of x"
        )


def check_edge_weight(edge_weight: Tensor, num_edges: int) -> Tensor:
    """`edge_weight` as [E]; raise InputError if it is not one number an edge."""
    if edge_weight.shape not in ((num_edges,), (num_edges, 1)):
        raise InputError(
            f"edge_weight has shape {tuple(edge_weight.shape)} for {num_edges} edges: give one "
            "number per edge"
        )
    return edge_weight.reshape(num_edges)
