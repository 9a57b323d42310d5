"""Batch normalisation in training as an operator: what the Triton kernels compute of it.

Registered as the other operators are. The kernels are imported when it first runs. Not used under
torch.compile, whose own kernels fuse the norm (`nn.modules.BatchNorm`).
"""

from typing import Any

import torch
from torch import Tensor

from .registration import operator


@operator(
    "batch_norm",
    "(Tensor x, Tensor weight, Tensor bias, Tensor? keep, float eps, Tensor? count, bool relu, "
    "float scale) -> (Tensor, Tensor)",
)
def _batch_norm(x: Tensor, weight: Tensor, bias: Tensor, *settings: Any) -> tuple[Tensor, Tensor]:
    """Y, and [3, h]: μ, 1/σ, and the variance without bias."""
    from ..kernels import norm

    return norm.batch_norm(x, weight.contiguous(), bias.contiguous(), *settings)


@_batch_norm.register_fake
def _(x, weight, bias, keep, eps, count, relu, scale):  # type: ignore[no-untyped-def]
    return torch.empty_like(x), x.new_empty((3, x.shape[1]), dtype=torch.float32)


@operator(
    "batch_norm_backward",
    "(Tensor grad, Tensor x, Tensor stats, Tensor weight, Tensor bias, Tensor? keep, "
    "Tensor? count, bool relu, float scale) -> (Tensor, Tensor)",
)
def _batch_norm_backward(
    grad: Tensor,
    x: Tensor,
    stats: Tensor,
    weight: Tensor,
    bias: Tensor,
    *settings: Any,
) -> tuple[Tensor, Tensor]:
    """dX, and [2, h]: db, dw."""
    from ..kernels import norm

    operands = grad.contiguous(), x, stats, weight.contiguous(), bias.contiguous()
    return norm.batch_norm_grad(*operands, *settings)


@_batch_norm_backward.register_fake
def _(grad, x, stats, weight, bias, keep, count, relu, scale):  # type: ignore[no-untyped-def]
    return torch.empty_like(x), x.new_empty((2, x.shape[1]), dtype=torch.float32)


def _setup(ctx, inputs, output):  # type: ignore[no-untyped-def]
    x, weight, bias, keep, _, count, ctx.relu, ctx.scale = inputs
    stats = output[1]
    ctx.save_for_backward(x, stats, weight, bias, keep, count)
    ctx.mark_non_differentiable(stats)
    ctx.set_materialize_grads(False)


def _grad(ctx, grad, _):  # type: ignore[no-untyped-def]
    if grad is None:
        return (None,) * 8
    settings = ctx.relu, ctx.scale
    dx, (db, dw) = torch.ops.grant_fast.batch_norm_backward(grad, *ctx.saved_tensors, *settings)
    return dx, dw, db, *[None] * 5


_batch_norm.register_autograd(_grad, _setup)


def batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    relu: bool,
    count: Tensor | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """act(w (x − μ) / σ + b), [n, h], by the kernels; and μ, 1/σ and the variance, [3, h].

    Args:
        x: [n, h], two rows at least, floating.
        weight, bias: w and b, [h], float32.
        relu: act is a ReLU instead of the identity.
        count: see `GraphBatch.node_count`; two at least.
        dropout: the probability p, below 1, that an entry of the result is 0; the others are
            divided by 1 − p.
    """
    keep = None
    if dropout:
        keep = torch.empty(x.shape, dtype=torch.uint8, device=x.device).bernoulli_(1 - dropout)
    operands = x.contiguous(), weight, bias, keep, eps, count, relu, 1 / (1 - dropout)
    return torch.ops.grant_fast.batch_norm(*operands)
