"""Packing part by part gives what packing all at once gives, in memory and in a file."""

import numpy as np
import pytest
import torch

from grant_fast import PackedGraphs
from grant_fast.data.graphon import generate, generate_parts
from grant_fast.data.stream import Growing, joined, pack_part, save_parts
from grant_fast.errors import InputError
from grant_fast.graphs.arrays import GraphArrays
from tests.cases import check_equal


def both_ways(parts, path) -> list[PackedGraphs]:
    parts = list(parts)
    save_parts(iter(parts), path)
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    return [joined(iter(parts)), PackedGraphs.load(path, verify=True)]


@pytest.mark.parametrize("name", ["gen-reg", "gen-cls"])
def test_parts_are_packed_as_the_whole(name, tmp_path):
    whole = PackedGraphs.from_graph_arrays(generate(name, 300, seed=2))
    for found in both_ways(generate_parts(name, 300, seed=2), tmp_path / "a.gfast"):
        check_equal(found, whole)
        assert found.y_level == "node" and found.num_graphs == 300


def test_two_processes_draw_what_one_draws():
    alone, shared = (generate_parts("gen-cls", 600, seed=5, workers=n) for n in (1, 2))
    check_equal(joined(shared), joined(alone))


def some_graphs(x_dtype, symmetric, seed):
    """Graphs of 0, 1 and 300 nodes (more than a byte counts), the last one empty."""
    draw = torch.Generator().manual_seed(seed)
    sizes = torch.tensor([0, 1, 300, 2, 0])
    batch = torch.repeat_interleave(torch.arange(5), sizes)
    x = torch.randint(100, (len(batch), 3), generator=draw).to(x_dtype)
    edges = torch.randint(300, (2, 900), generator=draw) + 1
    edges = torch.cat([edges, edges.flip(0)], dim=1) if symmetric else edges
    return GraphArrays(x, edges, batch, 5, torch.randn(5, 2, generator=draw))


@pytest.mark.parametrize("x_dtype", [torch.float32, torch.uint8])
@pytest.mark.parametrize("symmetries", [(True, True), (True, False), (False, True), (False, False)])
def test_awkward_graphs_are_packed_as_the_whole(x_dtype, symmetries, tmp_path):
    parts = [some_graphs(x_dtype, symmetric, seed) for seed, symmetric in enumerate(symmetries)]
    whole = PackedGraphs.concat([PackedGraphs.from_graph_arrays(part) for part in parts])
    whole.ids = torch.arange(10)
    for found in both_ways(map(pack_part, parts), tmp_path / "a.gfast"):
        check_equal(found, whole)


def test_nothing_to_pack_is_refused(tmp_path):
    with pytest.raises(InputError, match="no graphs to pack"):
        joined([])
    with pytest.raises(InputError, match="no graphs to pack"):
        save_parts([], tmp_path / "a.gfast")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_half_way_leaves_nothing_behind(tmp_path):
    def failing():
        yield pack_part(some_graphs(torch.float32, True, 0))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_parts(failing(), tmp_path / "a.gfast")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shape", [(0,), (3,), (2, 0), (5, 4)])
def test_a_growing_array_is_the_parts_in_order(shape):
    parts = list(np.random.default_rng(0).random((9, *shape)))
    parts.insert(4, parts[0][:0])
    grown = Growing()
    for part in parts:
        grown.append(part)
    np.testing.assert_array_equal(grown.array(), np.concatenate(parts))
