"""Operands that begin off 16 bytes, as views may: the kernels are compiled for ones that do not."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction

from grant_fast import ops, select_graphs
from grant_fast.adjacency import Adjacency
from grant_fast.kernels import kinds
from tests.cases import Case, dense_graphs

pytestmark = pytest.mark.interpreted


@pytest.fixture
def pointers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where each tensor begins that a kernel is given."""
    run, seen = InterpretedFunction.run, []

    def spied(kernel, *operands, **settings):
        seen.extend(o.data_ptr() for o in operands if isinstance(o, Tensor))
        return run(kernel, *operands, **settings)

    monkeypatch.setattr(InterpretedFunction, "run", spied)
    return seen


def shifted(tensor: Tensor) -> Tensor:
    """The same numbers, one of them further on in memory."""
    out = tensor.new_zeros(tensor.numel() + 1)[1:].view(tensor.shape)
    assert out.data_ptr() % 16
    return out.copy_(tensor.detach())


def check(compute: Callable[..., Tensor], pointers: list[int], *inputs: Tensor) -> None:
    """`compute` and its gradients are the same, bit for bit, of shifted inputs and gradients."""
    results: list[list[Tensor]] = []
    for change in (torch.clone, shifted):
        arguments = [change(t).requires_grad_() for t in inputs]
        out = compute(*arguments)
        grad = torch.linspace(-1, 1, out.numel()).view(out.shape)
        results.append([out, *torch.autograd.grad(out, arguments, change(grad))])
    for want, got in zip(*results, strict=True):
        assert torch.equal(got, want)
    assert pointers
    assert not [pointer for pointer in pointers if pointer % 16]


@pytest.mark.parametrize("width", [9, 70], ids=["fused", "wide"])
def test_a_layer_on_bits(width, pointers):
    adjacency = (batch := dense_graphs((3, 40, 9), 5).batch(slice(None))).adjacency(True)
    weight, bias = torch.randn(2, 5, width), torch.randn(width)
    check(
        lambda *inputs: ops.flex_conv(*inputs, adjacency, relu=True, backend="triton"),
        pointers, batch.x, weight, bias,
    )  # fmt: skip


@pytest.mark.parametrize("width", [4, 7])
def test_a_layer_over_csr_that_learns_its_edge_weights(width, pointers):
    batch = Case(sizes=(3, 20, 0, 9)).graphs.batch(slice(None))
    rowptr, col, value = batch.adjacency(True).csr
    weight, bias = torch.randn(4, 5, width), torch.randn(width)

    def compute(x, weight, bias, value):
        matrix = Adjacency(rowptr, col, value, batch.num_nodes)
        return ops.flex_conv(x, weight, bias, matrix, relu=True, backend="triton")

    check(compute, pointers, batch.x, weight, bias, value)


def test_a_readout(pointers):
    batch = dense_graphs((3, 40, 9), 5).batch(slice(None))
    check(lambda x: ops.readout(x, batch, 3, True, True, "triton"), pointers, batch.x)


def test_a_gradient_by_kind(pointers):
    kind = torch.arange(50) % 7
    dx = torch.randn(50, 9)
    assert torch.equal(kinds.sums(shifted(dx), kind, 7), kinds.sums(dx, kind, 7))
    assert not [pointer for pointer in pointers if pointer % 16]


def test_a_choice_of_graphs(pointers):
    scores = torch.rand(3000)
    want = select_graphs(scores, 700, backend="triton")
    assert torch.equal(select_graphs(shifted(scores), 700, backend="triton"), want)
    assert not [pointer for pointer in pointers if pointer % 16]
