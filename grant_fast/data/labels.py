"""What the cells of a column say: numbers, classes in words, or nothing."""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError, option, short
from ..graphs.packing import check_rounding
from ..tasks import Task
from .infer import class_numbers
from .sheet import Sheet, listed

MISSING = frozenset({"", "nan", "na", "n/a", "#n/a", "null", "none"})
_NO_WORD = MISSING - {"none"}  # which is a class beside mild and severe
_LARGEST = float(np.finfo(np.float32).max)
#: How a number begins that has a sign, a quote or a unit beside it, as in >10, '1' or 5 nM.
_MEASURED = re.compile(r"[(<>≤≥=~±≈'\"\s]*[+-]?\.?\d")


def is_of_numbers(cells: list[str]) -> bool:
    """Whether a column's cells are numbers or missing, and one is a number."""
    labels = list(_labels(cells))
    return bool(labels) and all(abs(_value(cell)) <= _LARGEST for cell in labels)


def nearly_of_numbers(sheet: Sheet, columns: Sequence[int]) -> str:
    """Which cells, a few among many numbers, keep the first such column from holding numbers alone,
    and what can be done; nothing where there is no such column."""
    for column in columns:
        cells = sheet.column(column)
        labels = [at for at, cell in enumerate(cells) if cell.lower() not in MISSING]
        wrong = [at for at in labels if not abs(_value(cells[at])) <= _LARGEST]
        if 0 < 2 * len(wrong) < len(labels):
            return _no_number(sheet, column, wrong)
    return ""


def is_of_classes(cells: list[str]) -> bool:
    """Whether a column's cells are words or missing, and the words few enough to be classes."""
    words = _words(cells)
    few = 1 < len(words) <= sum(1 for _ in _labels(cells, _NO_WORD)) / 2
    return few and not any(map(_MEASURED.match, words))


def numbers_of(sheet: Sheet, columns: Sequence[int]) -> Tensor:
    """Columns as targets, float32 `[rows, T]`, NaN where a cell is missing.

    Raises:
        InputError: a cell is not a finite number, a column holds no label at all or words, or its
            numbers are too large for their differences; it names the place and the remedy.
    """
    y = np.empty((len(sheet.body), len(columns)), dtype=np.float32)
    for t, column in enumerate(columns):
        cells, name = sheet.column(column), sheet.names[column]
        if words := _words(cells):
            raise InputError(_no_numbers(sheet, columns, name, words, cells))
        values = np.array([_value(cell) for cell in cells])
        doubtful = np.flatnonzero(~(np.abs(values) <= _LARGEST)).tolist()
        wrong = [at for at in doubtful if cells[at].lower() not in MISSING]
        if wrong or sheet.mark != ",":
            _check_is_clear(sheet, column)
        if wrong:
            _check_no_number_among_words(sheet, column)
            raise InputError(_no_number(sheet, column, wrong))
        if np.isnan(values).all():
            raise InputError(
                f"{sheet.path} column {name!r} holds no labels at all: "
                f"fill some in, or choose another with {option('target')}"
            )
        y[:, t] = values
        given, rounded = map(torch.from_numpy, (values, y[:, t]))
        check_rounding(given, rounded, f"{sheet.path} column {name!r}")
    return torch.from_numpy(y)


def classes_of(sheet: Sheet, column: int) -> tuple[Tensor, tuple[str, ...]]:
    """A column of classes in words: their numbers, float32 `[rows, 1]`, NaN where a cell is
    missing; and the words by these numbers, in alphabetical order.

    Raises:
        InputError: one class is written in several ways.
    """
    cells = sheet.column(column)
    names = sorted(_words(cells))
    spelled: dict[str, str] = {}
    for name in names:
        if (other := spelled.setdefault(name.casefold(), name)) != name:
            raise InputError(
                f"{sheet.path} column {sheet.names[column]!r} holds both {other!r} and {name!r}: "
                "write each class in one way"
            )
    number = {name: float(at) for at, name in enumerate(names)}
    y = [[number.get(cell, math.nan)] for cell in cells]
    return torch.tensor(y, dtype=torch.float32), tuple(names)


