"""What is derived from data once and kept."""

from collections.abc import Callable
from functools import cached_property, wraps
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def kept(compute: Callable[..., T]) -> Callable[..., T]:
    """Run `compute` outside `torch.inference_mode`.

    A tensor made inside it can never serve training, and what is kept must serve both.
    """

    @wraps(compute)
    def run(*args: Any, **kwargs: Any) -> T:
        if not torch.is_inference_mode_enabled():
            return compute(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():
            return compute(*args, **kwargs)

    return run


class kept_property(cached_property[T]):
    """`functools.cached_property` whose value is computed as `kept` says."""

    def __init__(self, func: Callable[[Any], T]) -> None:
        super().__init__(kept(func))
