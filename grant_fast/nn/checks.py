"""Checks of what networks and layers are made with."""

from numbers import Integral
from typing import Any

from torch import nn

from ..errors import InputError


def per_layer(name: str, value: Any, layers: int) -> list[Any]:
    """One value for each of `layers` hidden layers."""
    values = [value] * layers if isinstance(value, int | float) else list(value)
    if len(values) != layers:
        raise InputError(
            f"{name} has {len(values)} entries for {layers} hidden layers "
            "(one fewer than orders, whose last entry is the output layer's)"
        )
    return values


def choose(name: str, key: str | None, table: dict[str, Any]) -> Any:
    """The constructor that `table` holds for `key`; None is the identity."""
    if key is None:
        return nn.Identity
    if key not in table:
        raise InputError(f"unknown {name} {key!r}: choose one of {', '.join(table)}, or None")
    return table[key]


def check_positive(name: str, value: int) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise InputError(f"{name} is {value}: it must be a whole number of at least 1")
