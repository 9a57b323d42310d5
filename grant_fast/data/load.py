"""One name or file in, a data set ready for training out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch

from ..errors import InputError
from ..files import closest
from ..graphs import PackedGraphs
from ..tasks import Kind, Task
from . import graphon, twin
from .arrays import GraphArrays, Published
from .cache import SMALLEST, cached_graphs
from .dataset import (
    DEFAULT_METRIC,
    Dataset,
    first_graphs,
    first_of_each_part,
    read_packed,
    save_dataset,
)
from .infer import make_task
from .logp import penalized_logp
from .ogb import SETS, load_ogb
from .pyg_sets import PYG_SETS, load_pyg
from .smiles import featurize
from .splits import FEWEST, PARTS, random_split, scaffold_split
from .stream import Part
from .table import COMPRESSED, read_smi, read_table

__all__ = ["GENERATED_FRACTIONS", "Dataset", "load_dataset", "save_dataset", "twin_dataset"]

Split = Literal["random", "scaffold"]
SUFFIXES = (".csv", ".tsv", ".smi", ".gfast")
SOURCES = (
    'gen-reg, gen-cls, a "*.csv" or "*.tsv" of SMILES, a "*.smi" file, a packed "*.gfast" file, '
    "QM9, ZINC, an ogbg-mol* name, or twin:NAME"
)
GENERATED_FRACTIONS = (0.6, 0.2, 0.2)  # the paper's 30,000 / 10,000 / 10,000


def load_dataset(
    source: str | os.PathLike[str],
    *,
    smiles_column: str | None = None,
    target: Sequence[str] | None = None,
    task: Kind | None = None,
    split: Split | None = None,
    split_column: str | None = None,
    num_graphs: int | None = None,
    seed: int = 0,
    strict: bool = False,
    workers: int | None = None,
    progress: bool = True,
) -> Dataset:
    """Load or generate a data set.

    The `ids` of graphs from a file of SMILES are its rows, as a spreadsheet shows them (the header
    is row 1; a *.smi has none), so that what is left out leaves gaps.

    Args:
        source: "gen-reg" or "gen-cls" (generated), a CSV file with SMILES, a "*.smi" file (one
            SMILES a line, as ZINC's: the target is the penalised logP), a packed "*.gfast" file,
            "QM9", "ZINC" or "ogbg-mol*" (from the folder `dataset`, downloaded on first use), or
            "twin:QM9", "twin:ZINC", "twin:ogbg-molpcba": noise in their shape, for timing.
        smiles_column: of a CSV file; by default the one called smiles.
        target: columns of a CSV file, `["all"]` for all; by default the only other one.
        task: by default binary or multilabel where all labels are 0 or 1, else regression.
            "multiclass" must be asked for: labels are then class numbers from 0.
        split: by default "scaffold" for a CSV file, the paper's own for ogbg-mol*, QM9 and ZINC,
            the stored one for a packed file, and random 60/20/20 for generated graphs; else
            80/10/10.
        split_column: of a CSV file that says of each row whether it is train, valid or test.
        num_graphs: only so many: generated, the first of a file, or the first of each part of a
            published split. Default: all; 50,000 generated.
        seed: of generated graphs and of random splits.
        strict: an unparsable SMILES is an error; otherwise it is skipped and listed.
        workers: processes that read SMILES or draw 10,000 graphs and more, see `share_out`.
        progress: show progress bars.

    Raises:
        InputError: an unknown source, or something wrong in it; the message names the place.
        MissingExtraError: the source needs a package that is not installed.
    """
    name = os.fspath(source)
    if any("\ud800" <= letter <= "\udfff" for letter in name):
        raise InputError(f"the name {name!r} is not UTF-8: rename the file")
    options = _Options(
        smiles_column,
        target,
        task,
        split,
        split_column,
        num_graphs,
        seed,
        strict,
        workers,
        progress,
    )
    suffix = Path(name).suffix.lower()
    if suffix in (".csv", ".tsv"):
        return _from_csv(Path(name), options)
    if smiles_column is not None or target or split_column is not None:
        raise InputError(f"columns and targets are chosen in CSV files, not in {name!r}")
    if suffix == ".smi":
        return _from_smi(Path(name), options)
    if split == "scaffold":
        raise InputError(
            f'split="scaffold" needs SMILES, which {name!r} does not hold: load the CSV, or use '
            'split="random" (--split random)'
        )
    if name in graphon.NAMES:
        return _generated(name, options)
    if suffix == ".gfast":
        stored = read_packed(Path(name), options.task)
        return _with_split(first_graphs(stored, options.num_graphs), options)
    if name in SETS:
        return _published(name, load_ogb(name, progress=progress), options)
    if name in PYG_SETS:
        return _published(name, load_pyg(name, progress=progress), options)
    if name.startswith(twin.PREFIX):
        return _from_twin(name, options)
    raise InputError(f"unknown data set {name!r}: give {SOURCES}{_hint(name)}")


def _hint(name: str) -> str:
    """What may have been meant by a name that is none."""
    path = Path(name)
    if not name:
        return "; it is empty"
    if path.suffix.lower() in COMPRESSED:
        return "; it is compressed: unpack it"
    if path.is_dir():
        return "; this is a folder, give a file in it"
    if path.is_file():
        return "; this file's kind is told by the end of its name: rename it"
    nearby = path.parent.iterdir() if path.parent.is_dir() else ()
    packed = (str(other) for other in nearby if other.suffix.lower() in SUFFIXES)
    twins = (f"{twin.PREFIX}{known}" for known in twin.SHAPES)
    near = closest(name, (*graphon.NAMES, *PYG_SETS, *SETS, *twins, *packed))
    return f"; did you mean {near}?" if near else ""


@dataclass(frozen=True)
class _Options:
    """The arguments of `load_dataset`, checked."""

    smiles_column: str | None
    target: Sequence[str] | None
    task: Kind | None
    split: Split | None
    split_column: str | None
    num_graphs: int | None
    seed: int
    strict: bool
    workers: int | None
    progress: bool

    def __post_init__(self) -> None:
        for what, value, known in (("task", self.task, Kind), ("split", self.split, Split)):
            if value is not None and value not in get_args(known):
                choices = ", ".join(get_args(known))
                raise InputError(f"unknown {what} {value!r}: choose one of {choices}")
        if self.split is not None and self.split_column is not None:
            raise InputError(
                f"the split is {self.split} or in the column {self.split_column!r}: choose one"
            )
        if self.num_graphs is not None and self.num_graphs < 3:
            raise InputError(
                f"num_graphs={self.num_graphs}: give 3 or more, for train, valid and test"
            )


def _from_csv(path: Path, options: _Options) -> Dataset:
    columns = (options.smiles_column, options.target)
    table = read_table(path, *columns, split_column=options.split_column)
    if options.num_graphs is not None:
        table = table.take(range(min(options.num_graphs, len(table))))
    assert table.y is not None
    labelled = (~table.y.isnan().all(1)).nonzero()[:, 0].tolist()
    unlabelled = len(table) - len(labelled)
    table = table.take(labelled)

    arrays, failures = featurize(table.smiles, options.workers, options.progress)
    skipped = [(table.rows[i], text) for i, text in failures]
    too_few = arrays.num_graphs < FEWEST
    if skipped and (options.strict or too_few):
        row, text = skipped[0]
        left = f"correct it: what is left, {arrays.num_graphs} of {len(table)}, is too few to split"
        raise InputError(
            f"{path} row {row}: {text!r} is not a valid SMILES ({len(skipped)} such in the file): "
            + (left if too_few else "correct it, or skip it without --strict")
        )
    bad = {i for i, _ in failures}
    table = table.take([i for i in range(len(table)) if i not in bad])
    assert table.y is not None
    task, y = make_task(table.y, "graph", table.target_names, options.task)
    split = {}
    if table.parts is not None:
        found = np.array(table.parts)
        split = {part: torch.from_numpy(np.flatnonzero(found == part)) for part in PARTS}
    elif options.split != "random":
        split = scaffold_split(table.smiles)
    dataset = Dataset(
        name=path.stem,
        graphs=PackedGraphs.from_graph_arrays(
            replace(arrays, y=y), missing_labels=True, ids=torch.tensor(table.rows)
        ),
        task=task,
        split=split,
        metric=DEFAULT_METRIC[task.kind],
        encoder="atom",
        skipped=skipped,
        unlabelled=unlabelled,
        splitting="scaffold" if table.parts is None else "given",
    )
    return _with_split(dataset, options)


def _from_smi(path: Path, options: _Options) -> Dataset:
    """Molecules with their penalised logP, which needs no file of targets."""
    smiles = read_smi(path).smiles[: options.num_graphs]
    arrays, failures = featurize(smiles, options.workers, options.progress)
    rows = [(row + 1, text) for row, text in failures]
    if rows and (options.strict or arrays.num_graphs == 0):
        row, text = rows[0]
        raise InputError(f"{path} line {row}: {text!r} is not a valid SMILES: correct it")
    bad = {row for row, _ in failures}
    good = [row for row in range(len(smiles)) if row not in bad]
    kept = [smiles[row] for row in good]
    y = penalized_logp(kept, options.workers, options.progress)[:, None]
    task, y = make_task(y, "graph", ("penalised logP",), options.task or "regression")
    dataset = Dataset(
        name=path.stem,
        graphs=PackedGraphs.from_graph_arrays(replace(arrays, y=y), ids=torch.tensor(good) + 1),
        task=task,
        split=scaffold_split(kept) if options.split == "scaffold" else {},
        metric=DEFAULT_METRIC[task.kind],
        encoder="atom",
        skipped=rows,
        splitting="scaffold",
    )
    return _with_split(dataset, options)


def _published(name: str, loaded: Published, options: _Options) -> Dataset:
    assert loaded.graphs.y is not None
    task, y = make_task(loaded.graphs.y, "graph", loaded.targets, options.task or loaded.kind)
    arrays = replace(loaded.graphs, y=y)
    dataset = Dataset(
        name=name,
        graphs=PackedGraphs.from_graph_arrays(arrays, missing_labels=loaded.missing_labels),
        task=task,
        split=loaded.split,
        metric=loaded.metric if task.kind == loaded.kind else DEFAULT_METRIC[task.kind],
        encoder=loaded.encoder,
        splitting="published",
    )
    return _with_split(first_of_each_part(dataset, options.num_graphs), options)


def _from_twin(name: str, options: _Options) -> Dataset:
    shape = twin.twin_shape(name)
    arrays = twin.generate_twin(shape, options.num_graphs, options.seed)
    if options.task not in (None, shape.kind):
        raise InputError(f"{name} is a {shape.kind} task, not {options.task}: leave the task out")
    return twin_dataset(name.removeprefix(twin.PREFIX), shape, arrays, options.seed)


def twin_dataset(name: str, shape: twin.Shape, arrays: GraphArrays, seed: int = 0) -> Dataset:
    """The shape twin of a set, of graphs that were drawn in its shape; the seed is the split's."""
    train, valid, test = (size / sum(shape.splits) for size in shape.splits)
    return Dataset(
        name=f"shape twin of {name} (noise, for timing alone)",
        graphs=PackedGraphs.from_graph_arrays(arrays, missing_labels=True),
        task=Task(shape.kind, "graph", shape.num_targets),
        split=random_split(arrays.num_graphs, (train, valid, test), seed),
        metric="ap" if shape.kind == "multilabel" else DEFAULT_METRIC[shape.kind],
        encoder=None if shape.num_features else "atom",
    )


def _generated(name: str, options: _Options) -> Dataset:
    kind: Kind = "regression" if name == "gen-reg" else "multiclass"
    if options.task not in (None, kind):
        raise InputError(f"{name} is a {kind} task, not {options.task}: leave the task out")
    num_graphs = options.num_graphs or 50_000

    def draw() -> Iterable[Part]:
        # Fewer graphs are drawn before more processes have started.
        workers = options.workers if num_graphs >= SMALLEST else None
        return graphon.generate_parts(
            name, num_graphs, seed=options.seed, workers=workers, progress=options.progress
        )

    return Dataset(
        name=name,
        graphs=cached_graphs(name, num_graphs, options.seed, draw),
        task=Task(kind, "node", 1 if kind == "regression" else graphon.NUM_CLASSES),
        split=random_split(num_graphs, GENERATED_FRACTIONS, options.seed),
        # Nearly all nodes of gen-cls are of one class: accuracy would say nothing.
        metric="mae" if kind == "regression" else "roc_auc",
    )


def _with_split(dataset: Dataset, options: _Options) -> Dataset:
    """A random split where one is asked for or none is there; no part may be empty."""
    if options.split == "random" or not dataset.split:
        split = random_split(dataset.graphs.num_graphs, seed=options.seed)
        return replace(dataset, split=split, splitting="random")
    for part, positions in dataset.split.items():
        if len(positions) == 0:
            raise InputError(
                f"none of the {dataset.graphs.num_graphs} graphs of {dataset.name} is in {part}: "
                'take more of them, or use split="random" (--split random)'
            )
    return dataset
