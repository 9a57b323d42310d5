"""What in a data set may be other than its user thinks: each doubt in a line."""

import re
from difflib import get_close_matches
from itertools import product

import numpy as np
import torch
from torch import Tensor

from ..data.alike import CHIRALITY, contradictions, fingerprints, repeated, seen_in_training
from ..data.dataset import Dataset
from ..data.table import has_columns
from ..errors import few, option
from ..tasks import Task, measured
from .config import MEMORY, RunConfig
from .targets import (
    Scaling,
    constant_targets,
    has_one_value,
    names_of,
    targets_of,
    unlabelled_targets,
)

_MOST_CLASSES = 10
#: Names of classes, in any case, that may stand for "not measured".
_NO_CLASS = (
    *("<na>", "none", "n.d.", "nd", "n/d", "n.t.", "nt", "n.a.", "tbd", "unknown", "missing"),
    *("not tested", "not determined", "untested", "undetermined", "unspecified", "undefined"),
    *("inconclusive", "ambiguous", "unclear"),
)
#: The share of one class from which on always to guess it is hard to beat by accuracy.
_MOST_OF_ONE = 0.9
#: Fewer graphs, or fewer of a class, say little in the validation or the test.
_FEW = 10
#: A class of no more labels, and no larger a share of them, may be a misspelling.
_RARE, _RARE_SHARE = 9, 0.02
#: So may one of no more than this share of another one's, if their names are so alike.
_MISSPELT_SHARE, _ALIKE = 0.1, 0.9
#: A label so many times as far from all others as these span may be a slip, if there are so few.
_FAR, _SLIPS = 3, 3
#: Labels above 0 of which the largest is so many times the median are learned by their logarithms.
_SKEWED = 100
#: Metrics of a target that has two values or more.
_OF_TWO = ("r2", "roc_auc", "ap")


def doubts(dataset: Dataset, config: RunConfig | None = None) -> list[str]:
    """All of them, of a data set with targets that the config's source gave; by default, those of
    one in memory."""
    config = config or RunConfig(source=MEMORY)
    return [*_of_labels(dataset, config), *_of_molecules(dataset, config)]


def doubts_of_labels(y: Tensor, task: Task) -> list[str]:
    """Labels that may stand for "not measured", a line for each kind of them."""
    if task.kind == "regression":
        return _stand_ins(y.reshape(len(y), -1), task)
    return _classes_of_no_word(y, task)


def few_to_judge_by(y: Tensor, task: Task, metric: str, where: str) -> list[str]:
    """That there is next to no label to measure by, or none of a class, in a line."""
    count = int(measured(y, task).reshape(len(y), -1).any(1).sum())
    what, of = str(task.level), ""
    if metric in _OF_TWO and count >= _FEW and (classes := _two_classes(task)):
        sizes = [int((y == number).sum()) for number in (0, 1)]
        count, (what, of) = min(zip(sizes, classes, strict=True))
    if 0 < count < _FEW:
        some = f"{count} {what}{'s' * (count > 1)}{of}"
        return [f"{where} has only {some}, so its {metric} says little"]
    if task.kind == "multiclass" or task.num_outputs == 1:
        return []
    of_two = metric in _OF_TWO and task.kind == "multilabel"
    classes_of = [(y == number).sum(0) for number in (0, 1)] if of_two else [(~y.isnan()).sum(0)]
    counts = torch.stack(classes_of).amin(0).tolist()
    names = names_of(task, len(counts))
    if rare := [name for name, count in zip(names, counts, strict=True) if 0 < count < _FEW]:
        what = "positives or negatives" if of_two else "labels"
        some = f"fewer than {_FEW} {what} of target {few(rare)}"
        return [f"{where} has {some}, of which the {metric} says little"]
    return []


def why_unmeasured(dataset: Dataset, metric: str, part: str) -> str | None:
    """What keeps a metric from being measured on a part of the split; None where nothing does."""
    task, y = dataset.task, targets_of(dataset.graphs, dataset.split[part])
    if not measured(y, task).any():
        return f"the {part} split has no labels"
    if metric in _OF_TWO and has_one_value(y, task):
        one = "value" if task.kind == "regression" else "class"
        return f"the {part} split has labels of only one {one}"
    return None


