"""Targets on the learner's scale, and back."""

import pytest
import torch

from grant_fast import InputError
from grant_fast.tasks import Task
from grant_fast.training.targets import (
    Scaling,
    constant_prediction,
    constant_targets,
    with_targets,
)
from tests.rings import make_dataset


def test_names_of_classes_are_not_taken_for_names_of_targets():
    task = Task("binary", names=("no", "yes"))
    assert constant_targets(torch.ones(3, 1), task) == ["0"]


def test_targets_that_differ_in_their_last_bit_are_standardised_and_return():
    y = torch.tensor([[1e5], [1e5 + 2**-7]])
    scaling = Scaling.fit(y)
    assert scaling.encode(y).tolist() == [[-1.0], [1.0]]
    assert scaling.decode(scaling.encode(y)).equal(y)


def test_each_target_has_the_scale_of_what_was_measured_and_a_constant_one_its_own():
    nan = torch.nan
    scaling = Scaling.fit(torch.tensor([[1.0, 7.0, nan], [5.0, 7.0, nan], [nan, 7.0, nan]]))
    assert (scaling.mean, scaling.deviation) == ((3.0, 7.0, 0.0), (2.0, 1.0, 1.0))


def test_a_guess_at_classes_counts_one_more_of_each():
    y = torch.tensor([[1.0, 0.0], [1.0, torch.nan], [0.0, torch.nan]])
    rates = constant_prediction(y, Task("multilabel", num_outputs=2)).sigmoid()
    torch.testing.assert_close(rates, torch.tensor([(2 + 1) / (3 + 2), (0 + 1) / (1 + 2)]))
    y = torch.tensor([0, 0, 2, -100])
    shares = constant_prediction(y, Task("multiclass", num_outputs=4)).softmax(0)
    torch.testing.assert_close(shares, torch.tensor([3.0, 1, 2, 1]) / 7)


def test_a_target_that_the_scale_has_no_number_for_is_named():
    graphs, scaling = make_dataset().graphs, Scaling((0.0,), (1e-20,))
    graphs.y[4] = 1e20
    graphs.ids = graphs.ids + 2
    says = r"the target 1e\+20 of the graph with id 6 is too far .* standardize=False"
    with pytest.raises(InputError, match=says):
        with_targets(graphs, scaling.encode)
