"""A row for each node, by its kind, as an operator whose gradient the Triton kernels compute.

Registered with a fake and an autograd formula, so that `torch.compile` takes it whole. The kernels
are imported when it first runs.
"""

import torch
from torch import Tensor

from .registration import operator


@operator("embed", "(Tensor table, Tensor kind) -> Tensor")
def _embed(table: Tensor, kind: Tensor) -> Tensor:
    return table.index_select(0, kind)


@_embed.register_fake
def _(table, kind):  # type: ignore[no-untyped-def]
    return table.new_empty(kind.shape[0], table.shape[1])


@operator("embed_backward", "(Tensor grad, Tensor kind, SymInt kinds) -> Tensor")
def _embed_backward(grad: Tensor, kind: Tensor, kinds: int) -> Tensor:
    from ..kernels import kinds as kernels

    return kernels.sums(grad.contiguous(), kind, kinds)


@_embed_backward.register_fake
def _(grad, kind, kinds):  # type: ignore[no-untyped-def]
    return grad.new_empty(kinds, grad.shape[1])


def _setup(ctx, inputs, output):  # type: ignore[no-untyped-def]
    table, kind = inputs
    ctx.save_for_backward(kind)
    ctx.kinds = table.shape[0]


def _grad(ctx, grad):  # type: ignore[no-untyped-def]
    return torch.ops.grant_fast.embed_backward(grad, *ctx.saved_tensors, ctx.kinds), None


_embed.register_autograd(_grad, _setup)


def embed(table: Tensor, kind: Tensor) -> Tensor:
    """table[kind], [n, h], whose gradient the kernels sum; `kind` is [n] int32 or int64."""
    return torch.ops.grant_fast.embed(table, kind)
