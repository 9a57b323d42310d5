"""Labels of a task that is known already, in a table of new molecules."""

import math

import pytest
import torch
from pytest import approx

from grant_fast.data.labels import labels_of
from grant_fast.data.table import read_table
from grant_fast.errors import InputError
from grant_fast.tasks import Task


def read(csv_file, text: str, names: list[str], task: Task) -> torch.Tensor | None:
    table = read_table(csv_file(text), require_target=False)
    return labels_of(table.sheet, names, task)


def test_numbers_are_read_as_they_would_be_learned(csv_file) -> None:
    text = "smiles;b;note;a\nC;-0,5;x;1\nO;n/a;;-\u22122\nN;;;\n".replace("-\u2212", "\u2212")
    y = read(csv_file, text, ["a", "b", "absent"], Task("regression", "graph", 3))
    assert y is not None and y.dtype == torch.float32
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


@pytest.mark.parametrize("text", ["smiles,z\nC,1\n", "smiles,y\nC,\nO,n/a\n"])
def test_where_there_is_no_label_there_is_nothing(csv_file, text: str) -> None:
    assert read(csv_file, text, ["y"], Task("regression")) is None
    assert read(csv_file, text, [], Task("regression")) is None


def test_a_column_is_known_in_any_case_where_only_one_can_be_meant(csv_file) -> None:
    for names in ("smiles,LogS", "smiles,logS", "LOGS,smiles"):
        y = read(csv_file, f"{names}\n1,1\n", ["logS"], Task("regression"))
        assert y.tolist() == [[1]]
    assert read(csv_file, "LOGS,smiles,logS\n1,C,2\n", ["logS"], Task("regression")).item() == 2
    assert read(csv_file, "LOGS,smiles,LogS\n1,C,2\n", ["logS"], Task("regression")) is None
    with pytest.raises(InputError, match="several columns called 'logS'"):
        read(csv_file, "logS,smiles,logS\n1,C,2\n", ["logS"], Task("regression"))


@pytest.mark.parametrize(
    ("task", "cell", "problem"),
    [
        (Task("regression"), ">5", "'>5' is not a finite number in float32"),
        (Task("regression"), "1e39", "'1e39' is not a finite number"),
        (Task("regression"), "-inf", "'-inf' is not a finite number"),
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
def test_what_is_no_label_is_named(csv_file, task: Task, cell: str, problem: str) -> None:
    with pytest.raises(InputError, match=f"molecules.csv row 3, column 'y': {problem}"):
        read(csv_file, f"smiles,y\nC,\nO,{cell}\n", ["y"], task)


def test_a_number_that_may_be_two_is_named(csv_file) -> None:
    with pytest.raises(InputError, match="'1,234' may mean"):
        read(csv_file, 'smiles,y\nC,"1,234"\n', ["y"], Task("regression"))
    y = read(csv_file, "smiles;y\nC;1,25\n", ["y"], Task("regression"))
    assert y.tolist() == [[approx(1.25)]]
