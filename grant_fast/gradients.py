"""Gradients that have no gradient of their own."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.autograd.function import once_differentiable as differentiable_once

from .errors import InputError


def one_at_a_time(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Take gradients that come in a batch (`is_grads_batched=True`, `jacobian(vectorize=True)`) one
    after another: such a batch has no memory that a kernel could read."""

    @wraps(backward)
    def run(ctx: Any, grad: Any) -> Any:
        batched: Any = torch._C._functorch
        wrap: Any
        if batched.is_batchedtensor(grad):  # of torch.func.vmap
            level, dim = batched.maybe_get_level(grad), batched.maybe_get_bdim(grad)
            grads, wrap = batched.get_unwrapped(grad).movedim(dim, 0), batched._add_batch_dim
        elif batched.is_legacy_batchedtensor(grad):  # of torch.autograd
            level = torch._C._vmapmode_increment_nesting() - 1
            torch._C._vmapmode_decrement_nesting()
            grads, wrap = torch._remove_batch_dim(grad, level, 0, 0), torch._add_batch_dim
        else:
            return backward(ctx, grad)
        each = [run(ctx, one) for one in grads]
        return tuple(
            None if parts[0] is None else wrap(torch.stack(parts), 0, level)
            for parts in zip(*each, strict=True)
        )

    return run


def apply(function: Any, *arguments: Any) -> Any:
    """What an `autograd.Function` gives; InputError where more is asked of it than a gradient."""
    try:
        return function.apply(*arguments)
    except RuntimeError as error:
        if not any(missing in str(error) for missing in ("setup_context", "jvp")):
            raise
        raise InputError(
            "torch.func and forward mode need derivatives that FlexConv's own operators do not "
            "have: set the model's backend to 'reference'"
        ) from error


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """PyTorch's decorator of this name, which refuses `create_graph=True` at once.

    PyTorch's own notices a second derivative only where the gradient that comes in depends on
    something; where that is constant, as below a sum, the second derivative would silently be 0.
    """
    compute = differentiable_once(backward)

    @wraps(backward)
    def run(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled():
            raise InputError(
                "FlexConv can be differentiated only once, but create_graph=True asks for more: "
                "set the model's backend to 'reference' for a gradient of gradients"
            )
        return compute(ctx, *grads)

    return run
