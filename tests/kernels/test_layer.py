"""The kernels against the definition in float64, in Triton's interpreter."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from grant_fast import ops
from grant_fast.kernels import layer
from grant_fast.ops.tiled import kernel_graphs
from tests.cases import dense_graphs
from tests.kernels.checks import (
    SIZES,
    SMALL_SIZES,
    check_far_offsets,
    check_layer,
    check_long_sum,
    check_repeats,
    input_grad,
    weight_grad,
    with_repeated_edges,
)


@pytest.mark.parametrize("width", [1, 3, 9, 16, 27, 64])
def test_every_graph_size_at_every_width(width):
    check_layer(dense_graphs(SIZES, width), order=2, h_out=width, relu=True)


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("widths", [(1, 64), (64, 3), (9, 27)], ids=str)
def test_every_order_between_unequal_widths(order, widths):
    check_layer(dense_graphs(SMALL_SIZES, widths[0]), order, widths[1])


@pytest.mark.parametrize("order", [1, 3, 4, 5])
def test_every_graph_size_at_every_order(order):
    check_layer(dense_graphs(SIZES, 3), order, 9)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("relu", [True, False])
def test_every_kind_of_layer(normalize, symmetric, relu):
    check_layer(dense_graphs(SMALL_SIZES, 5, symmetric), 3, 7, normalize, relu)


@pytest.mark.parametrize("sizes", [(150, 192, 1), (129, 5), (193, 256, 2)], ids=str)
def test_graphs_of_three_and_of_four_words_a_node(sizes):
    check_layer(dense_graphs(sizes, 9), 3, 5)


def test_some_graphs_in_any_order_some_twice():
    graphs = dense_graphs(SIZES, 6)
    check_layer(graphs, 3, 4, positions=[8, 3, 12, 3, 0, 9, 14])


@pytest.mark.parametrize("sizes", [(0, 0), (0, 40, 0)], ids=str)
def test_empty_graphs_and_batches(sizes):
    check_layer(dense_graphs(sizes, 3), 2, 4)


def test_a_batch_with_large_and_repeating_graphs_takes_both_paths():
    both = with_repeated_edges(dense_graphs((20, 200, 40, 3, 300), 4))
    assert both.batch(slice(None)).tiles.rest.tolist() == [4, 5]
    check_layer(both, 3, 5, relu=True, positions=[5, 2, 1, 0, 4, 3])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.02), (torch.float16, 0.003)])
def test_half_precision_is_computed_in_float32_and_rounded_once(dtype, tolerance):
    check_layer(dense_graphs(SMALL_SIZES, 9), 3, 7, dtype=dtype, tolerance=tolerance)


@pytest.mark.parametrize("precision", ["tf32", "tf32x3"])
def test_the_split_of_the_hops_loses_nothing(precision, monkeypatch):
    # The interpreter multiplies in float32 whatever it is told, so what is left out must show.
    monkeypatch.setattr(layer, "precision", lambda dtype, device: precision)
    tolerance = {"tf32": 2e-3, "tf32x3": 4e-6}[precision]
    check_layer(dense_graphs(SMALL_SIZES, 9), 4, 7, tolerance=tolerance)
    if precision == "tf32":
        with pytest.raises(AssertionError):
            check_layer(dense_graphs(SMALL_SIZES, 9), 4, 7)


def test_two_runs_are_bit_equal():
    check_repeats(dense_graphs(SIZES, 9), 3, 5)


@pytest.mark.parametrize("relu", [True, False])
def test_a_bias_may_learn_alone(relu):
    batch, weight = dense_graphs((5, 3), 4).batch(slice(None)), torch.randn(2, 4, 3)
    bias, grads = torch.randn(3, requires_grad=True), []
    for backend in ("triton", "torch"):
        given = batch.x, weight, bias, batch.adjacency(True)
        out = ops.flex_conv(*given, relu=relu, backend=backend)
        grads += torch.autograd.grad(out.sum(), bias)
    torch.testing.assert_close(*grads)


def test_data_features_are_read_in_place_by_graph_id():
    graphs = dense_graphs(SIZES, 5)
    batch = graphs.batch([12, 3, 9, 4])
    tables = kernel_graphs(batch, normalize=True)
    weight, bias = torch.randn(3, 5, 4), torch.randn(4)
    want = layer.forward(
        batch.x,
        weight,
        bias,
        tables,
        batch.x.new_empty(batch.num_nodes, 4),
        relu=False,
        dataset_x=False,
    )
    out = batch.x.new_empty(batch.num_nodes, 4)
    got = layer.forward(graphs.x, weight, bias, tables, out, relu=False, dataset_x=True)
    assert torch.equal(got, want)
    dy = torch.randn_like(want)
    for g, w in zip(
        weight_grad(graphs.x, dy, None, 3, tables, dataset_x=True),
        weight_grad(batch.x, dy, None, 3, tables, dataset_x=False),
        strict=True,
    ):
        assert torch.equal(g, w)


def test_programs_that_take_several_tiles_or_graphs_add_up(monkeypatch):
    monkeypatch.setattr(layer, "PROGRAMS", 2)
    check_layer(dense_graphs((20, 30, 25, 17, 40, 33, 70, 64, 31), 6), 3, 5, relu=True)


def test_a_sum_over_many_tiles_is_as_exact_as_any(monkeypatch):
    monkeypatch.setattr(layer, "PROGRAMS", 1)
    check_long_sum(60)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(0, 70), min_size=1, max_size=5),
    widths=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    order=st.integers(1, 4),
    normalize=st.booleans(),
    relu=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_layer_on_any_graphs(sizes, widths, order, normalize, relu, seed):
    torch.manual_seed(seed)
    graphs = dense_graphs(tuple(sizes), widths[0], seed=seed)
    check_layer(graphs, order, widths[1], normalize, relu)


@pytest.mark.parametrize("size", [20, 40])
@pytest.mark.parametrize("dataset_x", [True, False])
def test_offsets_beyond_31_bits(size, dataset_x, untouched):
    check_far_offsets(size, dataset_x, untouched)


def test_planes_of_bits_beyond_31_bits(untouched):
    far, size = 1 << 30, 70  # the second plane begins after this many nodes and these
    graphs = dense_graphs((size,), 2)
    near = kernel_graphs(graphs.batch(slice(None)), normalize=True)
    bits = untouched(torch.int64, 2, far + size)
    scale, x = untouched(torch.float32, far + size), untouched(torch.float32, far + size, 2)
    bits[:, far:], scale[far:], x[far:] = near.bits, graphs.scale, graphs.x
    there = near._replace(scale=scale, bits=bits, ptr=near.ptr + far)
    weight, dy = torch.randn(3, 2, 2), torch.randn(size, 2)

    def run(x: Tensor, tables: layer.Graphs, dataset_x: bool) -> tuple[Tensor, ...]:
        y = layer.forward(
            x, weight, None, tables, torch.empty(size, 2), relu=False, dataset_x=dataset_x
        )
        dx = input_grad(dy, None, weight, tables, torch.empty(size, 2))
        return y, dx, *weight_grad(x, dy, None, 3, tables, dataset_x=dataset_x)

    for got, want in zip(run(x, there, True), run(graphs.x, near, False), strict=True):
        assert torch.equal(got, want)
