"""Checks of what networks and layers are made with."""

from collections.abc import Iterable
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import nn

from ..errors import InputError
from .conv import FlexConv
from .modules import AtomEncoder

if TYPE_CHECKING:
    from .gcn import FlexGCN


POOLS = ("mean", "sum", "max", None)


def check_pool(pool: str | None) -> None:
    if pool not in POOLS:
        raise InputError(f"unknown pool {pool!r}: choose 'mean', 'sum', 'max' or None")


def per_layer(name: str, value: Any, layers: int) -> list[Any]:
    """One value for each of `layers` hidden layers."""
    if isinstance(value, str) or not isinstance(value, Real | Iterable):
        raise InputError(f"{name}={value!r}: give a number, or one for each hidden layer")
    values = [value] * layers if isinstance(value, Real) else list(value)
    if len(values) != layers:
        entries = "1 entry" if len(values) == 1 else f"{len(values)} entries"
        raise InputError(
            f"{name} has {entries} for {layers} hidden layer{'s' * (layers != 1)} "
            "(one fewer than orders, whose last entry is the output layer's)"
        )
    return values


def check_layer(name: str, conv: nn.Module, normalize: bool) -> None:
    """Refuse a layer of which more than its weights says what it computes: its own forward pass
    would never run, and the network has one `normalize`."""
    if type(conv).forward is not FlexConv.forward or "forward" in conv.__dict__:
        raise InputError(
            f"{name} has its own forward pass, which FlexGCN would not call: build a network of "
            "such layers yourself"
        )
    if conv.normalize != normalize:
        raise InputError(
            f"{name} has normalize={conv.normalize} in a FlexGCN with normalize={normalize}, "
            "which all its layers share: make both the same"
        )


def check_layers(model: "FlexGCN") -> None:
    """`check_layer` of all layers of a network, and `check_pool`; and that there are as many layers
    as it was made with."""
    check_pool(model.pool)
    count = len(model.convs)
    if not len(model.norms) == len(model.dropouts) == count - 1:
        raise InputError(
            f"the FlexGCN has {count} convs, {len(model.norms)} norms and {len(model.dropouts)} "
            "dropouts, where one of each is between two convs: make a network with other orders"
        )
    for name, conv in model.convs.named_children():
        check_layer(f"convs.{name}", conv, model.normalize)


def is_hooked(module: nn.Module) -> bool:
    """Whether calling it runs more than its class says, for itself or as every module does (as for
    PyTorch's counter of operations); or another forward pass."""
    of_all = torch.nn.modules.module
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or of_all._global_forward_hooks
        or of_all._global_forward_pre_hooks
        or of_all._global_backward_hooks
        or of_all._global_backward_pre_hooks
        or "forward" in module.__dict__
    )


def embeds_kinds(encoder: object) -> TypeGuard[AtomEncoder]:
    """Whether a dataset's kinds of nodes may be embedded in place of calling it."""
    return type(encoder) is AtomEncoder and not is_hooked(encoder)


def choose(name: str, key: str | None, table: dict[str, Any]) -> Any:
    """The constructor that `table` holds for `key`; None is the identity."""
    if key is None:
        return nn.Identity
    if not isinstance(key, str) or key not in table:
        raise InputError(f"unknown {name} {key!r}: choose one of {', '.join(table)}, or None")
    return table[key]
