"""The CPU kernels read memory by address: it may be moved, shared, replaced, or not there."""

import copy
import subprocess
import sys
from threading import Thread

import pytest
import torch

from grant_fast import FlexConv, FlexGCN, InputError, PackedGraphs, Task, native, score_graphs
from grant_fast.nn import one_pass
from grant_fast.nn.modules import AtomEncoder
from grant_fast.teaching.residuals import graph_residuals
from tests.cases import Case
from tests.native.checks import close

pytestmark = pytest.mark.skipif(native.build() is None, reason="the kernels were not compiled")

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux how much memory there is")


def network(**settings) -> FlexGCN:
    return FlexGCN(5, [27, 18], 2, orders=[3, 2, 2], **settings)


def gradients(model: FlexGCN, run) -> list[torch.Tensor]:
    out = run()
    others = [torch.full_like(p, 1e3) for p in model.parameters()]  # in memory that was freed
    others += [torch.full((n, 64), 1e3) for n in (10, 100, 500)]
    return torch.autograd.grad(out.square().sum(), list(model.parameters()))


def test_saved_tensors_may_be_replaced_and_recomputed():
    """As offloading to another memory and activation checkpointing do."""
    model, batch = network(), Case().graphs.batch(slice(None))
    assert one_pass.as_network(model, batch) is not None
    want = gradients(model, lambda: model(batch))

    def replaced():
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t.clone()):
            return model(batch)

    def recomputed():
        return torch.utils.checkpoint.checkpoint(model, batch, use_reentrant=False)

    for run in (replaced, recomputed):
        assert all(map(torch.equal, gradients(model, run), want))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
@pytest.mark.parametrize("layers", ["network", "layer"])
def test_weights_may_change_their_dtype_before_the_backward_pass(layers, dtype):
    """PyTorch's layers, too, differentiate the values that they were called with."""
    case = Case()
    x = case.x.clone().requires_grad_()
    model, given = FlexConv(5, 6, order=3), (x, case.edge_index, case.edge_weight)
    if layers == "network":
        model, given = network(norm="batch_norm"), (*given, case.batch, case.num_graphs)
    weights = [*model.parameters(), x]
    want = torch.autograd.grad(model(*given).square().sum(), weights)
    out = model(*given).square().sum()
    model.to(dtype)
    x.data = x.data.to(dtype)
    out.backward()
    for leaf, expected in zip(weights, want, strict=True):
        close(leaf.grad, expected.double())


def test_a_dataset_may_move_while_it_is_in_use():
    """Into shared memory, when a DataLoader starts its workers."""
    graphs, model = Case().graphs, network()
    batch = graphs.batch(slice(None))
    want = model(batch)
    for tensor in (*graphs.adj, *(graphs.adj_t or ()), graphs.scale, graphs.ptr, graphs.x):
        if tensor is not None:
            tensor.share_memory_()
    graphs.edges(True).sides[0].col.share_memory_()
    for again in (batch, graphs.batch(slice(None))):
        assert torch.equal(model(again), want)


