"""What a task is made of, and that what cannot be one is refused when it is made."""

import numpy as np
import pytest

from grant_fast import InputError, Task


def test_a_string_is_one_name_and_not_its_letters():
    assert Task("regression", names="logS").names == ("logS",)


def test_numbers_and_names_are_pythons_own_which_every_file_takes():
    task = Task("multiclass", num_outputs=np.int64(2), names=np.unique(["no", "yes"]))
    assert task == Task("multiclass", num_outputs=2, names=("no", "yes"))
    assert type(task.num_outputs) is int and {type(name) for name in task.names} == {str}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("classification",), "unknown task 'classification': choose one of regression"),
        (("binary", "edge"), "unknown level 'edge': choose 'graph' or 'node'"),
        (("regression", "graph", 0), "num_outputs=0: give a whole number of at least 1"),
        (("multiclass",), "a multiclass task has an output for each class: give num_outputs"),
        (("multiclass", "graph", 0), "num_outputs=0: give a whole number of at least 2"),
        (("regression", "graph", 3, "ab"), "names has 1 of 3 targets: name each one, or none"),
        (("binary", "graph", 3), "one output, not 3: use 'multiclass' for .*, or 'multilabel'"),
    ],
)
def test_a_task_that_cannot_be_says_why(settings, message):
    with pytest.raises(InputError, match=message):
        Task(*settings)
