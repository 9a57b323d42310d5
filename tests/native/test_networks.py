"""Networks by the compiled CPU kernels, and scores, against PyTorch's operators in float64."""

import copy
import itertools
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from grant_fast import FlexGCN, PackedGraphs, explain, native
from grant_fast.errors import InputError
from grant_fast.nn import one_pass
from tests.cases import AWKWARD_SIZES, Case, dense_graphs
from tests.native.checks import close, identity_network, in_double, nodes

pytestmark = pytest.mark.skipif(native.build() is None, reason="the kernels were not compiled")


#: Each with a pooling that is a sum, and with one for which the last layer's every row is wanted.
NETWORKS = [
    *[([4, 3, 2, 2], [27, 18, 18], pool) for pool in ("mean", None)],
    *[([1, 2], [64], pool) for pool in ("sum", "max")],
    *[([3, 1, 4], [5, 33], pool) for pool in ("sum", None)],
    *[([2, 2], [130], pool) for pool in ("mean", "max")],
]


@pytest.mark.parametrize("orders, hidden, pool", NETWORKS)
@pytest.mark.parametrize("norm", ["batch_norm", "layer_norm", None])
@pytest.mark.parametrize("kind", ["weighted", "few edges", "many edges", "not normalised"])
def test_networks(build, orders, hidden, norm, pool, kind):
    torch.manual_seed(0)
    graphs = dense_graphs(AWKWARD_SIZES, 5)
    if kind != "many edges":
        graphs = Case(symmetric=kind == "not normalised", weighted=kind == "weighted").graphs
    ids = torch.randperm(len(graphs))
    model = FlexGCN(5, hidden, 5, orders, norm=norm, pool=pool, normalize=kind != "not normalised")
    for parameter in model.norms.parameters():
        torch.nn.init.uniform_(parameter, 0.5, 1.5)
    exact = in_double(model)
    check_steps(model, exact, graphs.batch(ids), graphs.to(dtype=torch.float64).batch(ids))


#: Every one that the kernels know, with numbers of its own.
ACTIVATIONS = [
    nn.Identity(), nn.LeakyReLU(0.2), nn.ELU(1.3), nn.GELU(), nn.Sigmoid(), nn.SiLU(), nn.Tanh(),
]  # fmt: skip


@pytest.mark.parametrize("act", ACTIVATIONS, ids=lambda act: type(act).__name__)
@pytest.mark.parametrize("norm", ["batch_norm", "layer_norm", None])
@pytest.mark.parametrize("pool", ["mean", None])
def test_activations(build, act, norm, pool):
    torch.manual_seed(0)
    graphs = Case(weighted=True).graphs
    ids = torch.randperm(len(graphs))
    model = FlexGCN(5, [27, 18, 20], 5, [4, 3, 2, 2], act=act, norm=norm, pool=pool)
    for parameter in model.norms.parameters():
        torch.nn.init.uniform_(parameter, 0.5, 1.5)
    exact = in_double(model)
    check_steps(model, exact, graphs.batch(ids), graphs.to(dtype=torch.float64).batch(ids))


@pytest.mark.parametrize("act", [nn.ReLU(), *ACTIVATIONS], ids=lambda act: type(act).__name__)
def test_activations_and_their_slopes_to_the_last_digits(build, act):
    """Of every size, and of what is no number; with what falls by dropout."""
    p, sizes = 0.3, torch.logspace(-6, 4, 400)
    points = [*sizes, *-sizes, 0.0, -0.0, float("nan")]
    y = torch.tensor(points).repeat(20, 1).T.contiguous().requires_grad_()
    net = identity_network(nodes(len(points)), 20, p)._replace(act=native.Activation.of(act))
    out = native.train(net, y)
    (grad,) = torch.autograd.grad(out.sum(), y)
    exact = y.detach().double().requires_grad_()
    value = copy.deepcopy(act)(exact)
    (slope,) = torch.autograd.grad(value.sum(), exact)
    # A mask is seen where neither the value nor its slope is 0, as it is below a ReLU's corner.
    seen = (value.abs() > 1e-30) & (slope.abs() > 1e-30)
    kept = torch.where(seen, (out != 0).double() / (1 - p), float("nan"))
    error, size = (out - value * kept).abs(), exact.abs().clamp(max=1.0)
    assert (error <= 2e-6 * value.abs() + 4e-7 * size)[seen].all()  # of small ones, too
    atol = 0.0 if isinstance(act, nn.ELU) else 4e-7  # torch's own cancel there, too
    torch.testing.assert_close(grad[seen].double(), (slope * kept)[seen], rtol=2e-6, atol=atol)
    assert 0.6 < (out != 0)[seen].double().mean() < 0.8
    assert out[-1].isnan().all()


