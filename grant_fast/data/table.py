"""Molecules and their targets from a file: a CSV, an SDF, a *.smi, or a *.gz of one."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from ..errors import InputError, option, short
from ..files import read_text, unzipped_name
from .labels import classes_of, is_of_classes, is_of_numbers, nearly_of_numbers, numbers_of
from .parsing import Failure
from .sdf import read_sdf
from .sheet import Sheet, listed, one_line, read_sheet
from .splits import PARTS

ALL_COLUMNS = "all"
_WITH_COLUMNS = (".csv", ".tsv", ".sdf")
_PARTS = {
    **{part: part for part in PARTS},
    "training": "train",
    **dict.fromkeys(("val", "validation", "dev"), "valid"),
    "testing": "test",
}

#: A SMILES of three atoms or more, by its letters: small ones, as in "conc", only beside a ring.
_ATOM = r"(?:Br|Cl|[BCFINOPSbcnops]|\[[^][]+\])"
_BONDS = r"[-=#$:/\\.()@%\d]*"
_MOLECULE = re.compile(rf"(?=(?:Br|Cl|[^a-z])*$|.*1.*1)(?:{_BONDS}{_ATOM}){{3,}}{_BONDS}")


@dataclass(frozen=True)
class Table:
    """The columns of a file of molecules that matter.

    Args:
        sheet: the whole file as it is.
        smiles: the text of the SMILES column, stripped.
        y: float32 `[rows, T]`, NaN where a cell is empty; None if no targets were asked for.
        smiles_column: the column that `smiles` came from.
        target_names: the columns that `y` came from.
        parts: "train", "valid" or "test" for each row; None if no column of them was asked for.
        left_out: the columns that "all" targets are without, as some of their cells are no numbers,
            or all are empty; of each what is wrong, if only a few of its cells are.
        classes: what the numbers in `y` stand for, where its column holds classes in words.
        titles: what the molecules of an SDF are called, where they are.
        says_parts: a column that says train and test for all rows and was not asked for, if any.
    """

    sheet: Sheet
    smiles: list[str]
    y: Tensor | None
    smiles_column: str
    target_names: tuple[str, ...]
    parts: list[str] | None = None
    left_out: dict[str, str] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    titles: tuple[str, ...] = ()
    says_parts: str | None = None

    def __len__(self) -> int:
        return len(self.smiles)

    @property
    def rows(self) -> list[int]:
        """The number of each row as a spreadsheet shows it, the header is row 1; of an SDF or a
        *.smi from 1."""
        return [row for row, _ in self.sheet.body]

    def title(self, at: int) -> str:
        """What a molecule is called; empty where it is not."""
        return self.titles[at] if self.titles else ""

    def take(self, positions: Sequence[int]) -> "Table":
        """The rows at `positions`, in that order."""
        where = torch.as_tensor(positions, dtype=torch.int64)
        return replace(
            self,
            sheet=self.sheet._replace(body=[self.sheet.body[i] for i in positions]),
            smiles=[self.smiles[i] for i in positions],
            y=None if self.y is None else self.y[where],
            parts=None if self.parts is None else [self.parts[i] for i in positions],
            titles=tuple(self.titles[i] for i in positions) if self.titles else (),
        )

    def first(self, count: int | None) -> "Table":
        """The first rows; all if None."""
        return self if count is None else self.take(range(min(count, len(self))))

    def without(self, failures: Sequence[Failure]) -> "Table":
        """All rows but those of these numbers."""
        bad = {row for row, _ in failures}
        return self.take([i for i, row in enumerate(self.rows) if row not in bad])


def table_kind(path: str | os.PathLike[str]) -> str:
    """What a table's name ends in, but for .gz: one of .csv, .tsv, .sdf and .smi; empty where it is
    no table."""
    kind = unzipped_name(path).suffix.lower()
    return kind if kind in (*_WITH_COLUMNS, ".smi") else ""


def has_columns(path: str | os.PathLike[str]) -> bool:
    """Whether, by its name, targets are among a table's columns (or an SDF's data fields)."""
    return table_kind(path) in _WITH_COLUMNS


def molecules_in(path: str | os.PathLike[str]) -> str:
    """How a table writes molecules, for a message: a word that takes an s for several, or not."""
    return "structure" if table_kind(path) == ".sdf" else "SMILES"


def read_table(
    path: str | os.PathLike[str],
    smiles_column: str | None = None,
    target: str | Sequence[str] | None = None,
    *,
    split_column: str | None = None,
    require_target: bool = True,
    workers: int | None = None,
    progress: bool = False,
) -> Table:
    """Read SMILES and targets from a UTF-8 CSV file with a header, or from an SDF.

    Args:
        path: the file, or a *.gz of it. Its header says what stands between cells: tabs, commas or
            semicolons. A byte order mark is skipped, lines that are empty or of spaces too, and
            rows of empty cells at the end. Of an SDF the columns are those of `sdf.read_sdf`.
        smiles_column: a column's name, in any case if that tells it from others; by default
            smiles. An SDF has none to choose.
        target: the target columns, or several names in one, separated by commas; "all" stands for
            every column of numbers with a name but the SMILES (and the split's). By default the
            only other one.
        split_column: the column that says train (training), valid (val, validation, dev) or test
            (testing), in any case.
        require_target: if False and no `target` is given, targets are not read.
        workers: processes that read structures, at most; see `grant_fast.workers.share_out`.
        progress: show a progress bar for these.

    Cells that are empty or say nan, na, n/a, #n/a, null or none (any case) are missing targets.
    Between tabs or semicolons -0,77 is -0.77: a cell that cannot be thousands says that decimals
    take commas in its column, and (unless there are other things between the column's commas) in
    all columns if no cell surely takes a point. True and false (any case) are 1 and 0. A single
    target of words, each of which occurs twice or more on average, holds classes.

    Raises:
        InputError: the file is missing, empty, not UTF-8 text or has only a header; a column is
            missing, ambiguous or holds no label at all; a row has too few or too many cells; a
            target is neither a finite number nor classes, or a column's numbers are too large for
            their differences. The message names the place and the remedy.
        MissingExtraError: rdkit, which reads structures, is not installed.
    """
    path = Path(path)
    if table_kind(path) == ".sdf":
        if smiles_column is not None:
            without = f"leave out {option('smiles_column')}"
            raise InputError(f"{path} holds structures, no SMILES: {without}")
        (sheet, titles), smiles_at = read_sdf(path, workers, progress), 0
        taken = {0: "SMILES", **({1: "name"} if titles else {})}
    else:
        sheet, titles = read_sheet(path, smiles_column or "smiles"), ()
        smiles_at = _smiles_position(sheet, smiles_column)
        sheet.check_rows()
        taken = {smiles_at: "SMILES"}
    split_at = None if split_column is None else sheet.position(split_column, "split_column")
    if split_at is not None:
        taken[split_at] = "split"
    target = [target] if isinstance(target, str) else target
    targets_at, left_out = _target_positions(sheet, taken, target, require_target)
    y, classes = _targets(sheet, targets_at)
    return Table(
        sheet=sheet,
        smiles=[cells[smiles_at].strip() for _, cells in sheet.body],
        y=y,
        smiles_column=sheet.names[smiles_at],
        target_names=tuple(sheet.names[i] for i in targets_at),
        parts=None if split_at is None else _parts(sheet, split_at),
        left_out={sheet.names[i]: nearly_of_numbers(sheet, [i]) for i in left_out},
        classes=classes,
        titles=titles,
        says_parts=None if split_at is not None else _says_parts(sheet),
    )


def _targets(sheet: Sheet, columns: list[int]) -> tuple[Tensor | None, tuple[str, ...]]:
    """The targets in these columns, if any, and the classes that they name, if any."""
    if len(columns) == 1 and is_of_classes(sheet.column(columns[0])):
        return classes_of(sheet, columns[0])
    return (numbers_of(sheet, columns) if columns else None), ()


def read_smi(path: str | os.PathLike[str]) -> Table:
    """A *.smi file, or a *.gz of one: each line a SMILES and, if it goes on, a name.

    Blank lines are skipped. The columns are smiles and, if any line has one, name; rows are lines
    from 1; `y` is None.

    Raises:
        InputError: the file is missing, empty or not UTF-8 text.
    """
    # Not splitlines(), which ends a line at a form feed, too, and shifts the rows behind it.
    lines = re.sub("\r\n?", "\n", read_text(Path(path))).split("\n")
    parts = (line.strip().split(maxsplit=1) for line in lines)
    body = [(row, words) for row, words in enumerate(parts, 1) if words]
    if not body:
        raise InputError(f"{path} is empty: give one SMILES per line")
    header = ["smiles", "name"][: max(len(words) for _, words in body)]
    body = [(row, [*words, ""][: len(header)]) for row, words in body]
    sheet = Sheet(Path(path), ",", header, header, body)
    return Table(sheet, [words[0] for _, words in body], None, "smiles", ())


def _smiles_position(sheet: Sheet, column: str | None) -> int:
    names = sheet.names
    if column is not None:
        column = one_line(column)
        alike = [name for name in names if name.lower() == column.lower()]
        if column not in names and len(alike) == 1:  # as a table to predict for may spell it
            (column,) = alike
        return sheet.position(column, "smiles_column")
    found = [i for i, name in enumerate(names) if name.lower() == "smiles"]
    if len({names[i] for i in found}) == 1:
        return sheet.position(names[found[0]], "smiles_column")
    problem = "several columns" if found else "no column"
    hint = ""
    like = [name for name in names if "smiles" in name.lower()]
    if len(like) == 1 < len(names):
        hint = f"; did you mean {option('smiles_column', like[0])}?"
    elif not found and any(_MOLECULE.fullmatch(name.partition(" ")[0]) for name in names):
        hint = "; or, since row 1 looks like data, add a line of column names above it"
        if len(names) == 1:  # of a SMILES, or a SMILES and a name
            hint += ", or name the file *.smi"
    elif len(names) == 1 and re.search(r"[|\s]", names[0]):
        hint = "; cells must be separated by commas, semicolons or tabs"
    raise InputError(
        f"{sheet.path} has {problem} called 'smiles': choose one with "
        f"{option('smiles_column')}, from {listed(names)}{hint}"
    )


def _says_parts(sheet: Sheet) -> str | None:
    """A column whose cells all name a part, and not all the same one."""
    _, first = sheet.body[0]
    for at in (at for at, cell in enumerate(first) if cell.strip().lower() in _PARTS):
        words = {cell.strip().lower() for cell in sheet.column(at)}
        if words <= _PARTS.keys() and {"train", "test"} <= {_PARTS[word] for word in words}:
            return sheet.names[at]
    return None


def _parts(sheet: Sheet, at: int) -> list[str]:
    parts = []
    for row, cells in sheet.body:
        text = cells[at].strip()
        if text.lower() not in _PARTS:
            problem = f"{short(text)!r} is not a part of a split" if text else "the cell is empty"
            remedy = "write train, valid or test" + ("" if text else ", or delete the row")
            where = f"{sheet.path} row {row}, column {sheet.names[at]!r}"
            raise InputError(f"{where}: {problem}: {remedy}")
        parts.append(_PARTS[text.lower()])
    return parts


def _target_positions(
    sheet: Sheet, taken: dict[int, str], target: Sequence[str] | None, require_target: bool
) -> tuple[list[int], list[int]]:
    """The columns of the targets, and those that "all" of them are without."""
    path, names = sheet.path, sheet.names
    # A column without a name is an index that pandas wrote, or a spreadsheet's empty one.
    others = [i for i in range(len(names)) if i not in taken and names[i]]
    beside = f"beside {listed([names[i] for i in taken])}"
    if target:
        asked = _asked_for(names, target)
        if asked == [ALL_COLUMNS] and ALL_COLUMNS not in names:
            numbers = _of_numbers(sheet, others, beside)
            positions = [sheet.position(names[i], "target") for i in numbers]
            return positions, [i for i in others if i not in numbers]
        return _positions_of(sheet, taken, asked), []
    if not require_target:
        return [], []
    if not others:
        raise InputError(f"{path} has no column {beside}: add the targets")
    if len(others) > 1:
        numbers = [i for i in others if is_of_numbers(sheet.column(i))]
        either = [i for i in others if i in numbers or is_of_classes(sheet.column(i))]
        if not either:
            raise InputError(_no_targets(sheet, others, beside))
        if len(either) == 1:
            (only,) = either
            without = [i for i in others if i != only]
            nearly = nearly_of_numbers(sheet, without)
            rest = listed([names[i] for i in without], 3)
            raise InputError(
                f"{path} has several columns {beside}: give {option('target', names[only])} (the "
                f"cells of {rest} are neither all numbers nor classes{nearly and f'; {nearly}'})"
            )
        for i in either:  # of those called alike none can be chosen
            sheet.position(names[i], "target")
        whole = f" (or {option('target', ALL_COLUMNS)} for all that hold numbers)"
        raise InputError(
            f"{path} has several columns {beside}: choose with {option('target')} among "
            f"{listed([names[i] for i in either])}{whole if numbers else ''}"
        )
    return others, []


def _asked_for(names: Sequence[str], target: Sequence[str]) -> list[str]:
    """The names in `target`, where commas are between names, but for those that hold some."""
    given = map(one_line, target)
    texts = (part for text in given for part in ([text] if text in names else text.split(",")))
    asked = [text.strip() for text in texts if text.strip()]
    if not asked:
        raise InputError(f"{option('target')} is empty: name a column, or leave it out")
    return asked


def _positions_of(sheet: Sheet, taken: dict[int, str], asked: list[str]) -> list[int]:
    positions = [sheet.position(name, "target", taken) for name in asked]
    for at, what in taken.items():
        if at in positions:
            name = sheet.names[at]
            raise InputError(f"{name!r} cannot be both the {what} column and a target")
    if len(set(positions)) < len(positions):
        raise InputError(f"a target is given twice in {listed(asked)}: give each once")
    return positions


def _of_numbers(sheet: Sheet, columns: list[int], beside: str) -> list[int]:
    """Those of the columns that hold numbers alone; InputError where none does."""
    if len(columns) == 1 and not is_of_classes(sheet.column(columns[0])):
        return columns  # what is wrong with its cells is said by their rows
    numbers = [i for i in columns if is_of_numbers(sheet.column(i))]
    if not numbers:
        raise InputError(_no_targets(sheet, columns, beside))
    return numbers


def _no_targets(sheet: Sheet, columns: list[int], beside: str) -> str:
    """That no column holds numbers, and what to do."""
    classes = [sheet.names[i] for i in columns if is_of_classes(sheet.column(i))]
    nearly = nearly_of_numbers(sheet, columns)
    if nearly and not classes:
        return f"{nearly} (no column {beside} holds numbers alone)"
    chosen = f"choose one of {listed(classes)} as {option('target')}"
    remedy = chosen if classes else "add the targets"
    also = f"; or, as {nearly}" if nearly else ""
    return f"{sheet.path} has no column of numbers {beside}: {remedy}{also}"
