"""Answers of a finished (or interrupted) run: for new graphs, and for those it was tested on."""

import math
import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..batches import GraphBatch
from ..data.dataset import Dataset
from ..data.load import check_kind, molecules_of
from ..data.table import Table, molecules_in, read_smi, read_table, table_kind
from ..errors import InputError, few
from ..files import atomic_write_csv, unzipped_name
from ..graphs import PackedGraphs
from ..nn import FlexGCN
from ..tasks import Task, measured
from ..teaching.scoring import Positions, score_graphs
from .checkpoints import load_checkpoint, load_weights
from .config import RunConfig
from .folder import (
    BEST_FILE,
    CONFIG_FILE,
    LAST_FILE,
    SPLIT_FILE,
    TEST_FILE,
    difference,
    read_config,
)
from .model import ModelSpec, batches_of, build_model, predictions, resolve_device
from .records import is_finished
from .source import dataset_of
from .targets import targets_of, with_targets


@dataclass(frozen=True)
class Predictor:
    """A trained network with what turns its outputs into answers, in the targets' own units.

    Args:
        model: the network, in evaluation mode. Its own outputs are logits of classes; of a
            regression they are of standardised targets, not to be compared with the targets as they
            are (`spec.decode` takes them to the targets' units): `score` does it.
        config: the settings of the run.
        spec: the task, and how the network's outputs relate to the targets.
    """

    model: FlexGCN
    config: RunConfig
    spec: ModelSpec

    def __call__(self, graphs: PackedGraphs) -> Tensor:
        """Own units (regression) or probabilities, float32 [rows, columns] on the CPU.

        Raises:
            InputError: it is not given a `PackedGraphs`, or one with other features than the run
                was trained on.
        """
        taken = self._taken(graphs)
        pred = predictions(self.model, batches_of(taken, torch.arange(len(taken))))
        if self.spec.task.kind == "regression":
            return self.spec.decode(pred).cpu()
        if self.spec.task.kind == "multiclass":
            return pred.softmax(dim=1).cpu()
        return pred.sigmoid().cpu()

    def dataset(self, progress: bool = False) -> Dataset:
        """The data set that the run learned from and was tested on, with its split, read anew from
        where the command found it.

        Raises:
            InputError: as `load_dataset`; the data have moved, say.
        """
        return dataset_of(self.config, progress=progress)

    def score(self, graphs: PackedGraphs, ids: Positions | None = None) -> Tensor:
        """The teacher's score of each graph, float32 [len(ids)] on the CPU: its error, as
        `score_graphs` has it, for the run's own task; of a regression in the target's own units,
        of several targets each in its standard deviations (where the run scaled them).

        Args:
            graphs: with targets as the run was trained on.
            ids: positions in `graphs`, in the order of the result; all of them if None.

        Raises:
            InputError: as a call, and as `score_graphs`.
        """

        def in_own_units(model: FlexGCN, batch: GraphBatch) -> Tensor:
            return self.spec.decode(model(batch))

        predict, graphs = None, self._taken(graphs)
        if self.spec.scaling is not None:
            if self.spec.task.num_outputs == 1:
                predict = in_own_units
            elif graphs.y is not None:  # else the score says so
                graphs = with_targets(graphs, self.spec.encode)
        return score_graphs(self.model, graphs, self.spec.task, ids=ids, predict=predict).cpu()

    def _taken(self, graphs: PackedGraphs) -> PackedGraphs:
        """Graphs that the network can take, on its device."""
        if not isinstance(graphs, PackedGraphs):
            raise InputError(
                f"a predictor takes a PackedGraphs, not a {type(graphs).__name__}: make one, for "
                "example with PackedGraphs.from_smiles or from_data_list; to score its graphs, "
                "call this predictor's score(graphs) instead of score_graphs"
            )
        if graphs.num_features != self.spec.num_features:
            raise InputError(
                f"these graphs have {graphs.num_features} features per node, but the run was "
                f"trained on {self.spec.num_features}: give graphs of the same kind"
            )
        return graphs.to(next(self.model.parameters()).device)


def load_predictor(run_dir: str | Path, *, last: bool = False, device: str = "auto") -> Predictor:
    """Rebuild the network from a run folder, by default with its best weights by validation.

    Raises:
        InputError: it is not a run folder, or its checkpoint is missing, damaged or belongs to
            another run.
    """
    folder = Path(run_dir)
    config = read_config(folder)
    path = folder / (LAST_FILE if last else BEST_FILE)
    if not path.exists():
        raise InputError(_without_weights(folder, path.name))
    state = load_checkpoint(path)
    saved = RunConfig.from_dict(state["config"], origin=str(path))
    if unlike := difference(saved, config):
        raise InputError(
            f"{path} belongs to another run than the {CONFIG_FILE} beside it, with {unlike}: put "
            "the run's own files back, or train again"
        )
    spec = ModelSpec.from_dict(state["spec"])
    model = build_model(config, spec)
    load_weights(model, state["model"], path)
    return Predictor(model.to(resolve_device(device)).eval(), config, spec)