@pytest.mark.parametrize("act", [nn.LeakyReLU(0.2), nn.ELU(1.3)], ids=lambda a: type(a).__name__)
def test_slopes_at_zero_are_torchs(build, act):
    y = torch.tensor([[0.0], [-0.0]]).repeat(1, 20).requires_grad_()
    net = identity_network(nodes(2), 20)._replace(act=native.Activation.of(act))
    (grad,) = torch.autograd.grad(native.train(net, y).sum(), y)
    (want,) = torch.autograd.grad(copy.deepcopy(act)(y).sum(), y)
    assert torch.equal(grad, want)


@pytest.mark.parametrize(
    "act", [nn.GELU(approximate="tanh"), nn.Softplus(), type("Own", (nn.Tanh,), {})()]
)
def test_other_activations_are_torchs(act):
    model, batch = FlexGCN(5, 8, 2, [2, 2], act=act), Case().graphs.batch(slice(None))
    assert one_pass.as_network(model, batch) is None
    close(model(batch), in_double(model)(Case().double().batch(slice(None))))


def test_a_gradient_is_that_of_the_activation_at_its_forward_pass(build):
    model, batch = FlexGCN(5, 8, 2, [2, 2], act=nn.LeakyReLU(0.1)), Case().graphs.batch(slice(None))
    want = torch.autograd.grad(model(batch).sum(), model.convs[0].weight)
    out = model(batch)
    model.act.negative_slope = 0.9
    assert torch.equal(*want, *torch.autograd.grad(out.sum(), model.convs[0].weight))


@pytest.mark.parametrize("alpha", [nn.Parameter(torch.ones(())), 1e39, torch.nan, None])
def test_an_activation_with_no_plain_number_is_torchs(alpha):
    act = nn.ELU()
    del act.alpha
    act.alpha = alpha
    model, batch = FlexGCN(5, 8, 2, [2, 2], act=act), Case().graphs.batch(slice(None))
    assert one_pass.as_network(model, batch) is None


def check_steps(model, exact_model, batch, exact_batch):
    """Outputs, gradients and running statistics of two training steps, then evaluation."""
    assert one_pass.as_network(model, batch) is not None
    batch_norm, last = isinstance(model.norms[0], nn.BatchNorm1d), f"convs.{len(model.norms)}"
    for _ in range(2):
        out, want = model(batch), exact_model(exact_batch)
        weight = torch.randn_like(want)
        model.zero_grad()
        exact_model.zero_grad()
        (out * weight.float()).sum().backward()
        (want * weight).sum().backward()
        close(out, want)
        exact_parameters = dict(exact_model.named_parameters())
        for name, parameter in model.named_parameters():
            if not batch_norm or not (name.startswith("convs") and name.endswith("bias")):
                # Of a norm's shift the terms are those of its scale; before a norm they cancel, and
                # so may those of an embedding that all nodes have.
                like = name.replace("bias", "weight") if name.startswith("norms") else name
                terms = exact_parameters[like].grad
                terms = terms.abs().sum(0) if name.startswith("encoder") else terms
                close(parameter.grad, exact_parameters[name].grad, terms)
            elif not name.startswith(last):
                # A shift before a norm changes nothing: what is left is rounding.
                scale = float(exact_parameters[name.replace("bias", "weight")].grad.abs().max())
                assert float(parameter.grad.abs().max()) < 1e-4 * max(1.0, scale)
        for buffer, exact_buffer in zip(model.buffers(), exact_model.buffers(), strict=True):
            close(buffer.double(), exact_buffer.double())
    with torch.no_grad():
        close(model.eval()(batch), exact_model.eval()(exact_batch))


