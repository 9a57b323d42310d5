"""Batch normalisation in training as an operator: what the Triton kernels compute of it.

Registered as the other operators are. The kernels are imported when it first runs. Not used under
torch.compile, whose own kernels fuse the norm (`nn.modules.BatchNorm`).
"""

import torch
from torch import Tensor

from .registration import operator


@operator(
    "batch_norm",
    "(Tensor x, Tensor weight, Tensor bias, float eps, Tensor? count, bool relu) "
    "-> (Tensor, Tensor)",
)
def _batch_norm(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, count: Tensor | None, relu: bool
) -> tuple[Tensor, Tensor]:
    """Y, and [3, h]: μ, 1/σ, and the variance without bias."""
    from ..kernels import norm

    return norm.batch_norm(x, weight.contiguous(), bias.contiguous(), eps, count, relu=relu)


@_batch_norm.register_fake
def _(x, weight, bias, eps, count, relu):  # type: ignore[no-untyped-def]
    return torch.empty_like(x), x.new_empty((3, x.shape[1]), dtype=torch.float32)


@operator(
    "batch_norm_backward",
    "(Tensor grad, Tensor x, Tensor stats, Tensor weight, Tensor bias, Tensor? count, bool relu) "
    "-> (Tensor, Tensor)",
)
def _batch_norm_backward(
    grad: Tensor,
    x: Tensor,
    stats: Tensor,
    weight: Tensor,
    bias: Tensor,
    count: Tensor | None,
    relu: bool,
) -> tuple[Tensor, Tensor]:
    """dX, and [2, h]: db, dw."""
    from ..kernels import norm

    operands = grad.contiguous(), x, stats, weight.contiguous(), bias.contiguous(), count
    return norm.batch_norm_grad(*operands, relu=relu)


@_batch_norm_backward.register_fake
def _(grad, x, stats, weight, bias, count, relu):  # type: ignore[no-untyped-def]
    return torch.empty_like(x), x.new_empty((2, x.shape[1]), dtype=torch.float32)


def _setup(ctx, inputs, output):  # type: ignore[no-untyped-def]
    x, weight, bias, _, count, ctx.relu = inputs
    stats = output[1]
    ctx.save_for_backward(x, stats, weight, bias, count)
    ctx.mark_non_differentiable(stats)
    ctx.set_materialize_grads(False)


def _grad(ctx, grad, _):  # type: ignore[no-untyped-def]
    if grad is None:
        return (None,) * 6
    dx, (db, dw) = torch.ops.grant_fast.batch_norm_backward(grad, *ctx.saved_tensors, ctx.relu)
    return dx, dw, db, None, None, None


_batch_norm.register_autograd(_grad, _setup)


def batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    relu: bool,
    count: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """act(w (x − μ) / σ + b), [n, h], by the kernels; and μ, 1/σ and the variance, [3, h].

    Args:
        x: [n, h], two rows at least, floating.
        weight, bias: w and b, [h], float32.
        relu: act is a ReLU instead of the identity.
        count: see `GraphBatch.node_count`; two at least.
    """
    return torch.ops.grant_fast.batch_norm(x.contiguous(), weight, bias, eps, count, relu)
