"""The bytes that the kernels move, counted in the interpreter, are those that they state."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from triton.runtime.interpreter import InterpreterBuilder

from grant_fast import ops
from grant_fast.kernels import csr, layer, norm, readout, score, select, tables, tail, wide
from grant_fast.ops.tiled import kernel_graphs
from tests.cases import dense_graphs

pytestmark = pytest.mark.interpreted

SMALL = (25, 30, 17, 9, 32, 21, 5, 14)


class Traffic:
    """Bytes loaded and stored by the interpreted kernels, by the tensor they belong to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.moved: list[tuple[int, int]] = []
        load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

        def count(pointers, mask) -> None:
            size = pointers.get_element_ty().primitive_bitwidth // 8
            chosen = np.asarray(pointers.data)[np.asarray(mask.data, dtype=bool)]
            self.moved += [(int(p), size) for p in chosen.ravel()]

        def counted_load(builder, pointers, mask, *rest):
            count(pointers, mask)
            return load(builder, pointers, mask, *rest)

        def counted_store(builder, pointers, value, mask, *rest):
            count(pointers, mask)
            return store(builder, pointers, value, mask, *rest)

        monkeypatch.setattr(InterpreterBuilder, "create_masked_load", counted_load)
        monkeypatch.setattr(InterpreterBuilder, "create_masked_store", counted_store)

    def of(self, tensor: torch.Tensor) -> int:
        first = tensor.data_ptr()
        last = first + tensor.numel() * tensor.element_size()
        return sum(size for pointer, size in self.moved if first <= pointer < last)

    def total(self) -> int:
        return sum(size for _, size in self.moved)


@pytest.fixture
def traffic(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Traffic]:
    return lambda: Traffic(monkeypatch)