def test_threads_of_python_may_begin_at_once():
    want, results = None, []
    for _ in range(10):
        torch.manual_seed(0)
        graphs, model = Case(sizes=(30, 5, 60) * 20).graphs, network()
        work = lambda g=graphs, m=model: results.append(m(g.batch(slice(None))).detach())  # noqa: E731
        threads = [Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        want = results[0] if want is None else want
    assert len(results) == 30 and all(torch.equal(got, want) for got in results)


def test_memory_is_as_wide_as_the_vectors_of_the_build_that_is_in_use(build):
    assert native.loading.padded(1) == native.loading.call("vector_lanes")


def test_targets_may_be_a_column_of_a_matrix():
    case = Case()
    y = torch.randint(3, (case.num_nodes, 2))
    build = lambda y: PackedGraphs.from_arrays(  # noqa: E731
        case.x, case.edge_index, case.graphs.batch(slice(None)).batch, y,
        y_level="node", num_graphs=len(case.sizes),
    )  # fmt: skip
    task, model = Task("multiclass", "node", 3), FlexGCN(5, 8, 3, orders=[2, 2], pool=None)
    want = score_graphs(model, build(y[:, 0].clone()), task)
    assert torch.equal(score_graphs(model, build(y[:, 0]), task), want)
    strided = build(y[:, 0])
    strided.y = y[:, 0]
    assert torch.equal(score_graphs(model, strided, task), want)


def test_offsets_of_any_integer_type_that_ascend():
    task, pred, y = Task("multiclass", "node", 3), torch.randn(10, 3), torch.randint(3, (10,))
    ptr = torch.tensor([0, 4, 10])
    want = graph_residuals(pred, y, task, ptr)
    assert torch.equal(graph_residuals(pred, y, task, ptr.int()), want)
    for wrong in ([0, 12, 10], [1, 4, 10]):
        with pytest.raises(InputError, match="ascend"):
            graph_residuals(pred, y, task, torch.tensor(wrong))


@pytest.mark.parametrize("pool", ["mean", "sum", None])
def test_graphs_without_any_nodes(pool):
    case = Case()
    empty = case.graphs[[i for i, size in enumerate(case.sizes) if not size][:1]]
    model = network(pool=pool, norm="batch_norm")
    out = model(empty.batch(slice(None)))
    out.sum().backward()
    want = copy.deepcopy(model)
    want.backend = "torch"
    assert torch.equal(out, want(empty.batch(slice(None))))
    assert out.shape == ((0, 2) if pool is None else (1, 2))


def test_running_statistics_that_the_kernels_cannot_move():
    batch = Case().graphs.batch(slice(None))
    for convert in (torch.Tensor.double, torch.Tensor.half, lambda t: torch.stack([t, t], 1)[:, 0]):
        model = network(norm="batch_norm")
        assert one_pass.as_network(model, batch) is not None
        norm = model.norms[0]
        norm.running_var = convert(norm.running_var)
        assert one_pass.as_network(model, batch) is None


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("training", [True, False])
def test_features_that_want_a_gradient_get_it(backend, training):
    case = Case()
    case.graphs.x.requires_grad_()
    model = network(norm="batch_norm", backend=backend).train(training)
    model(case.graphs.batch(slice(None))).square().sum().backward()
    assert float(case.graphs.x.grad.abs().sum()) > 0


@pytest.mark.parametrize("copied", [False, True])
def test_rows_of_x_may_overlap(copied):
    line = torch.randn(11, requires_grad=True)
    x, edges = line.unfold(0, 8, 1), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    conv = FlexConv(8, 5, order=2)
    found = []
    for conv.backend in ("auto", "torch"):
        with torch.autograd.graph.saved_tensors_hooks(
            (lambda t: t.clone()) if copied else (lambda t: t), lambda t: t
        ):  # a copy's rows lie one behind the other, maybe those of its transpose
            y = conv(x, edges)
        found.append(torch.autograd.grad(y.square().sum(), [line, conv.weight]))
    for one, other in zip(*found, strict=True):
        close(one, other.double())


class Negative(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch._neg_view(x)  # as `.conj().imag` of complex numbers is


@pytest.mark.parametrize("what", ["weight", "bias", "encoder"])
@pytest.mark.parametrize("training", [True, False])
def test_what_lies_with_the_other_sign_is_read_with_its_own(what, training):
    case = Case()
    model = network(encoder=Negative() if what == "encoder" else None).train(training)
    if what != "encoder":
        for conv in model.convs:
            torch.nn.utils.parametrize.register_parametrization(conv, what, Negative())
    found = []
    for model.backend in ("auto", "torch"):
        out = model(case.graphs.to(torch.float32).batch(slice(None)))
        found.append([out, *torch.autograd.grad(out.square().sum(), list(model.parameters()))])
    for one, other in zip(*found, strict=True):
        close(one, other.double())


@pytest.mark.parametrize("training", [True, False])
def test_features_of_a_data_set_may_lie_with_the_other_sign(training):
    model, graphs = network(norm="batch_norm").train(training), Case().graphs.to(torch.float32)
    negative = graphs[:]
    negative.x = torch._neg_view(-graphs.x)
    with torch.set_grad_enabled(training):
        found = [model(each.batch(slice(None))) for each in (graphs, negative)]
    torch.testing.assert_close(*found)


def test_running_statistics_may_lie_with_the_other_sign():
    case, model = Case(), network(norm="batch_norm")
    model(case.graphs.to(torch.float32).batch(slice(None)))  # in training, which moves them
    model.eval()
    batch = case.graphs.to(torch.float32).batch(slice(None))
    with torch.no_grad():
        want = model(batch)
        for norm in model.norms:
            norm.running_mean = torch._neg_view(-norm.running_mean)
            norm.running_var = torch._neg_view(-norm.running_var)
        torch.testing.assert_close(model(batch), want)


def test_categories_may_lie_with_the_other_sign():
    x, encoder = torch.randint(2, (300, 9)), AtomEncoder(4)
    assert torch.equal(encoder(torch._neg_view(-x)), encoder(x))


def test_weights_of_edges_may_lie_with_the_other_sign():
    weight, edges = torch.rand(3), torch.tensor([[0, 1, 2], [1, 2, 0]])
    given = {"x": torch.rand(3, 2), "edge_index": edges, "batch": torch.zeros(3, dtype=torch.int64)}
    packed = PackedGraphs.from_arrays(**given, edge_weight=torch._neg_view(-weight))
    want = PackedGraphs.from_arrays(**given, edge_weight=weight)
    assert torch.equal(packed.adj.weight, want.adj.weight)


def test_scores_of_predictions_that_lie_with_the_other_sign():
    pred, y = torch.randn(6, 3), torch.randint(2, (6, 3)).float()
    task = Task("multilabel", num_outputs=3)
    want = graph_residuals(pred, y, task)
    assert torch.equal(graph_residuals(torch._neg_view(-pred), y, task), want)


@LINUX
@pytest.mark.parametrize(("h_in", "h_out", "most"), [(4000, 8, 0.5), (8, 4000, 3)])  # dY, too
def test_a_layer_keeps_memory_of_the_width_at_which_it_hops(h_in, h_out, most):
    code = """
import torch
from grant_fast import FlexConv
torch.set_num_threads(1)
rss = lambda: int(open("/proc/self/statm").read().split()[1]) * 4096
edges = torch.randint(2000, (2, 8000))
FlexConv(2, 2)(torch.randn(2000, 2), edges).sum().backward()
x, conv = torch.randn(2000, {h_in}), FlexConv({h_in}, {h_out}, order=4)
before = rss()
conv(x, edges).sum().backward()
print((rss() - before) / (4 * 2000 * 4000))
"""
    code = code.format(h_in=h_in, h_out=h_out)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < most  # it was 11, and 12


@LINUX
def test_a_process_that_runs_out_of_memory_says_so():
    code = """
import resource, torch
from grant_fast import FlexConv
torch.set_num_threads(1)
conv, x = FlexConv(250, 250, order=6), torch.randn(4000, 250)
edges = torch.randint(4000, (2, 8000))
FlexConv(2, 2)(x[:, :2], edges)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (30 << 20),) * 2)
conv(x, edges)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode < 0
    assert "the CPU kernels ran out of memory: take smaller batches" in done.stderr
