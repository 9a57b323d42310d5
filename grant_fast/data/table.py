"""Reading molecules and their targets from a CSV or *.smi file, or a *.gz of one."""

import csv
import io
import math
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from ..files import read_text, unzipped_name
from .smiles import Failure
from .splits import PARTS

MISSING = frozenset({"", "nan", "na", "n/a", "#n/a", "null"})
ALL_COLUMNS = "all"
_BOOLEANS = {"true": "1", "false": "0"}  # as pandas writes them
_MARKS = {"\t": "tabs", ",": "commas", ";": "semicolons"}  # what may stand between cells
_MINUS = "\N{MINUS SIGN}"
_PARTS = {
    **{part: part for part in PARTS},
    "training": "train",
    **dict.fromkeys(("val", "validation", "dev"), "valid"),
    "testing": "test",
}
#: By how much of the labels' range rounding to float32 may move one.
_ROUNDING = 1e-4
_LARGEST = float(np.finfo(np.float32).max)
#: A cell in quotes, where lines may end, too; a quote within a cell is none.
_QUOTED = re.compile(r'(?<![^\t,;])"[^"]*"(?:"[^"]*")*')
_HEADER = re.compile(rf"(?:{_QUOTED.pattern}|[^\r\n])*")

#: A SMILES of three atoms or more, by its letters: small ones, as in "conc", only beside a ring.
_ATOM = r"(?:Br|Cl|[BCFINOPSbcnops]|\[[^][]+\])"
_BONDS = r"[-=#$:/\\.()@%\d]*"
_MOLECULE = re.compile(rf"(?=(?:Br|Cl|[^a-z])*$|.*1.*1)(?:{_BONDS}{_ATOM}){{3,}}{_BONDS}")

#: A number as German and French spreadsheets write it; 1.234,5 and 1,234,567 are none.
_DECIMAL_COMMA = re.compile(r"([+-]?\d+),(\d+(?:[eE][+-]?\d+)?)")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")

_Record = tuple[int, list[str]]


@dataclass(frozen=True)
class Table:
    """The columns of a file of molecules that matter.

    Args:
        smiles: the text of the SMILES column, stripped.
        y: float32 `[rows, T]`, NaN where a cell is empty; None if no targets were asked for.
        rows: the number of each row as a spreadsheet shows it; the header is row 1.
        smiles_column: the column that `smiles` came from.
        target_names: the columns that `y` came from.
        parts: "train", "valid" or "test" for each row; None if no column of them was asked for.
        header, cells: the whole file as it is, rows as above.
        left_out: the columns that "all" targets are without, as not all of their cells are numbers.
    """

    smiles: list[str]
    y: Tensor | None
    rows: list[int]
    smiles_column: str
    target_names: tuple[str, ...]
    header: list[str]
    cells: list[list[str]]
    parts: list[str] | None = None
    left_out: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.smiles)

    def take(self, positions: Sequence[int]) -> "Table":
        """The rows at `positions`, in that order."""
        where = torch.as_tensor(positions, dtype=torch.int64)
        return replace(
            self,
            smiles=[self.smiles[i] for i in positions],
            y=None if self.y is None else self.y[where],
            rows=[self.rows[i] for i in positions],
            cells=[self.cells[i] for i in positions],
            parts=None if self.parts is None else [self.parts[i] for i in positions],
        )

    def first(self, count: int | None) -> "Table":
        """The first rows; all if None."""
        return self if count is None else self.take(range(min(count, len(self))))

    def without(self, failures: Sequence[Failure]) -> "Table":
        """All rows but those of these numbers."""
        bad = {row for row, _ in failures}
        return self.take([i for i, row in enumerate(self.rows) if row not in bad])


