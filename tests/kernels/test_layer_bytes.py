"""The bytes that the kernels of layers on bits move are those that they state."""

import pytest
import torch

from grant_fast import ops
from grant_fast.kernels import layer, tables, wide
from grant_fast.ops.tiled import kernel_graphs
from tests.cases import dense_graphs
from tests.kernels.checks import input_grad, weight_grad
from tests.kernels.traffic import SMALL, column_blocks, packed_graphs, table_bytes

pytestmark = pytest.mark.interpreted


def test_the_rows_of_tiles_are_laid_out_once(traffic):
    graphs = dense_graphs(SMALL, 2)
    batch = graphs.batch(slice(None))
    seen = traffic()
    rows = tables.lay_out(batch.tiles, graphs.ptr, graphs.bits.bits, graphs.scale)
    tiles, n = len(batch.tiles.tile) - 1, graphs.num_nodes
    assert sum(map(seen.of, rows)) == 16 * 32 * tiles
    assert seen.total() == 12 * n + 32 * len(SMALL) + (16 + 16 * 32) * tiles


@pytest.mark.parametrize("order", [1, 3])
def test_forward_of_small_graphs_reads_x_once_and_writes_y_once(order, traffic):
    graphs, packed = packed_graphs(SMALL, 27)
    n = graphs.num_nodes
    weight, out = torch.randn(order, 27, 18), torch.empty(n, 18)
    seen = traffic()
    layer.forward(graphs.x, weight, None, packed, out, relu=True, dataset_x=False)
    assert seen.of(graphs.x) == 4 * 27 * n
    assert seen.of(out) == 4 * 18 * n
    weights = 4 * weight.numel() * packed.num_tiles  # from the cache: every program reads them all
    stated = n * (4 * 27 + 4 * 18)
    assert seen.total() == stated + weights + table_bytes(packed)
    assert table_bytes(packed) < 12 * 1.3 * n


def test_each_block_of_columns_reads_the_input_again(traffic):
    graphs, packed = packed_graphs(SMALL, 20)
    n = graphs.num_nodes
    out = torch.empty(n, 40)
    seen = traffic()
    layer.forward(graphs.x, torch.randn(2, 20, 40), None, packed, out, relu=False, dataset_x=False)
    assert seen.of(graphs.x) == 2 * 4 * 20 * n
    assert seen.of(out) == 4 * 40 * n


def test_the_largest_layer_reads_mostly_weights(traffic):
    graphs, packed = packed_graphs(SMALL, 64)
    n, weight, out = graphs.num_nodes, torch.randn(5, 64, 64), torch.empty(graphs.num_nodes, 64)
    seen = traffic()
    layer.forward(graphs.x, weight, None, packed, out, relu=True, dataset_x=False)
    weights = 4 * weight.numel() * packed.num_tiles
    stated = n * (2 * 4 * 64 + 4 * 64) + 2 * table_bytes(packed)
    assert seen.total() == stated + weights
    assert 0.75 < weights / seen.total() < 0.8


def test_input_gradient_reads_dy_and_y_once_and_writes_dx_once(traffic):
    graphs, packed = packed_graphs(SMALL, 27)
    n = graphs.num_nodes
    dy, y, dx = torch.randn(n, 18), torch.randn(n, 18), torch.empty(n, 27)
    seen = traffic()
    input_grad(dy, y, torch.randn(3, 27, 18), packed, dx)
    assert seen.of(dy) == seen.of(y) == 4 * 18 * n
    assert seen.of(dx) == 4 * 27 * n
    weights = 4 * 3 * 27 * 18 * packed.num_tiles
    assert seen.total() == n * (8 * 18 + 4 * 27) + weights + table_bytes(packed)