def column_blocks(width: int, block: int) -> int:
    return -(-width // block)


def packed_graphs(sizes: tuple[int, ...], width: int):
    graphs = dense_graphs(sizes, width)
    return graphs, kernel_graphs(graphs.batch(slice(None)), normalize=True)


def table_bytes(packed: layer.Graphs) -> int:
    """Word, scale and row of each row of a tile, used or not."""
    return 12 * 32 * packed.num_tiles


def test_the_rows_of_tiles_are_laid_out_once(traffic):
    graphs = dense_graphs(SMALL, 2)
    batch = graphs.batch(slice(None))
    seen = traffic()
    rows = tables.lay_out(batch.tiles, graphs.ptr, graphs.bits.bits, graphs.scale)
    tiles, n = len(batch.tiles.tile) - 1, graphs.num_nodes
    assert sum(map(seen.of, rows)) == 16 * 32 * tiles
    assert seen.total() == 12 * n + 32 * len(SMALL) + (8 + 16 * 32) * tiles


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
    layer.input_grad(dy, y, torch.randn(3, 27, 18), packed, dx)
    assert seen.of(dy) == seen.of(y) == 4 * 18 * n
    assert seen.of(dx) == 4 * 27 * n
    weights = 4 * 3 * 27 * 18 * packed.num_tiles
    assert seen.total() == n * (8 * 18 + 4 * 27) + weights + table_bytes(packed)


def test_weight_gradient_reads_what_it_states(traffic):
    graphs, packed = packed_graphs(SMALL, 27)
    n = graphs.num_nodes
    dy, y = torch.randn(n, 18), torch.randn(n, 18)
    seen = traffic()
    layer.weight_grad(graphs.x, dy, y, 3, packed, dataset_x=False)
    input_blocks = 2  # ⌈27 / 16⌉
    assert seen.of(graphs.x) == 4 * 27 * n
    assert seen.of(dy) == seen.of(y) == input_blocks * 4 * 18 * n
    assert seen.of(packed.word) == input_blocks * table_bytes(packed) / 3
    sums = 4 * (3 * 27 + 1) * 18 * packed.num_tiles  # a tile a program
    stated = n * (4 * 27 + input_blocks * 8 * 18) + input_blocks * table_bytes(packed)
    assert seen.total() == stated + sums


def test_each_block_of_the_weight_gradient_reads_the_bits_again(traffic):
    graphs, packed = packed_graphs(SMALL, 64)
    n, dy, y = graphs.num_nodes, *torch.randn(2, graphs.num_nodes, 64)
    seen = traffic()
    layer.weight_grad(graphs.x, dy, y, 2, packed, dataset_x=False)
    blocks = 4 * 2
    assert seen.of(packed.word) == blocks * table_bytes(packed) / 3
    sums = 4 * (2 * 64 + 1) * 64 * packed.num_tiles
    stated = n * (2 * 4 * 64 + 4 * 8 * 64) + blocks * table_bytes(packed)
    assert seen.total() == stated + sums


def test_where_the_weight_gradient_has_many_blocks_tiles_are_fewer_shares(traffic, monkeypatch):
    graphs, packed = packed_graphs(SMALL, 64)
    dy, blocks = torch.randn(graphs.num_nodes, 64), 4 * 2
    seen = traffic()
    want = layer.weight_grad(graphs.x, dy, None, 2, packed, dataset_x=False)
    each = seen.total()
    monkeypatch.setattr(layer, "PROGRAMS", 2 * blocks)
    seen = traffic()
    got = layer.weight_grad(graphs.x, dy, None, 2, packed, dataset_x=False)
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
    layer.weight_grad(graphs.x, torch.randn(n, 18), None, 3, packed, dataset_x=True)
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
    layer.weight_grad(kinds, torch.randn(n, 40), None, 2, packed, dataset_x=True, code=code)
    assert seen.of(code) == 2 * blocks * 4 * n  # and two blocks of 16 inputs


#: Larger graphs, and how many planes of bits they have.
LARGER = {50: 1, 70: 2, 100: 2, 140: 3}


def bits_of_larger() -> int:
    return sum(8 * planes * n for n, planes in LARGER.items())


@pytest.mark.parametrize("h_out", [18, 40])
def test_larger_graphs_read_x_once_an_order_and_block_of_columns(h_out, traffic):
    graphs, packed = packed_graphs(tuple(LARGER), 27)
    n, order, columns = graphs.num_nodes, 3, column_blocks(h_out, 16)
    weight, out = torch.randn(order, 27, h_out), torch.empty(n, h_out)
    seen = traffic()
    layer.forward(graphs.x, weight, None, packed, out, relu=False, dataset_x=False)
    assert seen.of(out) == 4 * h_out * n
    assert seen.of(graphs.x) == order * columns * 4 * 27 * n
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
    layer.input_grad(dy, y, torch.randn(order, 27, 18), packed, dx)
    assert seen.of(dy) == seen.of(y) == order * columns * 4 * 18 * n
    assert seen.of(dx) == 4 * 27 * n
    weights = 4 * order * 27 * 18 * len(LARGER)
    hops = (order - 1) * columns
    stated = n * (8 * 18 * order * columns + 4 * 27 + 8 * hops) + hops * bits_of_larger()
    assert seen.total() == stated + weights + columns * 32 * len(LARGER)


@pytest.mark.parametrize("order", [1, 3])
def test_the_weight_gradient_of_larger_graphs_moves_what_it_states(order, traffic):
    graphs, packed = packed_graphs(tuple(LARGER), 27)
    n, h_out = graphs.num_nodes, 40
    dy, y = torch.randn(n, h_out), torch.randn(n, h_out)
    seen = traffic()
    layer.weight_grad(graphs.x, dy, y, order, packed, dataset_x=False)
    inputs, columns, tables, stated = 2, {1: 2, 2: 3, 3: 2}, 0, 0
    for size, planes in LARGER.items():
        blocks, hops = columns[planes], order - 1
        stated += size * (4 * 27 * order * blocks + 8 * h_out * inputs * min(order, 2))
        stated += blocks * inputs * hops * size * (8 + 8 * planes)
        tables += blocks * inputs * 32
    assert seen.of(dy) == seen.of(y) == min(order, 2) * inputs * 4 * h_out * n
    sums = 4 * (order * 27 + 1) * h_out * len(LARGER)  # a graph a program: nothing is added to
    assert seen.total() == stated + sums + tables


def test_a_program_adds_to_the_weight_gradient_of_the_graph_before(traffic, monkeypatch):
    graphs, packed = packed_graphs((50, 40, 60), 27)
    dy = torch.randn(graphs.num_nodes, 18)
    want = layer.weight_grad(graphs.x, dy, None, 2, packed, dataset_x=False)
    monkeypatch.setattr(layer, "PROGRAMS", 2)
    seen = traffic()
    got = layer.weight_grad(graphs.x, dy, None, 2, packed, dataset_x=False)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
    few = seen.total()
    monkeypatch.setattr(layer, "PROGRAMS", 3)
    seen = traffic()
    layer.weight_grad(graphs.x, dy, None, 2, packed, dataset_x=False)
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


@pytest.mark.parametrize("pooled", [True, False])
def test_a_network_in_one_kernel_reads_each_feature_and_label_once(pooled, traffic):
    graphs, packed = packed_graphs(SMALL, 9)
    n, b, widths, orders = graphs.num_nodes, graphs.num_graphs, (9, 20, 3), (2, 3)
    size = sum((k * i + 1) * o for k, i, o in zip(orders, widths, widths[1:], strict=False))
    network = score.Network(torch.randn(size), widths, orders, "mean" if pooled else None, True)
    pool, y = graphs.pool_weights(3, True, True), torch.randn(b if pooled else n, 3)
    data = score.Data(
        graphs.x, None, pool if pooled else None, y, graphs.ptr, packed.bits, packed.scale
    )
    tiles = graphs.batch(slice(None)).tiles
    scores, counts = torch.empty(b), select.empty_counts(graphs.device)
    seen = traffic()
    score.score(
        network, data, tiles.tile, tiles.graph, scores, counts, None,
        classes=False, sigmoid=False, raw=False,
    )  # fmt: skip
    stated = n * (4 * 9 + 12 + 4 * 3 * pooled) + 4 * y.numel() + (24 + 4) * b
    assert seen.total() == stated + (8 + 4 * size) * packed.num_tiles


def test_the_choice_reads_each_score_four_times(traffic):
    scores, m, blocks = torch.rand(3000), 700, 3
    seen = traffic()
    select.largest(scores, m)
    assert seen.of(scores) == 4 * 4 * 3000
    # Two digits found, the second of the first's, and the bins that each is among read again.
    histograms = 2 * 4 * (select.BINS + 256) + 2 * 8 + 4
    each = 4 + (8 + 8) + (12 + 16)  # a block's digits; its counts and ends
    assert seen.total() == seen.of(scores) + histograms + blocks * each + 8 * m


@pytest.mark.parametrize("width", [5, 150])
def test_a_hop_over_csr_moves_what_it_states(width, traffic):
    graphs = dense_graphs((30, 9, 40), width)
    matrix = csr.CSR(*graphs.batch(slice(None)).adjacency(True).csr)
    n, e = graphs.num_nodes, graphs.num_edges
    term, bias, out = torch.randn(n, width), torch.randn(width), torch.empty(n, width)
    seen = traffic()
    csr.spmm(matrix, graphs.x, out=out, term=term, bias=bias)
    blocks = column_blocks(width, 128)
    assert seen.of(matrix.rowptr) == blocks * 8 * n
    assert seen.of(matrix.col) + seen.of(matrix.value) == blocks * 8 * e
    assert seen.of(graphs.x) == 4 * width * e
    assert seen.of(term) == seen.of(out) == 4 * width * n
    programs = column_blocks(n, csr.spmm_shape(width)["ROWS"])
    assert seen.total() - programs * 4 * width == (  # the bias, from the cache
        blocks * 8 * (n + e) + 4 * width * (e + 2 * n)
    )


def test_the_gradient_of_edge_weights_moves_what_it_states(traffic):
    graphs = dense_graphs((30, 9, 40), 70)
    matrix = csr.CSR(*graphs.batch(slice(None)).adjacency(True).csr)
    n, e = graphs.num_nodes, graphs.num_edges
    dz, out = torch.randn(n, 70), torch.empty(e)
    seen = traffic()
    csr.value_grad(matrix, dz, graphs.x, out, add=False)
    assert seen.of(matrix.rowptr) == 8 * n
    assert seen.of(matrix.col) == seen.of(out) == 4 * e
    assert seen.of(graphs.x) == 4 * 70 * e
    reads = (-(-matrix.rowptr.diff() // csr.EDGES)).sum().item()
    assert seen.of(dz) == 4 * 70 * reads
    assert seen.total() == 8 * n + 8 * e + 4 * 70 * (e + reads)


@pytest.mark.parametrize("pooled", [True, False])
def test_the_tail_of_a_scoring_pass_reads_what_the_layers_left_once(pooled, traffic):
    graphs = dense_graphs((30, 0, 9, 40), 70)
    n, b, order, width = graphs.num_nodes, graphs.num_graphs, 2, 3
    weight, bias = torch.randn(order, 70, width), torch.randn(width)
    pool, x = graphs.pool_weights(order, True, True), graphs.x if pooled else torch.randn(n, width)
    y, counts = torch.randn(b if pooled else n, width), select.empty_counts(graphs.device)
    seen = traffic()
    tail.score(
        x, (weight, bias, pool) if pooled else None, y, graphs.ptr, torch.arange(b), graphs.ptr,
        counts, width=width, mean=True, classes=False, sigmoid=False, raw=False,
    )  # fmt: skip
    assert seen.of(x) == 4 * n * (70 if pooled else width)
    assert seen.of(y) == 4 * width * len(y)
    tables = 32 * b + 4 * b  # and a score; the histogram's additions are no loads and stores
    if not pooled:
        assert seen.total() == 8 * width * n + tables
        return
    blocks = column_blocks(70, 64)
    assert seen.of(pool) == blocks * 4 * order * n
    assert seen.of(weight) == 4 * weight.numel() * b  # from the cache, as the bias
    stated = 4 * 70 * n + blocks * 4 * order * n + 4 * width * b + tables
    assert seen.total() == stated + 4 * (weight.numel() + width) * b


@pytest.mark.parametrize("order", [1, 4])
def test_the_readout_reads_x_once_and_its_gradient_writes_dx_once(order, traffic):
    graphs = dense_graphs((30, 0, 9, 40), 20)
    n, b, width = graphs.num_nodes, graphs.num_graphs, 20
    weights = graphs.pool_weights(order, True, True)
    ptr, start, graph, _ = graphs.batch(slice(None)).segments
    seen = traffic()
    out = readout.readout(graphs.x, weights, ptr, start, None)
    assert seen.of(graphs.x) == 4 * width * n
    assert seen.of(weights) == 4 * order * n
    assert seen.of(out) == 4 * order * width * b
    assert seen.total() == 4 * (width + order) * n + (4 * order * width + 24) * b
    grad, dx = torch.randn(b, order * width), torch.empty(n, width)
    seen = traffic()
    readout.readout_grad(grad, weights, ptr, start, graph, dx)
    assert seen.of(grad) == 4 * order * width * b
    assert seen.of(dx) == 4 * width * n
    assert seen.total() == 4 * (width + order) * n + (4 * order * width + 32) * b


@pytest.mark.parametrize("width", [27, 70])
def test_a_batch_norm_reads_x_twice_and_its_gradient_reads_x_and_dy_twice(width, traffic):
    n = 300
    x, grad, weight, bias = torch.randn(n, width), torch.randn(n, width), *torch.randn(2, width)
    rows = norm.norm_shape(width)["ROWS"]
    shares = blocks = column_blocks(n, rows)  # so few rows that a share is a block
    columns, merges = column_blocks(width, 64), column_blocks(width, norm.merge_shape()["BLOCK"])
    seen = traffic()
    y, stats = norm.batch_norm(x, weight, bias, 1e-5, None, relu=True)
    assert seen.of(x) == 2 * 4 * n * width
    assert seen.of(y) == 4 * n * width
    stated = 12 * n * width + 16 * shares * width + 12 * width + 16 * width * blocks
    assert seen.total() == stated + 8 * (shares * columns + merges + blocks * columns)
    seen = traffic()
    dx, _ = norm.batch_norm_grad(grad, x, stats, weight, bias, None, relu=True)
    assert seen.of(x) == seen.of(grad) == 2 * 4 * n * width
    assert seen.of(dx) == 4 * n * width
    stated = 20 * n * width + (8 + 16) * shares * width + 24 * width * blocks
    assert seen.total() == stated + 8 * (shares + blocks) * columns
