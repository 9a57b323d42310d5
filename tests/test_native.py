"""The compiled CPU kernels against the reference in float64."""

import ctypes
from importlib.util import find_spec

import pytest
import torch
from torch import nn

from grant_fast import native, reference
from grant_fast.batch_edges import BatchAdjacency
from tests.cases import AWKWARD_SIZES, Case

BUILDS = [name for name in native.BUILDS["AVX512"] if find_spec(f"grant_fast.{name}") is not None]
RUNS_HERE = native.BUILDS.get(torch.backends.cpu.get_cpu_capability(), ("_cpu",))

pytestmark = pytest.mark.skipif(not BUILDS, reason="no C compiler when grant_fast was installed")


@pytest.fixture(params=[name for name in BUILDS if name in RUNS_HERE])
def build(request, monkeypatch):
    """Each build that this CPU can run, in place of the one that it would choose."""
    found = find_spec(f"grant_fast.{request.param}")
    loaded = ctypes.CDLL(found.origin)
    monkeypatch.setattr(native, "library", lambda: loaded)


def exact(x, weight, bias, adjacency, grad, relu):
    """Y, dX, dW and db in float64 by the definition."""
    leaves = [t.detach().double().requires_grad_() for t in (x, weight, bias)]
    rowptr, col, value = adjacency.csr
    row = reference.expand_rows(rowptr, col.shape[0])
    dense = torch.zeros(x.shape[0], x.shape[0], dtype=torch.float64)
    dense.index_put_((row.long(), col.long()), value.double(), accumulate=True)
    y = reference.dense_flex_conv(*leaves, dense)
    y = y.relu() if relu else y
    return y.detach(), *torch.autograd.grad(y, leaves, grad.double())


def close(actual, expected):
    actual, expected = actual.detach(), expected.detach()
    scale = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=2e-6 * scale)


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


@pytest.mark.parametrize("layer", [(4, 9, 27), (3, 27, 18)])
def test_many_parts_add_up(build, monkeypatch, layer):
    order, h_in, h_out = layer
    adjacency = Case(sizes=AWKWARD_SIZES * 4).graphs.batch(slice(None)).adjacency(True)
    x = torch.randn(adjacency.num_nodes, h_in, requires_grad=True)
    weight = torch.randn(order, h_in, h_out, requires_grad=True)
    bias = torch.randn(h_out, requires_grad=True)
    grad = torch.randn(adjacency.num_nodes, h_out)
    monkeypatch.setattr(native, "PART_ROWS", 50)
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
        monkeypatch.setattr(native, "_threads", lambda n=threads: ctypes.c_int(n))
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


@pytest.mark.parametrize("h", [1, 16, 27])
def test_norm_and_relu(build, h):
    y = (3 * torch.randn(3001, h) + 5).requires_grad_()
    ours, torchs = nn.BatchNorm1d(h), nn.BatchNorm1d(h)
    for norm in (ours, torchs):
        with torch.no_grad():
            norm.weight.copy_(torch.linspace(-1, 2, h))
            norm.bias.copy_(torch.linspace(-1, 1, h))
    torchs.double()
    grad = torch.randn(3001, h)
    out = native.norm_relu_dropout(y, ours, 0.0)
    got = torch.autograd.grad(out, (y, ours.weight, ours.bias), grad)
    exact_y = y.detach().double().requires_grad_()
    want_out = torchs(exact_y).relu()
    want = torch.autograd.grad(want_out, (exact_y, torchs.weight, torchs.bias), grad.double())
    close(out, want_out)
    for actual, expected in zip(got, want, strict=True):
        close(actual, expected)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        torch.testing.assert_close(getattr(ours, name).double(), getattr(torchs, name).double())


def test_a_large_mean_does_not_drown_the_variance(build):
    y = torch.randn(5000, 3) + 1000
    norm = nn.BatchNorm1d(3)
    out = native.norm_relu_dropout(y, norm, 0.0)
    expected = nn.functional.batch_norm(y.double(), None, None, training=True).relu()
    torch.testing.assert_close(out.detach().double(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("p", [0.0, 0.27, 0.9])
def test_dropout(build, p):
    """The share that falls, the scale of the rest, the same mask in both directions."""
    y = torch.ones(20_000, 20, requires_grad=True)
    out = native.norm_relu_dropout(y, None, p)
    kept = out.detach() != 0
    share = kept.double().mean()
    assert abs(share - (1 - p)) < 5 * (p * (1 - p) / kept.numel()) ** 0.5 + 1e-12
    torch.testing.assert_close(out[kept], torch.full_like(out[kept], 1 / (1 - p)))
    (grad,) = torch.autograd.grad(out.sum(), y)
    assert torch.equal(grad, out)
    if p:  # columns, rows, neighbours and two calls are independent
        bits = kept.double() - (1 - p)
        sigma = p * (1 - p)
        pairs = [(bits[1:], bits[:-1]), (bits[:, 1:], bits[:, :-1]), (bits[:, 16:], bits[:, :4])]
        second = (native.norm_relu_dropout(y, None, p).detach() != 0).double() - (1 - p)
        for a, b in (*pairs, (bits, second)):
            assert abs((a * b).mean()) < 5 * sigma / a.numel() ** 0.5
        assert (bits.mean(0).abs() < 6 * (sigma / 20_000) ** 0.5).all()


def test_dropout_repeats_with_torchs_seed(build):
    y = torch.randn(300, 30)
    runs = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        runs.append(native.norm_relu_dropout(y, None, 0.5))
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])


