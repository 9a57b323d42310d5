"""Molecules of a table of SMILES, or of an SDF, as a data set."""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError, few, option, short
from ..files import unzipped_name
from ..graphs import PackedGraphs
from ..tasks import Kind
from .dataset import Dataset, default_metric
from .infer import make_task
from .logp import logp_and_scaffold, penalized_logp, sa_scorer
from .parsing import Failure
from .scaffolds import scaffold_of
from .smiles import T, read_molecules
from .splits import FEWEST, PARTS, split_by_scaffold
from .table import Table, molecules_in, table_kind

Split = Literal["random", "scaffold"]
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)


class Reading(NamedTuple):
    """How molecules are read: by how many processes, with a bar, with features of bonds."""

    workers: int | None
    progress: bool
    edge_attr: bool = False


def molecules_of(
    table: Table, also: Callable[[Any], T] | None, reading: Reading
) -> tuple[PackedGraphs, list[Failure], list[T]]:
    """`read_molecules` of a table: the graphs with their rows as ids, and the rows that cannot be
    read by their numbers."""
    graphs, failures, found = read_molecules(table.smiles, also, *reading)
    rows = table.rows
    skipped = [(rows[i], text or table.title(i)) for i, text in failures]
    graphs.ids = torch.tensor(table.without(skipped).rows, dtype=torch.int64)
    return graphs, skipped, found


def no_molecules(source: str | os.PathLike[str], table: Table, failed: Sequence[Failure]) -> str:
    """That no molecule of a table can be read, and what may be wrong."""
    shown = few([repr(text[:30]) for _, text in failed])
    if table_kind(source) == ".smi":
        return f"{source} holds no valid SMILES ({shown}): begin each line with one"
    where = f"{source} column {table.smiles_column!r}"
    remedy = f"name another one with {option('smiles_column')}"
    return f"{where} holds no valid SMILES ({shown}): {remedy}"


def left_out(count: int) -> str:
    """That so many rows of a table are no graphs of the data set, for a message."""
    return f" ({count} without a label or a valid SMILES are left out)" if count else ""


def not_valid(source: str | os.PathLike[str], failed: Sequence[Failure], remedy: str) -> str:
    """That the first of the molecules that cannot be read is none, how many are, and a remedy."""
    (row, text), place = failed[0], "line" if table_kind(source) == ".smi" else "row"
    text = short(text)
    what = f"is not a valid {molecules_in(source)} ({len(failed)} such in the file)"
    return f"{source} {place} {row}: {text!r} {what}: {remedy}"


def without_strict() -> str:
    """A remedy, for a message."""
    return f"correct it, or skip it without {option('strict', True)}"


def from_table(
    path: Path,
    table: Table,
    task: Kind | None,
    split: Split | None,
    strict: bool,
    reading: Reading,
) -> Dataset:
    """The molecules of a table with their targets; without a split where it is to be random.

    Raises:
        InputError: a molecule cannot be read (`strict`), or so many that too few are left to split.
    """
    assert table.y is not None
    wanted = ~table.y.isnan().all(1)
    if table_kind(path) == ".sdf":  # a record that cannot be read has lost its labels with it
        wanted |= torch.tensor([not smiles for smiles in table.smiles])
    unlabelled = int((~wanted).sum())
    if unlabelled == len(table):  # of a whole table, this is said by its columns
        raise InputError(
            f"none of the first {len(table)} rows of {path} has a label: take more of them"
        )
    table = table.take(wanted.nonzero()[:, 0].tolist())

    by_scaffold = table.parts is None and split != "random"
    also = scaffold_of if by_scaffold else None
    graphs, skipped, scaffolds = molecules_of(table, also, reading)
    too_few = len(graphs) < FEWEST
    if skipped and not len(graphs) and table_kind(path) != ".sdf":
        raise InputError(no_molecules(path, table, skipped))
    if skipped and (strict or too_few):
        left = f"correct it: what is left, {len(graphs)} of {len(table)}, is too few to split"
        remedy = left if too_few else without_strict()
        raise InputError(not_valid(path, skipped, remedy))
    table = table.without(skipped)
    assert table.y is not None
    try:
        names, rows = table.target_names, table.rows
        posed, y = make_task(table.y, "graph", names, task, table.classes, rows)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    parts = {}
    if table.parts is not None:
        found = np.array(table.parts)
        parts = {part: torch.from_numpy(np.flatnonzero(found == part)) for part in PARTS}
    elif by_scaffold:
        parts = _by_scaffold(path, scaffolds, unlabelled + len(skipped))
    graphs.y = y
    return Dataset(
        name=unzipped_name(path).stem,
        graphs=graphs,
        task=posed,
        split=parts,
        metric=default_metric(posed),
        encoder="atom",
        smiles=dict(zip(table.rows, table.smiles, strict=True)),
        skipped=skipped,
        unlabelled=unlabelled,
        targets=table.target_names,
        left_out=table.left_out,
        says_parts=table.says_parts,
        splitting="scaffold" if table.parts is None else "given",
    )


def _by_scaffold(path: Path, scaffolds: Sequence[str], others: int) -> dict[str, Tensor]:
    """`split_by_scaffold`, whose error names the file and how many others are left out."""
    try:
        return split_by_scaffold(scaffolds)
    except InputError as error:
        raise InputError(f"{path}: {error}{left_out(others)}") from error


def from_smi(
    path: Path,
    table: Table,
    task: Kind | None,
    split: Split | None,
    strict: bool,
    reading: Reading,
) -> Dataset:
    """Molecules with their penalised logP, which needs no file of targets.

    Raises:
        InputError: targets seem to be there, or as `from_table`.
    """
    if _has_labels(table):
        raise InputError(
            f"{path}: behind the SMILES are numbers, and its target would be the penalised logP: "
            "to learn these, save it as a CSV with names above its columns, or else remove them"
        )
    sa_scorer()  # a missing package is reported once, here, and not by every worker
    by_scaffold = split == "scaffold"
    also = logp_and_scaffold if by_scaffold else penalized_logp
    graphs, skipped, found = molecules_of(table, also, reading)
    if skipped and not len(graphs):
        raise InputError(no_molecules(path, table, skipped))
    if skipped and strict:
        raise InputError(not_valid(path, skipped, without_strict()))
    table = table.without(skipped)
    scores, scaffolds = zip(*found, strict=True) if by_scaffold else (found, ())
    y = torch.tensor(scores)[:, None]
    posed, y = make_task(y, "graph", ("penalised logP",), task or "regression")
    graphs.y = y
    parts = _by_scaffold(path, scaffolds, len(skipped)) if by_scaffold else {}
    return Dataset(
        name=unzipped_name(path).stem,
        graphs=graphs,
        task=posed,
        split=parts,
        metric=default_metric(posed),
        encoder="atom",
        smiles=dict(zip(table.rows, table.smiles, strict=True)),
        skipped=skipped,
        splitting="scaffold",
    )


def _has_labels(table: Table) -> bool:
    """Whether most lines of a *.smi end in numbers that are not those of a catalogue alone."""
    words = [cells[1].split()[-1] for _, cells in table.sheet.body if cells[1:] and cells[1]]
    numbers = list(filter(_NUMBER.fullmatch, words))
    return 2 * len(numbers) > len(table) and not all(map(str.isdigit, numbers))
