"""Which task a set of targets poses."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import InputError, few, option
from ..tasks import NOT_MEASURED, Kind, Level, Task

_EXACT = 2**24  # up to here float32 holds every whole number


def make_task(
    y: Tensor,
    level: Level,
    names: tuple[str, ...] = (),
    kind: Kind | None = None,
    classes: tuple[str, ...] = (),
    rows: Sequence[int] = (),
) -> tuple[Task, Tensor]:
    """The task that targets pose, and the targets in the form the task asks for.

    Classes that are other whole numbers than 0, 1, 2, … have these as their names, if each occurs
    twice or more on average.

    Args:
        y: float32 `[rows, T]` with NaN for "not measured", or class numbers int64 `[rows]`.
        level: whether a row is a graph or a node.
        names: of the columns.
        kind: by default multiclass for class numbers beyond 1 and for named classes; otherwise,
            where all labels are 0 or 1, binary (one column) or multilabel; otherwise regression.
        classes: names of the classes, where y are positions among them; also of classes that do not
            occur.
        rows: how a table numbers these, for messages.

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
    if classes:
        check_named_classes(classes, kind)
        return Task("multiclass", level, len(classes), classes), class_numbers(y)
    columns = y.shape[1]
    zero_one = (y == 0) | (y == 1) | y.isnan()
    if kind is None:
        of_classes: Kind = "binary" if columns == 1 else "multilabel"
        kind = of_classes if bool(zero_one.all()) else "regression"
    if kind in ("binary", "multilabel") and not bool(zero_one.all()):
        raise InputError(
            f"a {kind} task needs labels 0 and 1, found {_first(y, ~zero_one, names, rows)}: use "
            "those, or choose another task or target"
        )
    if kind in ("binary", "multiclass") and columns != 1:
        raise InputError(f"a {kind} task has one target, not {columns}: choose one, or multilabel")
    if kind != "multiclass":
        return Task(kind, level, columns, names), y.float()
    broken = (y - y.round()).abs() > 0
    if bool(broken.any()):
        raise InputError(
            f"multiclass labels must be whole numbers, found {_first(y, broken, names, rows)}: "
            "correct it, or leave the task out for a regression"
        )
    found, counts_up = _classes(known)
    if counts_up:
        return Task(kind, level, len(found), names), class_numbers(y)
    named = tuple(f"{value:.0f}" for value in found.tolist())
    y = torch.searchsorted(found, y.contiguous()).to(y).masked_fill(y.isnan(), torch.nan)
    return Task(kind, level, len(found), named), class_numbers(y)


def check_named_classes(classes: tuple[str, ...], kind: Kind | None) -> None:
    """Refuse another task than multiclass for classes that have names (InputError)."""
    if kind not in (None, "multiclass"):
        raise InputError(
            f"classes with names ({few(list(map(repr, classes)))}) are a multiclass task, not "
            f"{kind}: leave the task out"
        )


def _first(y: Tensor, wrong: Tensor, names: Sequence[str], rows: Sequence[int]) -> str:
    """The first label that is wrong and, of a table, its place."""
    row, column = wrong.nonzero()[0].tolist()
    place = f" in row {rows[row]}, column {names[column]!r}" if rows else ""
    return f"{y[row, column].item():g}{place}"


def class_numbers(y: Tensor) -> Tensor:
    """Float class numbers [rows, 1] as int64 [rows], -100 for NaN."""
    return torch.where(y.isnan(), NOT_MEASURED, y)[:, 0].long()


def _classes(labels: Tensor) -> tuple[Tensor, bool]:
    """The different class numbers, ascending, and whether they are 0, 1, 2, …"""
    found = labels.unique()
    if found.dtype == torch.float32 and float(found.abs().max()) >= _EXACT:
        raise InputError(
            f"class numbers beyond {_EXACT:,} are rounded, and different ones so become one: write "
            "smaller ones, or words"
        )
    if len(found) < 2:
        raise InputError(
            f"all labels are {found[0].item():.0f}, but a multiclass task needs two classes: "
            "choose another target"
        )
    counts_up = torch.equal(found, torch.arange(len(found)).to(found))
    if not counts_up and 2 * len(found) > len(labels):
        raise InputError(
            f"{len(found)} different whole numbers among {len(labels)} labels are too many for "
            "classes, as each occurs less than twice on average: for a regression give "
            f"{option('task', 'regression')}"
        )
    return found, counts_up
