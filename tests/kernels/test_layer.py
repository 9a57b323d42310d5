"""The kernels against the definition in float64, in Triton's interpreter."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from grant_fast import PackedGraphs, ops, reference
from grant_fast.kernels import layer
from tests.cases import dense_graphs, to_dense

SIZES = (0, 1, 2, 15, 16, 17, 0, 31, 32, 33, 63, 64, 65, 128, 0)
SMALL_SIZES = (0, 1, 15, 16, 17, 2, 32, 33, 0, 0)


def check_layer(
    graphs: PackedGraphs,
    order: int,
    h_out: int,
    normalize: bool = True,
    relu: bool = False,
    positions: list[int] | slice = slice(None),
    dtype: torch.dtype = torch.float32,
    tolerance: float = 4e-6,
) -> None:
    """Y, dX, dW and db of the kernels equal those of the definition."""
    batch = graphs.batch(positions)
    adjacency = batch.adjacency(normalize)
    weight = (torch.randn(order, graphs.num_features, h_out) / (order * h_out) ** 0.5).to(dtype)
    inputs = [batch.x.to(dtype), weight, torch.randn(h_out).to(dtype)]
    exact = [t.double().requires_grad_() for t in inputs]
    mine = [t.clone().requires_grad_() for t in inputs]
    rowptr, col, value = adjacency.csr
    dense = to_dense(rowptr, col, value, batch.num_nodes).double()
    want = reference.dense_flex_conv(*exact, dense)
    want = want.relu() if relu else want
    got = ops.flex_conv(*mine, adjacency, relu=relu, backend="triton")
    close(got, want, tolerance)
    # An expanded, strided gradient: what a sum over a transposed output sends back.
    grad = torch.randn(h_out, 1).to(dtype).expand(h_out, batch.num_nodes).T
    if relu:  # where rounding decides on which side of 0 a value falls, no gradient can agree
        grad = grad * (want.detach().abs() > 1e-3 * (dtype == torch.float32))
        grad = grad if dtype == torch.float32 else grad * (got.detach() > 0).eq(want.detach() > 0)
    got_grads = torch.autograd.grad(got, mine, grad)
    want_grads = torch.autograd.grad(want, exact, grad.double())
    for g, w in zip(got_grads, want_grads, strict=True):
        close(g, w, tolerance)


def close(got: Tensor, want: Tensor, tolerance: float) -> None:
    assert got.shape == want.shape
    scale = want.abs().max().item() if want.numel() else 1.0
    torch.testing.assert_close(got.double(), want, rtol=0, atol=tolerance * max(scale, 1e-3))


@pytest.mark.parametrize("width", [1, 3, 9, 16, 27, 64])
def test_every_graph_size_at_every_width(width):
    check_layer(dense_graphs(SIZES, width), order=2, h_out=width, relu=True)


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("widths", [(1, 64), (64, 3), (9, 27)], ids=str)
def test_every_order_between_unequal_widths(order, widths):
    check_layer(dense_graphs(SMALL_SIZES, widths[0]), order, widths[1])


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("relu", [True, False])
def test_every_kind_of_layer(normalize, symmetric, relu):
    check_layer(dense_graphs(SMALL_SIZES, 5, symmetric), 3, 7, normalize, relu)


@pytest.mark.parametrize("sizes", [(150, 192, 1), (129, 5)], ids=str)
def test_graphs_of_three_words_a_node(sizes):
    check_layer(dense_graphs(sizes, 9), 3, 5)


def test_some_graphs_in_any_order_some_twice():
    graphs = dense_graphs(SIZES, 6)
    check_layer(graphs, 3, 4, positions=[8, 3, 12, 3, 0, 9, 14])


@pytest.mark.parametrize("sizes", [(0, 0), (0, 40, 0)], ids=str)
def test_empty_graphs_and_batches(sizes):
    check_layer(dense_graphs(sizes, 3), 2, 4)


def test_a_batch_with_large_and_repeating_graphs_takes_both_paths():
    graphs = dense_graphs((20, 200, 40, 3, 250), 4)
    repeating = torch.tensor([[0, 0, 1], [1, 1, 0]])
    other = PackedGraphs.from_arrays(torch.randn(2, 4), repeating, [0, 0], num_graphs=1)
    both = PackedGraphs.concat([graphs, other])
    assert both.batch(slice(None)).tiles.rest.tolist() == [1, 4, 5]
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
    graphs = dense_graphs(SIZES, 9)
    adjacency = graphs.batch(slice(None)).adjacency(True)
    weight = torch.randn(3, 9, 5)

    def run() -> tuple[Tensor, ...]:
        x, w = graphs.x.clone().requires_grad_(), weight.clone().requires_grad_()
        out = ops.flex_conv(x, w, None, adjacency, relu=True, backend="triton")
        return out, *torch.autograd.grad(out.square().sum(), (x, w))

    for first, second in zip(run(), run(), strict=True):
        assert torch.equal(first, second)


def test_data_features_are_read_in_place_by_graph_id():
    graphs = dense_graphs(SIZES, 5)
    batch = graphs.batch([12, 3, 9, 4])
    scale, (bits, _), tiles = graphs.scale, graphs.bits, batch.tiles
    tables = layer.Graphs(scale, graphs.ptr, bits, *tiles[:-1])
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
        layer.weight_grad(graphs.x, dy, None, 3, tables, dataset_x=True),
        layer.weight_grad(batch.x, dy, None, 3, tables, dataset_x=False),
        strict=True,
    ):
        assert torch.equal(g, w)


def test_programs_that_take_several_tiles_or_graphs_add_up(monkeypatch):
    monkeypatch.setattr(layer, "PROGRAMS", 2)
    check_layer(dense_graphs((20, 30, 25, 17, 40, 33, 70, 64, 31), 6), 3, 5, relu=True)


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


def untouched(folder: Path, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor in a sparse file: of any size, and only what is written takes space."""
    path, size = folder / str(len(list(folder.iterdir()))), math.prod(shape)
    return torch.from_file(str(path), shared=True, size=size, dtype=dtype).view(shape)


