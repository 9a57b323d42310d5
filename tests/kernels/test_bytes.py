"""The bytes that kernels other than those of layers on bits move are those that they state."""

import pytest
import torch

from grant_fast.kernels import csr, kinds, norm, readout, score, select, tail
from tests.cases import dense_graphs
from tests.kernels.traffic import SMALL, column_blocks, packed_graphs

pytestmark = pytest.mark.interpreted


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
    assert seen.total() == stated + (16 + 4 * size) * packed.num_tiles


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


@pytest.mark.parametrize(("width", "num_kinds"), [(9, 20), (70, 130)])
def test_the_gradient_by_kind_reads_each_row_once_for_128_kinds(width, num_kinds, traffic):
    n, shape = 300, kinds.sum_shape(width, num_kinds)
    dx, kind = torch.randn(n, width), torch.randint(num_kinds, (n,), dtype=torch.int32)
    columns, blocks = column_blocks(width, shape["BO"]), column_blocks(num_kinds, shape["KINDS"])
    shares = column_blocks(n, shape["ROWS"])  # so few rows that a share is a block
    seen = traffic()
    kinds.sums(dx, kind, num_kinds)
    assert seen.of(dx) == blocks * 4 * n * width
    assert seen.of(kind) == blocks * 4 * n * columns
    assert seen.total() == seen.of(dx) + seen.of(kind) + 4 * num_kinds * width * shares


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("width", [27, 70])
def test_a_batch_norm_reads_x_twice_and_its_gradient_reads_x_and_dy_twice(width, drops, traffic):
    n = 300
    x, grad, weight, bias = torch.randn(n, width), torch.randn(n, width), *torch.randn(2, width)
    rows = norm.norm_shape(width)["ROWS"]
    shares = blocks = column_blocks(n, rows)  # so few rows that a share is a block
    columns, merges = column_blocks(width, 64), column_blocks(width, norm.merge_shape()["BLOCK"])
    seen = traffic()
    keep = torch.randint(2, x.shape, dtype=torch.uint8) if drops else None
    y, stats = norm.batch_norm(x, weight, bias, keep, 1e-5, None, relu=True, scale=2.0)
    assert seen.of(x) == 2 * 4 * n * width
    assert seen.of(y) == 4 * n * width
    stated = (12 + drops) * n * width + 16 * shares * width + 12 * width + 16 * width * blocks
    assert seen.total() == stated + 8 * (shares * columns + merges + blocks * columns)
    seen = traffic()
    dx, _ = norm.batch_norm_grad(grad, x, stats, weight, bias, keep, None, relu=True, scale=2.0)
    assert seen.of(x) == seen.of(grad) == 2 * 4 * n * width
    assert seen.of(dx) == 4 * n * width
    stated = (20 + 2 * drops) * n * width + (8 + 16) * shares * width + 24 * width * blocks
    assert seen.total() == stated + 8 * (shares + blocks) * columns
