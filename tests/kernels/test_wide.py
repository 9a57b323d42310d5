"""Layers too wide or too deep for one kernel: products by the BLAS, hops by the kernels."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from grant_fast import ops
from grant_fast.kernels import wide
from grant_fast.kernels.csr_layer import column_chunks
from grant_fast.ops import dispatch
from grant_fast.ops.tiled import kernel_graphs
from tests.cases import dense_graphs
from tests.kernels.checks import check_layer, check_repeats, with_repeated_edges


@pytest.mark.parametrize(
    ("order", "h_in", "h_out"),
    [
        (1, 65, 3),
        (1, 9, 128),
        (2, 65, 65),
        (3, 128, 9),
        (4, 9, 128),
        (2, 5, 300),
        (5, 80, 70),
        (7, 6, 4),
    ],
    ids=str,
)
def test_every_order_and_width(order, h_in, h_out):
    graphs = dense_graphs((0, 1, 15, 16, 17, 40, 65, 0), h_in)
    check_layer(graphs, order, h_out, relu=order % 2 == 0, tolerance=8e-6)


def test_frozen_weights_of_a_layer_without_hops():
    """The gradient of X alone, which takes a way of its own."""
    batch, weight = dense_graphs((3, 40, 65), 9).batch(slice(None)), torch.randn(1, 9, 70)
    grads = []
    for backend in ("triton", "torch"):
        x = batch.x.clone().requires_grad_()
        y = ops.flex_conv(x, weight, None, batch.adjacency(True), backend=backend)
        grads.append(torch.autograd.grad(y.square().sum(), x)[0])
    torch.testing.assert_close(*grads, rtol=1e-5, atol=1e-4)


def test_the_widest_layer_by_both_rules():
    check_layer(dense_graphs((5, 40), 512), 2, 20, tolerance=8e-6)
    check_layer(dense_graphs((5, 40), 20), 2, 512, tolerance=8e-6)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("symmetric", [True, False])
def test_every_kind_of_layer(normalize, symmetric):
    for h_out in (66, 90):
        check_layer(dense_graphs((3, 20, 40), 70, symmetric), 3, h_out, normalize, relu=True)


@pytest.mark.parametrize("sizes", [(0, 0), (193,), (130, 192, 1), (256,)], ids=str)
def test_no_nodes_and_graphs_of_three_and_of_four_words_a_node(sizes):
    check_layer(dense_graphs(sizes, 70), 3, 5, tolerance=8e-6)


def test_a_batch_with_large_and_repeating_graphs_takes_both_paths():
    both = with_repeated_edges(dense_graphs((20, 260, 40, 3), 70))
    assert both.batch(slice(None)).tiles.rest.tolist() == [1, 4]
    for h_out in (5, 80):
        check_layer(both, 3, h_out, relu=True, positions=[4, 2, 1, 0, 3], tolerance=8e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.03), (torch.float16, 0.004)])
def test_half_precision(dtype, tolerance):
    for widths in ((70, 9), (9, 70)):
        graphs = dense_graphs((3, 20, 40), widths[0])
        check_layer(graphs, 3, widths[1], dtype=dtype, tolerance=tolerance)


@pytest.mark.parametrize("width", [1, 16, 64, 65, 128, 300, 512])
def test_a_workspace_of_all_orders_is_about_one_copy(width):
    for order in range(1, 9):
        chunks = column_chunks(width, order)
        columns = [column for chunk in chunks for column in range(chunk.start, chunk.stop)]
        assert columns == list(range(width))
        widest = max(chunk.stop - chunk.start for chunk in chunks)
        assert widest <= max(16, width / order)


class Watch(TorchDispatchMode):
    """Notes the rows-by-columns tensors that are made."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows, self.columns = rows, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.shape[:1] == (self.rows,) and not out._is_view():
            self.columns.append(out.numel() // self.rows)
        return out


@pytest.mark.parametrize("widths", [(128, 128), (128, 144), (200, 128), (128, 300)], ids=str)
@pytest.mark.parametrize("order", [2, 5])
def test_neither_pass_makes_anything_larger_than_a_copy(widths, order):
    graphs = dense_graphs((30, 20, 41), widths[0])
    tables = kernel_graphs(graphs.batch(slice(None)), normalize=True)
    x, weight = graphs.x, torch.randn(order, *widths)
    with Watch(graphs.num_nodes) as watch:
        out = wide.forward(x, weight, None, tables, relu=True)
        wide.backward(out, x, weight, tables, None, needs_dx=True, needs_dw=True)
    assert len(watch.columns) > 2 * order
    assert max(watch.columns) <= max(widths)


def test_two_runs_are_bit_equal():
    check_repeats(dense_graphs((5, 40, 20), 80), 3, 70)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(0, 70), min_size=1, max_size=4),
    widths=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    order=st.integers(1, 5),
    normalize=st.booleans(),
    relu=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_layer_on_any_graphs(sizes, widths, order, normalize, relu, seed):
    torch.manual_seed(seed)
    graphs = dense_graphs(tuple(sizes), widths[0], seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "MAX_WIDTH", 0)  # narrow layers, too
        check_layer(graphs, order, widths[1], normalize, relu, tolerance=8e-6)
