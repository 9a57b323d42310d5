"""What is derived from data once and kept."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import cached_property, wraps
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

T = TypeVar("T")
Given = tuple[Tensor | int | None, ...]


def kept(compute: Callable[..., T]) -> Callable[..., T]:
    """Run `compute` outside `torch.inference_mode` and the transforms of `torch.func`.

    A tensor made in inference mode can never serve training, and what is kept must serve both. One
    made inside a transform belongs to it, and is of no use when that ends.
    """

    @wraps(compute)
    def run(*args: Any, **kwargs: Any) -> T:
        transformed = torch._C._are_functorch_transforms_active()
        if not (transformed or torch.is_inference_mode_enabled()):
            return compute(*args, **kwargs)
        # First in and last out: inference_mode puts back what was switched off when it began.
        outside = torch._C._DisableFuncTorch() if transformed else nullcontext()
        with outside, torch.inference_mode(False), torch.no_grad():
            return compute(*args, **kwargs)

    return run


class kept_property(cached_property[T]):
    """`functools.cached_property` whose value is computed as `kept` says."""

    def __init__(self, func: Callable[[Any], T]) -> None:
        super().__init__(kept(func))


def writes(tensor: Tensor) -> int:
    """How often a tensor, or what it is a view of, was written to; 0 where nobody counts."""
    return 0 if tensor.is_inference() else tensor._version


class _Made(NamedTuple):
    """What was made, and a copy of all that it was made of."""

    given: Given
    made: Any


#: For up to `MOST_KEPT` owners, while they live, the last two each: edges may be read with weights
#: and without, or for one graph and for several.
_made: WeakIdKeyDictionary = WeakIdKeyDictionary()
MOST_KEPT = 8


@kept
def made_once(owner: Any, given: Given, make: Callable[[], T]) -> T:
    """What `make` makes of `given`; made before where the same came lately with the same `owner`.

    Tensors are compared in full, since they may have been written to: `make` must be dear.
    """
    found: tuple[_Made, ...] = _made.get(owner, ())
    for each in found:
        if _are_same(each.given, given):
            return each.made
    made = make()
    if not found and len(_made) >= MOST_KEPT:
        _made.clear()
    copied = tuple(t.clone() if isinstance(t, Tensor) else t for t in given)
    _made[owner] = (_Made(copied, made), *found[:1])
    return made


def _are_same(one: Given, other: Given) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a is b or a == b
        for a, b in zip(one, other, strict=True)
    )
