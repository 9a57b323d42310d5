"""Checks of what networks and layers are made with."""

from numbers import Real
from typing import Any

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from ..errors import InputError
from .conv import FlexConv


def per_layer(name: str, value: Any, layers: int) -> list[Any]:
    """One value for each of `layers` hidden layers."""
    values = [value] * layers if isinstance(value, Real) else list(value)
    if len(values) != layers:
        entries = "1 entry" if len(values) == 1 else f"{len(values)} entries"
        raise InputError(
            f"{name} has {entries} for {layers} hidden layer{'s' * (layers != 1)} "
            "(one fewer than orders, whose last entry is the output layer's)"
        )
    return values


def check_layer(name: str, conv: nn.Module) -> None:
    """Refuse a layer whose own forward pass, or hook that computes its weights, would never run."""
    if type(conv).forward is not FlexConv.forward:
        raise InputError(
            f"{name} has a forward pass of its own, and FlexGCN calls none of them: "
            "make a network of such layers yourself"
        )
    parameters = conv._parameters
    if conv._forward_pre_hooks and "weight" not in parameters and not is_parametrized(conv):
        raise InputError(
            f"a hook computes the weight of {name} before its forward pass, which FlexGCN never "
            "calls: use torch.nn.utils.parametrizations"
        )


def is_hooked(module: nn.Module) -> bool:
    """Whether calling it runs more than its class says, or another forward pass."""
    own = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
    return bool(own or module._backward_pre_hooks) or "forward" in vars(module)


def choose(name: str, key: str | None, table: dict[str, Any]) -> Any:
    """The constructor that `table` holds for `key`; None is the identity."""
    if key is None:
        return nn.Identity
    if key not in table:
        raise InputError(f"unknown {name} {key!r}: choose one of {', '.join(table)}, or None")
    return table[key]
