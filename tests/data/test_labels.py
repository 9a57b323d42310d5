"""Labels of a task that is known already, in a table of new molecules."""

import math
import re

import pytest
import torch
from pytest import approx

from grant_fast.data.labels import labels_of
from grant_fast.data.table import read_table
from grant_fast.tasks import Task


def read(csv_file, text: str, names: list[str], task: Task) -> torch.Tensor:
    table = read_table(csv_file(text), require_target=False)
    y, problems = labels_of(table.sheet, names, task, unread=())
    assert not problems
    return y


def problem(csv_file, text: str, task: Task) -> str:
    """Why a single target y is not read."""
    table = read_table(csv_file(text), require_target=False)
    y, (said,) = labels_of(table.sheet, ["y"], task, unread=())
    assert (y == -100).all() if task.kind == "multiclass" else y.isnan().all()
    return said


def test_numbers_are_read_as_they_would_be_learned(csv_file) -> None:
    text = "smiles;b;note;a\nC;-0,5;x;1\nO;n/a;;\u22122\nN;;;\n"
    y = read(csv_file, text, ["a", "b", "absent"], Task("regression", "graph", 3))
    assert y.dtype == torch.float32
    torch.testing.assert_close(
        y,
        torch.tensor([[1, -0.5, math.nan], [-2, math.nan, math.nan], [math.nan] * 3]),
        equal_nan=True,
    )


def test_classes_are_those_of_the_task_however_few_are_there(csv_file) -> None:
    words = Task("multiclass", "graph", 3, ("active", "none", "unclear"))
    text = "smiles,effect\nC,none\nO,active\nN,\n"
    assert read(csv_file, text, ["effect"], words).tolist() == [1, 0, -100]
    numbers = Task("multiclass", "graph", 3, ("-1", "0", "20"))
    text = "smiles,y\nC,20.0\nO,-1\nN,nan\nCC,-0.0\n"
    assert read(csv_file, text, ["y"], numbers).tolist() == [2, 0, -100, 1]
    counted = Task("multiclass", "graph", 5, ("y",))
    assert read(csv_file, "smiles,y\nC,4\nO,0.0\n", ["y"], counted).tolist() == [4, 0]
    binary = read(csv_file, "smiles,y\nC,True\nO,0\nN,\n", ["y"], Task("binary", names="y"))
    assert binary[:2].tolist() == [[1], [0]] and binary[2].isnan()


@pytest.mark.parametrize(
    ("cells", "task", "want", "said"),
    [
        (
            "1,<2,3,",
            Task("regression"),
            [1, None, 3, None],
            r"^1 label is .* row 3, .*'<2' is not a n",
        ),
        (
            "1,2,3,<2,x",
            Task("regression"),
            [1, 2, 3, None, None],
            r"^2 labels are .* row 5, .*'<2'",
        ),
        ("<2,>2,3,4", Task("regression"), [None] * 4, r"^not compared: .* row 2, .*'<2' is not a"),
        ("1,0,maybe", Task("binary", names="y"), [1, 0, None], r"'maybe' is not 0 or 1; correct"),
    ],
)
def test_a_few_cells_that_are_no_labels_are_left_out(csv_file, cells, task, want, said) -> None:
    rows = "".join(f"C,{cell}\n" for cell in cells.split(","))
    table = read_table(csv_file(f"smiles,y\n{rows}"), require_target=False)
    y, (problem,) = labels_of(table.sheet, ["y"], task, unread=())
    assert [None if math.isnan(value) else value for value in y.flatten().tolist()] == want
    assert re.search(said, problem)


@pytest.mark.parametrize("text", ["smiles,z\nC,1\n", "smiles,y\nC,\nO,n/a\n"])
def test_where_there_is_no_label_nothing_is_known(csv_file, text: str) -> None:
    assert read(csv_file, text, ["y"], Task("regression")).isnan().all()


def test_a_molecule_that_could_not_be_read_has_no_label(csv_file) -> None:
    table = read_table(csv_file("smiles;y\nC;1,5\n(;bad\nO;2\n"), require_target=False)
    y, problems = labels_of(table.sheet, ["y"], Task("regression"), unread={3})
    assert (y[[0, 2]].tolist(), bool(y[1].isnan()), problems) == ([[1.5], [2.0]], True, [])
    table = read_table(csv_file("smiles;y\n(;0,5\nC;1,100\nO;7\n"), require_target=False)
    y, problems = labels_of(table.sheet, ["y"], Task("regression"), unread={2})
    assert y[1:].tolist() == [[approx(1.1)], [7.0]]  # since row 2 shows what a comma is


def test_a_column_is_known_in_any_case_where_only_one_can_be_meant(csv_file) -> None:
    for names in ("smiles,LogS", "smiles,logS", "LOGS,smiles"):
        y = read(csv_file, f"{names}\n1,1\n", ["logS"], Task("regression"))
        assert y.tolist() == [[1]]
    assert read(csv_file, "LOGS,smiles,logS\n1,C,2\n", ["logS"], Task("regression")).item() == 2
    said = problem(csv_file, "Y,smiles,Y\n1,C,2\n", Task("regression"))
    assert "has the columns 'Y', 'Y', and each may be meant by 'y': rename all but one" in said
    said = problem(csv_file, "y,smiles,y\n1,C,2\n", Task("regression"))
    assert "several columns called 'y'" in said


@pytest.mark.parametrize(
    ("task", "cell", "why"),
    [
        (Task("regression"), ">5", "'>5' is not a number; correct"),
        (Task("regression"), "1e39", "'1e39' is not a number up to 3.4e"),
        (Task("regression"), "-inf", "'-inf' is not a number up to"),
        (Task("binary"), "0.5", "'0.5' is not 0 or 1"),
        (Task("multilabel"), "active", "'active' is not 0 or 1"),
        (Task("multiclass", "graph", 3), "3", "'3' is not a class from 0 to 2"),
        (Task("multiclass", "graph", 3), "-1", "'-1' is not a class from"),
        (Task("multiclass", "graph", 3), "1.5", "'1.5' is not a class from"),
        (Task("multiclass", "graph", 2, ("no", "yes")), "Yes", "'Yes' is not one of 'no', 'yes'"),
        (Task("multiclass", "graph", 2, ("1", "2")), "3", "'3' is not one of '1', '2'"),
        (Task("multiclass", "graph", 2, ("None", "mild")), "none", "'none' is not one of 'None'"),
    ],
)
def test_what_is_no_label_is_named(csv_file, task: Task, cell: str, why: str) -> None:
    said = problem(csv_file, f"smiles,y\nC,\nO,{cell}\n", task)
    assert f"molecules.csv row 3, column 'y': {why}" in said


def test_a_number_that_may_be_two_is_named(csv_file) -> None:
    assert "'1,234' may mean" in problem(csv_file, 'smiles,y\nC,"1,234"\n', Task("regression"))
    y = read(csv_file, "smiles;y\nC;1,25\n", ["y"], Task("regression"))
    assert y.tolist() == [[approx(1.25)]]