def labels_of(
    sheet: Sheet, names: Sequence[str], task: Task, unread: Collection[int]
) -> tuple[Tensor, list[str]]:
    """What a sheet says of the targets of a task that was learned from another.

    Args:
        sheet: of new molecules.
        names: of the targets' columns, in any case if that tells them from others; of one that is
            not there nothing is known.
        task: gives the kind, and the classes.
        unread: rows whose molecules could not be read, and whose labels so are not.

    Returns:
        Targets as `Task` has them, float32 `[rows, T]` or class numbers int64 `[rows]`. Which cells
        were left out, a line for each column, as they are no labels of the task; and why a column
        was: most of its cells are none, or one may mean two numbers, or several columns are called
        so.
    """
    y, problems = np.full((len(sheet.body), len(names)), math.nan, dtype=np.float32), []
    for t, name in enumerate(names):
        try:
            if (column := _column(sheet, name)) is not None:
                y[:, t], left_out = _labels_in(sheet, column, task, unread)
                problems += left_out
        except InputError as error:
            problems.append(f"not compared: {error}")
    found = torch.from_numpy(y)
    return (class_numbers(found) if task.kind == "multiclass" else found), problems


def _column(sheet: Sheet, name: str) -> int | None:
    """Where the column of a name is; None where there is none."""
    alike = [other for other in sheet.names if other.lower() == name.lower()]
    if name not in alike and len(alike) > 1:
        raise InputError(
            f"{sheet.path} has the columns {listed(alike)}, and each may be meant by {name!r}: "
            "rename all but one of them"
        )
    return sheet.position(name if name in alike else alike[0], "target") if alike else None


def _labels_in(
    sheet: Sheet, column: int, task: Task, unread: Collection[int]
) -> tuple[list[float], list[str]]:
    """A column of a known task, NaN where a cell is missing or no label; and how many are none, in
    a line. InputError where they are not fewer than the labels."""
    if task.kind == "regression":
        _check_is_clear(sheet, column)
    number = {name: float(at) for at, name in enumerate(task.class_names)}
    missing = MISSING - {name.lower() for name in number}  # "none" beside mild and severe
    labels, wrong = [math.nan] * len(sheet.body), []
    for at, cell in enumerate(sheet.column(column)):
        row = sheet.body[at][0]
        if row in unread or cell.lower() in missing:
            continue
        label = _value(cell)
        if number:  # classes that are numbers have whole ones as names, and no -0
            label = number.get(f"{label + 0:.0f}" if label.is_integer() else cell, math.nan)
        if _is_label(label, task):
            labels[at] = label
        else:
            wrong.append((row, cell, label))
    if not wrong:
        return labels, []
    row, cell, label = wrong[0]
    problem = (
        f"{sheet.path} row {row}, column {sheet.names[column]!r}: {cell!r} is not "
        f"{_wanted(task, label)}; correct the cell, or empty it if the value is missing"
    )
    if len(wrong) >= sum(not math.isnan(label) for label in labels):
        raise InputError(problem)
    count = "1 label is" if len(wrong) == 1 else f"{len(wrong):,} labels are"
    return labels, [f"{count} left out: {problem}"]


def _is_label(value: float, task: Task) -> bool:
    """Whether a number can be a label of a task."""
    if task.kind == "regression":
        return abs(value) <= _LARGEST
    count = task.num_outputs if task.kind == "multiclass" else 2
    return value.is_integer() and 0 <= value < count


def _wanted(task: Task, value: float) -> str:
    """What a label of a task is, for a message; this value is none."""
    if task.class_names:
        return f"one of {listed(task.class_names)}, the run's classes"
    if task.kind == "regression":
        return "a number" + ("" if math.isnan(value) else f" up to {_LARGEST:.1e}")
    return "0 or 1" if task.kind != "multiclass" else f"a class from 0 to {task.num_outputs - 1}"


