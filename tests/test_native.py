"""The compiled CPU kernels against the reference in float64."""

import copy
import ctypes
import itertools
import pickle
from importlib.util import find_spec

import pytest
import torch
from torch import nn
from torch.func import functional_call

from grant_fast import FlexConv, FlexGCN, PackedGraphs, explain, native, reference
from grant_fast.batch_edges import BatchAdjacency
from grant_fast.nn import one_pass
from tests.cases import AWKWARD_SIZES, Case, dense_graphs, to_dense

BUILDS = [
    name for name in native.BUILDS["AVX512"] if find_spec(f"grant_fast.native.{name}") is not None
]
RUNS_HERE = native.BUILDS.get(torch.backends.cpu.get_cpu_capability(), ("_cpu",))

pytestmark = pytest.mark.skipif(not BUILDS, reason="no C compiler when grant_fast was installed")


@pytest.fixture(params=[name for name in BUILDS if name in RUNS_HERE])
def build(request, monkeypatch):
    """Each build that this CPU can run, in place of the one that it would choose."""
    found = find_spec(f"grant_fast.native.{request.param}")
    loaded = ctypes.CDLL(found.origin)
    monkeypatch.setattr(native.loading, "library", lambda: loaded)


def exact(x, weight, bias, adjacency, grad, relu):
    """Y, dX, dW and db in float64 by the definition."""
    leaves = [t.detach().double().requires_grad_() for t in (x, weight, bias)]
    rowptr, col, value = adjacency.csr
    dense = to_dense(rowptr, col, value.double(), x.shape[0])
    y = reference.dense_flex_conv(*leaves, dense)
    y = y.relu() if relu else y
    return y.detach(), *torch.autograd.grad(y, leaves, grad.double())


def close(actual, expected, *others):
    """Up to rounding of the largest number here, or in `others`: sums of terms of the same size."""
    actual, expected = actual.detach(), expected.detach()
    sizes = [float(t.abs().max()) for t in (expected, *others) if t.numel()]
    scale = max([1.0, *sizes])
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
    assert native.takes(case.x) and float(wanted[1].abs().max()) * (order == 1) == 0
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


def identity_network(batch, width, p=0.0, norm=None, bias=None):
    """dropout(relu(norm(X + b)), p) of every node, as a network whose products change nothing."""
    eye = torch.eye(width)[None]
    layers = (native.Layer(eye, bias, norm, p), native.Layer(eye, None))
    return native.Network(layers, "batch", batch.adjacency(True), None)


def nodes(count):
    """One batch of so many nodes without edges, in graphs of a hundred."""
    ptr = torch.arange(count) // 100
    edges = torch.empty(2, 0, dtype=torch.long)
    return PackedGraphs.from_arrays(torch.zeros(count, 1), edges, ptr).batch(slice(None))


def in_double(model):
    """The same model in float64, on PyTorch's operators."""
    out = copy.deepcopy(model).double()
    out.backend = "torch"
    return out


NETWORKS = [
    ([4, 3, 2, 2], [27, 18, 18]),
    ([1, 2], [64]),
    ([3, 1, 4], [5, 33]),
    ([2, 2], [130]),
]


@pytest.mark.parametrize("orders, hidden", NETWORKS)
@pytest.mark.parametrize("norm", ["batch_norm", "layer_norm", None])
@pytest.mark.parametrize("pool", ["mean", "sum", "max", None])
@pytest.mark.parametrize("kind", ["weighted", "few edges", "many edges", "not normalised"])
def test_networks(build, orders, hidden, norm, pool, kind):
    """Outputs, gradients and running statistics of a training step, then evaluation."""
    torch.manual_seed(0)
    graphs = dense_graphs(AWKWARD_SIZES, 5)
    if kind != "many edges":
        graphs = Case(symmetric=kind == "not normalised", weighted=kind == "weighted").graphs
    ids = torch.randperm(len(graphs))
    model = FlexGCN(5, hidden, 5, orders, norm=norm, pool=pool, normalize=kind != "not normalised")
    for parameter in model.norms.parameters():
        torch.nn.init.uniform_(parameter, 0.5, 1.5)
    exact_model = in_double(model)
    batch, exact_batch = graphs.batch(ids), graphs.to(dtype=torch.float64).batch(ids)
    assert one_pass.as_network(model, batch) is not None
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
            if norm != "batch_norm" or not (name.startswith("convs") and name.endswith("bias")):
                # Of a norm's shift the terms are those of its scale; before a norm they cancel.
                like = name.replace("bias", "weight") if name.startswith("norms") else name
                close(parameter.grad, exact_parameters[name].grad, exact_parameters[like].grad)
            elif not name.startswith(f"convs.{len(hidden)}"):
                # A shift before a norm changes nothing: what is left is rounding.
                scale = float(exact_parameters[name.replace("bias", "weight")].grad.abs().max())
                assert float(parameter.grad.abs().max()) < 1e-4 * max(1.0, scale)
        for buffer, exact_buffer in zip(model.buffers(), exact_model.buffers(), strict=True):
            close(buffer.double(), exact_buffer.double())
    with torch.no_grad():
        close(model.eval()(batch), exact_model.eval()(exact_batch))


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
    """Parts are summed in order: results are equal bit by bit, whatever the threads are."""
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


