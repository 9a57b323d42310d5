"""The rewrites against the definition, in float64, over every shape that changes their path."""

import pytest
import torch

from grant_fast import reference
from grant_fast.ops import flex_conv
from tests.cases import Case

TOLERANCE = {"rtol": 1e-11, "atol": 1e-11}
WIDTHS = [(1, 1), (1, 9), (9, 1), (5, 5), (3, 8), (8, 3), (2, 7), (16, 27)]


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("normalize", [True, False])
def test_layer_equals_the_definition_in_value_and_every_gradient(order, widths, normalize):
    h_in, h_out = widths
    case = Case(num_features=h_in)
    x = case.x.double().requires_grad_()
    weight = torch.randn(order, h_in, h_out, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(h_out, dtype=torch.float64, requires_grad=True)
    adjacency = case.double().batch(slice(None)).adjacency(normalize)
    want = reference.dense_flex_conv(x, weight, bias, case.dense(normalize))
    got = flex_conv(x, weight, bias, adjacency)
    torch.testing.assert_close(got, want, **TOLERANCE)
    # An expanded, strided gradient: what a sum over a transposed output sends back.
    grad = torch.randn(h_out, 1, dtype=torch.float64).expand(h_out, case.num_nodes).T
    for g, w in zip(
        torch.autograd.grad(got, (x, weight, bias), grad),
        torch.autograd.grad(want, (x, weight, bias), grad),
        strict=True,
    ):
        torch.testing.assert_close(g, w, **TOLERANCE)


@pytest.mark.parametrize("needs_dx", [True, False])
@pytest.mark.parametrize("widths", [(2, 9), (9, 2), (4, 6)], ids=str)
def test_weight_gradient_alone_is_the_same_as_with_the_input_gradient(needs_dx, widths):
    case = Case(num_features=widths[0])
    x = case.x.double().requires_grad_(needs_dx)
    weight = torch.randn(3, *widths, dtype=torch.float64, requires_grad=True)
    out = flex_conv(x, weight, None, case.double().batch(slice(None)).adjacency(True))
    want = reference.dense_flex_conv(x, weight, None, case.dense(True))
    grad = torch.randn_like(out)
    torch.testing.assert_close(
        torch.autograd.grad(out, weight, grad), torch.autograd.grad(want, weight, grad), **TOLERANCE
    )


def test_every_way_through_forward_and_backward_is_taken_above():
    shapes = [reference.propagates_first(*w) for w in WIDTHS]
    assert set(shapes) == {True, False}
    ways = {
        (needs_dx, reference.backward_hops_at_output_width(*w, needs_dx))
        for w in [(2, 9), (9, 2), (4, 6)]
        for needs_dx in (True, False)
    }
    assert len(ways) == 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_hops_are_summed_in_float32(dtype):
    rowptr, col = torch.tensor([0, 1000]), torch.arange(1000)
    out = reference.spmm(rowptr, col, torch.ones(1000, dtype=dtype), torch.ones(1000, 1).to(dtype))
    assert out.dtype == dtype
    assert out.item() == 1000  # a running bfloat16 sum of ones would stop at 256


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 3, 16, 64])
def test_nothing_of_uninitialised_memory_reaches_a_product(width, dtype, monkeypatch):
    case = Case()
    rowptr, col, value = case.graphs.batch(slice(None)).adjacency(True).csr
    x = torch.randn(case.num_nodes, width, dtype=dtype)
    want = case.dense(True) @ x.double()

    def poisoned(self, *shape):
        return torch.full(shape, torch.nan, dtype=self.dtype)

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)
    got = reference.spmm(rowptr, col, value, x)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("rows", "width", "nnz"), [(0, 3, 0), (3, 0, 2), (3, 2, 0)])
def test_empty_products_are_zero(rows, width, nnz):
    rowptr = torch.full((rows + 1,), nnz)
    rowptr[:1] = 0
    out = reference.spmm(rowptr, torch.zeros(nnz).long(), torch.ones(nnz), torch.ones(4, width))
    assert out.shape == (rows, width)
    assert not out.any()


def test_two_runs_are_bit_equal():
    case = Case(num_features=7)
    adjacency = case.graphs.batch(slice(None)).adjacency(True)

    def run():
        x = case.x.clone().requires_grad_()
        weight = torch.linspace(-1, 1, 3 * 7 * 4).view(3, 7, 4).requires_grad_()
        out = flex_conv(x, weight, None, adjacency)
        return out, *torch.autograd.grad(out.square().sum(), (x, weight))

    for first, second in zip(run(), run(), strict=True):
        assert torch.equal(first, second)


def test_a_product_reads_no_memory_before_it_is_written(monkeypatch):
    """Without MKL PyTorch's product reads its result's memory even where beta is 0: NaN stays."""

    def without_mkl(into, matrix, x, *, beta, out):
        return out.copy_(beta * into + matrix @ x)

    case = Case()
    a = case.graphs.batch(slice(None)).csr(False, True)
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda t, *size: t.new_full(size, torch.nan))
    want = reference.spmm(*a, case.x)
    assert want.isfinite().all()
    monkeypatch.setattr(torch, "addmm", without_mkl)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    torch.testing.assert_close(reference.spmm(*a, case.x), want)