@pytest.mark.parametrize("size", [20, 40])
@pytest.mark.parametrize("dataset_x", [True, False])
def test_offsets_beyond_31_bits(size, dataset_x, tmp_path):
    far = 1 << 25  # times 64 columns is 2^31
    graphs = dense_graphs((size,), 64)
    near = layer.Graphs(
        graphs.scale, graphs.ptr, graphs.bits.bits, *graphs.batch(slice(None)).tiles[:-1]
    )
    scale = untouched(tmp_path, far + size)
    bits = untouched(tmp_path, 2, far + size, dtype=torch.int64)
    x, dy, y, dx = (untouched(tmp_path, far + size, 64) for _ in range(4))
    scale[far:], bits[: near.bits.shape[0], far:], x[far:] = graphs.scale, near.bits, graphs.x
    rows = {"row": near.row + far, "large_row": near.large_row + far}
    there = near._replace(scale=scale, bits=bits, ptr=near.ptr + far, **rows)
    weight = torch.randn(2, 64, 64)
    want = layer.forward(graphs.x, weight, None, near, graphs.x.clone(), relu=True, dataset_x=False)
    layer.forward(x, weight, None, there, y, relu=True, dataset_x=dataset_x)
    assert torch.equal(y[far:], want)
    dy[far:] = torch.randn(size, 64)
    want = layer.input_grad(dy[far:], y[far:], weight, near, graphs.x.clone())
    assert torch.equal(layer.input_grad(dy, y, weight, there, dx)[far:], want)
    got = layer.weight_grad(x, dy, y, 2, there, dataset_x=dataset_x)
    want = layer.weight_grad(graphs.x, dy[far:], y[far:], 2, near, dataset_x=False)
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])
