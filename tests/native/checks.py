"""What the compiled CPU kernels are compared with: the definition in float64."""

import copy

import torch

from grant_fast import PackedGraphs, native, reference
from tests.cases import to_dense


def exact(x, weight, bias, adjacency, grad, relu):
    """Y, dX, dW and db in float64 by the definition."""
    leaves = [t.detach().double().requires_grad_() for t in (x, weight, bias)]
    rowptr, col, value = adjacency.csr
    dense = to_dense(rowptr, col, value.double(), x.shape[0])
    y = reference.dense_flex_conv(*leaves, dense)
    y = y.relu() if relu else y
    return y.detach(), *torch.autograd.grad(y, leaves, grad.double())


def close(actual, expected, *others):
    """Up to rounding of the largest number here, or in `others`: sums of terms of the same size."""
    actual, expected = actual.detach(), expected.detach()
    sizes = [float(t.abs().max()) for t in (expected, *others) if t.numel()]
    scale = max([1.0, *sizes])
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=2e-6 * scale)


def identity_network(batch, width, p=0.0, norm=None, bias=None):
    """dropout(relu(norm(X + b)), p) of every node, as a network whose products change nothing."""
    eye = torch.eye(width)[None]
    layers = (native.Layer(eye, bias, norm, p), native.Layer(eye, None))
    return native.Network(layers, "batch", batch.adjacency(True), None)


def nodes(count):
    """One batch of so many nodes without edges, in graphs of a hundred."""
    ptr = torch.arange(count) // 100
    edges = torch.empty(2, 0, dtype=torch.long)
    return PackedGraphs.from_arrays(torch.zeros(count, 1), edges, ptr).batch(slice(None))


def in_double(model):
    """The same model in float64, on PyTorch's operators."""
    out = copy.deepcopy(model).double()
    out.backend = "torch"
    return out
