"""PyG's tensors, packed for a call: the CPU kernels compute what PyTorch's operators do."""

import threading
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from grant_fast import FlexConv, FlexGCN, InputError, explain, native
from grant_fast.batches import GraphBatch
from grant_fast.graphs import on_the_fly
from tests.answers import answers, close, exact
from tests.cases import Case

pytestmark = pytest.mark.skipif(native.build() is None, reason="the CPU kernels were not compiled")


@pytest.fixture
def taken(monkeypatch):
    """Whether each call was packed."""
    calls, packed = [], on_the_fly.packed

    def spy(*args, **options):
        out = packed(*args, **options)
        calls.append(isinstance(out, GraphBatch))
        return out

    monkeypatch.setattr("grant_fast.nn.gcn.packed", spy)
    monkeypatch.setattr("grant_fast.nn.conv.packed", spy)
    return calls


@pytest.mark.parametrize("kind", ["directed", "symmetric", "unweighted"])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("pool", ["mean", "sum", "max", None])
@pytest.mark.parametrize("norm", ["batch_norm", None])
def test_networks(pool, norm, normalize, kind, taken):
    case = Case(symmetric=kind == "symmetric", weighted=kind != "unweighted")
    model = FlexGCN(5, [7, 18], 2, orders=[3, 2, 4], pool=pool, norm=norm, normalize=normalize)
    given = case.x, case.edge_index, case.edge_weight, case.batch, case.num_graphs
    close(answers(model, *given), exact(model, *given))
    assert taken == [True, False]  # in float64 PyTorch computes
    want = exact(model.eval(), *given)[0]
    with torch.no_grad():
        close([model(*given)], [want])


@pytest.mark.parametrize("least", [0, 1 << 20])
@pytest.mark.parametrize("edges", [60, 400])
def test_edges_of_many_nodes_are_grouped(least, edges, monkeypatch):
    made, grouped = [], native.grouped
    monkeypatch.setattr(native, "grouped", lambda *given: made.append(0) or grouped(*given))
    monkeypatch.setattr(on_the_fly, "LEAST_GROUPED", least)
    model, x = FlexGCN(5, 7, 2, orders=[3, 2], pool=None), torch.randn(50, 5)
    given = x, torch.randint(50, (2, edges)), None
    close(answers(model, *given), exact(model, *given))
    assert bool(made) == (least == 0)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize(
    "form", ["strided", "int32", "expanded", "column", "double", "coo", "csr", "SparseTensor"]
)
def test_forms_of_the_same_edges(form, taken):
    case = Case()
    conv = FlexConv(5, 6, order=3)
    edges, weight = case.edge_index, case.edge_weight
    if form == "expanded":
        weight = torch.tensor(0.5).expand(len(weight))
    want = exact(conv, case.x, edges, weight)
    if form == "strided":
        edges = edges.T.contiguous().T
        weight = torch.stack([weight, weight], 1)[:, 0]
    elif form == "int32":
        edges = edges.int()
    elif form == "column":
        weight = weight[:, None]
    elif form == "double":
        weight = weight.double()
    elif form == "SparseTensor":
        matrix = pytest.importorskip("torch_sparse").SparseTensor
        n = case.num_nodes
        edges = matrix(row=edges[1], col=edges[0], value=weight, sparse_sizes=(n, n))
    elif form in ("coo", "csr"):
        edges = torch.sparse_coo_tensor(edges.flip(0), weight, (case.num_nodes,) * 2).coalesce()
        edges = edges if form == "coo" else edges.to_sparse_csr()
    others = () if form in ("coo", "csr", "SparseTensor") else (weight,)
    close(answers(conv, case.x, edges, *others), want)
    assert taken[1:] == [True]


def test_features_that_do_not_lie_in_a_row(taken):
    case = Case()
    model = FlexGCN(5, [7], 2, orders=[3, 2])
    given = case.edge_index, case.edge_weight, case.batch, case.num_graphs
    want = exact(model, case.x, *given)[0]
    for x in (case.x.T.contiguous().T, torch.cat([case.x, case.x], 1)[:, :5]):
        close([model(x, *given)], [want])
    assert taken == [False, True, True]


