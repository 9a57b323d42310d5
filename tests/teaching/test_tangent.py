"""The tangent kernel against explicit Jacobians, and what a step of descent does."""

import pytest
import torch

from grant_fast import FlexGCN, PackedGraphs, Task
from grant_fast.errors import InputError
from grant_fast.teaching.residuals import loss, residual
from grant_fast.teaching.tangent import (
    SMOOTHNESS,
    check_loss_reduction,
    functional_gradient,
    output_jacobian,
    tangent_kernel,
)
from grant_fast.training.initial import factor_last_layer
from tests.cases import dense_graphs

NUM_GRAPHS = 7


def make_graphs(kind="regression", outputs=1):
    """Seven directed graphs of 1 to 5 nodes, one without edges; float64."""
    draw = torch.Generator().manual_seed(4)
    sizes = torch.tensor([3, 1, 5, 2, 4, 1, 5])
    batch = torch.repeat_interleave(torch.arange(NUM_GRAPHS), sizes)
    pairs = (batch[:, None] == batch[None, :]) & (torch.rand(21, 21, generator=draw) < 0.6)
    x = torch.randn(21, 3, generator=draw)
    y = torch.randn(NUM_GRAPHS, outputs, generator=draw)
    if kind in ("binary", "multilabel"):
        y = (y > 0).float()
    if kind == "multiclass":
        y = torch.arange(NUM_GRAPHS) % outputs
    graphs = PackedGraphs.from_arrays(x, pairs.nonzero().T, batch, y, y_level="graph")
    return graphs.to(dtype=torch.float64)


def make_model(outputs=1, **settings):
    settings = {"orders": [3, 2], "act": "tanh", "norm": "batch_norm", "dropout": 0.4, **settings}
    return FlexGCN(3, 6, outputs, **settings).double()


def explicit_jacobian(model, graphs, ids):
    """Row by row with plain autograd, on the whole batch: [G, C, P]."""
    model.eval()
    out = model(graphs.batch(ids))
    parameters = list(model.parameters())
    rows = [
        torch.cat([g.flatten() for g in torch.autograd.grad(v, parameters, retain_graph=True)])
        for v in out.flatten()
    ]
    model.train()
    return torch.stack(rows).view(*out.shape, -1)


