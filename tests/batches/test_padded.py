"""A batch that is refilled in place trains a network as a batch made anew does."""

import copy

import pytest
import torch

from grant_fast import AtomEncoder, FlexGCN, InputError, PackedGraphs
from grant_fast.batches.padded import PaddedBatch
from tests.cases import dense_graphs
from tests.interpreter import needs_triton

#: Of tiles, of one plane to four, of no nodes and of one, and one that bits cannot hold.
SIZES = (20, 0, 3, 40, 9, 1, 31, 70, 130, 33, 5, 260, 8, 12, 230)
TOO_LARGE = SIZES.index(260)
IDS = torch.tensor([i for i in range(len(SIZES)) if i != TOO_LARGE])


def some_graphs(kinds: bool) -> PackedGraphs:
    """With targets by graph, and atoms or numbers for features."""
    graphs = dense_graphs(SIZES, 5)
    x = torch.randint(0, 2, (graphs.num_nodes, 2)) if kinds else graphs.x
    parts = {"ptr": graphs.ptr, "adj": graphs.adj, "adj_t": graphs.adj_t}
    return PackedGraphs(x=x, y=torch.randn(len(SIZES), 2), **parts)


def results(model: FlexGCN, batch) -> list[torch.Tensor]:
    model.zero_grad()
    out = model(batch)
    assert batch.y is not None
    (out - batch.y).square().mean().backward()
    return [out.detach(), *(parameter.grad for parameter in model.parameters())]


@pytest.mark.parametrize(
    ("settings", "kinds"),
    [({}, True), ({"act": "elu", "pool": "sum"}, False)],
    ids=["kinds", "elu"],
)
@needs_triton
def test_a_filled_room_trains_as_a_batch_made_anew(settings, kinds):
    graphs = some_graphs(kinds)
    settings = {
        "backend": "triton",
        "encoder": AtomEncoder(5, [2, 2]) if kinds else None,
    } | settings
    model = FlexGCN(5, [7, 4], 2, orders=[2, 2, 1], norm="batch_norm", **settings)
    twin, room = copy.deepcopy(model), PaddedBatch(graphs, IDS, 6)
    where = room.tiles.graph.data_ptr(), room.ptr.data_ptr(), room.tiles.tile.data_ptr()
    for positions in ([8, 0, 2, 7, 3, 1], [1, 5, 2, 10, 12, 9], [14, 6, 1, 4, 5, 3]):
        at = torch.tensor(positions)
        assert room.fill(at)
        assert len(room) == 6 and torch.equal(room.ids, at)
        assert room.num_nodes > int(room.node_count) == sum(SIZES[i] for i in positions)
        wants = results(twin, graphs.batch(at))
        # Of a bias before a norm the gradient is 0, but for what its terms leave of each other.
        atol = 1e-5 * max(want.abs().max().item() for want in wants)
        for got, want in zip(results(model, room), wants, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=atol)
    assert where == (room.tiles.graph.data_ptr(), room.ptr.data_ptr(), room.tiles.tile.data_ptr())
    for (name, got), (_, want) in zip(model.named_buffers(), twin.named_buffers(), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6, msg=name)


def test_what_does_not_fit_leaves_the_room_as_it_was():
    graphs = some_graphs(kinds=False)
    room = PaddedBatch(graphs, torch.tensor([2, 3, 5, 7]), 4)
    at = torch.tensor([2, 3, 5, 7])
    assert room.fill(at)
    before = room._table.clone()
    for why in (
        [2, 3, 5],  # fewer graphs
        [2, 3, 5, TOO_LARGE],  # not kept as bits
        [2, 3, 5, 9],  # two of one plane
        [0, 2, 6, 13],  # three tiles
        [3, 5, 6, 7],  # more nodes
        [1, 1, 1, 5],  # one node has no deviation
    ):
        assert not room.fill(torch.tensor(why)), why
    assert torch.equal(room._table, before) and torch.equal(room.ids, at)


def test_there_is_room_for_any_usual_batch():
    sizes = torch.randint(1, 60, (3000,)).tolist()
    edges = torch.zeros(2, 0, dtype=torch.int64)
    batch = torch.repeat_interleave(torch.arange(3000), torch.tensor(sizes))
    graphs = PackedGraphs.from_arrays(torch.randn(len(batch), 1), edges, batch, num_graphs=3000)
    room = PaddedBatch(graphs, torch.arange(3000), 200)
    assert all(room.fill(torch.randperm(3000)[:200]) for _ in range(50))
    largest = torch.tensor(sizes).argsort()[-200:]
    assert not room.fill(largest)
    assert PaddedBatch(graphs, torch.arange(3000), 3000).fill(torch.randperm(3000))


@pytest.mark.parametrize("name", ["x", "batch", "edge_index", "edge_weight", "edge_attr"])
def test_a_room_has_nothing_with_a_row_for_each_node(name):
    """Which a step of one's own might take for that of its batch."""
    room = PaddedBatch(some_graphs(True), IDS, 3)
    assert room.fill(torch.tensor([2, 0, 5]))
    for read in (lambda: getattr(room, name), lambda: room[name]):
        with pytest.raises(InputError, match=f"a recorded step has no {name} of its batch"):
            read()
