"""Targets as the learner sees them: of which graphs, on what scale, and the dullest guess."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..data.dataset import Dataset
from ..errors import InputError, option
from ..graphs import PackedGraphs
from ..tasks import Task, fits, measured


def with_targets(graphs: PackedGraphs, encode: Callable[[Tensor], Tensor]) -> PackedGraphs:
    """The same graphs, caches included, with their targets encoded; they must have some.

    Raises:
        InputError: a target is so far from those that the scale was made of that it has no number.
    """
    assert graphs.y is not None
    out, y = copy.copy(graphs), encode(graphs.y)
    if (lost := y.isinf()).any():
        row, column = lost.nonzero()[0].tolist()
        of = f"graph with id {graphs.ids[row]}" if graphs.y_level == "graph" else f"node {row}"
        raise InputError(
            f"the target {graphs.y[row, column]:g} of the {of} is too far from those of the "
            "training graphs to be put on their scale: correct it, or leave the targets as they "
            f"are with {option('standardize', False)}"
        )
    out.y = y
    return out


def targets_of(graphs: PackedGraphs, ids: Tensor) -> Tensor:
    """The targets of the graphs at these positions, in their order; the graphs must have some."""
    y = graphs.batch(ids).y
    assert y is not None
    return y


def unlabelled_targets(y: Tensor, task: Task) -> list[str]:
    """Of several targets [rows, T] those without a single label: names, or numbers."""
    return [] if y.dim() < 2 or y.shape[1] == 1 else _named(~measured(y, task).any(0), task)


def constant_targets(y: Tensor, task: Task) -> list[str]:
    """Of targets [rows, T] those whose labels, of which there are some, are all the same."""
    if y.dim() < 2 or len(y) == 0:
        return []
    known = measured(y, task)
    low, high = y.where(known, torch.inf).amin(0), y.where(known, -torch.inf).amax(0)
    return _named(low == high, task)


def has_one_value(y: Tensor, task: Task) -> bool:
    """Whether no target, of [rows] or [rows, T], has two different labels."""
    columns = zip(y.view(len(y), -1).T, measured(y, task).view(len(y), -1).T, strict=True)
    return all(len(column[known].unique()) < 2 for column, known in columns)


def names_of(task: Task, count: int) -> tuple[str, ...]:
    """What so many targets are called: by number where the task has no names for just so many."""
    return task.names if len(task.names) == count else tuple(map(str, range(count)))


def _named(chosen: Tensor, task: Task) -> list[str]:
    names = names_of(task, len(chosen))
    return [name for name, this in zip(names, chosen.tolist(), strict=True) if this]


@dataclass(frozen=True)
class Scaling:
    """An affine map of each regression target to mean 0 and deviation 1, and back.

    Args:
        mean, deviation: one number for each target, in the targets' own units.
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @classmethod
    def fit(cls, y: Tensor) -> "Scaling":
        """From targets [rows, T] with NaN where not measured; a constant target keeps its scale."""
        values = y.double()
        known = ~values.isnan()
        count = known.sum(0).clamp(min=1)
        mean = values.where(known, 0).sum(0) / count
        variance = (values - mean).square().where(known, 0).sum(0) / count
        deviation = variance.sqrt()
        deviation = deviation.where(deviation > 1e-12 * mean.abs(), 1.0)
        return cls(tuple(mean.tolist()), tuple(deviation.tolist()))

    def encode(self, y: Tensor) -> Tensor:
        """Targets [rows, T] in own units -> standardised, float32."""
        return ((y.double() - self._row(self.mean, y)) / self._row(self.deviation, y)).float()

    def decode(self, pred: Tensor) -> Tensor:
        """Predictions [rows, T] on the standardised scale -> own units, float32."""
        scaled = pred.double() * self._row(self.deviation, pred)
        return (scaled + self._row(self.mean, pred)).float()

    @staticmethod
    def _row(values: Sequence[float], like: Tensor) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=like.device)


def constant_prediction(y: Tensor, task: Task) -> Tensor:
    """The best output that ignores the graph, [num_outputs] float32: means, or logits of rates.

    Rates are taken as if one more example of each class had been seen, so that none is 0 or 1.

    Args:
        y: training targets as `Task` describes them.
        task: what is learned.
    """
    known = measured(y, task)
    if task.kind == "multiclass":
        counts = torch.bincount(y[known], minlength=task.num_outputs)
        return (counts + 1).float().log()
    total, count = y.where(known, 0).double().sum(0), known.sum(0)
    if task.kind == "regression":
        return (total / count.clamp(min=1)).float()
    return torch.logit((total + 1) / (count + 2)).float()


def check_learnable(dataset: Dataset) -> None:
    """Refuse a data set without targets, without labels to train on, or with labels of one class
    alone, and targets that are not what its task asks for (InputError)."""
    if dataset.graphs.y is None:
        raise InputError(f"{dataset.name} has no targets to learn: name a target column")
    if not fits(dataset.graphs.y, dataset.graphs.y_level, dataset.task):
        y = dataset.graphs.y
        raise InputError(
            f"y of {dataset.name} is {y.dtype} {list(y.shape)}, one row for each "
            f"{dataset.graphs.y_level}, which is not what {dataset.task} asks for: "
            "load_dataset(graphs) poses the task anew"
        )
    y = targets_of(dataset.graphs, dataset.split["train"])
    if not measured(y, dataset.task).any():
        raise InputError(f"{dataset.name} has no labels in its training split: check the target")
    if dataset.task.kind != "regression" and has_one_value(y, dataset.task):
        one, names = y[measured(y, dataset.task)][0], dataset.task.class_names
        which = names[int(one)] if names else f"{one:g}"
        raise InputError(
            f"{dataset.name} has labels of only one class in its training split, {which}, so there "
            "is nothing to learn: choose another target or split, or add data"
        )
