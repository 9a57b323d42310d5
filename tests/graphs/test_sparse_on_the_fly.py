"""Sparse matrices given as PyG's tensors are: listed, sorted and packed for a call."""

import pytest
import torch

from grant_fast import FlexConv, FlexGCN, InputError, native
from tests.answers import answers, close, exact
from tests.cases import Case

pytestmark = pytest.mark.skipif(native.build() is None, reason="the CPU kernels were not compiled")


def test_a_sparse_matrix_of_ones_has_no_weights(monkeypatch):
    case, conv = Case(symmetric=True, weighted=False), FlexConv(5, 6, order=3)
    edges = torch.unique(case.edge_index, dim=1)
    matrix = torch.sparse_coo_tensor(edges.flip(0), torch.ones(edges.shape[1])).coalesce()
    close(
        answers(conv, case.x[: len(matrix)], matrix),
        exact(conv, case.x[: len(matrix)], edges, None),
    )
    given, sort = [], native.sort_edges
    monkeypatch.setattr(native, "sort_edges", lambda *args: given.append(args) or sort(*args))
    conv(case.x[: len(matrix)], matrix.clone())
    assert given[0][1] is None


def test_a_sparse_matrix_of_ones_may_learn():
    ones = torch.ones(3, requires_grad=True)
    matrix = torch.sparse_csr_tensor([0, 1, 2, 3], [1, 0, 2], ones, (3, 3), check_invariants=True)
    model = FlexGCN(3, 4, 2, orders=[2, 2], pool=None, normalize=False)
    model(torch.randn(3, 3), matrix).sum().backward()
    assert ones.grad is not None and ones.grad.any()


def sparse(form, edges, weight, n):
    """The same edges as a sparse matrix, and its values."""
    if form == "SparseTensor":
        make = pytest.importorskip("torch_sparse").SparseTensor
        matrix = make(row=edges[1], col=edges[0], value=weight, sparse_sizes=(n, n))
        return matrix, matrix.storage.value()
    matrix = torch.sparse_coo_tensor(edges.flip(0), weight, (n, n)).coalesce()
    matrix = {"coo": matrix, "csr": matrix.to_sparse_csr(), "csc": matrix.to_sparse_csc()}[form]
    return matrix, matrix.values()


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("form", ["coo", "csr", "csc", "SparseTensor"])
def test_a_sparse_matrix_is_sorted_again_only_where_it_changed(form, monkeypatch):
    case, conv = Case(), FlexConv(5, 6, order=3, normalize=False)
    sorts, sort = [], native.sort_edges
    monkeypatch.setattr(native, "sort_edges", lambda *of: sorts.append(of) or sort(*of))
    n, edges, weight = case.num_nodes, case.edge_index, case.edge_weight.clone()
    matrix, values = sparse(form, edges, weight, n)
    others = [sparse(form, edges, weight * i, n)[0] for i in range(2, 9)]
    for _ in range(3):
        before = conv(case.x, matrix)
        for other in others:
            conv(case.x, other)
    assert len(sorts) == 8
    close([before], [conv(case.x, edges, case.edge_weight).double()])
    values.mul_(2)
    close([conv(case.x, matrix)], [conv(case.x, edges, case.edge_weight * 2).double()])
    with pytest.raises(InputError, match=f"is {n} x {n}, but x has {n - 1} nodes"):
        conv(case.x[:-1], matrix)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("form", ["coo", "csr"])
def test_a_sparse_matrix_that_learns_does_so_in_every_step(form):
    case, conv = Case(), FlexConv(5, 6, order=3, normalize=False)
    matrix, _ = sparse(form, case.edge_index, case.edge_weight, case.num_nodes)
    matrix.requires_grad_()
    found = []
    for _ in range(3):
        with torch.no_grad():
            conv(case.x, matrix)
        matrix.grad = None
        conv(case.x, matrix).square().sum().backward()
        found.append(matrix.grad.to_dense())
    assert found[0].any() and torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("form", ["coo", "csr", "csc"])
def test_a_sparse_matrix_may_be_made_in_inference_mode(form):
    case, conv = Case(), FlexConv(5, 6, order=3)
    given = case.edge_index, case.edge_weight
    with torch.inference_mode():
        matrix, _ = sparse(form, *given, case.num_nodes)
        close([conv(case.x, matrix)], [conv(case.x, *given).double()])
    close(answers(conv, case.x, matrix), exact(conv, case.x, *given))
