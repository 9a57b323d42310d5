"""Graphs as bits, and their places in tiles."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grant_fast import PackedGraphs
from grant_fast.batches import tiles
from tests.cases import Case, dense_graphs, to_dense
from tests.recording import Asked


def unpacked(graphs: PackedGraphs, graph: int) -> torch.Tensor:
    """The adjacency of one graph from its bits, [n, n]."""
    bits, _ = graphs.bits
    first, last = graphs.ptr[graph], graphs.ptr[graph + 1]
    column = torch.arange(int(last - first))
    return (bits[column // 64, first:last].T >> (column % 64)) & 1


@pytest.mark.parametrize("chunk", [1 << 24, 7])
def test_bits_hold_the_edges_of_every_graph_without_repeats(chunk, monkeypatch):
    monkeypatch.setattr(tiles, "_CHUNK", chunk)
    case = Case(sizes=(0, 1, 2, 17, 64, 0, 65, 128, 130, 193, 257, 0), weighted=False)
    graphs = PackedGraphs.from_arrays(
        case.x, case.edge_index.unique(dim=1), case.batch, num_graphs=case.num_graphs
    )
    assert graphs.bits.bits.shape == (4, case.num_nodes)
    assert graphs.bits.fits.tolist() == [size <= tiles.PLANES[-1] for size in case.sizes]
    for graph in range(10):
        batch = graphs.batch([graph])
        rowptr, col, value = batch.adjacency(False).csr
        want = to_dense(rowptr, col, value, batch.num_nodes)
        assert torch.equal(unpacked(graphs, graph), want.long())


@pytest.mark.parametrize("chunk", [1 << 24, 2, 3])
def test_a_graph_with_a_repeated_edge_does_not_fit(chunk, monkeypatch):
    monkeypatch.setattr(tiles, "_CHUNK", chunk)
    edges = torch.tensor([[0, 1, 2, 2, 4, 3], [1, 0, 3, 3, 5, 5]])
    batch = torch.tensor([0, 0, 1, 1, 2, 2])
    crossing = torch.tensor([0, 0, 1, 1, 1, 1])
    graphs = PackedGraphs.from_arrays(torch.ones(6, 1), edges[:, :5], batch)
    assert graphs.bits.fits.tolist() == [True, False, True]
    graphs = PackedGraphs.from_arrays(torch.ones(6, 1), edges[:, [0, 1, 2, 4, 5]], crossing)
    assert graphs.bits.fits.tolist() == [True, True]


def test_weighted_edges_have_no_bits():
    case = Case()
    assert case.graphs.bits is None
    assert case.graphs.batch(slice(None)).tiles is None


def test_a_dataset_without_edges_has_bits_and_one_that_they_could_not_hold_has_none():
    no_edges = torch.empty(2, 0, dtype=torch.long)
    assert not PackedGraphs.from_arrays(torch.ones(2, 1), no_edges, [0, 0]).bits.bits.any()
    empty = PackedGraphs.from_arrays(torch.ones(0, 1), no_edges, torch.empty(0).long())
    assert empty.bits is None
    large, twice = torch.zeros(300, dtype=torch.long), torch.tensor([[0, 0], [1, 1]])
    assert PackedGraphs.from_arrays(torch.ones(300, 1), no_edges, large).bits is None
    assert PackedGraphs.from_arrays(torch.ones(2, 1), twice, [0, 0]).bits is None


@given(st.lists(st.integers(1, 32), max_size=200), st.sampled_from([1, 2, 8]))
def test_every_graph_gets_one_place_and_no_tile_overflows(sizes, slots):
    n = np.array(sizes, dtype=np.int64)
    order, tile = tiles.pack(n, 32, slots)
    assert sorted(order.tolist()) == list(range(len(sizes)))
    assert tile[0] == 0 and tile[-1] == len(sizes)
    for first, last in pairwise(tile):
        assert 1 <= last - first <= slots
        assert n[order[first:last]].sum() <= 32


def test_tiles_of_molecules_are_nearly_full():
    rng = np.random.default_rng(0)
    n = np.clip(rng.normal(25.5, 12, 20_000), 2, 200).astype(np.int64)
    n = n[n <= tiles.TILE]
    _, tile = tiles.pack(n, tiles.TILE, tiles.SLOTS)
    assert n.sum() > 0.85 * tiles.TILE * (tile.size - 1)


def test_a_batch_is_laid_out_by_graph_id_and_batch_row():
    case = Case(sizes=(3, 0, 40, 5, 32, 300), weighted=False)
    edges = case.edge_index.unique(dim=1)
    graphs = PackedGraphs.from_arrays(case.x, edges, case.batch, num_graphs=6)
    layout = graphs.batch([5, 4, 2, 3, 1, 0]).tiles
    assert layout.graph.tolist() == [4, 3, 0]
    assert layout.row.tolist() == [300, 372, 377]
    assert layout.tile.tolist() == [0, 1, 3]
    assert layout.one_plane.tolist() == [[2], [332]]
    assert layout.two_planes.tolist() == [[], []]
    assert layout.three_planes.tolist() == layout.four_planes.tolist() == [[], []]
    assert layout.rest.tolist() == [0]


def test_the_tables_of_a_batch_are_uploaded_by_one_copy_and_are_aligned():
    batch = dense_graphs((3, 0, 40, 5, 32, 1, 12, 9), 2).batch([7, 4, 3, 2, 6])
    ptr, first = batch.host_rows
    fits = batch.graphs.bits.fits
    for lay_out, words in (
        (tiles.tile_batch, (ptr.diff(), batch.positions, ptr[:-1], fits)),
        (tiles.segment_batch, (ptr.diff() + tiles.SEGMENT, first)),  # more than one each
    ):
        tables = [table for table in lay_out(*words, ptr.device) if table is not None]
        with Asked() as asked:
            there = [t for t in lay_out(*words, torch.device("meta")) if t is not None]
        assert asked.copies == 1
        assert [t.shape for t in there] == [t.shape for t in tables]
        assert all(8 * t.storage_offset() % 16 == 0 for t in there)


def test_each_row_of_a_tile_knows_its_node_its_row_and_its_sources():
    graphs = dense_graphs((3, 0, 40, 5, 32, 1, 12, 9), 2)
    batch = graphs.batch([7, 4, 3, 0, 6])
    rows = batch.tile_rows
    assert len(rows.row) == tiles.TILE * (len(batch.tiles.tile) - 1)
    used = rows.row >= 0
    assert sorted(rows.row[used].tolist()) == list(range(batch.num_nodes))
    assert torch.equal(batch.graphs.x[rows.node[used].long()], batch.x[rows.row[used].long()])
    assert torch.equal(rows.scale[used], graphs.scale[rows.node[used].long()])
    assert not rows.word[~used].any() and not rows.scale[~used].any()
    want = to_dense(*batch.adjacency(False).csr, batch.num_nodes)
    got = torch.zeros_like(want)
    for at in used.nonzero().flatten().tolist():
        first = at - at % tiles.TILE
        sources = [first + j for j in range(tiles.TILE) if rows.word[at] >> j & 1]
        got[rows.row[at], rows.row[sources].long()] = 1
    assert torch.equal(got, want)