@pytest.mark.parametrize("orders, widths", [
    ((1, 2), (16, 20)), ((2, 1), (33, 5)), ((3, 2), (64, 64)), ((5, 2), (40, 17)),
    ((4, 2), (9, 27)), ((2, 3), (6, 32)), ((4, 2), (9, 130)),  # of these not all go by kinds
])  # fmt: skip
@pytest.mark.parametrize("norm", ["batch_norm", "layer_norm", None])
@pytest.mark.parametrize("pool", ["mean", None])
def test_a_first_layer_on_few_kinds_of_nodes(build, orders, widths, norm, pool):
    """Products for each kind of the batch, of which there are fewer than the data set has."""
    torch.manual_seed(0)
    case = Case()
    x = torch.zeros(case.num_nodes, 9, dtype=torch.uint8)
    x[:, 0] = torch.randint(0, 40, (case.num_nodes,))
    left_out = 3
    x[case.batch == left_out, 1] = 1
    graphs = PackedGraphs(x=x, y=None, ptr=case.graphs.ptr, adj=case.graphs.adj,
                          adj_t=case.graphs.adj_t)  # fmt: skip
    ids = torch.cat([torch.randperm(len(graphs)), torch.arange(len(graphs))])
    ids = ids[ids != left_out]
    batch = graphs.batch(ids)
    assert len(graphs.kinds[0]) > 40 and batch.num_nodes > 8 * len(graphs.kinds[0])
    model = FlexGCN(*widths, 3, orders, norm=norm, pool=pool, encoder="atom")
    with torch.no_grad():  # what all nodes share would cancel behind a batch norm, but for rounding
        model.encoder.weight[119:] *= 0.01
        nn.init.normal_(model.encoder.weight[:119])
    check_steps(model, in_double(model), batch, graphs.to(dtype=torch.float64).batch(ids))


@pytest.mark.parametrize("orders, widths, source", [
    ((3, 2), (37, 16), "kinds"), ((2, 2), (33, 130), "kinds"), ((1, 3), (40, 5), "kinds"),
    ((3, 2), (1, 64), None),  # a hop of one column is cheaper than one of 64
])  # fmt: skip
@pytest.mark.parametrize("norm", ["batch_norm", None])
@pytest.mark.parametrize("pool", ["mean", None])
def test_features_of_few_distinct_rows(build, orders, widths, source, norm, pool):
    torch.manual_seed(0)
    case = Case()
    rows = torch.randn(11, widths[0])
    x = rows[torch.randint(len(rows), (case.num_nodes,))]
    graphs = PackedGraphs(x, None, case.graphs.ptr, case.graphs.adj, case.graphs.adj_t)
    batch = graphs.batch(torch.arange(len(graphs)).repeat(2))
    model = FlexGCN(*widths, 3, orders, norm=norm, pool=pool)
    assert (one_pass.plan(model, batch)[1] == "kinds") == (source == "kinds")
    exact_batch = graphs.to(dtype=torch.float64).batch(torch.arange(len(graphs)).repeat(2))
    check_steps(model, in_double(model), batch, exact_batch)
    graphs.x.mul_(0.5)  # they are other rows then
    batch, halves = graphs.batch([3, 1]), graphs.to(dtype=torch.float64).batch([3, 1])
    with torch.no_grad():
        close(model(batch), in_double(model)(halves))