class _Sheet(NamedTuple):
    """A CSV file as it was read: what stands between its cells, the columns' names, and the records
    below them."""

    path: Path
    mark: str
    names: list[str]
    body: list[_Record]

    def position(self, column: str, option: str) -> int:
        """Where the column of a name is; InputError where there is none, or more than one."""
        if self.names.count(column) == 1:
            return self.names.index(column)
        if column in self.names:
            raise InputError(
                f"{self.path} has several columns called {column!r}: rename all but one of them"
            )
        raise InputError(
            f"{self.path} has no column called {column!r}: give {option} one of "
            f"{_listed(self.names)}"
        )

    def column(self, at: int) -> list[str]:
        """A column's cells, its labels as Python writes numbers."""
        found = [_plain(cells[at].strip()) for _, cells in self.body]
        # Commas beside points, or with three digits behind every one, may set thousands apart.
        if self.mark == "," or any("." in cell for cell in found):
            return found
        if all(_THOUSANDS.fullmatch(cell) for cell in found if "," in cell):
            return found
        decimal = _DECIMAL_COMMA
        return [decimal.sub(r"\1.\2", c) if decimal.fullmatch(c) else c for c in found]


def table_kind(path: str | os.PathLike[str]) -> str:
    """What a table's name ends in, but for .gz: .csv, .tsv or .smi; empty where it is no table."""
    kind = unzipped_name(path).suffix.lower()
    return kind if kind in (".csv", ".tsv", ".smi") else ""


def read_table(
    path: str | os.PathLike[str],
    smiles_column: str | None = None,
    target: str | Sequence[str] | None = None,
    *,
    split_column: str | None = None,
    require_target: bool = True,
) -> Table:
    """Read SMILES and numeric targets from a UTF-8 CSV file with a header.

    Args:
        path: the file, or a *.gz of it. Its header says what stands between cells: tabs, commas or
            semicolons. A byte order mark is skipped, lines that are empty or of spaces too.
        smiles_column: by default the column called smiles, in any case.
        target: the target columns, or several names in one, separated by commas; "all" stands for
            every column of numbers with a name but the SMILES (and the split's). By default the
            only other one.
        split_column: the column that says train (training), valid (val, validation, dev) or test
            (testing), in any case.
        require_target: if False and no `target` is given, targets are not read.

    Cells that are empty or say nan, na, n/a, #n/a or null (any case) are missing targets. Between
    tabs or semicolons -0,77 is -0.77, in a column without points, or where a comma has other than
    three digits behind it. True and false (any case) are 1 and 0.

    Raises:
        InputError: the file is missing, empty, not UTF-8 text or has only a header; a column is
            missing, ambiguous or holds no label at all; a row has too few or too many cells; a
            target is not a finite number, or a column's are too large for their differences. The
            message names the place and the remedy.
    """
    path = Path(path)
    mark, ((_, header), *body) = _read_records(path, smiles_column or "smiles")
    if not body:
        raise InputError(f"{path} has a header but no rows: add molecules below it")
    sheet = _Sheet(path, mark, [name.strip() for name in header], body)
    smiles_at = _smiles_position(sheet, smiles_column)
    split_at = None if split_column is None else sheet.position(split_column, "--split-column")
    taken = [smiles_at] if split_at is None else [smiles_at, split_at]
    target = [target] if isinstance(target, str) else target
    for row, cells in body:
        if len(cells) != len(header):
            raise InputError(
                f"{path} row {row} has {len(cells)} cells, but the header has {len(header)}: "
                f"complete the row, or quote cells that contain {_MARKS[mark]}"
            )
    targets_at, left_out = _target_positions(sheet, taken, target, require_target)
    return Table(
        smiles=[cells[smiles_at].strip() for _, cells in body],
        y=_targets(sheet, targets_at) if targets_at else None,
        rows=[row for row, _ in body],
        smiles_column=sheet.names[smiles_at],
        target_names=tuple(sheet.names[i] for i in targets_at),
        header=header,
        cells=[cells for _, cells in body],
        parts=None if split_at is None else _parts(sheet, split_at),
        left_out=tuple(sheet.names[i] for i in left_out),
    )


