"""One layer by the compiled CPU kernels against the reference in float64; and what they take."""

import copy
import ctypes

import pytest
import torch
from torch import nn
from torch.func import functional_call

from grant_fast import FlexConv, FlexGCN, explain, native
from grant_fast.batches.edges import BatchAdjacency
from grant_fast.nn import one_pass
from tests.cases import AWKWARD_SIZES, Case
from tests.native.checks import close, exact

pytestmark = pytest.mark.skipif(native.build() is None, reason="the kernels were not compiled")

LAYERS = [
    *[(1, 5, 3), (4, 9, 27), (3, 27, 18), (2, 18, 18), (2, 1, 1), (5, 3, 64)],
    *[(3, 64, 64), (2, 65, 16), (4, 16, 17), (2, 80, 70), (3, 7, 130), (2, 130, 5)],
]


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("kind", ["directed", "symmetric", "unweighted"])
def test_the_layer_and_its_gradients(build, layer, kind):
    order, h_in, h_out = layer
    case = Case(symmetric=kind == "symmetric", weighted=kind != "unweighted")
    ids = torch.randperm(len(case.sizes), generator=torch.Generator().manual_seed(1))
    adjacency = case.graphs.batch(ids).adjacency(normalize=kind != "unweighted")
    generator = torch.Generator().manual_seed(order)
    x = torch.randn(case.num_nodes, h_in, generator=generator, requires_grad=True)
    weight = torch.randn(order, h_in, h_out, generator=generator) / (order * h_in) ** 0.5
    bias = torch.randn(h_out, generator=generator)
    weight.requires_grad_(), bias.requires_grad_()
    grad = torch.randn(h_out, generator=generator).expand(case.num_nodes, h_out)
    relu = order % 2 == 0
    y = native.flex_conv(x, weight, bias, adjacency, relu)
    results = (y, *torch.autograd.grad(y, (x, weight, bias), grad))
    for actual, expected in zip(
        results, exact(x, weight, bias, adjacency, grad, relu), strict=True
    ):
        close(actual, expected)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("symmetric", [True, False])
def test_weights_of_edges_that_learn(build, layer, symmetric):
    """Their gradient, also where X or W has none, and that of all else as ever."""
    order, h_in, h_out = layer
    case = Case(symmetric=symmetric, num_features=h_in)
    conv = FlexConv(h_in, h_out, order)
    exact_conv = copy.deepcopy(conv).double()
    leaves = [case.x, case.edge_weight, conv.weight, conv.bias]
    leaves = [t.detach().clone().requires_grad_() for t in leaves]
    exacts = [t.detach().double().requires_grad_() for t in leaves]

    def y(conv, x, value, *parameters):
        given = dict(zip(("weight", "bias"), parameters, strict=True))
        return functional_call(conv, given, (x, case.edge_index, value)).relu()

    want = y(exact_conv, *exacts)
    grad = torch.randn(h_out).expand(want.shape)
    wanted = torch.autograd.grad(want, exacts, grad.double())
    got = torch.autograd.grad(y(conv, *leaves), leaves, grad)
    assert native.takes(case.x)
    assert order > 1 or not wanted[1].any()
    for actual, expected in zip(got, wanted, strict=True):
        close(actual, expected, *wanted)
    only = [t if k == 1 else t.detach() for k, t in enumerate(leaves)]
    close(torch.autograd.grad(y(conv, *only), only[1], grad)[0], wanted[1], *wanted)


@pytest.mark.parametrize("layer", [(4, 9, 27), (3, 27, 18)])
def test_many_parts_add_up(build, monkeypatch, layer):
    order, h_in, h_out = layer
    adjacency = Case(sizes=AWKWARD_SIZES * 4).graphs.batch(slice(None)).adjacency(True)
    x = torch.randn(adjacency.num_nodes, h_in, requires_grad=True)
    weight = torch.randn(order, h_in, h_out, requires_grad=True)
    bias = torch.randn(h_out, requires_grad=True)
    grad = torch.randn(adjacency.num_nodes, h_out)
    monkeypatch.setattr(native.structure, "PART_ROWS", 50)
    y = native.flex_conv(x, weight, bias, adjacency, False)
    results = (y, *torch.autograd.grad(y, (x, weight, bias), grad))
    for actual, want in zip(results, exact(x, weight, bias, adjacency, grad, False), strict=True):
        close(actual, want)


@pytest.mark.parametrize("layer", [(4, 9, 27), (3, 27, 18)])
def test_threads_change_nothing(build, monkeypatch, layer):
    order, h_in, h_out = layer
    graphs = Case(sizes=AWKWARD_SIZES * 4).graphs
    adjacency = graphs.batch(list(range(len(graphs))) * 40).adjacency(True)  # enough to share out
    x = torch.randn(adjacency.num_nodes, h_in, requires_grad=True)
    weight = torch.randn(order, h_in, h_out, requires_grad=True)
    grad = torch.randn(adjacency.num_nodes, h_out)
    runs = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(native.layer, "threads", lambda n=threads: ctypes.c_int(n))
        y = native.flex_conv(x, weight, None, adjacency, False)
        runs.append((y, *torch.autograd.grad(y, (x, weight), grad)))
    for other in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], other, strict=True))