def test_a_large_mean_does_not_drown_the_variance(build):
    batch, norm = nodes(5000), nn.BatchNorm1d(3)
    y = torch.randn(5000, 3)
    out = native.train(identity_network(batch, 3, norm=norm, bias=torch.full((3,), 1000.0)), y)
    expected = nn.functional.batch_norm((y + 1000).double(), None, None, training=True).relu()
    torch.testing.assert_close(out.detach().double(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("p", [0.0, 0.27, 0.9])
def test_dropout(build, p):
    """The share that falls, the scale of the rest, the same mask in both directions."""
    batch, y = nodes(20_000), torch.ones(20_000, 20, requires_grad=True)
    out = native.train(identity_network(batch, 20, p), y)
    kept = out.detach() != 0
    share = kept.double().mean()
    assert abs(share - (1 - p)) < 5 * (p * (1 - p) / kept.numel()) ** 0.5 + 1e-12
    torch.testing.assert_close(out[kept], torch.full_like(out[kept], 1 / (1 - p)))
    (grad,) = torch.autograd.grad(out.sum(), y)
    assert torch.equal(grad, out)
    if p:  # columns, rows, neighbours and two calls are independent
        bits = kept.double() - (1 - p)
        sigma = p * (1 - p)
        pairs = [(bits[step:], bits[:-step]) for step in (1, 2, 3, 16, 64)]
        pairs += [(bits[:, step:], bits[:, :-step]) for step in range(1, 20)]
        second = native.train(identity_network(batch, 20, p), y).detach() != 0
        for a, b in (*pairs, (bits, second.double() - (1 - p))):
            assert abs((a * b).mean()) < 5 * sigma / a.numel() ** 0.5
        covariance = bits.T @ bits / len(bits)
        covariance.fill_diagonal_(0.0)
        assert (covariance.abs() < 6 * sigma / 20_000**0.5).all()
        assert (bits.mean(0).abs() < 6 * (sigma / 20_000) ** 0.5).all()


def test_dropout_repeats_with_torchs_seed(build):
    batch, y = nodes(300), torch.randn(300, 30)
    runs = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        runs.append(native.train(identity_network(batch, 30, 0.5), y))
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])


@pytest.mark.parametrize("many", [False, True])
def test_groups_of_edges(build, many):
    """Each row's columns again, in fours; in a sparse dataset the rest are the busy rows'."""
    graphs = dense_graphs(AWKWARD_SIZES, 1) if many else Case(weighted=False).graphs
    for csr in (graphs.adj, graphs.adj_t):
        listed, group, busy_ptr, busy = native.edge_groups(csr, graphs.ptr)
        assert (group is None) != many
        for node in range(graphs.num_nodes):
            columns = csr.col[csr.rowptr[node] : csr.rowptr[node + 1]].tolist()
            start, end = (node, node + 1) if group is None else group[node : node + 2].tolist()
            found = [column for column in listed[4 * start : 4 * end].tolist() if column >= 0]
            assert found == (columns if group is not None else columns[:4])
        if group is None:
            graph = (
                torch.searchsorted(graphs.ptr, busy_ptr.diff().nonzero().flatten(), right=True) - 1
            )
            rows = (csr.rowptr.diff() > 4).nonzero().flatten()
            assert torch.equal(busy_ptr.diff().nonzero().flatten(), rows) and len(rows)
            assert torch.equal(busy.long(), rows - graphs.ptr[graph])


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("symmetric", [True, False])
def test_edges_sorted(build, symmetric, weighted, named):
    """As packing sorts them, but for weights of repeated edges, which keep their order."""
    case = Case(symmetric=symmetric, weighted=False)
    shuffled = torch.randperm(case.edge_index.shape[1])
    edges, weight = case.edge_index[:, shuffled], None
    if weighted:  # one weight a pair of nodes, so that repeated edges have one order
        weight = edges.double().prod(0).cos().float()
    batch = case.batch if named else None
    made = native.sort_edges(edges, weight, batch, case.num_nodes, case.num_graphs, 4096)
    graph = torch.searchsorted(made.ptr, torch.arange(case.num_nodes), right=True) - 1
    if named:
        assert torch.equal(made.ptr, case.graphs.ptr)
    else:  # cut where no edge crosses, as soon as there are enough for a tile
        low, high = edges.amin(0), edges.amax(0)
        cuts = [i for i in range(case.num_nodes + 1) if not ((low < i) & (high >= i)).any()]
        assert set(made.ptr.tolist()) <= set(cuts) and made.ptr[-1] == case.num_nodes
        assert len(made.ptr) > 2 and all(
            end == min(cut for cut in cuts if cut >= start + 64 or cut == case.num_nodes)
            for start, end in itertools.pairwise(made.ptr.tolist())
        )
    want = PackedGraphs.from_arrays(
        case.x, edges, graph, edge_weight=weight, num_graphs=len(made.ptr) - 1
    )
    assert (made.adj_t is None) == symmetric == (want.adj_t is None)
    for got, expected in ((made.adj, want.adj), (made.adj_t, want.adj_t)):
        assert (got is None) == (expected is None)
        for a, b in zip(got or (), expected or (), strict=True):
            assert (a is None) == (b is None) and (a is None or torch.equal(a, b))


