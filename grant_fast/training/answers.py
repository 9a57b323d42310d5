"""Tables of answers: for new graphs, and for those a run was tested on."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..data.dataset import Dataset, default_metric
from ..data.labels import labels_of
from ..data.load import check_kind
from ..data.molecules import Reading, molecules_of, no_molecules, not_valid, without_strict
from ..data.parsing import Failure
from ..data.sheet import one_line
from ..data.table import read_smi, read_table, table_kind
from ..errors import InputError, few, option
from ..files import atomic_write_csv, check_local, unzipped_name
from ..graphs import PackedGraphs
from ..tasks import NOT_MEASURED, Task, fits, measured
from .doubts import doubts_of_labels, few_to_judge_by
from .elements import unseen_elements
from .folder import SKIPPED_FILE, TEST_FILE, read_config, remove_files
from .judging import Judgement, judge
from .learned import known_molecules, write_split
from .model import ModelSpec
from .predict import Predictor, answers_of, load_predictor
from .targets import targets_of

#: Ends the name of an answer, which so is never taken for a label.
PREDICTED = "_predicted"


def check_new_graphs(source: str) -> None:
    """Refuse what cannot be a table of SMILES nor a packed file, by its name (InputError)."""
    check_local(source)
    path = Path(source)
    if path.is_dir():
        raise InputError(f"{source} is a folder: give run folders first, the new graphs last")
    if source == "-":
        raise InputError("no table is read from standard input: save it, and give the file")
    if not path.suffix and not path.exists():
        raise InputError(
            f"there is no file {source}: give a CSV of SMILES, a *.sdf, a *.smi, or a *.gfast, "
            f"which `grant-fast pack {source} -o {source}.gfast` makes from a data set known by "
            "name"
        )
    check_kind(source)


def check_answers_name(out: Path) -> None:
    """Refuse a name by which other programs would not know a table (InputError)."""
    if unzipped_name(out).suffix.lower() not in (".csv", ".tsv"):
        raise InputError(
            f"cannot write predictions as {out}: give a name that ends in .csv or .tsv (or has "
            ".gz after that)"
        )


class Outcome(NamedTuple):
    """What came of predicting, beside the file.

    Args:
        judged: how good the answers are; None where the new graphs have no labels.
        unseen: the same of the molecules unlike any in training; None where that is all of
            them, or none with a label, or not known.
        doubts: what makes them doubtful, a line each.
        failures: unreadable rows: number as in a spreadsheet (the header is row 1; an SDF or a
            *.smi has none), and text.
    """

    judged: Judgement | None
    unseen: Judgement | None
    doubts: list[str]
    failures: list[Failure]


def predict_table(
    predictors: Sequence[Predictor],
    source: str | Path,
    out: str | Path,
    *,
    smiles_column: str | None,
    strict: bool,
    workers: int | None,
    progress: bool,
) -> Outcome:
    """Predict for the molecules of a CSV; `out` gets its columns and behind them the answers: of
    several runs their mean, and then NAME_std, their sample standard deviation.

    A *.smi file, a SMILES a line, is taken as a CSV of the columns smiles and, where lines go on,
    name; an SDF as one of the columns smiles, name and its data fields.

    Answers are in the targets' own units (regression), the probability that a label is 1 (binary,
    multilabel), or one column for each class (multiclass), whose probabilities sum to 1. A row
    whose molecule cannot be read has empty answers. Columns called as the targets hold labels, by
    which answers are judged. Up to `workers` processes read the molecules.

    Raises:
        InputError: the file or a column is wrong, `out` cannot be written, the run is not of
            molecules, or no SMILES (if `strict`: not every one) can be parsed.
    """
    if any(predictor.spec.encoder != "atom" for predictor in predictors):
        raise InputError("this run was not trained on molecules: give it a packed file (.gfast)")
    kind = table_kind(source)
    if kind == ".smi":
        if smiles_column is not None:
            raise InputError(f"{source} has no columns: leave out {option('smiles_column')}")
        table = read_smi(source)
    else:
        trained_on = predictors[0].config.smiles_column if kind != ".sdf" else None
        column = smiles_column or trained_on
        table = read_table(source, column, require_target=False, workers=workers, progress=progress)
    graphs, failed, _ = molecules_of(table, None, Reading(workers, progress))
    if not len(graphs):
        raise InputError(no_molecules(source, table, failed))
    if failed and strict:
        raise InputError(not_valid(source, failed, without_strict()))
    spec, each = predictors[0].spec, [run.outputs(graphs, progress) for run in predictors]
    names, written = _written(each, predictors)
    sheet, bad, empty = table.sheet, {row for row, _ in failed}, [""] * len(names)
    lines = ([*cells, *(empty if row in bad else next(written))] for row, cells in sheet.body)
    apart = _apart(names, sheet.header)
    atomic_write_csv(out, [*sheet.header, *apart], lines)
    doubts, y = _doubts_of_answers(predictors, graphs, "row"), None
    if taken := [name for name, free in zip(names, apart, strict=True) if name != free]:
        new = [name for name in apart if name not in names]
        doubts.append(f"{source} has {few(taken)} already, which stays: the new one is {few(new)}")
    if columns := spec.targets if spec.task.class_names else spec.task.names:
        y, problems = labels_of(sheet, columns, spec.task, bad)
        y = y[torch.tensor([row not in bad for row, _ in sheet.body])]
        doubts += problems
    return _outcome(predictors, graphs, each, y, source, doubts, failed)


def predict_packed(
    predictors: Sequence[Predictor], source: str | Path, out: str | Path, *, progress: bool = False
) -> Outcome:
    """Predict for a packed file; `out` gets the id of each graph (and its node) and the answers.

    Ids are the rows of the table that was packed (its header is row 1), or count from 0.
    Answers are what `predict_table` says. They are judged if the file was packed with the run's
    targets.

    Raises:
        InputError: the file is damaged or of another kind of graph, or `out` cannot be written.
    """
    graphs, task = PackedGraphs.load(source, verify=True), predictors[0].spec.task
    header: list[str] = ["graph"]
    places: Iterator[list[int]] = ([graph] for graph in graphs.ids.tolist())
    if task.level == "node":
        header, sizes = ["graph", "node"], graphs.num_nodes_per_graph.tolist()
        pairs = zip(places, sizes, strict=True)
        places = ([*place, node] for place, size in pairs for node in range(size))
    each = [run.outputs(graphs, progress) for run in predictors]
    names, written = _written(each, predictors)
    header += _apart(names, header)
    lines = zip(places, written, strict=True)
    atomic_write_csv(out, header, ([*place, *said] for place, said in lines))
    doubts, y = _doubts_of_answers(predictors, graphs, "graph"), graphs.y
    if y is not None and (unlike := _unlike(predictors[0].spec, graphs)):
        doubts.append(f"not compared: {source} {unlike}")
        y = None
    return _outcome(predictors, graphs, each, y, source, doubts, [])


def check_alike(runs: Sequence[str | Path], predictors: Sequence[Predictor]) -> None:
    """Refuse runs, given by their folders, whose answers have no mean (InputError)."""
    folders = [os.path.realpath(run) for run in runs]
    for at, (run, predictor) in enumerate(zip(runs, predictors, strict=True)):
        if folders[at] in folders[:at]:
            raise InputError(f"{run} is given twice: name each run once")
        # The names of targets are in their task, but where it names classes.
        one, other = (
            (spec.task, spec.task.class_names and spec.targets)
            for spec in (predictors[0].spec, predictor.spec)
        )
        if one != other:
            raise InputError(
                f"{run} was trained on other targets than {runs[0]}: predict with each by itself"
            )


def _outcome(
    predictors: Sequence[Predictor],
    graphs: PackedGraphs,
    each: Sequence[Tensor],
    y: Tensor | None,
    source: str | Path,
    doubts: list[str],
    failures: list[Failure],
) -> Outcome:
    """The answers `each` judged by the labels y that a source gave; and what makes these a doubtful
    measure, beside other `doubts`."""
    first, unseen = predictors[0], None
    task = first.spec.task
    if y is not None and (there := measured(y, task)).any():
        metric = first.metric or default_metric(task)
        scarce = few_to_judge_by(y, task, metric, str(source))
        doubts = doubts + doubts_of_labels(y, task) + scarce
        if first.spec.encoder == "atom" and task.level == "graph":
            labelled = there.view(len(y), -1).any(1)
            seen, lines = known_molecules(graphs, labelled, predictors)
            doubts += lines
            if seen is not None and (seen & labelled).any():
                missing = NOT_MEASURED if task.kind == "multiclass" else torch.nan
                others = y.clone()
                others[seen] = missing
                unseen = judge(each, others, first)
                if not scarce:
                    which = "what is unlike any in training"
                    doubts += few_to_judge_by(others, task, metric, which)
        elif os.path.realpath(source) in [
            os.path.realpath(run.config.source) for run in predictors
        ]:
            doubts.append(
                f"{source} is what the run learned from: the metrics are of training, too"
            )
    return Outcome(judge(each, y, first), unseen, doubts, failures)


def _unlike(spec: ModelSpec, graphs: PackedGraphs) -> str:
    """Why the labels of a packed file are not for a run, by what `Dataset.save` wrote; or ""."""
    task, meta = spec.task, graphs.meta
    if "task" not in meta:
        return "does not say what its labels are, as files of Dataset.save and `grant-fast pack` do"
    same = meta["task"] == asdict(task) | {"names": list(task.names)}
    same = same and (not task.class_names or meta.get("targets") == list(spec.targets))
    if same and graphs.y is not None and fits(graphs.y, graphs.y_level, task):
        return ""
    return "was packed with other targets or classes than the run's, or in another order"


def _written(
    each: Sequence[Tensor], predictors: Sequence[Predictor]
) -> tuple[list[str], Iterator[list[str]]]:
    """The columns' names, and the rows in them: of the outputs of one run its answers; of several
    the means of these, and behind them their standard deviations."""
    task, answers = predictors[0].spec.task, []
    for number, (outputs, predictor) in enumerate(zip(each, predictors, strict=True), 1):
        which = "the run" if len(each) == 1 else f"run {number} of {len(each)}"
        answers.append(_finite(answers_of(outputs, task), predictor, which))
    classes, values = answer_columns(predictors[0].spec)
    if len(answers) == 1:
        return classes + values, _with_classes(answers[0], _rows(answers[0]), task)
    std, mean = torch.std_mean(torch.stack(answers), dim=0)
    stds = [f"{name.removesuffix(PREDICTED)}_std" for name in values]
    rows = _with_classes(mean, _rows(torch.cat([mean, std], dim=1)), task)
    return [*classes, *values, *stds], rows


def _doubts_of_answers(
    predictors: Sequence[Predictor], graphs: PackedGraphs, places: str
) -> list[str]:
    """What makes the answers of all or some runs doubtful, a line each."""
    sets = {frozenset(elements) for p in predictors if (elements := p.spec.elements)}
    seen = frozenset.intersection(*sets) if sets else frozenset()
    where = "in the training of some of the runs" if len(sets) > 1 else "in training"
    return unseen_elements(graphs, sorted(seen), places, where)


def _finite(answers: Tensor, predictor: Predictor, which: str) -> Tensor:
    """The answers; InputError where one is none, which a table would show as an empty cell."""
    wrong = (~answers.isfinite()).any(1)
    if wrong.any():
        broken = any(not t.isfinite().all() for t in predictor.model.state_dict().values())
        cause = "its weights are not finite" if broken else "they overflow"
        raise InputError(
            f"{int(wrong.sum())} of {len(wrong)} predictions of {which} are NaN or infinite, "
            f"because {cause}: train it again with a lower lr"
        )
    return answers


def write_tables(run_dir: Path, dataset: Dataset) -> Tensor | None:
    """What a finished run learned from and how it did, by graphs' ids: split.csv, skipped.csv and
    test.csv.

    split.csv says of every graph whether it is in train, valid or test; skipped.csv, if there are
    some, which molecules could not be read. test.csv holds the targets of each test graph (and its
    SMILES, where the data set has them) and behind them the answers of the best weights, as
    `predict_table` has them. It is left out for targets of nodes.

    Returns:
        Those answers, [test graphs, columns]; None for targets of nodes.

    Raises:
        InputError: a file cannot be written, or the run's own cannot be read.
    """
    write_split(run_dir, dataset)
    remove_files(run_dir, [SKIPPED_FILE])  # of the data before they were mended
    if dataset.skipped:
        atomic_write_csv(run_dir / SKIPPED_FILE, ["row", "text"], dataset.skipped)
    if dataset.task.level == "node":
        return None
    config, task = read_config(run_dir), dataset.task
    predictor = load_predictor(run_dir, device=config.device)
    ids, test = dataset.graphs.ids.cpu(), dataset.split["test"]
    y = targets_of(dataset.graphs, test).cpu().reshape(len(test), -1)
    names = task.class_names

    truths = _rows(y, measured(y, task))
    if names:
        truths = ([name and names[int(name)] for name in row] for row in truths)
    answers = predictor(dataset.graphs.subset(test))
    said = _with_classes(answers, _rows(answers), task)
    targets = _columns(dataset.targets if names else task.names, y.shape[1], "target")
    smiles = dataset.smiles if dataset.smiles.keys() >= set(ids.tolist()) else {}  # or other ids
    header = ["graph", "smiles"] if smiles else ["graph"]
    header += _apart(targets, header, "_target")
    classes, values = answer_columns(predictor.spec)
    header += _apart(classes + values, header)
    lines = (
        [graph, *([smiles[graph]] if smiles else []), *truth, *cells]
        for graph, truth, cells in zip(ids[test].tolist(), truths, said, strict=True)
    )
    atomic_write_csv(run_dir / TEST_FILE, header, lines)
    return answers


def _rows(values: Tensor, there: Tensor | None = None) -> Iterator[list[str]]:
    """The rows of a matrix as text: of real numbers as few digits as tell a float32 from every
    other; nothing for what is not `there`, by default NaN."""
    there = ~values.isnan() if there is None else there
    for block, known in zip(values.split(1024), there.split(1024), strict=True):
        cells = block.numpy().astype(str)
        cells[~known.numpy()] = ""
        yield from cells.tolist()


def _with_classes(answers: Tensor, rows: Iterator[list[str]], task: Task) -> Iterator[list[str]]:
    """Rows of answers, before each the class that is most likely by it, where there are several."""
    if task.kind != "multiclass":
        return rows
    names = task.class_names or tuple(map(str, range(task.num_outputs)))
    likely = (names[at] for at in answers.argmax(1).tolist())
    return ([name, *row] for name, row in zip(likely, rows, strict=True))


def answer_columns(spec: ModelSpec) -> tuple[list[str], list[str]]:
    """Names of the columns of answers: of the likely class NAME_predicted, where there are several;
    of values NAME_predicted, of classes their names, or NAME_class_0, …"""
    task = spec.task
    if task.kind != "multiclass":
        names = [f"{name}{PREDICTED}" for name in task.names]
        return [], _columns(names, task.num_outputs, "prediction")
    named = spec.targets if task.class_names else task.names
    target = named[0] if len(named) == 1 else ""
    stem = f"{target}_class" if target else "class"
    return [f"{target or 'class'}{PREDICTED}"], _columns(task.names, task.num_outputs, stem)


def _columns(names: Sequence[str], count: int, stem: str) -> list[str]:
    """`count` names: those given, if so many are, or the stem, numbered where it is not alone."""
    if len(names) == count:
        return list(names)
    return [stem] if count == 1 else [f"{stem}_{i}" for i in range(count)]


def _apart(names: list[str], header: list[str], suffix: str = PREDICTED) -> list[str]:
    """Names of answers (or, with their suffix, of others) that are not columns already."""
    taken = set(map(one_line, header))
    free = []
    for name in names:
        while name in taken:
            name += suffix
        taken.add(name)
        free.append(name)
    return free