@pytest.mark.parametrize(("order", "input_blocks"), [(3, 1), (4, 2)])  # of 32, of 16
def test_weight_gradient_reads_what_it_states(order, input_blocks, traffic):
    graphs, packed = packed_graphs(SMALL, 27)
    n = graphs.num_nodes
    dy, y = torch.randn(n, 18), torch.randn(n, 18)
    seen = traffic()
    weight_grad(graphs.x, dy, y, order, packed, dataset_x=False)
    assert seen.of(graphs.x) == 4 * 27 * n
    assert seen.of(dy) == seen.of(y) == input_blocks * 4 * 18 * n
    assert seen.of(packed.word) == input_blocks * table_bytes(packed) / 3
    sums = 4 * (order * 27 + 1) * 18 * packed.num_tiles  # a tile a program
    stated = n * (4 * 27 + input_blocks * 8 * 18) + input_blocks * table_bytes(packed)
    assert seen.total() == stated + sums


def test_each_block_of_the_weight_gradient_reads_the_bits_again(traffic):
    graphs, packed = packed_graphs(SMALL, 64)
    n, dy, y = graphs.num_nodes, *torch.randn(2, graphs.num_nodes, 64)
    seen = traffic()
    weight_grad(graphs.x, dy, y, 2, packed, dataset_x=False)
    blocks = 2 * 2
    assert seen.of(packed.word) == blocks * table_bytes(packed) / 3
    sums = 4 * (2 * 64 + 1) * 64 * packed.num_tiles
    stated = n * (2 * 4 * 64 + 2 * 8 * 64) + blocks * table_bytes(packed)
    assert seen.total() == stated + sums


def test_where_the_weight_gradient_has_many_blocks_tiles_are_fewer_shares(traffic, monkeypatch):
    graphs, packed = packed_graphs(SMALL, 64)
    dy, blocks = torch.randn(graphs.num_nodes, 64), 2 * 2
    seen = traffic()
    want = weight_grad(graphs.x, dy, None, 2, packed, dataset_x=False)
    each = seen.total()
    monkeypatch.setattr(layer, "PROGRAMS", 2 * blocks)
    seen = traffic()
    got = weight_grad(graphs.x, dy, None, 2, packed, dataset_x=False)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
    assert packed.num_tiles > 4
    assert each - seen.total() == 4 * (2 * 64 + 1) * 64 * (packed.num_tiles - 2)


def test_features_are_read_where_the_dataset_holds_them(traffic):
    graphs = dense_graphs((*SMALL, 19, 28), 27)
    batch = graphs.batch([7, 2, 0, 9, 2])
    packed = kernel_graphs(batch, normalize=True)
    weight, n = torch.randn(3, 27, 18), batch.num_nodes
    seen = traffic()
    assert ops.reads(weight, batch, True, "triton") == "dataset"
    ops.first_flex_conv("dataset", batch, weight, None, True, True, "triton")
    assert seen.of(graphs.x) == 4 * 27 * n
    weights = 4 * weight.numel() * packed.num_tiles
    assert seen.of(packed.node) == 4 * 32 * packed.num_tiles
    around = weights + table_bytes(packed) + seen.of(packed.node)
    assert seen.total() == n * (4 * 27 + 4 * 18) + around
    seen = traffic()
    weight_grad(graphs.x, torch.randn(n, 18), None, 3, packed, dataset_x=True)
    assert seen.of(graphs.x) == 4 * 27 * n


def test_kinds_of_nodes_are_4_bytes_each_time_x_would_be_read(traffic):
    graphs, packed = packed_graphs(SMALL, 20)
    n, kinds = graphs.num_nodes, torch.randn(6, 20)
    code = torch.arange(n, dtype=torch.int32) % 6
    weight, out = torch.randn(2, 20, 40), torch.empty(n, 40)
    blocks = 2  # of 32 outputs
    seen = traffic()
    layer.forward(kinds, weight, None, packed, out, relu=False, dataset_x=True, code=code)
    assert seen.of(code) == blocks * 4 * n
    assert seen.of(kinds) == blocks * 4 * 20 * n  # from the cache: 480 bytes in all
    assert seen.of(out) == 4 * 40 * n
    tables = table_bytes(packed) * 16 // 12  # the nodes, too
    around = blocks * (tables + 4 * 2 * 20 * 32 * packed.num_tiles)
    around -= 4 * 2 * 20 * 24 * packed.num_tiles  # the second block has 8 columns
    assert seen.total() == seen.of(code) + seen.of(kinds) + seen.of(out) + around
    seen = traffic()
    weight_grad(kinds, torch.randn(n, 40), None, 2, packed, dataset_x=True, code=code)
    assert seen.of(code) == blocks * 4 * n