def test_graphs_that_are_left_to_pytorch(taken):
    case = Case()
    edges, weight = case.edge_index, case.edge_weight
    model = FlexGCN(5, [7], 2, orders=[3, 2])
    across = torch.cat([edges, torch.tensor([[2], [case.num_nodes - 1]])], 1)
    pooled = case.batch, case.num_graphs
    shuffled = torch.randperm(case.num_nodes)
    close(
        answers(model, case.x, across, None, *pooled), exact(model, case.x, across, None, *pooled)
    )
    mixed = case.batch[shuffled], case.num_graphs
    close(
        answers(model, case.x, edges, weight, *mixed), exact(model, case.x, edges, weight, *mixed)
    )
    assert not any(taken)
    nodes = FlexGCN(5, [7], 2, orders=[3, 2], pool=None)  # a batch vector says nothing to them
    close(answers(nodes, case.x, across, None, *mixed), exact(nodes, case.x, across, None, *mixed))
    assert taken[-2:] == [True, False]


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("pool", ["mean", None])
def test_a_graph_that_no_tile_holds_is_sorted_as_one(pool, weighted, taken):
    nodes = native.MAX_NODES + 1
    edges = torch.randint(nodes, (2, 3 * nodes))
    edges[:, 0] = torch.tensor([0, nodes - 1])
    weight = torch.rand(3 * nodes) if weighted else None
    model = FlexGCN(5, [20, 18], 2, orders=[3, 2, 2], pool=pool)
    x = torch.randn(nodes, 5)
    close(answers(model, x, edges, weight), exact(model, x, edges, weight))
    assert taken == [True, False]
    lines = explain(model, x, edges, weight)
    assert all("one of the graphs has 4097 nodes (above 4096)" in line for line in lines[:2])
    vectors = native.multiplies(x)  # with AVX
    who = "PyTorch (hops and products by the CPU kernels): " if vectors else "PyTorch: "
    assert who in lines[0] and who in lines[1]


def test_learned_weights_that_are_frozen_are_data(taken):
    case, conv = Case(), FlexConv(5, 6, order=3)
    weight = case.edge_weight.requires_grad_()
    with torch.no_grad():
        conv(case.x, case.edge_index, weight)
    assert taken == [True]


def test_atoms_are_embedded(taken):
    case = Case(weighted=False)
    x = torch.randint(0, 2, (case.num_nodes, 9))
    model = FlexGCN(8, [7], 2, orders=[3, 2], norm="batch_norm", encoder="atom")
    given = x, case.edge_index, None, case.batch, case.num_graphs
    close(answers(model, *given), exact(model, *given))
    numbers = FlexGCN(9, [7], 2, orders=[3, 2])
    close(answers(numbers, *given), exact(numbers, *given))
    assert taken[::2] == [True, True]


@pytest.mark.parametrize("pool", ["mean", None])
def test_empty_batches(pool, taken):
    model = FlexGCN(5, [7], 2, orders=[3, 2], pool=pool, norm="batch_norm")
    none = torch.zeros(2, 0, dtype=torch.long)
    for nodes in (0, 3):
        given = torch.randn(nodes, 5), none, None, torch.zeros(nodes, dtype=torch.long), 2
        close(answers(model, *given), exact(model, *given))
    assert taken[::2] == [True, True]


def test_without_a_batch_vector_there_is_one_graph(taken):
    case, model = Case(sizes=(30,)), FlexGCN(5, [7], 2, orders=[3, 2])
    given = case.x, case.edge_index, case.edge_weight
    close(answers(model, *given), exact(model, *given))
    assert taken == [True, False] and model(*given).shape == (1, 2)


def test_what_a_backward_pass_reads_may_change_meanwhile():
    """Edges are copied; features are kept, and PyTorch notices that they were written to."""
    case, model = Case(), FlexGCN(5, [7], 2, orders=[3, 2], pool=None)
    edges, weight, x = case.edge_index.clone(), case.edge_weight.clone(), case.x.clone()
    want = torch.autograd.grad(model(x, edges, weight).sum(), [*model.parameters()])
    out = model(x, edges, weight).sum()
    edges.zero_(), weight.zero_()
    for got, expected in zip(
        torch.autograd.grad(out, [*model.parameters()], retain_graph=True), want, strict=True
    ):
        assert torch.equal(got, expected)
    x.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


