"""Fields of a PackedGraphs that are assigned after it was made."""

import copy

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
