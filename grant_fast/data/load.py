"""One name or file in, a data set ready for training out."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from ..devices import usual_tensors
from ..errors import InputError, option, whole_number
from ..files import check_local, check_name, closest
from ..graphs import PackedGraphs
from ..graphs.arrays import GraphArrays
from ..tasks import Kind, Task
from . import graphon, twin
from .cache import SMALLEST, cached_graphs
from .dataset import (
    Dataset,
    default_metric,
    described,
    first_graphs,
    first_of_each_part,
    read_packed,
)
from .infer import make_task
from .molecules import Reading, Split, from_smi, from_table, left_out
from .ogb import SETS, load_ogb
from .published import Published
from .pyg_sets import PYG_SETS, load_pyg
from .splits import FEWEST, draw_valid, random_split
from .stream import Part
from .table import has_columns, read_smi, read_table, table_kind

SOURCES = (
    'gen-reg, gen-cls, a "*.csv" or "*.tsv" of SMILES, a "*.sdf" or "*.smi" file, a packed '
    '"*.gfast" file, '
    "QM9, ZINC, an ogbg-mol* name, or twin:NAME"
)
#: What to do with files of molecules that are not read.
_INSTEAD = {
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "save the sheet as CSV (UTF-8)"),
    **dict.fromkeys(
        (".mol", ".mol2", ".pdb"),
        "convert it to an SDF or to a CSV with a column of SMILES, with RDKit or Open Babel",
    ),
    **dict.fromkeys((".json", ".parquet", ".feather", ".pkl"), "write it as a CSV"),
    **dict.fromkeys((".gz", ".zip", ".bz2", ".xz", ".zst"), "it is compressed: unpack it"),
}
_RENAME = "the kind of a file is told by its extension: rename it, a table to *.csv or *.tsv"
_NO_TABLE = (
    "a PackedGraphs has no columns and no SMILES: load the file that has them, or leave out "
    'smiles_column, target, split_column and split="scaffold"'
)
GENERATED_FRACTIONS = (0.6, 0.2, 0.2)  # the paper's 30,000 / 10,000 / 10,000


@usual_tensors
def load_dataset(
    source: str | os.PathLike[str] | PackedGraphs,
    *,
    smiles_column: str | None = None,
    target: str | Sequence[str] | None = None,
    task: Kind | None = None,
    split: Split | None = None,
    split_column: str | None = None,
    num_graphs: int | None = None,
    seed: int = 0,
    strict: bool = False,
    edge_attr: bool = False,
    workers: int | None = None,
    progress: bool = True,
) -> Dataset:
    """Load or generate a data set.

    The `ids` of graphs from a file of SMILES are its rows, as a spreadsheet shows them (the header
    is row 1; an SDF or a *.smi has none), so what is left out leaves gaps.

    Args:
        source: "gen-reg" or "gen-cls" (generated), a CSV file with SMILES, an SDF, a "*.smi" file
            (one SMILES a line, as ZINC's: the target is the penalised logP), a *.gz of one of
            these, a packed "*.gfast" file, "QM9", "ZINC" or "ogbg-mol*" (from the folder `dataset`,
            downloaded on first use), "twin:QM9", "twin:ZINC", "twin:ogbg-molpcba" (noise in their
            shape, for timing), or a `PackedGraphs` in memory.
        smiles_column: the column of a CSV file with the SMILES; by default the one called smiles.
        target: one column of a CSV file (or data field of an SDF), or several; "all" for every
            column of numbers (`left_out` of the data set names the others). By default the only
            other column.
        task: by default binary or multilabel where all labels are 0 or 1, multiclass where a single
            target holds words, else regression. For classes that are whole numbers "multiclass"
            must be asked for. (Packed graphs whose y holds integers beyond 1 are taken as such.)
        split: by default "scaffold" for a CSV file or an SDF, the published one for ogbg-mol* and
            ZINC, that of the paper's code for QM9, the stored one for a packed file, and random
            60/20/20 for generated graphs; else 80/10/10.
        split_column: the column (or data field) that says whether each row is train, valid or test.
            Where no row is valid, a tenth of train is drawn for it.
        num_graphs: use only this many: generated, the first of a file, or the first of the parts of
            a published split, in proportion. Default: all; for generated sets 50,000.
        seed: for generated graphs, random splits and what is drawn for valid.
        strict: an unparsable molecule is an error; otherwise it is skipped and listed.
        edge_attr: keep OGB's three features of each bond, for models that use them; only of files
            of molecules. (Packed graphs keep what they have.)
        workers: processes that read SMILES or draw 10,000 graphs or more; see
            `grant_fast.workers.share_out`.
        progress: show progress bars.

    Returns:
        Graphs, task, split ("train", "valid" and "test": positions), metric, and what was left out.

    Raises:
        InputError: an unknown source, or something wrong in it; the message names the place.
        MissingExtraError: the source needs a package that is not installed.
    """
    _check_arguments(task, split, split_column, num_graphs, seed, workers)
    seed = int(seed)
    if target is not None and not isinstance(target, str):
        target = list(target) if isinstance(target, Iterable) else [target]
    for column in (smiles_column, split_column, *([] if isinstance(target, str) else target or [])):
        if not isinstance(column, str | None):
            raise InputError(f"the column {column!r} is no name: give a string")
    if isinstance(source, PackedGraphs):
        if smiles_column is not None or target or split_column is not None or split == "scaffold":
            raise InputError(_NO_TABLE)
        dataset = described(source, task, "the PackedGraphs", "graphs")
        return _with_split(first_graphs(dataset, num_graphs), split, seed)
    if not isinstance(source, (str, os.PathLike)):
        raise InputError(
            f"a data set is the path of a file, a name or a PackedGraphs, not a "
            f"{type(source).__name__}: give one of these, as PackedGraphs.from_dataset makes of "
            'PyG\'s, or PackedGraphs.from_smiles(df["smiles"].tolist(), df[["y"]].to_numpy())'
        )
    name = os.fspath(source)
    check_name(name)
    check_local(name)
    path = Path(name)
    reading = Reading(workers, progress, edge_attr)
    if has_columns(path):
        table = read_table(
            path,
            smiles_column,
            target,
            split_column=split_column,
            workers=workers,
            progress=progress,
        )
        dataset = from_table(path, table.first(num_graphs), task, split, strict, reading)
        if table.parts is not None and "valid" not in table.parts:
            parts = draw_valid(dataset.split, seed)
            dataset = replace(dataset, split=parts, splitting="given train/test")
        return _with_split(dataset, split, seed, split_column, whole=num_graphs is None)
    if smiles_column is not None or target or split_column is not None:
        check_kind(name)
        if name and path.is_dir():
            raise InputError(f"{name} is a folder: give a file in it")
        if not table_kind(path) and not _is_known(name):
            raise _unknown(name)
        remedy = ""
        if table_kind(path) == ".smi":
            remedy = ": save it as a CSV, with names above its columns"
        raise InputError(
            f"columns and targets can be chosen only in CSV files and SDFs, not in {name!r}{remedy}"
        )
    if table_kind(path) == ".smi":
        table = read_smi(path).first(num_graphs)
        return _with_split(from_smi(path, table, task, split, strict, reading), split, seed)
    return _by_name(name, task, split, num_graphs, seed, reading)


def _by_name(
    name: str,
    task: Kind | None,
    split: Split | None,
    num_graphs: int | None,
    seed: int,
    reading: Reading,
) -> Dataset:
    """A data set that is no file of molecules: generated, packed, published, or a twin."""
    path, progress = Path(name), reading.progress
    if reading.edge_attr and path.suffix.lower() != ".gfast":
        check_kind(name)
        raise InputError(
            f"edge_attr=True is for files of molecules, not for {name!r}: leave it out, or use "
            "PackedGraphs.from_dataset on PyG's or OGB's own data set"
        )
    if split == "scaffold":
        check_kind(name)
        raise InputError(
            f"{option('split', 'scaffold')} needs SMILES, which {name!r} does not hold: "
            f"load the CSV, or use {option('split', 'random')}"
        )
    if name in graphon.NAMES:
        return _generated(name, task, num_graphs, seed, reading)
    if path.suffix.lower() == ".gfast":
        return _with_split(first_graphs(read_packed(path, task), num_graphs), split, seed)
    if name in SETS or name in PYG_SETS:
        loaded = (load_ogb if name in SETS else load_pyg)(name, progress=progress)
        return _with_split(_published(name, loaded, task, num_graphs), split, seed)
    if name.startswith(twin.PREFIX):
        return _from_twin(name, task, num_graphs, seed)
    check_kind(name)
    raise _unknown(name)


def _is_known(name: str) -> bool:
    """Whether it is the name of a data set, or may be that of a packed file."""
    by_name = (*graphon.NAMES, *SETS, *PYG_SETS)
    return name in by_name or name.startswith(twin.PREFIX) or name.lower().endswith(".gfast")


def _unknown(name: str) -> InputError:
    return InputError(f"unknown data set {name!r}: give {SOURCES}{_hint(name)}")


def check_kind(name: str) -> None:
    """Refuse a file of another kind than tables of SMILES and packed files (InputError)."""
    path = Path(name)
    kind = path.suffix.lower()
    if path.is_file() and not table_kind(name) and kind != ".gfast":
        instead = _INSTEAD.get(kind, _RENAME)
        raise InputError(f"{name} is not a *.csv, *.tsv, *.sdf, *.smi or *.gfast: {instead}")


def _hint(name: str) -> str:
    """What may have been meant by a name that is none."""
    path = Path(name)
    if not name:
        return "; it is empty"
    if instead := _INSTEAD.get(path.suffix.lower()):
        return f"; {instead}"
    if path.is_dir():
        return "; this is a folder, give a file in it"
    if path.exists():
        return "; its name does not tell what it holds: save that as a *.csv, say"
    nearby = path.parent.iterdir() if path.parent.is_dir() else ()
    files = {f.stem: str(f) for f in nearby if table_kind(f) or f.suffix.lower() == ".gfast"}
    twins = (f"{twin.PREFIX}{known}" for known in twin.SHAPES)
    if (of_ogb := f"ogbg-mol{name.lower()}") in SETS:
        return f"; did you mean {of_ogb}?"
    near = closest(path.stem, (*graphon.NAMES, *PYG_SETS, *SETS, *twins, *files))
    return f"; did you mean {files.get(near, near)}?" if near else ""


def _check_arguments(
    task: Kind | None,
    split: Split | None,
    split_column: str | None,
    num_graphs: int | None,
    seed: int,
    workers: int | None,
) -> None:
    """Refuse what no source can have (InputError); the arguments are those of `load_dataset`."""
    for what, value, known in (("task", task, Kind), ("split", split, Split)):
        if value is not None and value not in get_args(known):
            choices = ", ".join(get_args(known))
            raise InputError(f"unknown {what} {value!r}: choose one of {choices}")
    if split is not None and split_column is not None:
        raise InputError(
            f"the split is either {split} or in the column {split_column!r}: choose one"
        )
    if num_graphs is not None:
        whole_number(option("num_graphs").rstrip("="), num_graphs, least=FEWEST)
    if whole_number("seed", seed, least=0) >= 1 << 63:
        raise InputError(f"seed={seed}: give a number below 2^63")
    if workers is not None:
        whole_number("workers", workers)


def _published(name: str, loaded: Published, task: Kind | None, num_graphs: int | None) -> Dataset:
    assert loaded.graphs.y is not None
    posed, y = make_task(loaded.graphs.y, "graph", loaded.targets, task or loaded.kind)
    arrays = replace(loaded.graphs, y=y)
    dataset = Dataset(
        name=name,
        graphs=PackedGraphs.from_graph_arrays(arrays, missing_labels=loaded.missing_labels),
        task=posed,
        split=loaded.split,
        metric=loaded.metric if posed.kind == loaded.kind else default_metric(posed),
        encoder=loaded.encoder,
        splitting="published",
    )
    return first_of_each_part(dataset, num_graphs)


def _from_twin(name: str, task: Kind | None, num_graphs: int | None, seed: int) -> Dataset:
    shape = twin.twin_shape(name)
    if task not in (None, shape.kind):
        raise InputError(f"{name} is a {shape.kind} task, not {task}: leave the task out")
    arrays = twin.generate_twin(shape, num_graphs, seed)
    return twin_dataset(name.removeprefix(twin.PREFIX), shape, arrays, seed)


def twin_dataset(name: str, shape: twin.Shape, arrays: GraphArrays, seed: int = 0) -> Dataset:
    """The shape twin of a set, of graphs that were drawn in its shape; the seed is the split's."""
    train, valid, test = (size / sum(shape.splits) for size in shape.splits)
    task = Task(shape.kind, "graph", shape.num_targets)
    return Dataset(
        name=f"shape twin of {name} (noise, for timing alone)",
        graphs=PackedGraphs.from_graph_arrays(arrays, missing_labels=True),
        task=task,
        split=random_split(arrays.num_graphs, (train, valid, test), seed),
        metric="ap" if shape.kind == "multilabel" else default_metric(task),
        encoder=None if shape.num_features else "atom",
        splitting="random",
    )


def _generated(
    name: str, task: Kind | None, num_graphs: int | None, seed: int, reading: Reading
) -> Dataset:
    kind: Kind = "regression" if name == "gen-reg" else "multiclass"
    if task not in (None, kind):
        raise InputError(f"{name} is a {kind} task, not {task}: leave the task out")
    count = num_graphs or graphon.NUM_GRAPHS
    # Few are drawn before more processes have started.
    workers = None if count < SMALLEST else reading.workers

    def draw() -> Iterable[Part]:
        return graphon.generate_parts(
            name, count, seed=seed, workers=workers, progress=reading.progress
        )

    return Dataset(
        name=name,
        graphs=cached_graphs(name, count, seed, draw),
        task=Task(kind, "node", 1 if kind == "regression" else graphon.NUM_CLASSES),
        split=random_split(count, GENERATED_FRACTIONS, seed),
        # Most nodes of gen-cls may be of one class: accuracy would then say nothing.
        metric="mae" if kind == "regression" else "roc_auc",
        splitting="random",
    )


def _with_split(
    dataset: Dataset,
    split: Split | None,
    seed: int,
    column: str | None = None,
    *,
    whole: bool = False,
) -> Dataset:
    """A random split where one is asked for or none is there; no part may be empty.

    `column` is what the split was read from; `whole` says that it has no more rows to take.
    """
    others = left_out(dataset.unlabelled + len(dataset.skipped))
    if split == "random" or not dataset.split:
        try:
            parts = random_split(dataset.graphs.num_graphs, seed=seed)
        except InputError as error:
            raise InputError(f"{dataset.name}: {error}{others}") from error
        return replace(dataset, split=parts, splitting="random")
    for part, positions in dataset.split.items():
        if len(positions) == 0:
            mark = f"mark some rows {part!r} in the column {column!r}"
            more = mark if whole else "take more of them"
            instead = " instead of that column" if column is not None else ""
            raise InputError(
                f"none of the {dataset.graphs.num_graphs} graphs of {dataset.name} is in {part}"
                f"{others}: {more}, or use {option('split', 'random')}{instead}"
            )
    return dataset