@pytest.mark.parametrize("model", [FlexConv(5, 6, order=3), FlexGCN(5, [7], 2, orders=[3, 2])])
def test_mistakes_are_named_as_ever(model):
    x = torch.randn(4, 5)
    edges = torch.tensor([[0, 1], [1, 2]])
    for given, message in (
        ((x, torch.tensor([[0, 1], [1, 4]])), "edge 1 is 1 → 4, but nodes run from 0 to 3"),
        ((x, edges.float()), "it must hold integers"),
        ((x, edges[:1]), r"it must be \[2, E\]"),
        ((x, edges, torch.ones(3)), "give one number per edge"),
        ((x, edges, torch.ones(1, 2)), "give one number per edge"),
        ((x[:, :3], edges), "this layer takes"),
        ((x[:, 0], edges), "this layer takes"),
        ((x.double(), edges), "cast one of them"),
    ):
        with pytest.raises(InputError, match=message):
            model(*given)


def test_what_pytorch_follows_is_computed_by_its_operators():
    class Follow(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.add(str(func))
            return func(*args, **(kwargs or {}))

    seen, case, conv = set(), Case(), FlexConv(5, 6, order=3)
    given = case.x, case.edge_index, case.edge_weight
    with Follow():
        got = conv(*given)
    assert "grant_fast.flex_conv.default" in seen
    torch.testing.assert_close(got, conv(*given))


@pytest.mark.parametrize("part", ["norms.0", "act", "dropouts.0"])
def test_what_is_hung_on_a_part_of_a_network_is_called(part):
    case, model = Case(), FlexGCN(5, [7], 2, orders=[3, 2], norm="batch_norm", pool=None)
    given, module = (case.x, case.edge_index, case.edge_weight), model.get_submodule(part)
    hook = module.register_forward_hook(lambda module, inputs, out: 0 * out)
    for graphs in (given, (case.graphs.batch(slice(None)),)):
        torch.testing.assert_close(model(*graphs), model.convs[1].bias.expand(case.num_nodes, 2))
    hook.remove()
    assert float(model(*given).detach().std(0).min()) > 0
    module.forward = lambda x: 0 * x
    torch.testing.assert_close(model(*given), model.convs[1].bias.expand(case.num_nodes, 2))


def test_explain_says_who_pools():
    model, batch = FlexGCN(5, [7], 2, [3, 2]).eval(), Case().graphs.batch(slice(None))
    with torch.no_grad():
        assert "(CPU kernels)" in explain(model, batch)[1]
        model.convs[1].backend = "torch"  # which the one pass would not ask
        assert "(PyTorch)" in explain(model, batch)[1]


def test_explain_says_so():
    case = Case()
    given = case.x, case.edge_index, case.edge_weight, case.batch
    lines = explain(FlexGCN(5, [7], 2, orders=[3, 2]), *given)
    assert "CPU kernels: the whole network in one pass" in lines[0]
    assert "CPU kernels: hops" in explain(FlexConv(5, 6), *given[:3])[0]
    unsorted = explain(FlexGCN(5, [7], 2, orders=[3, 2]), *given[:3], case.batch.flip(0))
    why = ": the graphs are no GraphBatch, and PyG's tensors are packed where"
    assert "PyTorch" in unsorted[0] and why in unsorted[0]


def test_one_large_graph_leaves_threads_to_pytorch():
    """A thread computes whole graphs: with many threads and one graph, PyTorch is faster."""
    conv, nodes = FlexConv(5, 6, order=2), 2000
    x, edges = torch.randn(nodes, 5), torch.tensor([[0], [nodes - 1]])
    before = torch.get_num_threads()
    try:
        for threads, who in ((2, "CPU kernels"), (3, ": a graph of 2000 of 2000 nodes")):
            torch.set_num_threads(threads)
            assert who in explain(conv, x, edges)[0]
            close(answers(conv, x, edges, None), exact(conv, x, edges, None))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("pool", ["mean", None])
def test_a_default_device_is_not_where_graphs_are_packed(pool, taken):
    case = Case(weighted=False)
    last = torch.arange(case.num_nodes - 65, case.num_nodes)
    dense = torch.cartesian_prod(last, last).T  # above 4 edges a node
    model = FlexGCN(5, [7], 2, orders=[3, 2], pool=pool, dropout=0.5)
    torch.set_default_device("meta")
    try:
        for edges in (case.edge_index, dense):
            out = model(case.x, edges, None, case.batch, case.num_graphs)
            assert out.device.type == "cpu" and out.isfinite().all()
    finally:
        torch.set_default_device(None)
    assert taken == [True, True]


@pytest.mark.parametrize("model", [FlexConv(5, 6, order=3), FlexGCN(5, [7], 2, orders=[3, 2])])
def test_gradients_may_come_in_a_batch(model, taken):
    case = Case()
    x = case.x.clone().requires_grad_()
    out = model(x, case.edge_index, case.edge_weight)
    wanted, grads = [x, *model.parameters()], torch.randn(3, *out.shape)

    def pull(grad, **options):
        return torch.autograd.grad(out, wanted, grad, retain_graph=True, **options)

    one_by_one = [torch.stack(each) for each in zip(*map(pull, grads), strict=True)]
    for got in (pull(grads, is_grads_batched=True), torch.func.vmap(pull)(grads)):
        torch.testing.assert_close(got, tuple(one_by_one), rtol=1e-4, atol=1e-4)
    assert taken == [True]


def test_an_encoder_sees_what_was_given(taken):
    class Chosen(torch.nn.Module):
        def forward(self, x):
            seen.append(x)
            return torch.where(x, 1.0, 2.0)

    seen, case, model = [], Case(), FlexGCN(5, [7], 2, orders=[3, 2], encoder=Chosen())
    x = case.x > 0
    model(x, case.edge_index)
    assert seen[0] is x and taken == [True]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # make_dual compiles by torch.jit
def test_what_does_not_lie_in_memory_as_it_is(taken):
    case, conv = Case(), FlexConv(5, 6, order=3)
    x, edges, weight = case.x, case.edge_index, case.edge_weight
    torch.testing.assert_close(conv(torch._neg_view(x), edges), conv(-x, edges))
    torch.testing.assert_close(conv(x, edges, torch._neg_view(weight)), conv(x, edges, -weight))
    assert taken == [False, True] * 2
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(weight, torch.ones_like(weight))
        with pytest.raises(InputError, match="forward mode"):  # rather than no tangent at all
            conv(x, edges, dual)


def test_a_thread_leaves_no_memory_behind():
    resource = pytest.importorskip("resource")
    conv, x = FlexConv(64, 64, order=3), torch.randn(4000, 64)
    edges = torch.randint(4000, (2, 8000))

    def call():
        with torch.no_grad():
            conv(x, edges)

    def run(times):
        for _ in range(times):
            thread = threading.Thread(target=call)
            thread.start(), thread.join()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    # kB; each took megabytes, in every round, where something else may grow the process in one.
    assert any(-run(10) + run(50) < 50_000 for _ in range(3))


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("network", [False, True])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_what_a_layer_was_given_is_not_kept_beyond_its_use(checkpointed, network, learned):
    case, inputs = Case(), []
    weight = torch.rand(case.edge_index.shape[1], requires_grad=learned)
    first, last = FlexConv(5, 8, order=3), FlexConv(8, 1, order=3)
    last = FlexGCN(8, 4, 1, orders=[3, 2]) if network else last

    def block(x):
        h = first(x, case.edge_index, weight).sigmoid()
        inputs.append(weakref.ref(h))
        return last(h, case.edge_index, weight)

    x = case.x.clone().requires_grad_()
    out = checkpoint(block, x, use_reentrant=False) if checkpointed else block(x)
    assert inputs[0]() is None or not checkpointed
    out.sum().backward()
    assert all(given() is None for given in inputs) and x.grad is not None
