"""Packing part by part gives what packing all at once gives."""

import pytest
import torch

from grant_fast import PackedGraphs
from grant_fast.data.graphon import generate, generate_chunks
from grant_fast.data.stream import Growing, packed
from grant_fast.errors import InputError


@pytest.mark.parametrize("name", ["gen-reg", "gen-cls"])
def test_chunks_are_packed_as_the_whole(name):
    found = packed(generate_chunks(name, 300, seed=2))
    whole = PackedGraphs.from_graph_arrays(generate(name, 300, seed=2))
    for field in ("x", "y", "ptr", "ids"):
        assert torch.equal(getattr(found, field), getattr(whole, field)), field
        assert getattr(found, field).dtype == getattr(whole, field).dtype
    for field in ("adj", "adj_t"):
        for ours, theirs in zip(getattr(found, field), getattr(whole, field), strict=True):
            assert (ours is None and theirs is None) or torch.equal(ours, theirs)
    assert found.y_level == "node" and found.num_graphs == 300


def test_nothing_to_pack_is_refused():
    with pytest.raises(InputError, match="no graphs to pack"):
        packed([])


@pytest.mark.parametrize("shape", [(0,), (3,), (2, 0), (5, 4)])
def test_a_growing_tensor_is_the_parts_in_order(shape):
    parts = [torch.randn(shape) for _ in range(9)]
    parts.insert(4, parts[0][:0])
    grown = Growing()
    for part in parts:
        grown.append(part)
    assert torch.equal(grown.tensor(), torch.cat(parts))
