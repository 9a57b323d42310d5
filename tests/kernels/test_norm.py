"""Batch normalisation in training by the kernels, against PyTorch's in float64."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from grant_fast import FlexGCN
from grant_fast.kernels import norm
from grant_fast.nn import BatchNorm, modules
from grant_fast.ops.normed import batch_norm
from tests.cases import dense_graphs
from tests.kernels.checks import close


def check(
    x: Tensor,
    relu: bool = True,
    tolerance: float = 4e-6,
    device: str = "cpu",
    eps: float = 1e-5,
    dropout: float = 0.0,
) -> None:
    """Y, dX, dw, db and the variance equal those of the definition, twice bit for bit."""
    width = x.shape[1]
    leaves = [x.to(device), torch.rand(width, device=device) + 0.5, torch.randn(width).to(device)]
    mine = [t.clone().requires_grad_() for t in leaves]
    exact = [t.cpu().double().requires_grad_() for t in leaves]
    want = F.batch_norm(exact[0], None, None, *exact[1:], training=True, eps=eps)
    # Where rounding decides on which side of 0 a value falls, no gradient can agree.
    grad = (torch.randn(x.shape) * (want.detach().abs() > 1e-2)).to(x.dtype)
    want = want.relu() if relu else want
    results = []
    for _ in range(2):
        torch.manual_seed(1)
        got, stats = batch_norm(*mine, eps, relu, None, dropout)
        results.append([got.detach(), stats, *torch.autograd.grad(got, mine, grad.to(device))])
    assert all(map(torch.equal, *results))
    y, stats, *grads = results[0]
    if dropout:
        torch.manual_seed(1)
        keep = torch.empty(x.shape, dtype=torch.uint8, device=device).bernoulli_(1 - dropout)
        assert y[keep == 0].eq(0).all()
        want = want * keep.cpu() / (1 - dropout)
    # The gradient of X is what its terms leave of each other.
    rstd = (exact[0].detach().var(0, correction=0) + eps).rsqrt()
    terms = (grad.double() * exact[1].detach() * rstd).abs().max().item()
    assert y.dtype == x.dtype and not stats.requires_grad
    close(y, want.detach(), tolerance)
    close(stats[0], exact[0].detach().mean(0), tolerance)
    close(stats[2], exact[0].detach().var(0), 10 * tolerance)
    dx, *others = torch.autograd.grad(want, exact, grad.double())
    assert (grads[0].cpu().double() - dx).abs().max() <= 2 * tolerance * terms
    for got, right in zip(grads[1:], others, strict=True):
        close(got, right, 4 * tolerance)


@pytest.mark.parametrize(
    ("rows", "width"),
    [
        *((rows, width) for rows in (2, 129) for width in (1, 3, 9, 16, 27, 64, 65)),
        *((rows, width) for rows in (17, 128) for width in (1, 27)),
        (17, 300),
    ],
)
def test_every_width(rows, width):
    check(torch.randn(rows, width) + torch.randn(width), relu=rows % 2 == 0, eps=1e-3)


@pytest.mark.parametrize("rows", [4 * 128, 4 * 128 + 1, 4 * 256 - 130])
def test_shares_of_several_blocks_that_are_and_are_not_full(rows, monkeypatch):
    monkeypatch.setattr(norm, "SHARES", 4)
    check(torch.randn(rows, 3))


def test_a_large_mean_costs_no_more_than_its_own_rounding():
    check(torch.randn(400, 5) + 1000, tolerance=1e-4)
    check(1e-3 * torch.randn(400, 5) + 1, tolerance=1e-4)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.01), (torch.float16, 1e-3)])
def test_half_precision_is_summed_in_float32(dtype, tolerance):
    check(torch.randn(300, 27).to(dtype), tolerance=tolerance)


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize(("rows", "width"), [(300, 27), (40, 70)])
def test_what_dropout_leaves_is_enlarged(rows, width, relu):
    check(torch.randn(rows, width), relu, dropout=0.3)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    rows=st.integers(2, 200),
    width=st.integers(1, 70),
    relu=st.booleans(),
    scale=st.sampled_from([1e-2, 1.0, 1e3]),
    seed=st.integers(0, 1000),
)
def test_any_batch(rows, width, relu, scale, seed):
    torch.manual_seed(seed)
    check(scale * torch.randn(rows, width), relu)


def test_a_column_of_one_value_is_the_bias():
    x = torch.full((40, 3), 2.5).requires_grad_()
    bias = torch.tensor([1.0, -1.0, 0.0])
    y, stats = batch_norm(x, torch.ones(3), bias, 1e-5, False)
    assert torch.equal(y, bias.expand(40, 3)) and torch.equal(stats[2], torch.zeros(3))
    (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert torch.equal(dx, torch.zeros_like(dx))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_spoils_its_column_alone(bad):
    x = torch.randn(300, 4)
    x[7, 2] = bad
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    want, grad = F.batch_norm(theirs, None, None, training=True).relu(), torch.randn(300, 4)
    with np.errstate(all="ignore"):
        got, _ = batch_norm(mine, torch.ones(4), torch.zeros(4), 1e-5, True)
        pair = [torch.autograd.grad(y, leaf, grad)[0] for y, leaf in ((got, mine), (want, theirs))]
    torch.testing.assert_close(got, want, equal_nan=True)
    torch.testing.assert_close(*pair, equal_nan=True, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", [2, 31, 32, 33, 128, 200])
@pytest.mark.parametrize("shares", [1, 4, 512])
def test_the_last_rows_may_be_left_out(shares, count, monkeypatch):
    """As those of a `PaddedBatch` are: they hold anything, and it changes nothing."""
    monkeypatch.setattr(norm, "SHARES", shares)
    x, weight, bias = torch.randn(200, 70), torch.rand(70), torch.randn(70)
    grad = torch.randn(200, 70)
    x[count:], grad[count:] = torch.nan, torch.inf
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    y, stats = batch_norm(*leaves, 1e-5, True, torch.tensor([count]))
    got = [y[:count], stats, *torch.autograd.grad(y, leaves, grad)]
    got[2] = got[2][:count]
    part = [t.detach()[:count].clone().requires_grad_() for t in leaves[:1]] + leaves[1:]
    y, stats = batch_norm(*part, 1e-5, True)
    want = [y, stats, *torch.autograd.grad(y, part, grad[:count])]
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_strided_inputs_and_gradients_are_taken_as_they_are():
    x, weight, bias = torch.randn(5, 40).T, torch.rand(5, 2)[:, 0], torch.randn(1).expand(5)
    grads = []
    for change in (torch.Tensor.contiguous, lambda tensor: tensor):
        leaves = [change(t).detach().requires_grad_() for t in (x, weight, bias)]
        y, _ = batch_norm(*leaves, 1e-5, True)
        grads.append(
            [y, *torch.autograd.grad(y, leaves, torch.randn(5, 1).expand(5, 40).T * 0 + 1)]
        )
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)


@pytest.fixture
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "MANY_ROWS", 2)


@pytest.mark.usefixtures("few_are_many")
@pytest.mark.parametrize("act", ["relu", "elu"])
@pytest.mark.parametrize("momentum", [0.1, 0.3, None])
def test_a_network_trains_the_same_and_keeps_the_same_statistics(act, momentum):
    """Without a momentum the statistics are means over all batches: left to PyTorch."""
    model = FlexGCN(5, [7, 4], 2, orders=[3, 2, 2], norm="batch_norm", act=act)
    for module in model.norms:
        module.momentum = momentum
    twin, graphs = copy.deepcopy(model), dense_graphs((20, 0, 3, 40, 9, 1, 31), 5)
    model.backend, twin.backend = "triton", "torch"
    for where in ([0, 2, 3], [6, 5, 1, 4]):
        results = []
        for net in (model, twin):
            out = net(graphs.batch(where))
            results.append([out, *torch.autograd.grad(out.square().sum(), list(net.parameters()))])
        for got, want in zip(*results, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)
    for (name, got), (_, want) in zip(model.named_buffers(), twin.named_buffers(), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.usefixtures("few_are_many")
def test_a_network_learns_by_what_dropout_leaves(monkeypatch):
    """Its gradients, with the dropout in the norm's kernels and after the norm by PyTorch."""
    batch, masks = dense_graphs((20, 3, 40, 9), 5).batch(slice(None)), []
    model = FlexGCN(5, [7, 6], 2, orders=[2, 2, 2], norm="batch_norm", dropout=0.3)
    draw = torch.Tensor.bernoulli_

    def drawn(tensor, probability):
        masks.append(draw(tensor, probability).clone())
        return tensor

    monkeypatch.setattr(torch.Tensor, "bernoulli_", drawn)
    twin = copy.deepcopy(model)
    for net, backend in ((model, "triton"), (twin, "torch")):
        net.backend = backend
    out = model(batch)
    assert len(masks) == 2
    for dropout, mask in zip(twin.dropouts, masks, strict=True):
        dropout.forward = lambda x, mask=mask: x * mask / 0.7
    want = twin(batch)
    torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-5)
    grads = [
        torch.autograd.grad(y.square().sum(), list(net.parameters()))
        for y, net in ((out, model), (want, twin))
    ]
    for got, right in zip(*grads, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("few_are_many")
@pytest.mark.parametrize("rate", [0.4, 1.0])
def test_a_network_drops_what_its_dropout_says(rate, monkeypatch):
    """In one kernel with the norm, but for a rate that would leave nothing to enlarge."""
    model = FlexGCN(5, [40], 1, orders=[2, 2], norm="batch_norm", backend="triton")
    batch = dense_graphs((20, 3, 40, 9), 5).batch(slice(None))
    whole, called, forward = model.hidden(batch), [], torch.nn.Dropout.forward
    monkeypatch.setattr(
        torch.nn.Dropout, "forward", lambda self, x: (called.append(1), forward(self, x))[1]
    )
    model.dropouts[0].p = rate
    dropped = model.hidden(batch)
    assert bool(called) == (rate == 1)
    called.clear()
    kept = dropped > 0
    torch.testing.assert_close(dropped[kept], whole[kept] / (1 - rate))
    assert dropped[~kept].eq(0).all()
    assert abs(kept.sum() / (whole > 0).sum() - (1 - rate)) < 0.05
    model.dropouts[0].register_forward_hook(lambda *_: called.append(1))
    model.hidden(batch)
    assert called  # whoever watches a dropout sees it


def test_few_rows_are_left_to_pytorch(monkeypatch):
    monkeypatch.setattr(modules, "MANY_ROWS", 9)
    module, x = BatchNorm(1), torch.randn(9, 1)
    assert module.by_kernels(x[1:], True, "triton") is None
    assert module.by_kernels(x, True, "triton") is not None


@pytest.mark.usefixtures("few_are_many")
@pytest.mark.parametrize(
    "change",
    [
        lambda module: module.eval(),
        lambda module: module.half(),
        lambda module: setattr(module, "momentum", None),
        lambda module: module.__init__(4, affine=False),
        lambda module: module.__init__(4, track_running_stats=False),
    ],
    ids=["evaluation", "half", "no momentum", "no weights", "no statistics"],
)
def test_what_the_kernels_leave_to_pytorch(change):
    module, x = BatchNorm(4), torch.randn(9, 4)
    assert module.by_kernels(x, True, "triton") is not None
    assert module.by_kernels(x, True, "torch") is None
    assert module.by_kernels(x[:1], True, "triton") is None
    change(module)
    assert module.by_kernels(x, True, "triton") is None
