"""What a reader of a published data set hands over."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ..graphs.arrays import GraphArrays
from ..tasks import Kind


@dataclass(frozen=True)
class Published:
    """A data set that comes with its split and its task.

    Args:
        graphs: with y float32 `[G, T]`.
        split: positions of graphs, under "train", "valid" and "test".
        kind: of its task.
        metric: the official one.
        targets: names of y's columns, where they have any.
        encoder: "atom" where x holds OGB's nine categorical columns.
        missing_labels: whether y may hold NaN for "not measured".
    """

    graphs: GraphArrays
    split: dict[str, Tensor]
    kind: Kind
    metric: str
    targets: tuple[str, ...] = ()
    encoder: Literal["atom"] | None = None
    missing_labels: bool = False