def test_a_first_layer_on_many_kinds_does_not_go_by_them(build, monkeypatch):
    x = torch.eye(37)[torch.arange(400) % 37]
    graphs = PackedGraphs.from_arrays(x, torch.empty(2, 0), torch.arange(400) // 20)
    model, batch = FlexGCN(37, 16, 3, [3, 2]), graphs.batch(slice(None))
    assert one_pass.plan(model, batch)[1] == "kinds"
    monkeypatch.setattr(one_pass, "MOST_KINDS", 36)
    assert one_pass.plan(model, batch)[1] in ("dataset", "hops")


def test_a_gradient_goes_by_the_kinds_that_its_outputs_were_made_of(build):
    """Features are written to, and others called with them, before it is asked for."""
    case = Case()
    x = torch.eye(33)[torch.arange(case.num_nodes) % 5]
    graphs = PackedGraphs(x, None, case.graphs.ptr, case.graphs.adj, case.graphs.adj_t)
    model, batch = FlexGCN(33, 16, 3, [3, 2]), graphs.batch(slice(None))
    want = torch.autograd.grad(model(batch).square().sum(), model.convs[0].weight)[0]
    out = model(batch)
    graphs.x.copy_(torch.eye(33)[torch.arange(case.num_nodes) % 33])
    model(graphs.batch([0]))
    assert len(graphs.kinds[0]) == 33
    torch.testing.assert_close(
        torch.autograd.grad(out.square().sum(), model.convs[0].weight)[0], want
    )


def test_kinds_of_nodes(build):
    """An embedding: the gradient of its table, and of a batch that names a graph twice."""
    case = Case()
    x = torch.randint(0, 2, (case.num_nodes, 9)) * torch.tensor([1, 0, 0, 1, 0, 0, 0, 1, 1])
    graphs = PackedGraphs(x=x.to(torch.uint8), y=None, ptr=case.graphs.ptr, adj=case.graphs.adj,
                          adj_t=case.graphs.adj_t)  # fmt: skip
    assert graphs.kinds is not None
    model = FlexGCN(19, 33, 3, [3, 2], norm="batch_norm", encoder="atom")
    exact_model = in_double(model)
    out, want = (m(graphs.to(dtype=d).batch([6, 0, 10, 2, 6])) for m, d in (
        (model, torch.float32), (exact_model, torch.float64)))  # fmt: skip
    grad = torch.randn_like(out)
    close(out, want)
    got = torch.autograd.grad(out, model.encoder.weight, grad)[0]
    close(got, torch.autograd.grad(want, exact_model.encoder.weight, grad.double())[0])


def test_gradient_of_the_input(build):
    """An encoder of one's own learns from the first layer's gradient."""
    case = Case()
    model = FlexGCN(7, 20, 3, [3, 2], encoder=nn.Linear(case.graphs.num_features, 7))
    exact_model = in_double(model)
    out = model(case.graphs.batch([6, 0, 10, 2]))
    want = exact_model(case.double().batch([6, 0, 10, 2]))
    grad = torch.randn_like(out)
    got = torch.autograd.grad(out, model.encoder.weight, grad)[0]
    close(got, torch.autograd.grad(want, exact_model.encoder.weight, grad.double())[0])


@pytest.mark.parametrize("openmp", [False, True])
def test_threads_do_not_change_a_step(build, openmp):
    """Parts are summed in order: results are equal bit by bit, whatever the threads are. (One graph
    that is most of a batch goes to PyTorch where threads outnumber what it leaves to share.)"""
    native.loading.library().use_openmp(native.loading._openmp() if openmp else None)
    case = Case(sizes=(90,) * 60)
    results, threads = [], torch.get_num_threads()
    for count in (1, 2, 3):
        torch.manual_seed(5)
        model = FlexGCN(5, [27, 18], 2, [3, 2, 2], norm="batch_norm", dropout=0.3)
        torch.set_num_threads(count)
        try:
            out = model(case.graphs.batch(slice(None)))
            results.append([out, *torch.autograd.grad(out.sum(), list(model.parameters()))])
        finally:
            torch.set_num_threads(threads)
            native.loading.library().use_openmp(None)
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))


def test_the_gradient_of_a_table_that_many_equal_nodes_share(build):
    count = 100_000
    edges = torch.stack([torch.arange(count), torch.arange(count) ^ 1])
    x = torch.zeros(count, 9, dtype=torch.long)
    graphs = PackedGraphs.from_arrays(x, edges, torch.arange(count) // 20)
    model = FlexGCN(4, 64, 1, [2, 2], encoder="atom")
    exact = in_double(model)
    model(graphs.batch(slice(None))).sum().backward()
    exact(graphs.to(dtype=torch.float64).batch(slice(None))).sum().backward()
    true = exact.encoder.weight.grad
    assert (model.encoder.weight.grad - true).abs().max() < 1e-5 * true.abs().max()


def test_a_batch_norm_that_pytorch_may_refuse_is_left_to_it(build):
    batch, model = Case().graphs.batch(slice(None)), FlexGCN(5, 8, 1, [2, 2], norm="batch_norm")
    assert one_pass.as_network(model, batch) is not None
    model.norms[0].eps = 0.0
    assert one_pass.as_network(model, batch) is None


def test_sums_over_many_equal_nodes(build):
    """All of them round to the same side."""
    count = 200_000
    model = FlexGCN(4, 16, 2, [2, 1], act="silu", pool=None)
    edges = torch.stack([torch.arange(count), torch.arange(count) ^ 1])
    graphs = PackedGraphs.from_arrays(torch.full((count, 4), 0.3), edges, torch.arange(count) // 20)
    exact = in_double(model)
    model(graphs.batch(slice(None))).sum().backward()
    exact(graphs.to(dtype=torch.float64).batch(slice(None))).sum().backward()
    for ours, true in zip(model.parameters(), exact.parameters(), strict=True):
        assert (ours.grad - true.grad).abs().max() < 1e-5 * true.grad.abs().max()


@pytest.mark.parametrize(
    "settings",
    [{"hidden_channels": native.MAX_WIDTH + 1}, {"hidden_channels": 16, "norm": "batch_norm"}],
)
@pytest.mark.parametrize("frozen", [True, False])
def test_an_encoder_runs_once_whoever_computes_the_layers_and_not_to_explain_them(settings, frozen):
    encoder = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8))
    model = FlexGCN(8, out_channels=1, orders=[2, 2, 2], encoder=encoder, **settings)
    if frozen:
        model.norms.eval()
    batch = Case().graphs.batch(slice(None))
    explain(model, batch)
    model(batch)
    assert int(encoder[1].num_batches_tracked) == 1


