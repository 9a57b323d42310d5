"""Gradients that have no gradient of their own."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.autograd.function import once_differentiable as differentiable_once

from .errors import InputError


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
                "FlexConv is differentiable once, and create_graph=True asks for more: take PyG's "
                "TAGConv where you need a gradient of gradients"
            )
        return compute(ctx, *grads)

    return run
