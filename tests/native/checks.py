"""What the compiled CPU kernels are compared with: the definition in float64."""

import torch

from grant_fast import reference
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
