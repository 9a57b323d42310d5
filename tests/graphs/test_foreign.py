"""PyG's names on packed graphs: those that they lack are answered with what to write."""

import copy
import pickle

import pytest
import torch

from grant_fast import InputError, PackedGraphs
from tests.cases import Case


@pytest.mark.parametrize("name", ["pos", "edge_type", "smiles"])
def test_what_packing_leaves_out_of_a_batch_is_named_with_a_remedy(name):
    batch = Case().graphs.batch([0, 2])
    says = f"has no '{name}': packed graphs carry only x, .* give the sampler and the loader PyG's"
    with pytest.raises(AttributeError, match=says):
        getattr(batch, name)
    for one in (batch, copy.copy(batch), pickle.loads(pickle.dumps(batch))):
        assert not hasattr(one, name) and getattr(one, name, None) is None


@pytest.mark.parametrize("name", ["cpu", "cuda", "num_edge_features", "to_data_list"])
def test_names_of_pygs_are_answered_with_what_to_write(name):
    graphs = Case().graphs
    for one in (
        graphs,
        graphs.batch([0, 2]),
        copy.copy(graphs),
        pickle.loads(pickle.dumps(graphs)),
    ):
        with pytest.raises(AttributeError, match=f"a {type(one).__name__} has no '{name}': write "):
            getattr(one, name)


def test_what_is_told_to_be_written_works():
    graphs = Case().graphs
    batch = graphs.batch([4, 2, 1])
    assert graphs.num_node_features == batch.num_node_features == graphs.num_features
    assert graphs[torch.randperm(len(graphs))].num_nodes == graphs.num_nodes
    with pytest.raises(AttributeError, match=r"'nothing': help\(PackedGraphs\)"):
        _ = graphs.nothing


def test_the_list_that_is_told_to_be_written_is_that_of_the_graphs():
    pyg = pytest.importorskip("torch_geometric.data")
    graphs = Case(weighted=True).graphs
    batch = graphs.batch([4, 2, 1])
    for one, wanted in ((graphs, graphs.batch(slice(None))), (batch, batch)):
        with pytest.raises(AttributeError) as error:
            _ = one.to_data_list
        code = str(error.value).partition(": write ")[2]
        listed = eval(code, {"Data": pyg.Data, "graphs": graphs, "batch": batch})
        again = pyg.Batch.from_data_list(listed)
        for name in ("x", "edge_index", "edge_weight", "y", "batch"):
            assert torch.equal(again[name], wanted[name]), name


def test_a_batch_is_asked_as_pygs_for_what_it_has():
    weighted, plain = (Case(weighted=weighted).graphs.batch([4, 2]) for weighted in (True, False))
    assert "edge_weight" in weighted and "edge_weight" not in plain
    assert "x" in plain and "pos" not in plain and 0 not in plain
    assert weighted["edge_weight"] is weighted.edge_weight and plain["edge_weight"] is None
    with pytest.raises(AttributeError, match="has no 'pos'"):
        _ = plain["pos"]
    with pytest.raises(InputError, match=r"and no 0: single graphs are in .* graphs\[batch\.pos"):
        _ = plain[0]


def test_packed_graphs_are_made_by_functions_that_are_named():
    with pytest.raises(InputError, match=r"make one with PackedGraphs\.from_dataset, from_data_l"):
        PackedGraphs([1, 2])