@pytest.mark.parametrize("pool", ["mean", "sum", "max"])
@pytest.mark.parametrize("outputs", [1, 3])
def test_the_jacobian_equals_the_explicit_one_and_leaves_the_model_alone(pool, outputs):
    graphs, model, ids = make_graphs(outputs=outputs), make_model(outputs, pool=pool), [5, 0, 2]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    expected = explicit_jacobian(model, graphs, ids)
    torch.testing.assert_close(output_jacobian(model, graphs, ids), expected)
    assert model.training and all(p.grad is None for p in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_learned_activation_is_differentiated_too():
    # Of graphs of one node mapped at once, torch 2.13 is silently wrong; of others it fails.
    graphs, ids = make_graphs(outputs=2), [1, 5]
    for chosen in (ids, [0, 2, 4]):
        model = make_model(2, act=torch.nn.PReLU())
        expected = explicit_jacobian(model, graphs, chosen)
        torch.testing.assert_close(output_jacobian(model, graphs, chosen), expected)


def test_molecules_empty_graphs_and_the_papers_head_are_differentiated_too():
    x = torch.tensor([[5, 0, 4, 5, 3, 0, 2, 0, 0], [7, 0, 2, 5, 1, 0, 2, 0, 1]])
    graphs = PackedGraphs.from_arrays(
        x[[0, 1, 1, 0]], [[0, 1, 1], [1, 0, 0]], torch.tensor([0, 0, 1, 3]), num_graphs=4
    ).to(dtype=torch.float64)
    model = FlexGCN(5, 6, 4, orders=[3, 2], norm="layer_norm", encoder="atom")
    factor_last_layer(model, 2)
    model.double()
    expected = explicit_jacobian(model, graphs, [3, 2, 0, 1])
    found = output_jacobian(model, graphs, [3, 2, 0, 1], chunk_size=3)
    torch.testing.assert_close(found, expected)
    assert expected[1].abs().max() == 0  # the empty one


@pytest.mark.parametrize("chunk_size", [1, 2, 100])
def test_the_kernel_is_the_product_of_jacobians_however_it_is_chunked(chunk_size):
    graphs, model = make_graphs(), make_model(2)
    left, right = [0, 3, 6], [2, 1, 4, 6]
    a, b = (explicit_jacobian(model, graphs, ids) for ids in (left, right))
    expected = torch.einsum("gcp,hdp->ghcd", a, b)
    found = tangent_kernel(model, graphs, left, right, chunk_size=chunk_size)
    torch.testing.assert_close(found, expected)
    own = tangent_kernel(model, graphs, left, chunk_size=chunk_size)
    matrix = own.permute(0, 2, 1, 3).reshape(6, 6)
    torch.testing.assert_close(matrix, matrix.T)
    assert torch.linalg.eigvalsh(matrix).min() > -1e-9


@pytest.mark.parametrize(
    ("kind", "outputs"), [("regression", 2), ("binary", 1), ("multiclass", 3), ("multilabel", 2)]
)
def test_a_small_step_moves_every_output_along_the_functional_gradient(kind, outputs):
    graphs, model = make_graphs(kind, outputs), make_model(outputs)
    task, ids, step = Task(kind, num_outputs=outputs), list(range(5)), 1e-6
    kernel = tangent_kernel(model, graphs, ids, range(NUM_GRAPHS))
    model.eval()
    everything, taught = graphs.batch(range(NUM_GRAPHS)), graphs.batch(ids)
    before = model(everything).detach()
    pred = model(taught)
    errors = residual(pred, taught.y, task).detach()
    (pred * errors).sum().div(len(ids)).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= step * parameter.grad
        moved = (model(everything) - before) / -step
    torch.testing.assert_close(moved, functional_gradient(kernel, errors), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "outputs"), [("regression", 1), ("binary", 1), ("multiclass", 3), ("multilabel", 2)]
)
def test_the_loss_falls_as_calculus_says(kind, outputs):
    graphs, model = make_graphs(kind, outputs), make_model(outputs)
    task, ids = Task(kind, num_outputs=outputs), range(NUM_GRAPHS)
    small = check_loss_reduction(model, graphs, task, ids, lr=1e-7)
    assert small.fall == pytest.approx(small.first_order, rel=1e-3)
    largest = check_loss_reduction(model, graphs, task, ids)
    assert largest.lr == largest.largest_lr and largest.keeps_first_order
    assert largest.before == small.before and largest.fall > small.fall > 0


@pytest.mark.parametrize(("kind", "outputs"), [("multilabel", 2), ("multiclass", 3)])
def test_gamma_is_the_largest_spectral_norm(kind, outputs):
    graphs, model, ids = make_graphs(kind, outputs), make_model(outputs), range(NUM_GRAPHS)
    own = tangent_kernel(model, graphs, ids)[ids, ids]
    found = check_loss_reduction(model, graphs, Task(kind, num_outputs=outputs), ids, lr=1e-7)
    assert found.gamma == pytest.approx(float(torch.linalg.eigvalsh(own).max()))


@pytest.mark.parametrize(
    ("kind", "f"),
    [("regression", [0]), ("binary", [0]), ("multilabel", [0, 0]), ("multiclass", [0, 0, -99])],
)
def test_smoothness_is_the_largest_second_derivative(kind, f):
    task, pred = Task(kind, num_outputs=len(f)), torch.tensor([f]).double()
    y = torch.zeros(1).long() if kind == "multiclass" else torch.zeros_like(pred)
    hessian = torch.autograd.functional.hessian(lambda f: loss(f, y, task, "sum"), pred)
    half = 0.5 if kind == "regression" else 1.0  # the residual is that of ½(f − y)²
    largest = half * float(torch.linalg.eigvalsh(hessian.view(len(f), -1)).max())
    assert SMOOTHNESS[kind] == pytest.approx(largest)


