"""Weights in parts are the weights."""

import pytest
import torch

from grant_fast.kernels import layer, weights


@pytest.mark.parametrize(("h_in", "h_out"), [(1, 1), (16, 32), (27, 18), (33, 64)])
@pytest.mark.parametrize("order", [2, 5])
def test_weights_in_parts_are_the_weights(order, h_in, h_out):
    weight, shape = torch.randn(order, h_in, h_out), layer.columns_shape(h_in, h_out)
    out = weights.in_parts(weight, shape, 3)
    columns, _, inputs = blocks = weights.blocks(order, h_in, h_out, shape)
    parts = out.view(*blocks, 3, shape["BO"], shape["BI"]).double()
    whole = parts.sum(3).permute(1, 2, 4, 0, 3)
    whole = whole.reshape(order, inputs * shape["BI"], columns * shape["BO"])
    assert torch.equal(whole[:, :h_in, :h_out].float(), weight)
    assert whole[:, h_in:].eq(0).all() and whole[:, :, h_out:].eq(0).all()
    assert (parts[:, :, :, 0].abs() >= parts[:, :, :, 1].abs()).all()


@pytest.mark.parametrize(("dtype", "parts"), [(torch.bfloat16, 1), (torch.float16, 2)])
def test_so_are_those_of_half_precision(dtype, parts):
    weight, shape = torch.randn(2, 9, 12).to(dtype), layer.columns_shape(9, 12)
    out = weights.in_parts(weight, shape, parts)
    whole = out.view(2, parts, 16, 16).double().sum(1).transpose(1, 2)
    assert torch.equal(whole[:, :9, :12], weight.double())


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of NumPy, interpreting
def test_what_is_not_finite_makes_nan_of_a_weight():
    weight = torch.tensor([[[float("inf"), float("nan"), 3e38, 1e-30]]])
    out = weights.in_parts(weight, {"BI": 16, "BO": 16}, 3).view(3, 16, 16)[:, :4, 0].double()
    assert out.sum(0)[:2].isnan().all()
    assert torch.equal(out.sum(0)[2:].float(), weight[0, 0, 2:])


def test_those_of_a_place_go_there():
    weight, shape = torch.randn(3, 20, 40), layer.columns_shape(20, 40)
    size = weights.size(3, 20, 40, shape, 3)
    out = torch.zeros(2 * size, dtype=torch.bfloat16)
    weights.in_parts(weight, shape, 3, out[size:])
    assert torch.equal(out[size:], weights.in_parts(weight, shape, 3))
    assert out[:size].eq(0).all()