def read_smi(path: str | os.PathLike[str]) -> Table:
    """A *.smi file, or a *.gz of one: each line a SMILES and, if it goes on, a name.

    Blank lines are skipped. The columns are smiles and, if any line has one, name; rows are lines
    from 1; `y` is None.

    Raises:
        InputError: the file is missing, empty or not UTF-8 text.
    """
    # Not splitlines(), which ends a line at a form feed, too, and shifts the rows behind it.
    lines = re.sub("\r\n?", "\n", read_text(Path(path))).split("\n")
    rows = [number for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise InputError(f"{path} is empty: give one SMILES per line")
    cells = [lines[row - 1].strip().split(maxsplit=1) for row in rows]
    if any(len(words) > 1 for words in cells):
        cells = [[*words, ""][:2] for words in cells]
    header = ["smiles", "name"][: len(cells[0])]
    smiles = [words[0] for words in cells]
    return Table(smiles, None, rows, "smiles", (), header, cells)


def _read_records(path: Path, smiles_column: str) -> tuple[str, list[_Record]]:
    """What stands between cells; all records that are not blank, with their numbers, the first of
    them the header."""
    text = read_text(path)
    if "\0" in text:
        row = text.count("\n", 0, text.index("\0")) + 1
        raise InputError(f"{path} row {row} holds binary data: give a CSV file")
    records: list[_Record] = []
    row = 0
    mark = _delimiter(text, smiles_column)
    try:
        lines = csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True)
        for row, cells in enumerate(lines, 1):
            if len(cells) > 1 or "".join(cells).strip():
                records.append((row, cells))
    except csv.Error as error:
        # A quote that is not closed makes a long cell of all that follows, too.
        long = ", or leave out a cell as long as this" if "field limit" in str(error) else ""
        raise InputError(
            f"{path} row {row + 1} is not valid CSV ({error}): correct its quotes{long}"
        ) from error
    if not records:
        raise InputError(f"{path} is empty: give a CSV file with a header and rows")
    return mark, records


def _delimiter(text: str, smiles_column: str) -> str:
    """What stands between cells, as the header shows it outside of quotes."""
    header = _HEADER.match(text.lstrip("\r\n "))
    assert header is not None  # it matches nothing, too
    marks = _QUOTED.sub("", header[0])
    between = [mark for mark in _MARKS if mark in marks]
    # A name may hold a comma: what sets the SMILES' column apart is it.
    name = smiles_column.lower()
    apart = (m for m in between if name in (n.strip().lower() for n in marks.split(m)))
    return next(apart, between[0] if between else ",")


def _listed(names: Sequence[str], limit: int = 20) -> str:
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(map(repr, names[:limit])) + rest


def _smiles_position(sheet: _Sheet, column: str | None) -> int:
    if column is not None:
        return sheet.position(column, "--smiles-column")
    names = sheet.names
    found = [i for i, name in enumerate(names) if name.lower() == "smiles"]
    if len(found) == 1:
        return found[0]
    problem = "several columns" if found else "no column"
    hint = ""
    if not found and any(_MOLECULE.fullmatch(name.partition(" ")[0]) for name in names):
        hint = "; or, since row 1 looks like data, add a line of column names above it"
        if len(names) == 1:  # of a SMILES, or a SMILES and a name
            hint += ", or name the file *.smi"
    raise InputError(
        f"{sheet.path} has {problem} called 'smiles': choose one with --smiles-column, from "
        f"{_listed(names)}{hint}"
    )


def _parts(sheet: _Sheet, at: int) -> list[str]:
    parts = []
    for row, cells in sheet.body:
        text = cells[at].strip()
        if text.lower() not in _PARTS:
            problem = f"{text!r} is not a part of a split" if text else "the cell is empty"
            remedy = "write train, valid or test" + ("" if text else ", or delete the row")
            where = f"{sheet.path} row {row}, column {sheet.names[at]!r}"
            raise InputError(f"{where}: {problem}: {remedy}")
        parts.append(_PARTS[text.lower()])
    return parts


def _target_positions(
    sheet: _Sheet, taken: list[int], target: Sequence[str] | None, require_target: bool
) -> tuple[list[int], list[int]]:
    """The columns of the targets, and those that "all" of them are without."""
    path, names = sheet.path, sheet.names
    # A column without a name is an index that pandas wrote, or a spreadsheet's empty one.
    others = [i for i in range(len(names)) if i not in taken and names[i]]
    beside = f"beside {_listed([names[i] for i in taken])}"
    if target:
        # A name may hold commas itself.
        target = [
            name.strip()
            for text in target
            for name in ([text] if text in names else text.split(","))
        ]
        if target == [ALL_COLUMNS] and ALL_COLUMNS not in names:
            numbers = _of_numbers(sheet, others, beside)
            positions = [sheet.position(names[i], "--target") for i in numbers]
            return positions, [i for i in others if i not in numbers]
        positions = [sheet.position(name, "--target") for name in target]
        for at, what in zip(taken, ("SMILES", "split"), strict=False):
            if at in positions:
                raise InputError(f"{names[at]!r} cannot be both the {what} column and a --target")
        if len(set(positions)) < len(positions):
            raise InputError(f"a --target is given twice in {_listed(target)}: give each once")
        return positions, []
    if not require_target:
        return [], []
    if not others:
        raise InputError(f"{path} has no column {beside}: add the targets")
    if len(others) > 1:
        numbers = _of_numbers(sheet, others, beside)
        raise InputError(
            f"{path} has several columns {beside}: choose with --target among "
            f"{_listed([names[i] for i in numbers])} (or --target {ALL_COLUMNS} for all of them)"
        )
    return others, []