def _of_labels(dataset: Dataset, config: RunConfig) -> list[str]:
    task, lines = dataset.task, []
    metric = config.metric_of(dataset.metric)
    for part, so in (("valid", "the last weights are kept"), ("test", "nothing is measured there")):
        if why := why_unmeasured(dataset, metric, part):
            lines.append(f"{why}, so {so}")
    y = targets_of(dataset.graphs, dataset.split["train"])
    value = "class"
    if task.kind == "regression":
        value = "value"
        if config.task == "auto" and dataset.targets:  # of a table, if packed since
            lines += _classes_among(y, task, is_table=has_columns(config.source))
        elif config.task == "auto" and "task" not in dataset.graphs.meta:  # of a script
            lines += _classes_among(y, task, is_table=False) if task.num_outputs == 1 else []
    assert dataset.graphs.y is not None, "these are data to learn from"
    lines += doubts_of_labels(dataset.graphs.y, task)
    if task.kind == "regression" and task.level == "graph":
        lines += _odd_labels(dataset, "row" if has_columns(config.source) else "graph")
    lines += _rare_classes(dataset.graphs.y, task)
    if metric == "accuracy":
        lines += _one_class_above_all(y, task)
    held_out = {part: targets_of(dataset.graphs, dataset.split[part]) for part in ("valid", "test")}
    for part, y_part in held_out.items():
        lines += few_to_judge_by(y_part, task, metric, part)
    if unknown := unlabelled_targets(y, task):
        which = few(unknown)
        lines.append(f"no label in training, so predictions mean nothing: target {which}")
    if constant := constant_targets(y, task):
        only = f"only one {value} in training"
        lines.append(f"{only}, so there is nothing to learn: target {few(constant)}")
    found = unlabelled_targets(held_out["valid"], task)
    if metric in _OF_TWO:
        found += constant_targets(held_out["valid"], task)
    blind = [target for target in found if target not in (*unknown, *constant)]
    if 0 < len(blind) < task.num_outputs:
        values = "values" if task.kind == "regression" else "classes"
        without = f"too few {values} in valid, so it has no say in which weights are best"
        lines.append(f"{without}: target {few(blind)}")
    return lines


def _of_molecules(dataset: Dataset, config: RunConfig) -> list[str]:
    if dataset.encoder != "atom":
        return []
    lines = []
    flat = fingerprints(dataset.graphs, but=CHIRALITY)
    if seen := seen_in_training(flat, dataset.split):
        helps = has_columns(config.source) and dataset.splitting != "scaffold"
        apart = f" ({option('split', 'scaffold')} keeps these together)" if helps else ""
        total = len(dataset.split["test"])
        lines.append(f"{seen} of {total} test molecules look like one in training{apart}")
    if dataset.task.level == "node":
        return lines
    y, far = _comparable(dataset)
    twice = repeated(flat)  # others are not alike with their chirality either
    graphs = dataset.graphs.subset(torch.from_numpy(twice))
    if len(pairs := contradictions(fingerprints(graphs), y[twice], far)):
        what = "rows" if has_columns(config.source) else "graphs"
        one, other = sorted(graphs.ids[torch.from_numpy(pairs[0])].tolist())
        much = " by more than a standard deviation" if dataset.task.kind == "regression" else ""
        occur = "molecules occur" if len(pairs) > 1 else "molecule occurs"
        where = f"for example in {what} {one} and {other}"
        lines.append(
            f"{len(pairs)} {occur} more than once, or as isomers that look alike, with "
            f"labels that differ{much}, {where}"
        )
    return lines


