"""A file of molecules as text cells: rows below a header, as a spreadsheet shows them."""

import csv
import io
import re
import unicodedata
from collections.abc import Container, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ..errors import InputError, option, short
from ..files import closest, read_text

#: What may stand between cells.
_MARKS = {"\t": "tabs", ",": "commas", ";": "semicolons"}
_BOOLEANS = {"true": "1", "false": "0"}  # as pandas writes them
_MINUS = "\N{MINUS SIGN}"
#: A cell in quotes, where lines may end, too; a quote within a cell is none.
_QUOTED = re.compile(r'(?<![^\t,;])"[^"]*"(?:"[^"]*")*')
_HEADER = re.compile(rf"(?:{_QUOTED.pattern}|[^\r\n])*")
_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+")

#: What tells a spreadsheet program the mark, which it does not show as a row.
_SEP = re.compile(r"sep=([\t,;])\r?\n", re.IGNORECASE)

#: The fourth line of an SDF: how many atoms and bonds follow, in which format.
_STRUCTURE = re.compile(r"(?:.*\n){3}[\d ].*V[23]000 *\r?\n")

#: Numbers as German and French spreadsheets write them, and with a point; 1.234,5 is neither.
_DECIMAL_COMMA = re.compile(r"([+-]?\d*),(\d+(?:[eE][+-]?\d+)?)")
_DECIMAL_POINT = re.compile(r"[+-]?(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?")
#: What may be a decimal number, or a whole one with its thousands set apart.
_EITHER = re.compile(r"[+-]?[1-9]\d{0,2}[.,]\d{3}")
_WHOLE = re.compile(r"[+-]?\d+")
#: Cells of numbers, one behind another, which are as plain as they can be.
_SIMPLE = re.compile(r"[0-9.eE+-]*")

Record = tuple[int, list[str]]


class Sheet(NamedTuple):
    """A file as it was read: what stands between its cells (of an SDF, as if a comma did), the
    columns' names as they are written and as they are typed (see `one_line`), the records below
    them, numbered, and whether some column shows decimals with a comma, some with a point."""

    path: Path
    mark: str
    header: list[str]
    names: list[str]
    body: list[Record]
    commas: bool = False
    points: bool = False

    def position(self, column: str, which: str, besides: Container[int] = ()) -> int:
        """Where the column of a name is; InputError where there is none, or more than one, which
        offers the others but those at `besides`."""
        column = one_line(column)
        if self.names.count(column) == 1:
            return self.names.index(column)
        if column in self.names:
            raise InputError(
                f"{self.path} has several columns called {column!r}: rename all but one of them"
            )
        others = [name for i, name in enumerate(self.names) if i not in besides]
        near = closest(column, others)
        hint = f"did you mean {option(which, near)}, of" if near else f"give {option(which)} one of"
        raise InputError(f"{self.path} has no column called {column!r}: {hint} {listed(others)}")

    def check_rows(self) -> None:
        """Refuse a row of too few or too many cells (InputError)."""
        width = len(self.header)
        for row, cells in self.body:
            if len(cells) != width:
                much, remedy, where = "few", "complete the row", "names"
                if len(cells) > width:
                    much, remedy, where = "many", "remove some", "cells"
                some = f"{len(cells)} cell{'s' * (len(cells) != 1)}"
                raise InputError(
                    f"{self.path} row {row} has {some}, too {much} for the header's {width}: "
                    f"{remedy}, or quote {where} that contain {_MARKS[self.mark]}"
                )

    def column(self, at: int) -> list[str]:
        """A column's cells, its labels as Python writes numbers."""
        found = self._cells(at)
        if not self._takes_commas(found):
            return found
        decimal = _DECIMAL_COMMA
        return [decimal.sub(r"\1.\2", c) if decimal.fullmatch(c) else c for c in found]

    def unclear(self, at: int) -> int | None:
        """The first row of `body` whose number in a column may be a decimal one or thousands: 1.234
        where decimals may take a comma, 1,234 where none is known to."""
        found = self._cells(at)
        if any(map(_has_point, found)):
            return None
        marks = "." if self._takes_commas(found) else ","
        if self.commas and self.points and not any(map(_has_comma, found)):
            marks = ".,"
        # A spreadsheet that shows thousands as 1.234 shows what is below as it is.
        digits = [len(c.lstrip("+-")) for c in found if _WHOLE.fullmatch(c)]
        if self.mark != "," and digits and max(digits) <= 3:
            marks += "."
        unclear = (i for i, c in enumerate(found) if _EITHER.fullmatch(c) and c[-4] in marks)
        return next(unclear, None)

    def takes_commas(self, at: int) -> bool:
        """Whether decimals take commas in a column."""
        return self._takes_commas(self._cells(at))

    def _takes_commas(self, found: list[str]) -> bool:
        """Whether decimals take commas in a column of these cells."""
        if self.mark == "," or any(map(_has_point, found)):
            return False
        return (self.commas and not self.points) or any(map(_has_comma, found))

    def _cells(self, at: int) -> list[str]:
        cells = [record[at] for _, record in self.body]
        return cells if _SIMPLE.fullmatch("".join(cells)) else list(map(_plain, cells))


def _has_point(cell: str) -> bool:
    """Whether it is a number whose decimals surely take a point."""
    return "." in cell and bool(_DECIMAL_POINT.fullmatch(cell)) and not _EITHER.fullmatch(cell)


