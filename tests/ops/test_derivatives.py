"""Derivatives of all kinds: what backend="reference" is for, and what no backend may break."""

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap

from grant_fast import AtomEncoder, FlexConv, FlexGCN, InputError, PackedGraphs
from tests.cases import Case
from tests.interpreter import TRITON

# Forward mode compiles its decompositions by torch.jit when it is first used.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is:DeprecationWarning")


def forms(case: Case) -> dict[str, tuple]:
    """The same graphs packed, and as PyG's tensors, in float64."""
    weight = None if case.edge_weight is None else case.edge_weight.double()
    return {
        "packed": (case.double().batch(slice(None)),),
        "loose": (case.x.double(), case.edge_index, weight, case.batch, case.num_graphs),
    }


@pytest.mark.parametrize("form", ["packed", "loose"])
@pytest.mark.parametrize("pool", ["mean", "sum", "max", None])
@pytest.mark.parametrize("norm", [None, "batch_norm", "layer_norm"])
def test_every_derivative_of_the_weights_is_the_one_that_autograd_takes(norm, pool, form):
    case = Case(sizes=(0, 3, 1, 5, 0))
    model = FlexGCN(5, [4], 2, [3, 2], act="silu", norm=norm, pool=pool, backend="reference")
    model.double().eval()
    given, weights = forms(case)[form], dict(model.named_parameters())

    def loss(weights: dict[str, Tensor]) -> Tensor:
        return functional_call(model, weights, given).square().sum()

    first = torch.autograd.grad(loss(weights), [*weights.values()], create_graph=True)
    along = [torch.randn_like(g) for g in first]
    slope = sum((g * t).sum() for g, t in zip(first, along, strict=True))
    second = torch.autograd.grad(slope, [*weights.values()])

    plain = {name: w.detach() for name, w in weights.items()}
    tangent = dict(zip(plain, along, strict=True))
    assert all(g.abs().sum() > 0 for g in first)
    torch.testing.assert_close([*grad(loss)(plain).values()], [*first])
    value, forward = jvp(loss, (plain,), (tangent,))
    torch.testing.assert_close([value, forward], [loss(plain), slope.detach()])
    _, curved = jvp(grad(loss), (plain,), (tangent,))
    torch.testing.assert_close([*curved.values()], [*second])
    twice = {name: torch.stack([w, 2 * w]) for name, w in plain.items()}
    each = torch.stack([loss(plain), loss({name: 2 * w for name, w in plain.items()})])
    torch.testing.assert_close(vmap(loss)(twice), each)


@pytest.mark.parametrize("form", ["packed", "loose"])
@pytest.mark.parametrize("sizes", [(3, 1, 4), (3, 1, 4) * 40], ids=["few", "many"])
def test_a_network_with_an_encoder_has_second_derivatives_too(sizes, form):
    case = Case(sizes=sizes, num_features=2)
    x = (case.x > 0).long()
    graphs = PackedGraphs.from_arrays(x, case.edge_index, case.batch, num_graphs=len(sizes))
    options = {"encoder": AtomEncoder(3, (2, 2)), "act": "tanh", "backend": "reference"}
    model = FlexGCN(3, [2], 1, [2, 2], **options).double()
    given = (graphs.to(torch.float64).batch(slice(None)),)
    if form == "loose":
        given = (x, case.edge_index, None, case.batch, len(sizes))

    def run(*weights: Tensor) -> Tensor:
        named = dict(zip(dict(model.named_parameters()), weights, strict=True))
        return functional_call(model, named, given).exp().mean()

    assert torch.autograd.gradgradcheck(run, tuple(model.parameters()), fast_mode=True)


def test_hessian_of_a_layer_is_symmetric_and_not_0():
    case = Case(sizes=(3, 1, 4))
    conv, batch = FlexConv(5, 2, order=3, backend="reference").double(), case.double().batch([0, 2])

    def loss(bias: Tensor) -> Tensor:
        given = {"weight": conv.weight.detach(), "bias": bias}
        return functional_call(conv, given, (batch.x, batch)).exp().sum()

    found = hessian(loss)(conv.bias.detach())
    assert found.abs().sum() > 0
    torch.testing.assert_close(found, jacrev(jacrev(loss))(conv.bias.detach()))


@pytest.mark.parametrize("symmetric", [True, False])
def test_a_loss_on_forces_trains(symmetric):
    """Features and edges depend on positions, and the loss on the gradient at these."""
    case = Case(sizes=(3, 0, 4, 1), num_features=3, symmetric=symmetric)
    model = FlexGCN(3, [4], 1, [3, 2], act="tanh", pool="sum", backend="reference").double()
    source, target = case.edge_index

    def forces(positions: Tensor, *weights: Tensor) -> Tensor:
        distance = (positions[source] - positions[target]).square().sum(1)
        given = (positions, case.edge_index, torch.exp(-distance), case.batch, case.num_graphs)
        named = dict(zip(dict(model.named_parameters()), weights, strict=True))
        energy = functional_call(model, named, given).sum()
        return torch.autograd.grad(energy, positions, create_graph=True)[0]

    positions = case.x.double().requires_grad_()
    inputs = (positions, *model.parameters())
    assert torch.autograd.gradcheck(forces, inputs, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_errs_no_more_than_the_operators_do(dtype):
    case = Case()
    conv = FlexConv(5, 4, order=3).to(dtype)
    given = case.x.to(dtype), case.edge_index, case.edge_weight.to(dtype)
    by_operators = conv(*given)
    conv.backend = "reference"
    got = conv(*given)
    exact = conv.double()(given[0].double(), given[1], given[2].double())
    assert got.dtype == dtype
    assert (got - exact).abs().max() <= 2 * (by_operators - exact).abs().max()


@pytest.mark.parametrize("transform", [grad, jacrev, vmap])
def test_transforms_work_on_after_they_met_a_dataset(transform):
    """What a dataset keeps is made outside of them, and they were switched off for good."""
    batch, w = Case().graphs.batch(slice(None)), torch.randn(3)

    def plain(w: Tensor) -> Tensor:
        return w.square().sum()

    def meets(w: Tensor) -> Tensor:
        batch.adjacency(True).csr  # noqa: B018
        return plain(w)

    want = transform(plain)(w)
    assert torch.equal(transform(meets)(w), want)
    assert torch.equal(transform(plain)(w), want)


@pytest.mark.parametrize("backend", ["auto", "torch", TRITON])
@pytest.mark.parametrize("form", ["packed", "loose"])
def test_transforms_of_other_backends_name_the_one_that_has_them(backend, form):
    case = Case(weighted=False)
    model = FlexGCN(case.x.shape[1], [8], 2, [2, 2], backend=backend)
    given = (case.graphs.batch(slice(None)),)
    if form == "loose":
        given = (case.x, case.edge_index, None, case.batch, len(case.sizes))
    weights = dict(model.named_parameters())

    def loss(weights: dict[str, Tensor]) -> Tensor:
        return functional_call(model, weights, given).square().sum()

    for run in (grad(loss), jacrev(loss)):
        with pytest.raises(InputError, match=r"torch\.func.*backend to 'reference'"):
            run(weights)