def _one_class_above_all(y: Tensor, task: Task) -> list[str]:
    """That nearly all labels are of one class, in a line."""
    counts = y[measured(y, task)].long().flatten().bincount(minlength=2)
    most, total = int(counts.max()), int(counts.sum())
    if not _MOST_OF_ONE * total <= most < total:
        return []
    which = (task.class_names or tuple(map(str, range(len(counts)))))[int(counts.argmax())]
    return [
        f"{100 * most // total}% of the labels in training are of class {which}, so accuracy "
        f"says little: {option('metric', 'roc_auc')} weighs the classes equally"
    ]


def _two_classes(task: Task) -> list[tuple[str, str]]:
    """What a graph of each of two classes is called, which may be many: a noun, and what follows
    it; of other tasks none."""
    if task.kind == "binary":
        return [("negative", ""), ("positive", "")]
    if task.kind == "multiclass" and task.num_outputs == 2:
        return [(task.level, f" of class {name}") for name in task.class_names or ("0", "1")]
    return []


def _classes_among(y: Tensor, task: Task, is_table: bool) -> list[str]:
    """That targets were taken for numbers, and look like classes, in a line; of some among others,
    only where they are yes or no, as others may count something."""
    names = names_of(task, y.shape[1])
    name = "name" if is_table else "pack the table again with"
    if all(map(_looks_like_classes, y.T)):
        which, remedy = "targets look", f"give {option('task', 'multiclass')}"
        if y.shape[1] > 1:
            remedy = f"{name} one as {option('target')}, and {remedy}"
    elif some := [name for name, column in zip(names, y.T, strict=True) if _is_yes_or_no(column)]:
        which = f"{len(some)} of {len(names)} targets ({few(some)}) look"
        remedy = f"{name} those alone as {option('target')}"
    else:
        return []
    lowest = float(y[~y.isnan()].min())
    unknown = '; if -1 means "not measured", empty such cells' if lowest == -1 else ""
    return [f"{which} like classes: for classification, {remedy}{unknown}"]


def _is_yes_or_no(column: Tensor) -> bool:
    """Whether a target takes two of the values 0, 1 and -1, or all, and no other."""
    values = column[~column.isnan()].unique().tolist()
    return len(values) > 1 and not set(values) - {-1.0, 0.0, 1.0}


def _looks_like_classes(column: Tensor) -> bool:
    """Whether a target takes few values, all of them whole numbers."""
    labels = column[~column.isnan()]
    values = labels.unique()
    are_few = 1 < len(values) <= min(_MOST_CLASSES, len(labels) / 2)
    return are_few and bool((values == values.round()).all())


def _stand_ins(y: Tensor, task: Task) -> list[str]:
    """Labels such as -999 that may stand for "not measured", a line for each target with some."""
    names = names_of(task, y.shape[1])
    lines = []
    for name, column in zip(names, y.T, strict=True):
        for value in _nines(column):
            count = int((column == value).sum())
            labels = f"labels of target {name} are" if count > 1 else f"label of target {name} is"
            what = f"{count} {labels} {int(value)}, far from all others"
            lines.append(f'{what}: if that means "not measured", empty such cells')
    return lines


def _nines(column: Tensor) -> list[float]:
    """The values, such as -999, that a target takes far from all others."""
    values, found = column[~column.isnan()].unique(), []
    for at, rest in ((0, values[1:]), (-1, values[:-1])):
        value = float(values[at]) if len(rest) > 1 else 0.0
        nines = value == round(value) and re.fullmatch("-?99+", str(int(value)))
        if nines and (rest - value).abs().min() > rest[-1] - rest[0]:
            found.append(value)
    return found


