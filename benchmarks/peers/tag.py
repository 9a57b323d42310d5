"""PyG's `TAGConv` as a single layer, in every form of edges that it takes."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import TAGConv

from grant_fast.adjacency import Adjacency

from .vendor import csr_matrix


def tag_layer(weight: Tensor, bias: Tensor, normalize: bool) -> TAGConv:
    """A `TAGConv` with the weights [κ, h_in, h_out] and bias [h_out]."""
    order, h_in, h_out = weight.shape
    conv = TAGConv(h_in, h_out, K=order - 1, normalize=normalize).to(weight)
    with torch.no_grad():
        for lin, w in zip(conv.lins, weight, strict=True):
            lin.weight.copy_(w.T)
        conv.bias.copy_(bias)
    return conv


def edges_as(form: str, adjacency: Adjacency, edge_index: Tensor) -> Any:
    """The edges for `TAGConv.forward`, as "edge_index", "CSR" or "SparseTensor".

    An edge_index is normalised by the layer at every call, as it comes. A sparse matrix carries
    its normalised values, computed once, here: the best that its users can do.

    Raises:
        ImportError: "SparseTensor" without torch_sparse.
    """
    if form == "edge_index":
        return edge_index
    if form == "CSR":
        return csr_matrix(adjacency.csr)
    from torch_sparse import SparseTensor

    rowptr, col, value = adjacency.csr
    size = (adjacency.num_nodes, adjacency.num_nodes)
    out = SparseTensor(rowptr=rowptr.long(), col=col.long(), value=value, sparse_sizes=size)
    out.storage.csr2csc(), out.storage.colptr()  # kept: the backward pass needs them
    return out


def compiled(conv: TAGConv) -> Callable[..., Tensor]:
    """The same layer under `torch.compile`, once for graphs of any number and size.

    So its users must have it, whose batches differ; and so the next data set finds it compiled.
    """
    # Every width and order is one more version of one function. Beyond the limit dynamo would
    # go on uncompiled, and say nothing.
    torch._dynamo.config.recompile_limit = 64
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    return torch.compile(conv, dynamic=True)