#: Larger graphs, and how many planes of bits they have.
LARGER = {50: 1, 70: 2, 100: 2, 140: 3, 200: 4}


def reads_of_larger(order: int) -> int:
    """Rows of X that are read: each once of one plane, else once an order."""
    return sum(n * (1 if planes == 1 else order) for n, planes in LARGER.items())


def bits_of_larger() -> int:
    return sum(8 * planes * n for n, planes in LARGER.items())


@pytest.mark.parametrize("h_out", [18, 40])
def test_larger_graphs_read_x_once_or_once_an_order(h_out, traffic):
    graphs, packed = packed_graphs(tuple(LARGER), 27)
    n, order, columns = graphs.num_nodes, 3, column_blocks(h_out, 16)
    weight, out = torch.randn(order, 27, h_out), torch.empty(n, h_out)
    seen = traffic()
    layer.forward(graphs.x, weight, None, packed, out, relu=False, dataset_x=False)
    assert seen.of(out) == 4 * h_out * n
    assert seen.of(graphs.x) == columns * 4 * 27 * reads_of_larger(order)
    hops = (order - 1) * columns
    assert seen.of(packed.bits) == hops * bits_of_larger()
    assert seen.of(graphs.scale) == hops * 8 * n
    assert seen.of(weight) == 4 * weight.numel() * len(LARGER)
    named = sum(map(seen.of, (out, graphs.x, packed.bits, graphs.scale, weight)))
    assert seen.total() == named + columns * 32 * len(LARGER)


def test_room_for_larger_graphs_costs_a_look_at_its_tables(traffic):
    graphs, packed = packed_graphs(tuple(LARGER), 27)
    n, weight = graphs.num_nodes, torch.randn(3, 27, 18)
    empty = torch.tensor([[graphs.num_graphs], [n]])  # as `kernel_ptr` ends with
    room = packed._replace(
        ptr=graphs.kernel_ptr, two_planes=torch.cat([packed.two_planes, empty], 1)
    )
    outs, moved = [], []
    for each in (packed, room):
        seen = traffic()
        out = torch.empty(n, 18)
        outs.append(layer.forward(graphs.x, weight, None, each, out, relu=True, dataset_x=False))
        moved.append(seen.total())
    assert torch.equal(*outs)
    assert moved[1] - moved[0] == column_blocks(18, 16) * 32


def test_the_input_gradient_of_larger_graphs_moves_what_it_states(traffic):
    graphs, packed = packed_graphs(tuple(LARGER), 27)
    n, order, columns = graphs.num_nodes, 3, column_blocks(27, 16)
    dy, y, dx = torch.randn(n, 18), torch.randn(n, 18), torch.empty(n, 27)
    seen = traffic()
    input_grad(dy, y, torch.randn(order, 27, 18), packed, dx)
    assert seen.of(dy) == seen.of(y) == columns * 4 * 18 * reads_of_larger(order)
    assert seen.of(dx) == 4 * 27 * n
    weights = 4 * order * 27 * 18 * len(LARGER)
    hops = (order - 1) * columns
    stated = 8 * 18 * columns * reads_of_larger(order)
    stated += n * (4 * 27 + 8 * hops) + hops * bits_of_larger()
    assert seen.total() == stated + weights + columns * 32 * len(LARGER)