@pytest.mark.parametrize("order", [1, 3])
@pytest.mark.parametrize("h", [1, 18, 33])
def test_pooling(build, order, h):
    case = Case()
    batch = case.graphs.batch([6, 0, 10, 2, 11, 6])
    weights = torch.randn(order, case.num_nodes)
    x = torch.randn(batch.num_nodes, h, requires_grad=True)
    out = native.pool_nodes(x, weights, batch)
    exact_x = x.detach().double().requires_grad_()
    p = weights.double()[:, batch.nodes.long()]
    terms = (p[:, :, None] * exact_x).transpose(0, 1).flatten(1)
    want = torch.zeros(6, order * h, dtype=torch.float64).index_add(0, batch.batch, terms)
    close(out, want)
    grad = torch.randn_like(out)
    close(
        torch.autograd.grad(out, x, grad)[0], torch.autograd.grad(want, exact_x, grad.double())[0]
    )


def test_embedding(build):
    case = Case()
    batch = case.graphs.batch([6, 0, 10, 2])
    code = torch.randint(5, (case.num_nodes,), dtype=torch.int32)
    table = torch.randn(5, 19, requires_grad=True)
    x = native.embed_nodes(table, code, batch)
    assert torch.equal(x, table[code[batch.nodes.long()].long()])
    grad = torch.randn_like(x)
    want = torch.zeros(5, 19, dtype=torch.float64)
    want.index_add_(0, code[batch.nodes.long()].long(), grad.double())
    close(torch.autograd.grad(x, table, grad)[0], want)


@pytest.mark.parametrize("classes", [2, 10, 17])
def test_class_scores(build, classes):
    sizes = torch.tensor([0, 1, 16, 33, 100, 5])
    ptr = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    pred = 30 * torch.randn(int(ptr[-1]), classes)
    pred[7] = 1000.0  # no overflow, and no winner
    pred[8, 1] = -1e30
    y = torch.randint(classes, (len(pred),))
    y[::7] = -100
    y[-5:] = -100  # a graph without a label
    got = native.class_scores(pred, y, ptr)
    errors = pred.double().softmax(1) - nn.functional.one_hot(y.clamp(min=0), classes)
    squares = torch.where(y >= 0, errors.square().sum(1), 0.0)
    graph = torch.repeat_interleave(torch.arange(6), sizes)
    sums = torch.zeros(6, dtype=torch.float64).index_add(0, graph, squares)
    count = torch.zeros(6).index_add(0, graph, (y >= 0).float()).clamp(min=1)
    torch.testing.assert_close(got.double(), sums.sqrt() / count, rtol=1e-5, atol=1e-7)
    pred[20, 0] = float("nan")
    y[20] = 1
    dirty = native.class_scores(pred, y, ptr)
    assert dirty.isnan().nonzero().flatten().tolist() == [3]


def test_what_it_does_not_take():
    case = Case()
    adjacency = case.graphs.batch(slice(None)).adjacency(True)
    assert isinstance(adjacency, BatchAdjacency)
    assert native.takes(case.x, adjacency)
    for x, reason in (
        (case.x.double(), "float64"),
        (case.x.to("meta"), "meta"),
    ):
        assert reason in native.why_not(x, adjacency)
    assert "float64" in native.why_not(case.x, case.double().batch([1]).adjacency(True))
    assert "no GraphBatch" in native.why_not(case.x, adjacency.transpose())
    big = Case(sizes=(native.MAX_NODES + 1,)).graphs.batch([0])
    assert "4097 nodes" in native.why_not(big.x, big.adjacency(True))


def test_a_machine_without_the_kernels(monkeypatch):
    monkeypatch.setattr(native, "library", lambda: None)
    assert "not compiled" in native.why_not(torch.zeros(1, 1))
