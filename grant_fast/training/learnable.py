"""What can be learned from."""

from ..data.dataset import Dataset
from ..errors import InputError
from ..tasks import fits, measured
from .targets import has_one_value, targets_of


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
