"""The gradient of rows by kind against float64."""

import pytest
import torch
from torch import Tensor

from grant_fast import FlexGCN, PackedGraphs
from grant_fast.kernels import kinds
from grant_fast.nn import AtomEncoder
from tests.cases import dense_graphs
from tests.kernels.checks import close

#: float32's own; then one rounding of what was summed in float32.
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 6e-3, torch.float16: 1e-3}


def check(dx: Tensor, kind: Tensor, num_kinds: int) -> None:
    got = kinds.sums(dx, kind, num_kinds)
    assert got.dtype == dx.dtype and torch.equal(got, kinds.sums(dx, kind, num_kinds))
    exact = torch.zeros(num_kinds + 1, dx.shape[1], dtype=torch.float64)
    exact = exact.index_add_(0, kind.cpu().long(), dx.cpu().double())[:-1]
    close(got.cpu().double(), exact, TOLERANCE[dx.dtype])


@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("width", [1, 9, 16, 27, 64, 70])
@pytest.mark.parametrize(("rows", "num_kinds"), [(1, 1), (31, 64), (33, 65), (700, 130)])
def test_every_width(rows, num_kinds, width, dtype, index):
    kind = torch.randint(num_kinds + 1, (rows,), dtype=index)  # some of them are left out
    check(torch.randn(rows, width).to(dtype), kind, num_kinds)


def test_shares_are_added_up(monkeypatch):
    monkeypatch.setattr(kinds, "PROGRAMS", 3)
    check(torch.randn(1000, 5), torch.randint(21, (1000,)), 20)
    check(torch.randn(1000, 40), torch.randint(201, (1000,)), 200)


@pytest.mark.parametrize("sizes", [(0, 3, 4), (5, 0, 4), (5, 3, 0)])
def test_nothing_to_sum(sizes):
    rows, width, num_kinds = sizes
    got = kinds.sums(torch.randn(rows, width), torch.zeros(rows, dtype=torch.int32), num_kinds)
    want = torch.zeros(num_kinds, width)
    assert got.shape == want.shape and (rows > 0 or torch.equal(got, want))


def test_many_kinds():
    many = kinds.MOST + 1
    check(torch.randn(3000, 5), torch.randint(many + 1, (3000,)), many)


def test_what_is_not_finite():
    dx, kind = torch.randn(100, 3), torch.arange(100)
    dx[70] = torch.inf
    dx[20, 1] = torch.nan
    want = dx.clone()
    want[70] = torch.nan
    torch.testing.assert_close(kinds.sums(dx, kind, 100), want, rtol=0, atol=0, equal_nan=True)
    kind[20] = kind[70] = 100  # as padding, which is left out
    want[20] = want[70] = 0
    assert torch.equal(kinds.sums(dx, kind, 100), want)


def test_a_wide_network_embeds_kinds_and_learns_them():
    graphs = dense_graphs((20, 3, 40), 1)
    rows = torch.randint(3, (graphs.num_nodes, 2), dtype=torch.int16)
    graphs = PackedGraphs(rows, None, graphs.ptr, graphs.adj, graphs.adj_t)
    encoder = AtomEncoder(70, (3, 3))
    model = FlexGCN(70, [80], 2, orders=[2, 2], encoder=encoder, backend="triton")
    grads = []
    for kind in (torch.float32, torch.float64):
        if kind == torch.float64:
            model.double().backend = "torch"
        out = model(graphs.to(dtype=kind).batch([2, 0, 2]))
        grads.append(torch.autograd.grad(out.square().sum(), encoder.weight)[0].double())
    close(*grads, 1e-5)
