"""What a kernel is and how it may be specialised, for `configurations.py` to list."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Configuration(NamedTuple):
    """One way to specialise a kernel.

    words: what the table calls it.
    constants: its `tl.constexpr`s; PRECISION is the target's, and is filled in.
    dtype: of the features, as Triton calls it.
    representative: compiled by `make test`, too.
    tf32: of float32 as a user wants it who allows TF32.
    hopper: for targets that have (True) or have not (False) Hopper's matrix units; None for all.
    """

    words: str
    constants: dict[str, Any]
    dtype: str = "fp32"
    representative: bool = False
    tf32: bool = False
    hopper: bool | None = None


@dataclass(frozen=True)
class Kernel:
    """A kernel, all configurations it is compiled in, and the types of its arguments.

    accurate: its products are float32's even where the features are of half precision.
    optional: operands that are None where a constant is false.

    Pointers begin with `p_` and point to features unless `types` knows better; what is neither
    pointer nor constant is an i32.
    """

    jit: Any
    configurations: tuple[Configuration, ...]
    types: Mapping[str, str] = field(default_factory=dict)
    accurate: bool = False
    optional: Mapping[str, str] = field(default_factory=dict)

    def absent(self, constants: Mapping[str, Any]) -> set[str]:
        """Which operands are None among these constants."""
        return {operand for operand, needs in self.optional.items() if not constants[needs]}

    @property
    def name(self) -> str:
        return self.jit.fn.__name__