@pytest.mark.parametrize("order", [1, 3])
def test_the_weight_gradient_of_larger_graphs_moves_what_it_states(order, traffic):
    graphs, packed = packed_graphs(tuple(LARGER), 27)
    n, h_out = graphs.num_nodes, 40
    dy, y = torch.randn(n, h_out), torch.randn(n, h_out)
    seen = traffic()
    weight_grad(graphs.x, dy, y, order, packed, dataset_x=False)
    inputs, columns, tables, stated = 2, {1: 2, 2: 3, 3: 2, 4: 2}, 0, 0
    for size, planes in LARGER.items():
        blocks, hops = columns[planes], order - 1
        reads, again = (1, 1) if planes == 1 else (order, min(order, 2))
        stated += size * (4 * 27 * reads * blocks + 8 * h_out * inputs * again)
        stated += blocks * inputs * hops * size * (8 + 8 * planes)
        tables += blocks * inputs * 32
    again = reads_of_larger(min(order, 2))
    assert seen.of(dy) == seen.of(y) == inputs * 4 * h_out * again
    sums = 4 * (order * 27 + 1) * h_out * len(LARGER)  # a graph a program: nothing is added to
    assert seen.total() == stated + sums + tables


def test_a_program_adds_to_the_weight_gradient_of_the_graph_before(traffic, monkeypatch):
    graphs, packed = packed_graphs((50, 40, 60), 27)
    dy = torch.randn(graphs.num_nodes, 18)
    want = weight_grad(graphs.x, dy, None, 2, packed, dataset_x=False)
    monkeypatch.setattr(layer, "PROGRAMS", 2)
    seen = traffic()
    got = weight_grad(graphs.x, dy, None, 2, packed, dataset_x=False)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
    few = seen.total()
    monkeypatch.setattr(layer, "PROGRAMS", 3)
    seen = traffic()
    weight_grad(graphs.x, dy, None, 2, packed, dataset_x=False)
    # One program's sums are read and written again; one fewer writes db.
    assert few - seen.total() == 4 * (2 * 27 - 1) * 18


@pytest.mark.parametrize("order", [2, 4])
def test_wide_hops_of_small_graphs_move_each_number_once(order, traffic):
    graphs, packed = packed_graphs(SMALL, 40)
    n, blocks = graphs.num_nodes, 2
    around = blocks * table_bytes(packed)
    t, y = torch.randn(n, order * 40), torch.empty(n, 40)
    seen = traffic()
    wide.horner(t, order, None, packed, y, False, True)
    assert seen.of(t) == 4 * order * 40 * n
    assert seen.of(y) == 4 * 40 * n
    assert seen.total() == seen.of(t) + seen.of(y) + around
    seen = traffic()
    z = wide.powers(graphs.x, order, packed, True)
    assert seen.of(graphs.x) == 4 * 40 * n
    assert seen.of(z) == 4 * order * 40 * n
    assert seen.total() == seen.of(graphs.x) + seen.of(z) + around


def test_wide_hops_of_larger_graphs_move_each_number_once(traffic):
    graphs, packed = packed_graphs(tuple(LARGER), 20)
    n, order, hops = graphs.num_nodes, 4, 3
    around = sum(  # of larger graphs than one plane, a program has 16 columns
        (1 if planes == 1 else 2) * (hops * size * (8 + 8 * planes) + 32)
        for size, planes in LARGER.items()
    )
    t, y = torch.randn(n, order * 20), torch.empty(n, 20)
    seen = traffic()
    wide.horner(t, order, None, packed, y, False, False)
    assert seen.of(y) == 4 * 20 * n
    assert seen.of(t) == order * 4 * 20 * n
    assert seen.total() == seen.of(t) + seen.of(y) + around
    seen = traffic()
    z = wide.powers(graphs.x, order, packed, False)
    assert seen.of(graphs.x) == 4 * 20 * n
    assert seen.of(z) == order * 4 * 20 * n
    assert seen.total() == seen.of(graphs.x) + seen.of(z) + around
