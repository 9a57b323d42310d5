"""Fields of a PackedGraphs that are assigned after it was made."""

import copy
import math

import numpy as np
import pytest
import torch

from grant_fast import InputError, PackedGraphs
from tests.cases import Case


def test_features_are_not_set_anew_where_something_is_kept_of_them():
    case = Case()
    graphs = case.graphs
    graphs.x = graphs.x * 2  # nothing is yet
    torch.testing.assert_close(graphs.hops(2, True)[:, :5], 2 * case.x)
    for name in ("x", "ptr", "adj", "adj_t"):
        with pytest.raises(InputError, match=f"derived of {name} is kept already.*pack them anew"):
            setattr(graphs, name, getattr(graphs, name))
    kinds = PackedGraphs.from_arrays(torch.zeros(9, 1, dtype=torch.long), [[0], [1]], [0] * 9)
    assert kinds.kinds is not None
    with pytest.raises(InputError, match="derived of x is kept"):
        kinds.x = kinds.x + 1


def test_edges_are_not_set_anew_where_a_scale_is_kept_of_them():
    graphs = Case().graphs
    graphs.to(torch.float32)  # which looks at the scale's dtype
    with pytest.raises(InputError, match="derived of adj is kept"):
        graphs.adj = graphs.adj._replace(weight=2 * graphs.adj.weight)
    graphs.batch([0]).x  # noqa: B018
    with pytest.raises(InputError, match="derived of ptr is kept"):
        graphs.ptr = graphs.ptr.clone()


def test_a_copy_with_other_features_keeps_what_is_derived_of_them_to_itself():
    graphs = Case().graphs
    other = copy.copy(graphs)
    other.x = 3 * graphs.x
    torch.testing.assert_close(3 * graphs.hops(2, True), other.hops(2, True))


def test_targets_may_be_set_anew():
    graphs = PackedGraphs.from_arrays(
        torch.zeros(2, 1), [[], []], [0, 1], y=[0, 4], y_level="graph"
    )
    assert graphs.class_range == (0, 4)
    graphs.y = torch.tensor([1, 2])
    assert graphs.class_range == (1, 2)


def test_targets_that_are_set_are_packed_as_those_that_are_given():
    graphs = Case(sizes=(3, 2)).graphs
    for given in ([1, 2], np.array([1, 2]), torch.tensor([[1], [2]], dtype=torch.int32)):
        graphs.y = given
        assert graphs.y.tolist() == [1, 2] and graphs.y.dtype == torch.int64
    graphs.y = torch.tensor([1.5, math.nan], dtype=torch.float64)
    assert graphs.y.shape == (2, 1) and graphs.y.dtype == torch.float32
    assert graphs.batch([1, 0]).y[1] == 1.5
    graphs.y = torch.arange(5.0)
    assert graphs.y_level == "node" and graphs.batch([1]).y.tolist() == [[3], [4]]
    graphs.y = None
    graphs.y_level = "graph"
    graphs.y = [-100, 3]
    assert graphs.class_range == (3, 3)


def test_targets_of_graphs_in_double_precision_stay_so():
    graphs = Case(sizes=(3, 2)).graphs
    graphs.y = torch.tensor([1.0, 2.0])
    graphs = graphs.to(torch.float64)
    graphs.y = graphs.y / 3
    assert graphs.y.dtype == torch.float64 and graphs.y[0, 0].item() == 1 / 3
    graphs.y = [0, 1]
    graphs.y = torch.tensor([1.0, 2.0], dtype=torch.float64) / 3
    assert graphs.y[0, 0].item() == 1 / 3
    graphs = Case(sizes=(3, 2)).graphs
    graphs.x = (9 * graphs.x).to(torch.int8)
    graphs = graphs.to(torch.float64)
    graphs.y = torch.tensor([1.0, 2.0], dtype=torch.float64) / 3
    assert graphs.y[0, 0].item() == 1 / 3


def test_targets_that_are_set_are_the_graphs_own():
    graphs, y = Case(sizes=(3, 2)).graphs, torch.zeros(2, 1)
    graphs.y = y
    y[0] = 5
    assert graphs.y[0] == 0


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("y", torch.zeros(3), r"y has shape \(3,\): it needs one row for each of the 2 graphs"),
        ("y", torch.zeros(1, 1), "one row for each of the 2 graphs"),
        ("y", torch.tensor([0.0, math.inf]), "y is inf at graph 1"),
        ("y", torch.tensor([0, -1]), "y is -1 at graph 1: classes count from 0"),
        ("y", torch.zeros(2, requires_grad=True), "y requires a gradient"),
        ("y", "none", "y is not an array of numbers|y has shape"),
        ("y_level", "edge", "y_level='edge' does not fit y: set y, whose rows tell it"),
        ("y_level", "node", "y_level='node' does not fit y"),
        ("y_level", None, "y_level=None does not fit y"),
        ("ids", torch.arange(3), r"ids must be a tensor \[num_graphs\] of 2 rows"),
        ("ids", None, "ids must be a tensor"),
        ("x", torch.zeros(4, 5), r"x must be a tensor \[num_nodes, num_features\] of 5 rows"),
        ("x", torch.zeros(5), "x must be a tensor"),
        ("x", None, "x must be a tensor"),
        ("edge_attr", torch.zeros(1, 2), r"edge_attr has shape \(1, 2\): it needs one row"),
    ],
)
def test_what_does_not_fit_the_graphs_is_refused_and_changes_nothing(
    name, value, message, tmp_path
):
    graphs = Case(sizes=(3, 2)).graphs
    graphs.y = torch.tensor([1.0, 2.0])
    before = getattr(graphs, name)
    with pytest.raises(InputError, match=message):
        setattr(graphs, name, value)
    assert getattr(graphs, name) is before and graphs.y_level == "graph"
    graphs.save(tmp_path / "graphs.gfast")
    assert torch.equal(PackedGraphs.load(tmp_path / "graphs.gfast").y, graphs.y)


def test_a_class_that_means_missing_is_told_what_says_so():
    missing = torch.tensor([0, -100])
    with pytest.raises(InputError, match=r"y is -100 at graph 1.*pass missing_labels=True"):
        PackedGraphs.from_arrays(torch.zeros(2, 1), [[], []], [0, 1], missing, y_level="graph")