def test_features_of_the_whole_dataset(build):
    """A first layer reads the dataset's rows: X is not gathered."""
    case = Case(num_features=37)
    batch = case.graphs.batch([8, 0, 3, 10, 3])
    adjacency = batch.adjacency(True)
    for order, wide in ((1, 37), (3, 37), (2, 30)):  # the last: a view of the first columns
        x = case.graphs.x[:, :wide]
        for h_out in (4, 40):
            weight = torch.randn(order, wide, h_out, requires_grad=True)
            bias = torch.randn(h_out, requires_grad=True)
            y = native.flex_conv(x, weight, bias, adjacency, True, packed=True)
            grad = torch.randn_like(y)
            want = exact(batch.x[:, :wide], weight, bias, adjacency, grad, True)
            got = (y, *torch.autograd.grad(y, (weight, bias), grad))
            for actual, expected in zip(got, (want[0], *want[2:]), strict=True):
                close(actual, expected)


def test_not_a_number_stays_in_its_graph(build):
    case = Case()
    adjacency = case.graphs.batch(slice(None)).adjacency(True)
    x = torch.randn(case.num_nodes, 9)
    weight = torch.randn(3, 9, 9)
    clean = native.flex_conv(x, weight, None, adjacency, True)
    inside = case.batch == 5
    x[inside.nonzero()[3]] = float("nan")
    dirty = native.flex_conv(x, weight, None, adjacency, True)
    assert dirty[inside].isnan().any()
    assert torch.equal(dirty[~inside], clean[~inside])


def test_not_a_number_stays_in_its_call(build):
    """And not in memory that a thread keeps for the next one."""

    def gradient(case, conv):
        value = case.edge_weight.clone().requires_grad_()
        out = conv(case.x, case.edge_index, value).square().sum()
        return torch.autograd.grad(out, value)[0]

    case, conv, dirty = Case(), FlexConv(5, 3, order=2), Case(num_features=64)
    want = gradient(case, conv)
    dirty.x.fill_(torch.nan)
    assert gradient(dirty, FlexConv(64, 64, order=3)).isnan().any()
    assert torch.equal(gradient(case, conv), want)


def test_weights_that_do_not_lie_in_a_row():
    case = Case()
    model = FlexGCN(5, [8], 1, [2, 2])
    batch = case.graphs.batch(slice(None))
    with torch.no_grad():
        want = model.eval()(batch)
        for conv in model.convs:
            turned = conv.weight.transpose(1, 2).contiguous().transpose(1, 2)
            conv.weight = nn.Parameter(turned)
            assert not turned.is_contiguous() or 1 in turned.shape
        torch.testing.assert_close(model(batch), want)
    torch.testing.assert_close(model.train()(batch), want)


def test_a_layer_of_another_dtype_is_not_taken():
    model = FlexGCN(5, [8, 8], 1, [2, 2, 2])
    batch = Case().graphs.batch(slice(None))
    assert one_pass.as_network(model, batch) is not None
    model.convs[1].double()
    assert one_pass.as_network(model, batch) is None


def test_a_layer_of_two_large_widths_is_left_to_the_blas():
    batch, wide = Case().graphs.batch(slice(None)), native.MAX_WIDTH + 1
    for hidden, native_layers in (([8, wide], 2), ([wide, wide], 1)):
        model = FlexGCN(5, hidden, 1, [2, 2, 2])
        assert (one_pass.as_network(model, batch) is None) == (native_layers < 2)
        assert sum("PyTorch" not in line for line in explain(model, batch)[:2]) == native_layers


def test_what_it_does_not_take():
    case = Case()
    adjacency = case.graphs.batch(slice(None)).adjacency(True)
    assert isinstance(adjacency, BatchAdjacency)
    assert native.takes(case.x, adjacency)
    for x, reason in ((case.x.double(), "float64"), (case.x.to("meta"), "meta")):
        assert reason in native.why_not(x, adjacency)
    assert "float64" in native.why_not(case.x, case.double().batch([1]).adjacency(True))
    assert "no GraphBatch" in native.why_not(case.x, adjacency.transpose())
    big = Case(sizes=(native.MAX_NODES + 1,)).graphs.batch([0])
    assert "4097 nodes" in native.why_not(big.x, big.adjacency(True))


def test_a_machine_without_the_kernels(monkeypatch):
    monkeypatch.setattr(native.loading, "library", lambda: None)
    assert "not compiled" in native.why_not(torch.zeros(1, 1))
