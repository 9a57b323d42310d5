"""Every form in which a layer or a network takes edges."""

import warnings

import pytest
import torch

from grant_fast import FlexConv, FlexGCN, InputError
from grant_fast.adjacency import Adjacency
from tests.cases import Case


def test_every_form_of_edges_gives_the_same_answer():
    pyg_edge_index = pytest.importorskip("torch_geometric").EdgeIndex
    case = Case(sizes=(4, 1, 6))
    conv = FlexConv(5, 3)
    n = case.num_nodes
    want = conv(case.x, case.edge_index, case.edge_weight)
    source, target = case.edge_index
    coo = torch.sparse_coo_tensor(torch.stack([target, source]), case.edge_weight, (n, n))
    with warnings.catch_warnings():  # torch's notice that sparse CSR is in beta
        warnings.simplefilter("ignore")
        forms = [coo.coalesce(), coo.coalesce().to_sparse_csr()]
    for form in forms:
        torch.testing.assert_close(conv(case.x, form), want)
    torch.testing.assert_close(conv(case.x, case.graphs.batch(slice(None))), want)
    edge_index = pyg_edge_index(case.edge_index, sparse_size=(n, n))
    torch.testing.assert_close(conv(case.x, edge_index, case.edge_weight), want)


def test_a_ready_matrix_is_taken_as_it_is_by_layers_and_networks():
    case = Case(sizes=(4, 1, 6))
    args = (case.edge_index, case.edge_weight, case.num_nodes, torch.float32)
    ready = Adjacency.from_edge_index(*args).normalized()
    for model in (FlexConv(5, 3), FlexGCN(5, 4, 3, orders=[3, 2], pool=None)):
        want = model(case.x, case.edge_index, case.edge_weight)
        torch.testing.assert_close(model(case.x, ready), want)


class Sparse:
    """What torch_sparse's `SparseTensor` has of what is asked of one."""

    def __init__(self, csr, values):
        self._csr, self._values = csr, values

    def csr(self):
        return self._csr.crow_indices(), self._csr.col_indices(), self._values

    def sparse_sizes(self):
        return self._csr.shape


@pytest.mark.parametrize("weighted", [True, False])
def test_what_has_the_methods_of_a_torch_sparse_matrix_is_read_as_one(weighted):
    case, conv = Case(weighted=weighted), FlexConv(5, 4, order=2)
    values = torch.ones(case.edge_index.shape[1]) if case.edge_weight is None else case.edge_weight
    size = (case.num_nodes, case.num_nodes)
    csr = torch.sparse_coo_tensor(case.edge_index.flip(0), values, size).to_sparse_csr()
    values = csr.values() if weighted else None
    if not weighted:
        csr.values().fill_(1)  # an edge that is there twice was summed
    torch.testing.assert_close(conv(case.x, Sparse(csr, values)), conv(case.x, csr))
    with pytest.raises(InputError, match="goes only with edge_index"):
        conv(case.x, Sparse(csr, values), csr.values())


def test_a_sparse_matrix_of_anything_but_numbers_is_refused():
    x, conv, edges = torch.randn(6, 5), FlexConv(5, 2), torch.randint(6, (2, 9))
    rows = torch.sparse_coo_tensor(edges, torch.ones(9, 3), (6, 6, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        blocks = torch.eye(6).to_sparse_bsr((2, 2))
    for matrix in (rows, blocks):
        with pytest.raises(InputError, match="give one number for each edge"):
            conv(x, matrix)