def _check_no_number_among_words(sheet: Sheet, column: int) -> None:
    """Refuse a column of words with a number or a few among them, which it names (InputError)."""
    cells = sheet.column(column)
    labels = [at for at, cell in enumerate(cells) if cell.lower() not in MISSING]
    numbers = [at for at in labels if _is_number(cells[at])]
    words = [cell for cell in _labels(cells) if not _MEASURED.match(cell)]
    if not 0 < len(numbers) < len(words):
        return
    row, record = sheet.body[numbers[0]]
    if len(numbers) > max(1, len(words) // 10):
        raise InputError(
            f"{sheet.path} column {sheet.names[column]!r} holds {len(words):,} words "
            f"({listed(list(dict.fromkeys(words)), 3)}) and {len(numbers):,} numbers "
            f"({record[column].strip()!r} in row {row}): learn one or the other, and empty the "
            "other cells"
        )
    raise InputError(
        f"{sheet.path} row {row}, column {sheet.names[column]!r}: {record[column].strip()!r} "
        "is among words: correct the cell, or empty it if the value is missing"
    )


def _no_numbers(
    sheet: Sheet, columns: Sequence[int], name: str, words: list[str], cells: list[str]
) -> str:
    """Why words cannot be a target, or not beside these others, and what can be done."""
    numbers = [sheet.names[i] for i in columns if is_of_numbers(sheet.column(i))]
    instead = option("target", numbers) if numbers else f"another with {option('target')}"
    where = f"{sheet.path} column {name!r}"
    if measured := [word for word in words if _MEASURED.match(word)]:
        return (
            f"{where} holds words that begin like numbers ({listed(measured, 3)}): write plain "
            "numbers, without units or signs such as >, or classes whose names begin with a "
            f"letter, or choose {instead}"
        )
    if len(words) == 1:
        return f"{where} holds no label but {words[0]!r}: add other ones, or choose {instead}"
    if not is_of_classes(cells):
        return (
            f"{where} holds words ({listed(words, 3)}), too many different ones for classes, as "
            f"each occurs less than twice on average: choose {instead}"
        )
    return (
        f"{where} holds classes in words ({listed(words, 3)}), which are learned alone: choose "
        f"{option('target', name)}, or {instead}"
    )


def _labels(cells: Iterable[str], missing: frozenset[str] = MISSING) -> Iterator[str]:
    """The cells that are not missing."""
    return (cell for cell in cells if cell.lower() not in missing)


def _words(cells: list[str]) -> list[str]:
    """What a column without a single number says: its labels have names. Else nothing."""
    if _is_number(next(_labels(cells), "0")):
        return []  # the usual case costs one look
    words = list(dict.fromkeys(_labels(cells, _NO_WORD)))
    return [] if any(map(_is_number, words)) else words


def _is_number(text: str) -> bool:
    """Whether it is meant for one, if with a decimal comma or thousands set apart by commas."""
    try:
        float(text.replace(",", ""))
    except ValueError:
        return False
    return True


def _value(cell: str) -> float:
    """The number that a cell says; NaN where it says none."""
    try:
        return math.nan if "_" in cell else float(cell)  # 1_0 is a number to Python alone
    except ValueError:
        return math.nan


def _check_is_clear(sheet: Sheet, column: int) -> None:
    """Refuse a number that may be a decimal one or thousands (InputError)."""
    if (at := sheet.unclear(column)) is None:
        return
    row, record = sheet.body[at]
    text = record[column].strip()
    whole = re.sub("[.,]", "", text)
    # A fourth digit tells it from thousands.
    decimal = re.sub("[.,]", "," if sheet.takes_commas(column) else ".", text) + "0"
    raise InputError(
        f"{sheet.path} row {row}, column {sheet.names[column]!r}: {text!r} may mean {decimal} or "
        f"{whole}: write all such cells in one of these ways"
    )


def _no_number(sheet: Sheet, column: int, wrong: list[int]) -> str:
    """Why cells that are not missing, the first of all, are no labels, and what can be done."""
    cells = sheet.column(column)
    text = cells[wrong[0]]
    problem = "not a number" if math.isnan(_value(text)) else "not finite in float32"
    if "," in text:
        mark = "a comma" if sheet.takes_commas(column) else "a point"
        problem += f", as decimals take {mark} and thousands nothing"
    others = list(dict.fromkeys(cells[at] for at in wrong))
    such = f" (of {len(wrong):,} such cells: {listed(others, 5)})" if len(wrong) > 1 else ""
    where = f"{sheet.path} row {sheet.body[wrong[0]][0]}, column {sheet.names[column]!r}"
    return (
        f"{where}: {short(text)!r} is {problem}; correct the cell, or empty it if the value is "
        f"missing{such}"
    )
