"""How an operator is registered: as by `torch.library.custom_op`, without most of what that costs.

With 20 arguments, `custom_op` spends most of a call looking for defaults in the schema, longer than
a GPU should need for a layer of small graphs. So the gradient formula is registered by hand.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

from ..gradients import apply, once_differentiable

_library = torch.library.Library("grant_fast", "FRAGMENT")  # lives with the package

Compute = Callable[..., Any]


def _untraced(compute: Compute) -> Compute:
    """Calls `compute`, which no compiler ever traces, and imports none.

    Torch's public decorator of this kind would import one with the package, its private one with
    the first call.
    """
    disabled = torch._disable_dynamo(compute)

    def run(*arguments: Any) -> Any:
        return (disabled if "torch._dynamo" in sys.modules else compute)(*arguments)

    return run


class Operator:
    """`torch.ops.grant_fast.NAME`, which changes none of its arguments.

    Args:
        name: within `torch.ops.grant_fast`.
        schema: its arguments and results, as torch writes them; no defaults.
        compute: the results, in memory of their own; never compiled or traced.
    """

    def __init__(self, name: str, schema: str, compute: Compute) -> None:
        self.name, self.compute = name, compute
        _library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
        _library.impl(name, _untraced(compute), "CompositeExplicitAutograd")

    def register_fake(self, fake: Compute) -> Compute:
        """Take `fake` for the shapes and dtypes of the results."""
        return torch.library.register_fake(f"grant_fast::{self.name}", fake, lib=_library)

    def register_autograd(self, grad: Compute, setup: Compute) -> None:
        """Take a gradient formula, for one differentiation.

        Args:
            grad: (ctx, gradients of the results) -> a gradient, or None, for each argument.
            setup: (ctx, arguments, results) keeps in `ctx` what `grad` will need.
        """
        run = getattr(torch.ops.grant_fast, self.name).default
        below_autograd = torch._C._AutoDispatchBelowAutograd

        def forward(ctx: Any, *arguments: Any) -> Any:
            with below_autograd():
                results = run(*arguments)
            setup(ctx, arguments, results)
            return results

        backward = once_differentiable(grad)
        methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        function = type(f"{self.name}_with_gradient", (torch.autograd.Function,), methods)

        def differentiable(*arguments: Any) -> Any:
            # In forward mode, too, which it refuses: below autograd the tangents would be lost.
            if torch.is_grad_enabled() or forward_ad._current_level >= 0:
                return apply(function, *arguments)
            with below_autograd():
                return run(*arguments)

        _library.impl(self.name, differentiable, "Autograd")


def operator(name: str, schema: str) -> Callable[[Compute], Operator]:
    """Register the decorated function as `torch.ops.grant_fast.NAME`; see `Operator`."""
    return lambda compute: Operator(name, schema, compute)
