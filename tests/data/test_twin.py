"""Shape twins: the published shape, and never taken for the data."""

import pytest
import torch

from grant_fast.data import twin
from grant_fast.data.load import load_dataset
from grant_fast.data.twin import SHAPES, generate_twin, twin_shape
from grant_fast.errors import InputError
from grant_fast.studies.recipe import load_recipe

# Nodes and directed edges a graph as PyG's and OGB's pages give them, and the largest graph.
PUBLISHED = {"QM9": (18.0, 37.3, 29), "ZINC": (23.2, 49.8, 38), "ogbg-molpcba": (26.0, 56.2, 332)}


@pytest.mark.parametrize("name", SHAPES)
def test_sizes_and_degrees_are_those_of_the_real_set(name):
    shape, (nodes, edges, largest) = SHAPES[name], PUBLISHED[name]
    graphs = generate_twin(shape, 5000, seed=1)
    sizes = torch.bincount(graphs.batch)
    assert float(sizes.double().mean()) == pytest.approx(nodes, rel=0.03)
    assert graphs.edge_index.shape[1] / 5000 == pytest.approx(edges, rel=0.06)
    assert 0.7 * largest < int(sizes.max()) <= largest
    degree = torch.bincount(graphs.edge_index[1], minlength=len(graphs.x))
    share = torch.bincount(degree) / len(degree)
    wanted = torch.zeros(len(share))
    wanted[: len(shape.degrees)] = torch.tensor(shape.degrees)
    assert float((share - wanted).abs().sum()) / 2 < 0.04
    assert tuple(load_recipe(name).splits) == shape.splits


@pytest.mark.parametrize("name", SHAPES)
def test_edges_stay_in_their_graph_and_run_both_ways(name):
    graphs = generate_twin(SHAPES[name], 200)
    source, target = graphs.edge_index
    assert torch.equal(graphs.batch[source], graphs.batch[target])
    pairs = [tuple(pair) for pair in graphs.edge_index.T.tolist()]
    assert sorted(pairs) == sorted((b, a) for a, b in pairs)
    again = generate_twin(SHAPES[name], 200)
    assert torch.equal(again.edge_index, graphs.edge_index)
    assert not torch.equal(generate_twin(SHAPES[name], 200, seed=1).x[:50], graphs.x[:50])


@pytest.mark.parametrize(
    ("name", "kind", "encoder"),
    [
        ("QM9", "regression", None),
        ("ZINC", "regression", None),
        ("ogbg-molpcba", "multilabel", "atom"),
    ],
)
def test_a_twin_loads_as_what_it_is(name, kind, encoder):
    dataset = load_dataset(f"twin:{name}", num_graphs=60)
    assert dataset.name == f"shape twin of {name} (noise, for timing alone)"
    assert (dataset.task.kind, dataset.encoder) == (kind, encoder)
    assert dataset.task.num_outputs == (128 if name == "ogbg-molpcba" else 1)
    sizes = [len(dataset.split[part]) for part in ("train", "valid", "test")]
    assert sum(sizes) == 60 and sizes[0] > 45
    if kind == "multilabel":
        assert 0.3 < float((~dataset.graphs.y.isnan()).float().mean()) < 0.5


def test_a_twin_is_split_by_its_seed():
    one, other = (load_dataset("twin:QM9", num_graphs=60, seed=seed).split for seed in (0, 1))
    assert not torch.equal(one["test"], other["test"])


def test_unknown_twins_and_too_few_graphs_are_refused_before_any_is_drawn(monkeypatch):
    monkeypatch.setattr(twin, "generate_twin", None)
    with pytest.raises(InputError, match="unknown shape twin 'twin:QM8': give one of twin:QM9"):
        twin_shape("twin:QM8")
    with pytest.raises(InputError, match="num_graphs=2"):
        load_dataset("twin:QM9", num_graphs=2)
    with pytest.raises(InputError, match="is a regression task"):
        load_dataset("twin:QM9", task="binary", num_graphs=10)