def _without_weights(folder: Path, name: str) -> str:
    if is_finished(folder):
        return f"{folder / name} is missing: restore it, or train again with --overwrite"
    command = shlex.join(["grant-fast", "train", "--resume", "-o", str(folder)])
    return f"{folder} has no {name} yet, because its training was stopped: {command} continues it"


def check_new_graphs(source: str) -> None:
    """Refuse what cannot be a table of SMILES nor a packed file, by its name (InputError)."""
    path = Path(source)
    if not path.suffix and not path.exists():
        raise InputError(
            f"there is no file {source}: give a CSV of SMILES, a *.sdf, a *.smi, or a *.gfast, "
            f"which `grant-fast pack {source} -o {source}.gfast` makes from a data set known by "
            "name"
        )


def check_answers_name(out: Path) -> None:
    """Refuse a name by which other programs would not know a table (InputError)."""
    if unzipped_name(out).suffix.lower() not in (".csv", ".tsv"):
        raise InputError(
            f"cannot write predictions as {out}: give a name that ends in .csv or .tsv (or has "
            ".gz after that)"
        )


def predict_csv(
    predictor: Predictor,
    source: str | Path,
    out: str | Path,
    *,
    smiles_column: str | None = None,
    strict: bool = False,
    workers: int | None = None,
    progress: bool = False,
) -> list[tuple[int, str]]:
    """Predict for the molecules of a CSV; `out` gets its columns and behind them the answers.

    A *.smi file, a SMILES a line, is taken as a CSV of the columns smiles and, where lines go on,
    name; an SDF as one of the columns smiles, name and its data fields.

    Answers are in the targets' own units (regression), the probability that a label is 1 (binary,
    multilabel), or one column for each class (multiclass), whose probabilities sum to 1. A row
    whose molecule cannot be read has empty answers. An answer whose name is a column of the CSV
    already is called NAME_predicted. Up to `workers` processes read the molecules.

    Returns:
        The unreadable rows: number as in a spreadsheet (the header is row 1; an SDF or a *.smi has
        none), and text.

    Raises:
        InputError: the file or a column is wrong, `out` cannot be written, the run is not of
            molecules, or no SMILES (if `strict`: not every one) can be parsed.
    """
    check_kind(os.fspath(source))
    if predictor.spec.encoder != "atom":
        raise InputError("this run was not trained on molecules: give it a packed file (.gfast)")
    kind = table_kind(source)
    if kind == ".smi":
        if smiles_column is not None:
            raise InputError(f"{source} has no columns: leave out --smiles-column")
        table = read_smi(source)
    else:
        trained_on = predictor.config.smiles_column if kind != ".sdf" else None
        column = smiles_column or trained_on
        table = read_table(source, column, require_target=False, workers=workers, progress=progress)
    arrays, failed, _ = molecules_of(table, None, workers, progress)
    if arrays.num_graphs == 0:
        raise InputError(_no_molecules(source, table, failed))
    if failed and strict:
        row, text = failed[0]
        raise InputError(
            f"{source} row {row}: {text!r} is not a valid {molecules_in(source)} ({len(failed)} "
            "such in the file): correct it, or leave out --strict"
        )
    graphs = PackedGraphs.from_graph_arrays(arrays)
    answers = iter(_finite(predictor(graphs), predictor).tolist())
    names = _apart(answer_columns(predictor.spec.task), table.header)
    bad, empty = {row for row, _ in failed}, [""] * len(names)
    lines = (
        [*cells, *(empty if row in bad else next(answers))]
        for row, cells in zip(table.rows, table.cells, strict=True)
    )
    _write_csv(out, [*table.header, *names], lines)
    return failed


def _no_molecules(source: str | Path, table: Table, failed: Sequence[tuple[int, str]]) -> str:
    """That no molecule of a table can be read, and what may be wrong."""
    shown = few([repr(text[:30]) for _, text in failed])
    if table_kind(source) == ".sdf":
        return f"{source} holds no valid structure ({shown}): give an SDF that RDKit can read"
    if table_kind(source) == ".smi":
        return f"{source} holds no valid SMILES ({shown}): begin each line with one"
    where = f"{source} column {table.smiles_column!r}"
    return f"{where} holds no valid SMILES ({shown}): name another one with --smiles-column"


