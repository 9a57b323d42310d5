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
    data = pytest.importorskip("torch_geometric.data").Data
    graphs = Case().graphs
    batch = graphs.batch([4, 2, 1])
    assert graphs.num_node_features == batch.num_node_features == graphs.num_features
    assert graphs[torch.randperm(len(graphs))].num_nodes == graphs.num_nodes
    single = [data(x=b.x, edge_index=b.edge_index, y=b.y) for b in graphs[batch.positions]]
    assert torch.equal(torch.cat([one.x for one in single]), batch.x)
    assert len([data(x=b.x, edge_index=b.edge_index, y=b.y) for b in graphs]) == len(graphs)
    with pytest.raises(AttributeError, match=r"'nothing': help\(PackedGraphs\)"):
        _ = graphs.nothing


def test_packed_graphs_are_made_by_functions_that_are_named():
    with pytest.raises(InputError, match=r"make one with PackedGraphs\.from_dataset, from_data_l"):
        PackedGraphs([1, 2])
