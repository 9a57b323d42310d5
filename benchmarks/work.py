"""What a case consists of: sides that do the same work, and the answer that they must give."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

#: Of ‖answer − exact‖ / ‖exact‖, in float32.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Side:
    """One contender, ready to run.

    Args:
        run: the work that is timed.
        answer: what it computes, to compare.
        held: bytes that it holds for its backward pass; None where there is none.
        recorded: the run replays a CUDA graph, which has had all its memory since it was recorded.
    """

    run: Callable[[], Any]
    answer: Callable[[], Sequence[Tensor]]
    held: Callable[[], int] | None = None
    recorded: bool = False


@dataclass(frozen=True)
class Work:
    """A case, built.

    Args:
        ours: the side that a user gets; the others are its peers, or its other backends.
        sides: how to make each. One that raises is reported, and the rest go on without it.
        exact: the answer in float64.
        bytes: the least that the work must move; None where nobody stated it.
        facts: sizes, and whatever else a reader wants to know.
        tolerances: of ‖answer − exact‖ / ‖exact‖ of each tensor, in float32; `TOLERANCE` of each
            where none are given.
    """

    ours: str
    sides: dict[str, Callable[[], Side]]
    exact: Callable[[], Sequence[Tensor]]
    bytes: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    tolerances: Sequence[float] = ()
