"""Norms and dropout between two layers, which are never stored."""

import copy

import pytest
import torch
from torch import nn

from grant_fast import FlexGCN, native
from tests.cases import Case
from tests.native.checks import close, identity_network, in_double, nodes

pytestmark = pytest.mark.skipif(native.build() is None, reason="the kernels were not compiled")


def test_a_large_mean_does_not_drown_the_variance(build):
    batch, norm = nodes(5000), nn.BatchNorm1d(3)
    y = torch.randn(5000, 3)
    out = native.train(identity_network(batch, 3, norm=norm, bias=torch.full((3,), 1000.0)), y)
    expected = nn.functional.batch_norm((y + 1000).double(), None, None, training=True).relu()
    torch.testing.assert_close(out.detach().double(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("size", [1e4, 1e6, 1e8, 1e10])
def test_rounding_leaves_equal_values_no_variance_below_zero(build, size):
    norm, y = nn.BatchNorm1d(64, momentum=1.0), size * (1 + torch.rand(64)).repeat(999, 1)
    out = native.train(identity_network(nodes(999), 64, norm=norm), y)
    assert out.isfinite().all() and (norm.running_var >= 0).all()


@pytest.mark.parametrize("size", [1e18, 1e20, 1e30])
@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.LayerNorm])
def test_squares_that_float_has_no_room_for(build, kind, size):
    """Beside them a batch's other columns, or rows, are as usual; also where that was learned."""
    net = identity_network(nodes(300), 20, norm=kind(20))
    y, norm = torch.randn(300, 20), net.layers[0].norm
    y[[3, 250], 7] *= size
    exact = copy.deepcopy(norm).double()
    out, want = native.train(net, y), exact(y.double()).relu()
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)
    if kind is nn.BatchNorm1d:
        torch.testing.assert_close(norm.running_var, exact.running_var.float())
    z = torch.randn(300, 20)
    torch.testing.assert_close(native.evaluate(net, z), norm.eval()(z).relu())


def test_a_batch_norm_that_forgets(build):
    """With a momentum of 1 it keeps the last batch's statistics, however small beside its own."""
    norm = nn.BatchNorm1d(3, momentum=1.0)
    exact, y = copy.deepcopy(norm).double(), 1e-4 * torch.randn(64, 3)
    native.train(identity_network(nodes(64), 3, norm=norm), y)
    exact(y.double())
    torch.testing.assert_close(norm.running_var, exact.running_var.float(), rtol=1e-5, atol=0)
    torch.testing.assert_close(norm.running_mean, exact.running_mean.float(), rtol=1e-5, atol=1e-11)


def test_running_statistics_of_what_is_no_number(build):
    norm, y = nn.BatchNorm1d(3), torch.randn(64, 3)
    y[5, 1] = torch.nan  # the product before the norm spreads it over the columns
    native.train(identity_network(nodes(64), 3, norm=norm), y)
    assert norm.running_mean.isnan().all() and norm.running_var.isnan().all()


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.LayerNorm])
def test_eps(build, kind):
    norm, y = kind(20, eps=0.5), torch.randn(64, 20)
    exact, net = copy.deepcopy(norm).double(), identity_network(nodes(64), 20, norm=norm)
    close(native.train(net, y), exact(y.double()).relu())
    close(native.evaluate(net, y), exact.eval()(y.double()).relu())


@pytest.mark.parametrize("eps", [1e-30, 1e-50, 1e-60])
def test_an_eps_that_float_has_no_room_for(build, eps):
    norm, y = nn.BatchNorm1d(20, eps=eps), torch.randn(64, 20)
    y[:, 3] = 1.0
    net = identity_network(nodes(64), 20, norm=norm)
    close(native.train(net, y), copy.deepcopy(norm).double()(y.double()).relu())


@pytest.mark.parametrize("sizes", [(70, 0, 0), (70, 0), (0, 70, 64, 0)])
def test_a_last_tile_of_empty_graphs_adds_nothing_to_the_moments(build, sizes):
    case, model = Case(sizes=sizes), FlexGCN(5, [8], 2, [2, 2], norm="batch_norm")
    exact = in_double(model)
    close(model(case.graphs.batch(slice(None))), exact(case.double().batch(slice(None))))


@pytest.mark.parametrize("p", [0.0, 0.27, 0.9])
def test_dropout(build, p):
    """The share that falls, the scale of the rest, the same mask in both directions."""
    batch, y = nodes(20_000), torch.ones(20_000, 20, requires_grad=True)
    out = native.train(identity_network(batch, 20, p), y)
    kept = out.detach() != 0
    share = kept.double().mean()
    assert abs(share - (1 - p)) < 5 * (p * (1 - p) / kept.numel()) ** 0.5 + 1e-12
    torch.testing.assert_close(out[kept], torch.full_like(out[kept], 1 / (1 - p)))
    (grad,) = torch.autograd.grad(out.sum(), y)
    assert torch.equal(grad, out)
    if p:  # columns, rows, neighbours and two calls are independent
        bits = kept.double() - (1 - p)
        sigma = p * (1 - p)
        pairs = [(bits[step:], bits[:-step]) for step in (1, 2, 3, 16, 64)]
        pairs += [(bits[:, step:], bits[:, :-step]) for step in range(1, 20)]
        second = native.train(identity_network(batch, 20, p), y).detach() != 0
        for a, b in (*pairs, (bits, second.double() - (1 - p))):
            assert abs((a * b).mean()) < 5 * sigma / a.numel() ** 0.5
        covariance = bits.T @ bits / len(bits)
        covariance.fill_diagonal_(0.0)
        assert (covariance.abs() < 6 * sigma / 20_000**0.5).all()
        assert (bits.mean(0).abs() < 6 * (sigma / 20_000) ** 0.5).all()


def test_dropout_repeats_with_torchs_seed(build):
    batch, y = nodes(300), torch.randn(300, 30)
    runs = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        runs.append(native.train(identity_network(batch, 30, 0.5), y))
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])
