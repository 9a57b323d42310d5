"""The kernels over CSR against the definition in float64, in Triton's interpreter."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from grant_fast import reference
from grant_fast.adjacency import Adjacency
from grant_fast.kernels import csr as kernel
from grant_fast.ops.sparse import flex_conv_csr
from tests.cases import random_edges, to_dense
from tests.kernels.checks import SIZES, close


def random_matrix(sizes: tuple[int, ...], seed: int = 0) -> Adjacency:
    """Directed graphs with weighted, repeated and self-looped edges; isolated nodes among them."""
    generator = torch.Generator().manual_seed(seed)
    edges = random_edges(sizes, generator, symmetric=False)
    weight = torch.randn(edges.shape[1], generator=generator)
    return Adjacency.from_edge_index(edges, weight, sum(sizes), torch.float32)


def check(
    adjacency: Adjacency,
    order: int,
    h_in: int,
    h_out: int,
    relu: bool = False,
    learned: tuple[int, ...] = (0, 1, 2, 3),
) -> None:
    """Y equals that of the definition, and so does the gradient of what is learned of X, W, b and
    the values."""
    rowptr, col, value = adjacency.csr
    nodes = adjacency.num_nodes
    inputs = [
        torch.randn(nodes, h_in),
        torch.randn(order, h_in, h_out) / h_in**0.5,
        torch.randn(h_out),
        value / 2,
    ]
    exact, mine = [t.double() for t in inputs], [t.clone() for t in inputs]
    leaves = [[tensors[i].requires_grad_() for i in learned] for tensors in (mine, exact)]
    before = reference.dense_flex_conv(*exact[:3], to_dense(rowptr, col, exact[3], nodes))
    want = before.relu() if relu else before
    got = flex_conv_csr(*mine[:3], Adjacency(rowptr, col, mine[3], nodes), relu, "triton")
    close(got, want, 4e-6)
    grad = torch.randn(h_out, 1).expand(h_out, nodes).T  # expanded and strided
    grad = grad * (before.detach().abs() > 1e-3) if relu else grad
    unused = {"allow_unused": True, "materialize_grads": True}  # the values, in order 1
    got_grads = torch.autograd.grad(got, leaves[0], grad, **unused)
    want_grads = torch.autograd.grad(want, leaves[1], grad.double(), **unused)
    for g, w in zip(got_grads, want_grads, strict=True):
        close(g, w, 1e-5)


@pytest.mark.parametrize(
    ("order", "h_in", "h_out"),
    [
        (1, 3, 5),
        (2, 1, 1),
        (3, 9, 27),
        (4, 16, 16),
        (5, 9, 3),
        (2, 64, 3),
        (2, 3, 65),
        (2, 128, 16),
        (7, 2, 2),
    ],
    ids=str,
)
def test_every_order_and_width(order, h_in, h_out):
    check(random_matrix(SIZES), order, h_in, h_out, relu=order % 2 == 0)


@pytest.mark.parametrize("learned", [(0, 1, 2), (1,), (0,), (3,)], ids=str)
@pytest.mark.parametrize(("h_in", "h_out"), [(9, 4), (4, 9)], ids=str)
def test_some_of_a_layer_is_learned(h_in, h_out, learned):
    check(random_matrix((5, 0, 17)), 3, h_in, h_out, relu=True, learned=learned)


@pytest.mark.parametrize("learned", [(0, 1, 2), (1,), (0,)], ids=str)
def test_some_of_a_layer_without_hops_is_learned(learned):
    check(random_matrix((5, 0, 17)), 1, 9, 4, learned=learned)


@pytest.mark.parametrize("widths", [(300, 5), (4, 512)], ids=str)
def test_widths_of_several_column_blocks(widths):
    check(random_matrix((5, 0, 9)), 2, *widths)


def test_a_graph_of_hundreds_of_nodes():
    check(random_matrix((300, 193)), 3, 5, 4, relu=True)


@pytest.mark.parametrize("sizes", [(0, 0), (), (1,)], ids=str)
def test_no_nodes_and_no_edges(sizes):
    check(random_matrix(sizes), 3, 4, 5)
    nodes, none = sum(sizes), torch.empty(0)
    rowptr = torch.zeros(nodes + 1, dtype=torch.int32)
    check(Adjacency(rowptr, none.int(), none, nodes), 3, 4, 5)


def test_rows_of_very_unequal_length():
    target = torch.cat([torch.zeros(50), torch.tensor([3, 3, 1])]).long()
    source = torch.arange(53) % 7
    edges = torch.stack([source, target])
    check(Adjacency.from_edge_index(edges, torch.randn(53), 7, torch.float32), 3, 5, 4)


# The interpreter cuts a float32 off where a device rounds it to bfloat16: a unit, not half of one.
@pytest.mark.parametrize(("dtype", "unit"), [(torch.bfloat16, 2**-7), (torch.float16, 2**-11)])
def test_half_precision_sums_in_float32_and_rounds_once(dtype, unit):
    adjacency = random_matrix(SIZES)
    rowptr, col, value = adjacency.csr
    z = torch.randn(adjacency.num_nodes, 9).to(dtype)
    got = kernel.spmm(kernel.CSR(rowptr, col, value), z)
    want = to_dense(rowptr, col, value.double(), adjacency.num_nodes) @ z.double()
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), want, rtol=unit, atol=1e-5)


def test_two_runs_are_bit_equal():
    adjacency = random_matrix(SIZES)
    rowptr, col, value = adjacency.csr

    def run() -> tuple[Tensor, ...]:
        torch.manual_seed(0)
        leaves = [torch.randn(adjacency.num_nodes, 6), torch.randn(3, 6, 4), value.clone()]
        x, w, v = (t.requires_grad_() for t in leaves)
        matrix = Adjacency(rowptr, col, v, adjacency.num_nodes)
        out = flex_conv_csr(x, w, None, matrix, True, "triton")
        return out, *torch.autograd.grad(out.square().sum(), (x, w, v))

    for first, second in zip(run(), run(), strict=True):
        assert torch.equal(first, second)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(0, 40), max_size=4),
    widths=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    order=st.integers(1, 5),
    relu=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_layer_on_any_matrix(sizes, widths, order, relu, seed):
    torch.manual_seed(seed)
    check(random_matrix(tuple(sizes), seed), order, *widths, relu)