def predict_packed(predictor: Predictor, source: str | Path, out: str | Path) -> None:
    """Predict for a packed file; `out` gets the id of each graph (and its node) and the answers.

    Ids are the rows of the table that was packed (its header is row 1), or count from 0.
    Answers are what `predict_csv` says.

    Raises:
        InputError: the file is damaged or of another kind of graph, or `out` cannot be written.
    """
    graphs, task = PackedGraphs.load(source, verify=True), predictor.spec.task
    header, places = ["graph"], [[graph] for graph in graphs.ids.tolist()]
    if task.level == "node":
        header, sizes = ["graph", "node"], graphs.num_nodes_per_graph.tolist()
        pairs = zip(places, sizes, strict=True)
        places = [[*place, node] for place, size in pairs for node in range(size)]
    header += _apart(answer_columns(task), header)
    lines = zip(places, _finite(predictor(graphs), predictor).tolist(), strict=True)
    _write_csv(out, header, ([*place, *answers] for place, answers in lines))


def _finite(answers: Tensor, predictor: Predictor) -> Tensor:
    """The answers; InputError where one is none, which a table would show as an empty cell."""
    wrong = (~answers.isfinite()).any(1)
    if wrong.any():
        broken = any(not t.isfinite().all() for t in predictor.model.state_dict().values())
        cause = "its weights are not finite" if broken else "they overflow"
        raise InputError(
            f"{int(wrong.sum())} of {len(wrong)} predictions of the run are NaN or infinite, "
            f"because {cause}: train it again with a lower --lr"
        )
    return answers


def write_parts(run_dir: Path, dataset: Dataset) -> None:
    """What a finished run learned from and how it did: split.csv and test.csv, by graphs' ids.

    split.csv says of every graph whether it is in train, valid or test. test.csv holds the targets
    of each test graph and behind them the answers of the best weights, as `predict_csv` has them.
    It is left out for targets of nodes.

    Raises:
        InputError: a file cannot be written, or the run's own cannot be read.
    """
    ids, split = dataset.graphs.ids.cpu(), dataset.split
    part_of = {graph: part for part, where in split.items() for graph in ids[where].tolist()}
    _write_csv(run_dir / SPLIT_FILE, ["graph", "part"], sorted(part_of.items()))
    if dataset.task.level == "node":
        return
    config, task = read_config(run_dir), dataset.task
    predictor = load_predictor(run_dir, device=config.device)
    test = split["test"]
    y = targets_of(dataset.graphs, test).cpu().reshape(len(test), -1)
    known = measured(y, task).tolist()
    truths = [
        [value if there else None for value, there in zip(*row, strict=True)]
        for row in zip(y.tolist(), known, strict=True)
    ]
    if names := task.class_names:
        truths = [[None if label is None else names[label] for label in row] for row in truths]
    answers = predictor(dataset.graphs.subset(test)).tolist()
    targets = _columns(config.target if names else task.names, y.shape[1], "target")
    header = ["graph", *_apart(targets, ["graph"], "_target")]
    header += _apart(answer_columns(task), header)
    rows = zip(ids[test].tolist(), truths, answers, strict=True)
    _write_csv(run_dir / TEST_FILE, header, ([graph, *truth, *said] for graph, truth, said in rows))


def answer_columns(task: Task) -> list[str]:
    """Names of the answers: the targets' own where they are known; of classes NAME_class_0, …"""
    stem = "prediction"
    if task.kind == "multiclass":
        stem = f"{task.names[0]}_class" if len(task.names) == 1 else "class"
    return _columns(task.names, task.num_outputs, stem)


def _columns(names: Sequence[str], count: int, stem: str) -> list[str]:
    """`count` names: those given, if so many are, or the stem, numbered where it is not alone."""
    if len(names) == count:
        return list(names)
    return [stem] if count == 1 else [f"{stem}_{i}" for i in range(count)]


def _apart(names: list[str], header: list[str], suffix: str = "_predicted") -> list[str]:
    """Names of answers (or, with their suffix, of others) that are not columns already."""
    taken = {name.strip() for name in header}
    free = []
    for name in names:
        while name in taken:
            name += suffix
        taken.add(name)
        free.append(name)
    return free


def _write_csv(path: str | Path, header: list[str], lines: Iterable[Iterable[object]]) -> None:
    atomic_write_csv(path, header, (map(_cell, line) for line in lines))


def _cell(value: object) -> object:
    """As few digits as tell a float32 from every other; nothing for what was not measured."""
    if not isinstance(value, float):
        return value
    return "" if math.isnan(value) else str(np.float32(value))