def _of_numbers(sheet: _Sheet, columns: list[int], beside: str) -> list[int]:
    """Those of the columns that hold numbers alone; InputError where none does."""
    if len(columns) == 1:
        return columns  # what is wrong with its cells is said by their rows
    numbers = [i for i in columns if _is_of_numbers(sheet.column(i))]
    if not numbers:
        raise InputError(
            f"{sheet.path} has no column of numbers {beside}: add the targets, and write classes "
            "as 1 and 0"
        )
    return numbers


def _is_of_numbers(cells: list[str]) -> bool:
    """Whether a column's cells are labels or missing, and one is a label."""
    labels = list(_labels(cells))
    return bool(labels) and all(abs(_value(cell)) <= _LARGEST for cell in labels)


def _labels(cells: Iterable[str]) -> Iterator[str]:
    """The cells that are not missing."""
    return (cell for cell in cells if cell.lower() not in MISSING)


def _plain(cell: str) -> str:
    """true and false as 1 and 0, a typographer's minus before a number as Python's."""
    if cell[:1] == _MINUS and cell[1:2] in set(".0123456789"):
        return f"-{cell[1:]}"
    return _BOOLEANS.get(cell.lower(), cell)


def _targets(sheet: _Sheet, columns: list[int]) -> Tensor:
    y = np.empty((len(sheet.body), len(columns)), dtype=np.float32)
    for t, column in enumerate(columns):
        cells, name = sheet.column(column), sheet.names[column]
        if words := _words(cells):
            numbers = [sheet.names[i] for i in columns if _is_of_numbers(sheet.column(i))]
            instead = (
                f"--target {shlex.quote(','.join(numbers))}" if numbers else "another --target"
            )
            raise InputError(
                f"{sheet.path} column {name!r} holds words ({_listed(words, 3)}), not numbers: "
                "write plain numbers, without units or signs such as >, or classes as 1 and 0 "
                f"(or 0, 1, 2, …), or choose {instead}"
            )
        values = np.array(
            [
                _number(sheet.path, row, name, cell)
                for (row, _), cell in zip(sheet.body, cells, strict=True)
            ]
        )
        if np.isnan(values).all():
            raise InputError(
                f"{sheet.path} column {name!r} holds no labels at all: "
                "fill some in, or choose another --target"
            )
        y[:, t] = values
        spread = np.nanmax(values) - np.nanmin(values)
        if spread and np.nanmax(np.abs(y[:, t] - values)) > _ROUNDING * spread:
            raise InputError(
                f"{sheet.path} column {name!r} varies too little for its size, so float32 rounds "
                f"the differences away: subtract {np.nanmean(values):.6g}, its mean, from every "
                "label"
            )
    return torch.from_numpy(y)


def _words(cells: list[str]) -> list[str]:
    """What a column without a single number says: its labels have names. Else nothing."""
    if _is_number(next(_labels(cells), "0")):
        return []  # the usual case costs one look
    words = list(dict.fromkeys(_labels(cells)))
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


def _number(path: Path, row: int, column: str, text: str) -> float:
    if text.lower() in MISSING:
        return math.nan
    value = _value(text)
    if abs(value) <= _LARGEST:
        return value
    problem = "not a number" if math.isnan(value) else "not finite in float32"
    if "," in text:
        problem += ", as decimals take a point and thousands nothing"
    raise InputError(
        f"{path} row {row}, column {column!r}: {text!r} is {problem}; "
        "correct the cell, or empty it if the value is missing"
    )
