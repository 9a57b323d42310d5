"""Which task a set of targets poses."""

import math

import pytest
import torch

from grant_fast.data.infer import make_task
from grant_fast.errors import InputError
from grant_fast.tasks import Task

NAN = math.nan


@pytest.mark.parametrize(
    ("y", "kind", "num_outputs"),
    [
        ([[0.0], [1.0], [NAN]], "binary", 1),
        ([[0.0], [0.0]], "binary", 1),
        ([[0.0, NAN], [1.0, 1.0]], "multilabel", 2),
        ([[0.0], [2.0]], "regression", 1),
        ([[0.5, 1.0], [NAN, 0.0]], "regression", 2),
    ],
)
def test_task_follows_from_the_labels(y: list, kind: str, num_outputs: int) -> None:
    names = tuple(f"t{i}" for i in range(num_outputs))
    task, targets = make_task(torch.tensor(y), "graph", names)
    assert (task.kind, task.num_outputs, task.names) == (kind, num_outputs, names)
    assert targets.dtype == torch.float32
    assert torch.equal(targets.isnan(), torch.tensor(y).isnan())


def test_zeros_and_ones_may_be_numbers_to_regress() -> None:
    task, _ = make_task(torch.tensor([[0.0], [1.0]]), "node", kind="regression")
    assert (task.kind, task.level) == ("regression", "node")


def test_class_numbers() -> None:
    y = torch.tensor([[2.0], [0.0], [NAN], [1.0]])
    task, y = make_task(y, "graph", ("grade",), kind="multiclass")
    assert task == Task("multiclass", "graph", 3, ("grade",))
    assert y.dtype == torch.int64
    assert y.tolist() == [2, 0, -100, 1]


@pytest.mark.parametrize("kind", [torch.float32, torch.int64])
def test_other_whole_numbers_are_the_names_of_classes(kind: torch.dtype) -> None:
    y = torch.tensor([[3], [-2], [3], [7], [-2], [7]], dtype=kind)
    y = y if y.is_floating_point() else y[:, 0]
    task, positions = make_task(y, "graph", ("grade",), kind="multiclass")
    assert task == Task("multiclass", "graph", 3, ("-2", "3", "7"))
    assert (positions.dtype, positions.tolist()) == (torch.int64, [1, 0, 1, 2, 0, 2])
    missing = torch.where(y == -2, NAN if y.is_floating_point() else -100, y)
    task, positions = make_task(missing, "graph", ("grade",), kind="multiclass")
    assert task.names == ("3", "7") and positions.tolist() == [0, -100, 0, 1, -100, 1]


def test_classes_with_names_are_all_there_and_no_other_task() -> None:
    y = torch.tensor([[2.0], [NAN], [0.0]])
    task, positions = make_task(y, "graph", ("effect",), classes=("a", "b", "c"))
    assert task == Task("multiclass", "graph", 3, ("a", "b", "c"))
    assert positions.tolist() == [2, -100, 0]
    with pytest.raises(InputError, match=r"names \('a', 'b', 'c'\) are a multiclass task, not bin"):
        make_task(y, "graph", kind="binary", classes=("a", "b", "c"))


def test_integer_targets_are_classes() -> None:
    task, y = make_task(torch.tensor([2, -100, 0, 1]), "graph")
    assert (task.kind, task.num_outputs) == ("multiclass", 3)
    assert y.tolist() == [2, -100, 0, 1]


def test_integers_that_are_no_classes_may_be_numbers_to_regress() -> None:
    y = torch.arange(40) * 10
    with pytest.raises(InputError, match="give task='regression'"):
        make_task(y, "graph")
    task, values = make_task(y, "graph", kind="regression")
    assert task.kind == "regression"
    assert torch.equal(values, y.float()[:, None])


def test_two_classes_are_a_binary_task() -> None:
    task, y = make_task(torch.tensor([1, -100, 0]), "graph")
    assert task.kind == "binary"
    assert y.nan_to_num(-9).tolist() == [[1.0], [-9.0], [0.0]]


@pytest.mark.parametrize(
    ("y", "kind", "culprit"),
    [
        ([[NAN], [NAN]], None, "no labels at all"),
        ([[0.0], [3.0]], "binary", "binary task needs labels 0 and 1, found 3"),
        ([[0.0, -1.0]], "multilabel", "needs labels 0 and 1, found -1: use those"),
        ([[0.0, 1.0]], "binary", "binary task has one target, not 2"),
        ([[0.0, 1.0]], "multiclass", "multiclass task has one target, not 2"),
        ([[0.0], [1.5]], "multiclass", "must be whole numbers, found 1.5: correct it"),
        ([[2.0], [1.0], [1.0]], "multiclass", "2 different whole numbers among 3 labels are too m"),
        ([[0.0], [0.0]], "multiclass", "all labels are 0, .*needs two classes: choose another ta"),
        ([[3.0], [NAN]], "multiclass", "all labels are 3, .*needs two classes"),
        ([[100000001.0], [100000002.0]], "multiclass", "beyond 16,777,216 are rounded, and differ"),
        ([[-100000001.0], [-100000002.0]], "multiclass", "beyond 16,777,216 are rounded"),
        ([[16777216.0], [16777217.0], [5.0], [5.0]], "multiclass", "beyond 16,777,216 are rounded"),
    ],
)
def test_labels_that_do_not_fit_are_named(y: list, kind, culprit: str) -> None:
    with pytest.raises(InputError, match=culprit):
        make_task(torch.tensor(y), "graph", kind=kind)


@pytest.mark.parametrize(
    ("y", "kind", "place"),
    [
        ([[0.0, NAN], [1.0, 1.0], [NAN, 3.0]], "multilabel", "found 3 in row 9, column 'b': use"),
        ([[1.0], [NAN], [0.5], [-0.5]], "multiclass", "found 0.5 in row 9, column 'a': correct it"),
    ],
)
def test_a_label_of_a_table_is_named_by_its_place(y: list, kind, place: str) -> None:
    with pytest.raises(InputError, match=place):
        make_task(torch.tensor(y), "graph", ("a", "b"), kind=kind, rows=[2, 4, 9, 10])


def test_whole_numbers_are_classes_however_large() -> None:
    task, y = make_task(torch.tensor([16777216, 16777217] * 2), "graph", kind="multiclass")
    assert (task.names, y.tolist()) == (("16777216", "16777217"), [0, 1, 0, 1])