def _has_comma(cell: str) -> bool:
    """Whether it is a number whose decimals surely take a comma."""
    return "," in cell and bool(_DECIMAL_COMMA.fullmatch(cell)) and not _EITHER.fullmatch(cell)


def _plain(cell: str) -> str:
    """A cell with single spaces, true and false as 1 and 0, a typographer's minus before a number
    as Python's."""
    cell = one_line(cell)
    if cell[:1] == _MINUS and cell[1:2] in set(".0123456789"):
        return f"-{cell[1:]}"
    return _BOOLEANS.get(cell.lower(), cell)


def one_line(text: str) -> str:
    """A text with single spaces, and none around it, and letters composed: a spreadsheet's names
    may have line breaks and no-break spaces, which nobody types, and accents of their own."""
    text = " ".join(text.split())
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def listed(names: Sequence[str], limit: int = 20) -> str:
    """Names for a message, the first of many."""
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(repr(short(name)) for name in names[:limit]) + rest


def read_sheet(path: Path, smiles_column: str) -> Sheet:
    """A UTF-8 CSV file. Its header says what stands between cells: tabs, commas or semicolons.

    Records are numbered as a spreadsheet does it, the header is 1; blank lines are left out, and at
    the end rows of empty cells.

    Args:
        path: the file, or a *.gz of it.
        smiles_column: a column's name, which tells marks between names from those within one.

    Raises:
        InputError: the file is missing, empty, not UTF-8 text, no valid CSV, an SDF by another name
            or has only a header.
    """
    text = read_text(path)
    if _STRUCTURE.match(text):
        raise InputError(f"{path} holds structures, as an SDF does: name it *.sdf")
    said = _SEP.match(text)
    text = text[said.end() :] if said else text
    mark = said[1] if said else _delimiter(text, smiles_column)
    # A space before a quote is none of the cell's, which would else keep its quotes.
    spaced = ' "' in text and re.search(rf'(?:^|{mark}) +"', text, re.MULTILINE) is not None
    records = _records(path, text, mark, spaced)
    if not records:
        raise InputError(f"{path} is empty: give a CSV file with a header and rows")
    (_, header), *body = records
    if not body:
        raise InputError(f"{path} has a header but no rows: add molecules below it")
    names, shown = list(map(one_line, header)), _decimals(mark, len(header), body)
    return Sheet(path, mark, header, names, body, *shown)


def _decimals(mark: str, width: int, body: list[Record]) -> tuple[bool, bool]:
    """Whether one of `width` columns shows decimals with a comma, a cell one with a point. A column
    with other things between commas, as a list, says nothing of them."""
    commas = points = False
    if mark != ",":
        for at in range(width):
            column = [cells[at] for _, cells in body if at < len(cells)]
            between = [_plain(cell) for cell in column if "," in cell]
            numbers = all(map(_DECIMAL_COMMA.fullmatch, between))
            commas = commas or (numbers and any(map(_has_comma, between)))
            points = points or any(_has_point(_plain(cell)) for cell in column if "." in cell)
    return commas, points


def _records(path: Path, text: str, mark: str, spaced: bool) -> list[Record]:
    """The rows that are not blank, numbered; `spaced` leaves out the spaces before a cell."""
    records: list[Record] = []
    row = 0
    source = io.StringIO(text, newline="")
    try:
        lines = csv.reader(source, delimiter=mark, strict=True, skipinitialspace=spaced)
        for row, cells in enumerate(lines, 1):
            if len(cells) > 1 or "".join(cells).strip():
                records.append((row, cells))
    except csv.Error as error:
        if spaced and (other := _with_own_quotes(path, text, mark)):
            return other
        # A quote that is not closed makes a long cell of all that follows, too.
        long = ", or leave out a cell as long as this" if "field limit" in str(error) else ""
        raise InputError(
            f"{path} row {row + 1} is not valid CSV ({error}): correct its quotes{long}"
        ) from error
    while records and not "".join(records[-1][1]).strip():  # a spreadsheet's empty rows at the end
        records.pop()
    return records


def _with_own_quotes(path: Path, text: str, mark: str) -> list[Record]:
    """The rows where quotes behind spaces are parts of cells, as in a note that begins with a
    quotation; none where quotes seem to stand around cells all the same."""
    records: list[Record] = []
    with suppress(InputError):
        records = _records(path, text, mark, spaced=False)
    widths = {len(cells) for _, cells in records}
    around = any(re.fullmatch(r'\s+".*"\s*', cell) for _, cells in records for cell in cells)
    return [] if around or len(widths) > 1 else records


def _delimiter(text: str, smiles_column: str) -> str:
    """What stands between cells, as the header shows it outside of quotes."""
    header = _HEADER.match(text.lstrip("\r\n "))
    assert header is not None  # it matches nothing, too
    marks = _QUOTED.sub("", header[0])
    between = [mark for mark in _MARKS if mark in marks]
    # A name may hold a comma: what sets the SMILES' column apart is it, or else what fits row 2.
    name = one_line(smiles_column).lower()
    fitting = []
    for mark in between:
        with suppress(csv.Error, StopIteration):
            source = (line[0] for line in _LINE.finditer(text))  # none but the first are looked at
            lines = csv.reader(source, delimiter=mark, strict=True, skipinitialspace=True)
            rows = (cells for cells in lines if "".join(cells).strip())
            cells = next(rows)
            if name in (one_line(cell).lower() for cell in cells):
                return mark
            fitting += [mark] * (len(next(rows)) == len(cells))
    return (fitting if len(fitting) == 1 else [*between, ","])[0]
