"""Weights in parts are the weights."""

from collections import Counter

import pytest
import torch

from grant_fast.kernels import layer, weights
from grant_fast.ops.tiled import kernel_graphs
from tests.cases import dense_graphs


def laid_out(out, order, h_in, h_out, shape, parts):
    """[parts, order, inputs, columns] of what `in_parts` gave."""
    columns, _, inputs = weights.blocks(order, h_in, h_out, shape)
    bo, bi = shape["BO"], shape["BI"]
    # An entry of a lane: 8 rows further, 8 columns further, one column further.
    lanes = out.view(columns, order, inputs, parts, bi // 16, bo // 16, 8, 4, 2, 2, 2).double()
    #         part order inputs:         8  4  1   columns:     8  1
    lanes = lanes.permute(3, 1, 2, 4, 8, 7, 10, 0, 5, 9, 6)
    return lanes.reshape(parts, order, inputs * bi, columns * bo)


@pytest.mark.parametrize(("h_in", "h_out"), [(1, 1), (16, 32), (27, 18), (33, 64)])
@pytest.mark.parametrize("order", [2, 5])
def test_weights_in_parts_are_the_weights(order, h_in, h_out):
    weight, shape = torch.randn(order, h_in, h_out), layer.columns_shape(h_in, h_out)
    out = weights.in_parts(weight, shape, 3, lanes=True)[0]
    parts = laid_out(out, order, h_in, h_out, shape, 3)
    assert torch.equal(parts.sum(0)[:, :h_in, :h_out].float(), weight)
    assert parts[:, :, h_in:].eq(0).all() and parts[:, :, :, h_out:].eq(0).all()
    assert (parts[0].abs() >= parts[1].abs()).all() and (parts[1].abs() >= parts[2].abs()).all()


@pytest.mark.parametrize(("dtype", "parts"), [(torch.bfloat16, 1), (torch.float16, 2)])
def test_so_are_those_of_half_precision(dtype, parts):
    weight, shape = torch.randn(2, 9, 12).to(dtype), layer.columns_shape(9, 12)
    out = weights.in_parts(weight, shape, parts, lanes=True)[0]
    whole = laid_out(out, 2, 9, 12, shape, parts).sum(0)
    assert torch.equal(whole[:, :9, :12], weight.double())


def test_not_by_lanes_they_lie_by_rows():
    weight, shape = torch.randn(2, 20, 40), layer.columns_shape(20, 40)
    by_lanes = laid_out(weights.in_parts(weight, shape, 3, lanes=True)[0], 2, 20, 40, shape, 3)
    by_rows = weights.in_parts(weight, shape, 3, rows=True)[1].view(2, 2, 1, 3, 32, 32)
    assert torch.equal(by_rows.double().permute(3, 1, 2, 4, 0, 5).reshape(3, 2, 32, 64), by_lanes)


@pytest.mark.parametrize(("h_in", "h_out"), [(9, 27), (40, 20)])
def test_transposed_weights_are_read_where_they_lie(h_in, h_out):
    weight, shape = torch.randn(2, h_out, h_in), layer.columns_shape(h_in, h_out)
    got = weights.in_parts(weight, shape, 3, transpose=True, lanes=True, rows=True)
    want = weights.in_parts(weight.mT.contiguous(), shape, 3, lanes=True, rows=True)
    assert all(map(torch.equal, got, want))


def test_kernels_of_the_same_blocks_share_a_launch(monkeypatch):
    weight, launched, launch = torch.randn(2, 40, 40), [], weights.launch
    monkeypatch.setattr(
        weights, "launch", lambda *args, **kwargs: (launched.append(1), launch(*args, **kwargs))
    )
    large, small = {"BI": 32, "BO": 32}, {"BI": 32, "BO": 16}
    takers = [(large, True), (small, False), (large | {"PLANES": 1}, False), (small, False)]
    found = weights.in_parts_for(takers, weight, 3, transpose=False)
    assert len(launched) == 2 and found[1] is found[3]
    for (shape, lanes), got in zip(takers, found, strict=True):
        want = weights.in_parts(weight, shape, 3, lanes=lanes, rows=not lanes)[not lanes]
        assert torch.equal(got, want)
    assert weights.in_parts_for(takers, weight, 0, transpose=False) == [None] * 4


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of NumPy, interpreting
def test_what_is_not_finite_makes_nan_of_a_weight():
    weight = torch.tensor([[[float("inf"), float("nan"), 3e38, 1e-30]]])
    shape = layer.columns_shape(1, 4)
    out = weights.in_parts(weight, shape, 3, lanes=True)[0]
    whole = laid_out(out, 1, 1, 4, shape, 3).sum(0)[0, 0]
    assert whole[:2].isnan().all()
    assert torch.equal(whole[2:4].float(), weight[0, 0, 2:])


def test_those_of_a_place_go_there():
    weight, shape = torch.randn(3, 20, 40), layer.columns_shape(20, 40)
    size = weights.size(3, 20, 40, shape, 3)
    out = torch.zeros(2 * size, dtype=torch.bfloat16)
    weights.in_parts(weight, shape, 3, lanes=out[size:])
    assert torch.equal(out[size:], weights.in_parts(weight, shape, 3, lanes=True)[0])
    assert out[:size].eq(0).all()


@pytest.mark.emulated
@pytest.mark.parametrize(("h_in", "h_out"), [(9, 27), (27, 18), (64, 64)])
def test_weights_reach_the_products_of_tiles_through_no_shared_memory(h_in, h_out, monkeypatch):
    from tests.emulator.machine import Machine
    from tests.emulator.profile import Profile

    graphs = dense_graphs((25, 30, 17), h_in)
    packed = kernel_graphs(graphs.batch(slice(None)), normalize=True)
    weight, out = torch.randn(3, h_in, h_out), torch.empty(graphs.num_nodes, h_out)
    monkeypatch.setattr(Machine, "profile", profile := Profile())
    layer.forward(graphs.x, weight, None, packed, out, relu=False, dataset_x=False)
    lines = profile.lines["flex_conv_tiles"]
    here = sum((lines[line] for line in lines if line.startswith("weights.py")), Counter())
    assert here["sectors"] > 0 and here["passes"] == 0
