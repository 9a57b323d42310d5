"""Which task a set of targets poses."""

import torch
from torch import Tensor

from ..errors import InputError, few
from ..tasks import NOT_MEASURED, Kind, Level, Task


def make_task(
    y: Tensor,
    level: Level,
    names: tuple[str, ...] = (),
    kind: Kind | None = None,
) -> tuple[Task, Tensor]:
    """The task that targets pose, and the targets in the form the task asks for.

    Args:
        y: float32 `[rows, T]` with NaN for "not measured", or class numbers int64 `[rows]`.
        level: whether a row is a graph or a node.
        names: of the columns.
        kind: by default multiclass for class numbers beyond 1; otherwise, where all labels are 0
            or 1, binary (one column) or multilabel; otherwise regression.

    Raises:
        InputError: no labels at all, or labels that `kind` does not allow; it names one.
    """
    if not y.is_floating_point():
        if kind is None and bool((y > 1).any()):
            kind = "multiclass"
        y = torch.where(y == NOT_MEASURED, torch.nan, y.double())[:, None]
    known = y[~y.isnan()]
    if known.numel() == 0:
        raise InputError("the targets hold no labels at all: choose other targets")
    columns = y.shape[1]
    zero_one = (known == 0) | (known == 1)
    if kind is None:
        classes: Kind = "binary" if columns == 1 else "multilabel"
        kind = classes if bool(zero_one.all()) else "regression"
    if kind in ("binary", "multilabel") and not bool(zero_one.all()):
        wrong = known[~zero_one][0].item()
        raise InputError(
            f"a {kind} task needs labels 0 and 1, found {wrong:g}: use those, or choose another "
            "task or target"
        )
    if kind in ("binary", "multiclass") and columns != 1:
        raise InputError(f"a {kind} task has one target, not {columns}: choose one, or multilabel")
    if kind == "multiclass":
        num_classes = _count_classes(known)
        y = torch.where(y.isnan(), NOT_MEASURED, y)[:, 0].long()
        return Task(kind, level, num_classes, names), y
    return Task(kind, level, columns, names), y.float()


def make_class_task(
    y: Tensor, level: Level, classes: tuple[str, ...], kind: Kind | None = None
) -> tuple[Task, Tensor]:
    """`make_task` of classes that have names: of all of them, also where some occur in no row.

    Args:
        y: positions in `classes`, float32 `[rows, 1]` with NaN for "not measured".
        level: whether a row is a graph or a node.
        classes: the names.
        kind: multiclass, if any.

    Raises:
        InputError: another kind, or no labels at all.
    """
    check_named_classes(classes, kind)
    if bool(y.isnan().all()):
        raise InputError("the targets hold no labels at all: choose other targets")
    labels = torch.where(y.isnan(), NOT_MEASURED, y)[:, 0].long()
    return Task("multiclass", level, len(classes), classes), labels


def classes_among_numbers(y: Tensor) -> tuple[Tensor, tuple[str, ...]]:
    """Targets as positions among classes, and these, of whole numbers that are no positions
    themselves, such as 1, 2 and 3: each must occur twice or more on average. Of other targets
    themselves, and ().

    Args:
        y: float32 `[rows, T]`, NaN for "not measured".
    """
    found, counts = y[~y.isnan()].unique(return_counts=True)
    whole = bool((found == found.round()).all()) and 1 < len(found) <= int(counts.sum()) / 2
    if y.shape[1] != 1 or not whole or torch.equal(found, torch.arange(len(found)).to(found)):
        return y, ()
    positions = torch.searchsorted(found, y.contiguous()).to(y).masked_fill(y.isnan(), torch.nan)
    return positions, tuple(f"{value:.0f}" for value in found.tolist())


def check_named_classes(classes: tuple[str, ...], kind: Kind | None) -> None:
    """Refuse another task than multiclass for classes that have names (InputError)."""
    if kind not in (None, "multiclass"):
        raise InputError(
            f"classes in words ({few(list(map(repr, classes)))}) are a multiclass task, not "
            f"{kind}: leave the task out, or write them as numbers"
        )


def _count_classes(labels: Tensor) -> int:
    found = labels.unique()
    broken = found[found != found.round()]
    if len(broken):
        raise InputError(
            f"multiclass labels must be whole numbers from 0, found {broken[0].item():g}: renumber "
            "the classes, or leave the task out for a regression"
        )
    if found[0] != 0:
        raise InputError(
            f"classes must start at 0; the smallest here is {found[0].item():g}: renumber them"
        )
    expected = torch.arange(len(found), dtype=found.dtype)
    if not torch.equal(found, expected):
        wrong = found[found != expected][0].item()
        raise InputError(
            f"multiclass labels must be whole numbers from 0 without gaps, found {wrong:g} as "
            f"the next after {len(found[found < wrong])} smaller ones: renumber the classes"
        )
    if len(found) < 2:
        raise InputError(
            "all labels are 0, but a multiclass task needs two classes: choose another target"
        )
    return len(found)