def test_the_proposition_holds_for_one_graph_and_not_where_graphs_share_nothing():
    """Its proof needs a lower bound of the kernel and takes the upper one."""
    graphs, model, task = make_graphs(), make_model(norm=None), Task("regression")
    alone = check_loss_reduction(model, graphs, task, [2], lr=1e-7)
    assert alone.proposition == pytest.approx(0.5 * alone.first_order)
    assert alone.keeps_proposition

    # Seven graphs of one node, each with a feature of its own, under f = w·x: K is the identity.
    eye = PackedGraphs.from_arrays(
        torch.eye(7), torch.zeros(2, 0).long(), torch.arange(7), torch.ones(7, 1), y_level="graph"
    )
    linear = FlexGCN(7, [], 1, orders=[1], bias=False)
    torch.nn.init.zeros_(linear.convs[0].weight)
    apart = check_loss_reduction(linear, eye, task, range(7))
    assert (apart.gamma, apart.largest_lr) == (1.0, 0.5)
    assert apart.proposition == pytest.approx(0.5 * 0.5 * 1)
    assert apart.first_order == pytest.approx(0.5 / 7)
    assert apart.keeps_first_order and not apart.keeps_proposition


def test_a_step_too_long_is_seen_to_break_the_promise():
    graphs, model = make_graphs(), make_model(norm=None)
    ids = range(NUM_GRAPHS)
    largest = check_loss_reduction(model, graphs, Task("regression"), ids).largest_lr
    far = check_loss_reduction(model, graphs, Task("regression"), ids, lr=1e3 * largest)
    assert not far.keeps_first_order


@pytest.mark.parametrize("count", [8, 100])
def test_graphs_may_be_chosen_by_a_mask(count):
    graphs, model = dense_graphs((3,) * count, 3).to(torch.float64), make_model()
    mask, ids = torch.arange(count) % 3 == 1, range(1, count, 3)
    for tangent in (output_jacobian, tangent_kernel):
        torch.testing.assert_close(tangent(model, graphs, mask), tangent(model, graphs, ids))
    with pytest.raises(InputError, match=f"give one bool for each of the {count} graphs"):
        tangent_kernel(model, graphs, [0], mask[:-1])


def test_what_cannot_be_compared_is_refused():
    graphs, model, task = make_graphs(), make_model(), Task("regression")
    with pytest.raises(InputError, match="no graphs"):
        output_jacobian(model, graphs, [])
    with pytest.raises(InputError, match="pools its nodes"):
        output_jacobian(make_model(pool=None), graphs, [2])
    with pytest.raises(InputError, match="not for a Linear"):
        output_jacobian(torch.nn.Linear(3, 1), graphs, [2])
    with pytest.raises(InputError, match="chunk_size=0"):
        output_jacobian(model, graphs, [1], chunk_size=0)
    with pytest.raises(InputError, match="chunk_size=0"):
        tangent_kernel(model, graphs, [1], chunk_size=0)
    with pytest.raises(InputError, match=r"\(2, 1\) for a kernel of shape \(1, 1, 1, 1\)"):
        functional_gradient(tangent_kernel(model, graphs, [1]), torch.zeros(2, 1))
    with pytest.raises(InputError, match="graph-level task"):
        check_loss_reduction(model, graphs, Task("regression", "node"), [0])
    graphs.y[3] = -100  # a label like any other, of a regression
    check_loss_reduction(model, graphs, task, [3])
    graphs.y[3] = torch.nan
    with pytest.raises(InputError, match="a label is missing"):
        check_loss_reduction(model, graphs, task, [2, 3])


def test_outputs_that_nothing_moves_are_named():
    edges, y = torch.zeros(2, 0).long(), torch.zeros(2, 1)
    empty = PackedGraphs.from_arrays(
        torch.zeros(0, 3), edges, torch.zeros(0).long(), y, num_graphs=2, y_level="graph"
    )
    with pytest.raises(InputError, match="no weight moves the outputs"):
        check_loss_reduction(FlexGCN(3, [4], 1, [2, 2]), empty, Task("regression"), [0, 1])


def test_what_a_model_does_beside_its_layers_is_refused():
    class Doubled(FlexGCN):
        def forward(self, *args):
            return 2 * super().forward(*args)

    class Named(FlexGCN):
        """One that has nothing of its own."""

    graphs, sizes = make_graphs(), (3, 6, 1)
    hooked = make_model()
    hooked.register_forward_hook(lambda module, args, out: 2 * out)
    for model in (Doubled(*sizes).double(), hooked):
        with pytest.raises(InputError, match="hooks or its own forward pass"):
            output_jacobian(model, graphs, [0])
    assert output_jacobian(Named(*sizes).double(), graphs, [0]).shape[:2] == (1, 1)
    with pytest.raises(InputError, match="no parameter of the model requires a gradient"):
        output_jacobian(make_model().requires_grad_(False), graphs, [0])