def test_edges_that_cannot_be_sorted(build):
    edges = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
    batch = torch.tensor([0, 0, 1, 1])

    def sorts(edges, batch, num_nodes=4, num_graphs=2, most=2):
        return native.sort_edges(edges, None, batch, num_nodes, num_graphs, most) is not None

    assert sorts(edges, batch) and sorts(edges, None)
    pairs = native.sort_edges(edges, None, None, 4, 0, 2)
    assert pairs.ptr.tolist() == [0, 2, 4]  # together they would be too many
    assert not sorts(edges, batch, num_graphs=1)
    assert not sorts(edges, batch.flip(0)) and not sorts(edges, batch - 1)
    assert not sorts(edges, batch, most=1) and not sorts(edges, None, most=1)
    assert not sorts(edges, torch.tensor([0, 1, 1, 1]), most=4)  # an edge joins two graphs
    assert not sorts(edges, torch.zeros(4, dtype=torch.long), most=3)
    for wrong in (-1, 4, 2**62, -(2**62), 2**63 - 1, -(2**63)):
        for row in range(2):
            others = edges.clone()
            others[row, 3] = wrong
            assert not sorts(others, batch) and not sorts(others, None)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("mean", [True, False])
def test_weights_of_a_pooled_layer(build, mean, normalize, weighted):
    case = Case(weighted=weighted)
    rho = torch.zeros(case.num_graphs, case.num_nodes, dtype=torch.float64)
    rho[case.batch, torch.arange(case.num_nodes)] = 1.0
    if mean:
        rho /= rho.sum(1, keepdim=True).clamp(min=1)
    got = case.graphs.pool_weights(4, normalize, mean)
    for k in range(4):
        close(got[k], rho.sum(0))  # graphs are disjoint: a column has one entry
        rho = rho @ case.dense(normalize)


def test_class_scores_of_a_network(build):
    """The scores of a network's outputs, which are then never stored."""
    case = Case()
    case.graphs.y, case.graphs.y_level = torch.randint(0, 4, (case.num_nodes,)), "node"
    case.graphs.y[::5] = -100
    model = FlexGCN(case.graphs.num_features, [17], 4, [3, 2], pool=None)
    batch = case.graphs.batch([3, 0, 9, 9, 5])
    with torch.no_grad():
        want = native.class_scores(model.eval()(batch), batch.y, batch.ptr)
        got = one_pass.class_scores(model, batch, 4)
    torch.testing.assert_close(got, want)
    assert one_pass.class_scores(model.train(), batch, 4) is None


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


def test_a_dataset_or_a_batch_in_use_can_be_copied():
    case = Case()
    model = FlexGCN(5, [8], 1, [2, 2])
    batch = case.graphs.batch(slice(None))
    out = model(batch)
    for copied in (lambda it: pickle.loads(pickle.dumps(it)), copy.deepcopy):
        assert torch.equal(model(copied(case.graphs).batch(slice(None))), out)
        assert torch.equal(model(copied(batch)), out)


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
        assert sum("CPU kernels" in line for line in explain(model, batch)[:2]) == native_layers


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
    monkeypatch.setattr(native.loading, "library", lambda: None)
    assert "not compiled" in native.why_not(torch.zeros(1, 1))
