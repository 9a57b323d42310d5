"""The registered operators: what they keep, what they refuse."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functional_call

from benchmarks.memory import held_for_backward
from grant_fast import FlexConv, FlexGCN, InputError, ops
from tests.cases import Case
from tests.interpreter import TRITON


@pytest.fixture
def case() -> Case:
    return Case(sizes=(3, 0, 5, 1))


def test_a_layer_keeps_one_copy_of_its_input_whatever_the_order(case):
    adjacency = case.graphs.batch(slice(None)).adjacency(True)

    def kept(order: int) -> int:
        x = case.x.clone().requires_grad_()
        weight = torch.randn(order, 5, 8, requires_grad=True)
        given = (*adjacency.csr, *adjacency.transposed, weight)
        return held_for_backward(lambda: ops.flex_conv(x, weight, None, adjacency), given)

    assert kept(2) == kept(5) == case.x.nbytes


@pytest.mark.parametrize("symmetric", [True, False])
def test_gradient_of_edge_weights_equals_finite_differences(symmetric):
    case = Case(sizes=(3, 0, 4, 1), num_features=3, symmetric=symmetric)
    conv = FlexConv(3, 2, order=4).double()
    edge_weight = (case.edge_weight.double() + 0.1).requires_grad_()
    x = case.x.double().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x, w: conv(x, case.edge_index, w), (x, edge_weight), fast_mode=True
    )


def test_backward_after_a_forward_pass_without_gradients_says_why(case):
    with torch.no_grad():
        csr = case.graphs.batch(slice(None)).adjacency(True).csr
    weight = torch.randn(2, 5, 2, requires_grad=True)
    how = (False, "native", *csr, None, None, None)
    out = torch.ops.grant_fast.flex_conv(case.x, weight, None, *how)
    with pytest.raises(RuntimeError, match="without the transposed adjacency"):
        out.sum().backward()


@pytest.mark.parametrize("backend", ["auto", "torch", TRITON])
@pytest.mark.parametrize("part", ["values", "columns"])
def test_a_sparse_matrix_may_lie_in_memory_as_it_likes(backend, part):
    case = Case(weighted=True)
    rowptr, col, value = case.graphs.batch(slice(None)).adjacency(False).csr
    conv = FlexConv(5, 4, order=3, normalize=False, backend=backend)
    spread = lambda t: torch.stack([t, t.flip(0)], 1)[:, 0]  # noqa: E731
    parts = (spread(col), value) if part == "columns" else (col, spread(value))
    size = (case.num_nodes, case.num_nodes)
    strided = torch.sparse_csr_tensor(rowptr, *parts, size)
    plain = torch.sparse_csr_tensor(rowptr, col, value, size)
    torch.testing.assert_close(conv(case.x, strided), conv(case.x, plain))


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_gradient_of_gradients_is_refused_and_not_0(packed, backend):
    case = Case()
    x, conv = case.x.clone().requires_grad_(), FlexConv(case.x.shape[1], 4, backend=backend)
    batch = case.graphs.batch(slice(None))
    y = conv(torch.tanh(x), batch.adjacency(True) if packed else batch.edge_index)
    with pytest.raises(InputError, match=r"differentiated only once.*create_graph=True"):
        torch.autograd.grad(y.sum(), x, create_graph=True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # make_dual compiles by torch.jit
@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("packed", [False, True])
def test_forward_mode_is_refused_and_no_tangent_lost(packed, backend):
    case, model = Case(), FlexGCN(5, [4], 2, orders=[3, 2], backend=backend)
    batch = case.graphs.batch(slice(None))
    given = (batch,) if packed else (case.x, case.edge_index, None, case.batch, case.num_graphs)
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def run(weights):
        return functional_call(model, weights, given)

    with torch.no_grad():
        with forward_ad.dual_level(), pytest.raises(InputError, match="forward mode need"):
            run({name: forward_ad.make_dual(w, w) for name, w in weights.items()})
        with pytest.raises(InputError, match=r"torch\.func.*backend to 'reference'"):
            torch.func.jvp(run, (weights,), (weights,))
        assert torch.equal(run(weights), model(*given))