def _odd_labels(dataset: Dataset, place: str) -> list[str]:
    """That a target only numbers the graphs, or a few large labels outweigh the others, which may
    be slips, a line for each target."""
    y, ids, lines = dataset.graphs.y, dataset.graphs.ids.cpu(), []
    assert y is not None
    y = y.cpu().reshape(len(y), -1)
    for name, column in zip(names_of(dataset.task, y.shape[1]), y.T, strict=True):
        if y.shape[1] > 1 and bool(((column - ids).diff() == 0).all()):
            lines.append(f"target {name} only numbers the {place}s: leave it out")
            continue
        usual = column[~column.isnan() & ~torch.isin(column, column.new_tensor(_nines(column)))]
        slips = torch.isin(column, _slips(usual))
        rest = usual[~torch.isin(usual, column[slips])]
        if len(rest) and rest.min() > 0 and rest.max() > _SKEWED * rest.median():
            lines.append(
                f"some labels of target {name} are more than {_SKEWED} times its median, and "
                "outweigh the others: learn the logarithms"
            )
        elif 0 < slips.sum() <= _SLIPS:
            first = f"{column[slips][0]:.6g} in {place} {ids[slips][0]}"
            what = f"a label of target {name} is far from all others, and outweighs them ({first})"
            if (count := int(slips.sum())) > 1:
                others = "the others, and outweigh them"
                what = f"{count} labels of target {name} are far from {others} (such as {first})"
            lines.append(f"{what}: correct it, if it is a slip")
    return lines


def _slips(column: Tensor) -> Tensor:
    """A few values that a target takes far from all others, on either side of them."""
    values = column[~column.isnan()].unique()
    best = values[:0]
    for low, high in product(range(_SLIPS + 1), repeat=2):
        rest = values[low : len(values) - high]
        if len(rest) < 3 or not len(best) < low + high <= _SLIPS:
            continue
        nearest = _FAR * (rest[-1] - rest[0])
        below = low == 0 or rest[0] - values[low - 1] > nearest
        if below and (high == 0 or values[-high] - rest[-1] > nearest):
            best = torch.cat([values[:low], values[len(values) - high :]])
    return best


def _classes_of_no_word(y: Tensor, task: Task) -> list[str]:
    """Classes such as "-" among words that may stand for "not measured", a line for each."""
    signs = [name for name in task.class_names if not any(map(str.isalnum, name))]
    if len(signs) == len(task.class_names):  # such as + and -
        signs = []
    lines = []
    for number, name in enumerate(task.class_names):
        count = int((y == number).sum())
        if count and (name in signs or name.lower() in _NO_CLASS):
            labels = f"{count} labels are" if count > 1 else "1 label is"
            lines.append(f'{labels} {name!r}: if that means "not measured", empty such cells')
    return lines


def _rare_classes(y: Tensor, task: Task) -> list[str]:
    """Classes among three or more words that hardly occur, or less than others of nearly the same
    name, as if misspelt, in a line."""
    if len(task.class_names) < 3:
        return []
    counts = y[y >= 0].bincount(minlength=len(task.class_names)).tolist()
    sizes = dict(zip(task.class_names, counts, strict=False))
    most = min(_RARE, int(_RARE_SHARE * sum(counts)))
    rare = [
        f"{name} ({count})"
        for name, count in sizes.items()
        if count and any(map(str.isalpha, name)) and (count <= most or _is_misspelt(name, sizes))
    ]
    if not rare:
        return []
    return [f"hardly a label is of class {few(rare)}: if that is another one misspelt, correct it"]


def _is_misspelt(name: str, sizes: dict[str, int]) -> bool:
    """Whether a class may be a larger one, with a letter wrong."""
    larger = [other for other, size in sizes.items() if sizes[name] <= _MISSPELT_SHARE * size]
    words = [other.lower() for other in larger if not any(map(str.isdigit, name + other))]
    return bool(get_close_matches(name.lower(), words, cutoff=_ALIKE))


def _comparable(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Labels [G, T] with NaN where not measured, and how far apart those of a molecule may be."""
    y, task = dataset.graphs.y, dataset.task
    assert y is not None
    labels = y.double().masked_fill(~measured(y, task), torch.nan).reshape(len(y), -1)
    if task.kind != "regression":
        return labels.cpu().numpy(), np.zeros(labels.shape[1])
    likely = labels.clone()  # stand-ins would let nearly all others agree
    for column in likely.T:
        for value in _nines(column):
            column[column == value] = torch.nan
    return labels.cpu().numpy(), np.array(Scaling.fit(likely).deviation)