def test_hidden_layers_that_a_subclass_changes_are_its_own():
    class Gated(FlexGCN):
        def hidden(self, graphs):
            return 3 * super().hidden(graphs)

    model, batch = Gated(5, 8, 2, [2, 2]), Case().graphs.batch(slice(None))
    got = model(batch)
    model.backend = "torch"
    close(got, model(batch).double())
    with torch.no_grad():
        close(model(batch), got.double())


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_each_layer_has_a_backend_of_its_own(layer):
    batch = Case().graphs.batch(slice(None))
    model = FlexGCN(5, [8, 8], 2, [2, 2, 2])
    want = model(batch)
    model.convs[layer].backend = "reference"
    assert one_pass.as_network(model, batch) is None
    assert "one pass" not in "".join(explain(model, batch))
    close(model(batch), want.double())


@pytest.mark.parametrize("pool", ["mean", None])
@pytest.mark.parametrize("computed", [False, True])
def test_a_model_that_does_not_change_is_planned_once_for_each_kind_of_call(
    pool, computed, monkeypatch
):
    datasets = [Case(seed=seed).graphs for seed in (0, 1)]
    one = int((datasets[0].num_nodes_per_graph == 1).nonzero()[0])
    model = FlexGCN(5, [8, 8], 2, [2, 2, 2], norm="batch_norm", dropout=0.1, pool=pool)
    if computed:  # a weight that is made anew for each call
        nn.utils.parametrizations.weight_norm(model.convs[0])
    twin, plans, plan = copy.deepcopy(model), [], one_pass.plan
    monkeypatch.setattr(one_pass, "plan", lambda *of: plans.append(of) or plan(*of))

    def calls(model):
        """What is computed in both modes, with gradients and without, and steps in between."""
        optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
        for ids in ([3, 5], [one], [2, 3], [one], [5, 6]):
            for which, train, learn in itertools.product((0, 1), (True, False), (True, False)):
                torch.manual_seed(0)
                with torch.set_grad_enabled(learn):
                    found.append(model.train(train)(datasets[which].batch(ids)))
                if learn:
                    found[-1].square().mean().backward()
                    optimizer.step()
        return [each.detach() for each in found]

    with one_pass.unchanging(model):
        got = calls(model)
    # A batch norm is not taught by one node, and with gradients the kernels take none that rests.
    assert len(plans) == (2 * 3 * 3 + 2 * 2 if computed else 2 * 3 + 2)
    torch.testing.assert_close(got, calls(twin), rtol=0, atol=0)


def test_each_kind_of_call_of_a_model_that_does_not_change_is_checked_once():
    batch, model = Case().graphs.batch([3, 5]), FlexGCN(5, 8, 2, [2, 2])
    with one_pass.unchanging(model):
        model(batch)
        model.convs[0].normalize = False
        model(batch)
        copied = copy.deepcopy(model)
        for each in (model.eval(), copied):
            with pytest.raises(InputError, match="normalize=False"):
                each(batch)
    for each in (model.train(), copied):
        with one_pass.unchanging(each), pytest.raises(InputError, match="normalize=False"):
            each(batch)


def test_what_computes_a_batch_of_large_graphs_does_not_depend_on_the_one_before(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    ring = torch.arange(12 * 1100).view(12, 1100)
    edges = torch.stack([ring, ring.roll(1, 1)]).flatten(1)
    graphs = PackedGraphs.from_arrays(torch.randn(12 * 1100, 5), edges, torch.arange(13200) // 1100)
    model, taken, train = FlexGCN(5, 8, 2, [2, 2]), [], native.train
    monkeypatch.setattr(native, "train", lambda net, x: taken.append(x) or train(net, x))
    for around in (nullcontext(), one_pass.unchanging(model)):
        with around:
            model(graphs.batch(slice(None)))
            model(graphs.batch([0, 1]))  # most threads would wait
        assert len(taken) == 1
        taken.clear()


def test_hops_kept_for_a_higher_order_are_read_where_they_lie():
    graphs = Case().graphs
    kept = []
    for order in (4, 2):
        model = FlexGCN(5, [64], 1, [order, 2])
        batch = graphs.batch(slice(None))
        assert one_pass.plan(model, batch)[1] == "hops"
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
            out = model(batch)
        x = graphs.hops(order, True)
        assert any(t.data_ptr() == x.data_ptr() and t.shape == x.shape for t in kept)
        out.sum().backward()
        close(out, in_double(model)(Case().double().batch(slice(None))))
