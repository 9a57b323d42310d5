"""FlexConv and FlexGCN: one function in every accepted form."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from grant_fast import (
    AtomEncoder,
    FlexConv,
    FlexGCN,
    InputError,
    PackedGraphs,
    explain,
)
from grant_fast.adjacency import Adjacency
from grant_fast.nn.modules import BatchNorm
from grant_fast.reference import accept_sparse_csr, dense_flex_conv
from tests.cases import Case

TOLERANCE = {"rtol": 1e-10, "atol": 1e-10}


def plain_forward(model: FlexGCN, case: Case) -> torch.Tensor:
    """The network from its definition: dense powers of Â, pooling by a Python loop."""
    a = case.dense(model.normalize)
    h = case.x.double()
    for i, conv in enumerate(model.convs):
        h = dense_flex_conv(h, conv.weight, conv.bias, a)
        if i < len(model.norms):
            h = model.act(model.norms[i](h))
    if model.pool is None:
        return h
    rows = []
    for g in range(case.num_graphs):
        part = h[case.batch == g]
        empty = h.new_zeros(h.shape[1])
        if model.pool == "sum":
            rows.append(part.sum(0))
        elif model.pool == "mean":
            rows.append(part.mean(0) if len(part) else empty)
        else:
            rows.append(part.max(0).values if len(part) else empty)
    return torch.stack(rows)


def test_pyg_tensors_are_sorted_once_for_all_layers(monkeypatch):
    case, calls = Case(), []
    argsort = torch.argsort
    monkeypatch.setattr(torch, "argsort", lambda *a, **kw: calls.append(a) or argsort(*a, **kw))
    for layers in (1, 4):
        model = FlexGCN(5, 4, 2, orders=[2] * layers, pool=None, backend="torch")
        model(case.x, case.edge_index, case.edge_weight).sum().backward()
    assert len(calls) == 4  # by target, and for the transpose


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("pool", ["mean", "sum", "max", None])
def test_both_lanes_equal_the_definition(pool, normalize, symmetric, weighted, backend):
    case = Case(symmetric=symmetric, weighted=weighted)
    assert case.graphs.is_symmetric == symmetric
    options = {"pool": pool, "normalize": normalize, "backend": backend}
    model = FlexGCN(5, [7, 3], 2, orders=[3, 2, 4], **options).double()
    want = plain_forward(model, case)
    weight = None if case.edge_weight is None else case.edge_weight.double()
    fast = model(case.double().batch(range(case.num_graphs)))
    loose = model(case.x.double(), case.edge_index, weight, case.batch, case.num_graphs)
    scale = want.detach().abs().max()
    for got in (fast, loose):
        torch.testing.assert_close(got / scale, want / scale, **TOLERANCE)
        grads = torch.autograd.grad((got / scale).square().sum(), [*model.parameters()])
        wanted = torch.autograd.grad(
            (want / scale).square().sum(), [*model.parameters()], retain_graph=True
        )
        for g, w in zip(grads, wanted, strict=True):
            torch.testing.assert_close(g, w, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("orders", [[3], [1], [1, 1], [2, 5]], ids=str)
def test_shallow_networks_and_order_one(orders):
    case = Case()
    model = FlexGCN(5, 4, 2, orders=orders).double()
    torch.testing.assert_close(
        model(case.double().batch(slice(None))), plain_forward(model, case), **TOLERANCE
    )


def test_a_batch_in_any_order_equals_its_graphs_one_by_one():
    case = Case()
    model = FlexGCN(5, 4, 2, orders=[3, 2]).double()
    graphs = case.double()
    order = torch.randperm(case.num_graphs)
    alone = torch.cat([model(graphs[int(i)]) for i in order])
    torch.testing.assert_close(model(graphs.batch(order)), alone, **TOLERANCE)


def test_without_the_feature_cache_nothing_changes(monkeypatch):
    case = Case()
    model = FlexGCN(5, 4, 2, orders=[3, 2]).double()
    cached = model(case.double().batch(slice(None)))
    monkeypatch.setattr(PackedGraphs, "cache_bytes", 0)
    assert case.double().hops(3, True) is None
    torch.testing.assert_close(model(case.double().batch(slice(None))), cached, **TOLERANCE)


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


def test_torch_sparse_matrices_are_read_as_pyg_reads_them():
    torch_sparse = pytest.importorskip("torch_sparse")
    case = Case(sizes=(4, 1, 6))
    source, target = case.edge_index
    n = case.num_nodes
    conv = FlexConv(5, 3)
    matrix = torch_sparse.SparseTensor(
        row=target, col=source, value=case.edge_weight, sparse_sizes=(n, n)
    )
    want = conv(case.x, case.edge_index, case.edge_weight)
    torch.testing.assert_close(conv(case.x, matrix), want)
    unweighted = torch_sparse.SparseTensor(row=target, col=source, sparse_sizes=(n, n))
    torch.testing.assert_close(conv(case.x, unweighted), conv(case.x, case.edge_index))


@pytest.mark.parametrize("encoder", [None, torch.nn.Identity()], ids=["cached", "convolved"])
@pytest.mark.parametrize("bias", [True, False])
def test_batch_norm_folded_into_the_weights_is_batch_norm(bias, encoder):
    case = Case()
    options = {"orders": [3, 2, 2], "norm": "batch_norm", "bias": bias, "encoder": encoder}
    model = FlexGCN(5, [7, 3], 2, **options).double()
    batch = case.double().batch(slice(None))
    for norm in model.norms:  # an affine map far from the identity
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    model(batch)  # moves the running statistics
    folded = model.eval()(batch)
    for norm in model.norms:
        norm.__class__ = torch.nn.BatchNorm1d
    torch.testing.assert_close(folded, model(batch), **TOLERANCE)


@pytest.mark.parametrize("sizes", [(1,), (0,), (0, 1, 0)], ids=str)
def test_batch_norm_takes_a_single_node_or_none_in_training(sizes):
    case = Case(sizes=sizes)
    model = FlexGCN(5, 4, 2, orders=[2, 2], norm="batch_norm")
    before = model.norms[0].running_mean.clone()
    out = model(case.graphs.batch(slice(None)))
    assert out.shape == (len(sizes), 2)
    out.sum().backward()
    assert torch.equal(model.norms[0].running_mean, before)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_a_norm_that_a_user_changed_is_what_it_says():
    """As test-time adaptation does it: statistics of the batch in evaluation mode, no factors."""
    batch = Case().graphs.batch(slice(None))
    model = FlexGCN(5, [4, 4], 2, orders=[2, 2, 2], norm="batch_norm").eval()
    for norm in model.norms:
        norm.track_running_stats, norm.running_mean, norm.running_var = False, None, None
    plain = FlexGCN(5, [4, 4], 2, orders=[2, 2, 2], norm="batch_norm").train()
    plain.load_state_dict(model.state_dict(), strict=False)
    torch.testing.assert_close(model(batch), plain(batch))
    model.norms[0] = BatchNorm(4, affine=False)
    assert model(batch).isfinite().all()


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_dropouts_in_training_mode_drop_in_a_network_that_is_not(backend):
    """As for an uncertainty by many passes (Monte Carlo dropout)."""
    batch = Case().graphs.batch(slice(None))
    model = FlexGCN(batch.x.shape[1], 8, 1, orders=[2, 2], dropout=0.5, backend=backend).eval()
    assert torch.equal(model(batch), model(batch))
    model.dropouts.train()
    assert not torch.equal(model(batch), model(batch))


def test_a_dropout_of_1_drops_all():
    batch = Case().graphs.batch(slice(None))
    model = FlexGCN(5, [4, 4], 2, orders=[2, 2, 2], dropout=0.5, pool=None)
    model.dropouts[1].p = 1.0
    assert torch.equal(model(batch), model.convs[2].bias.expand(batch.num_nodes, 2))


def test_integer_features_without_an_encoder_are_numbers():
    graphs = PackedGraphs.from_arrays(
        torch.tensor([[1], [3]]), torch.tensor([[0, 1], [1, 0]]), torch.zeros(2).long()
    )
    model = FlexGCN(1, 4, 1, orders=[2, 2])
    floats = PackedGraphs.from_arrays(
        torch.tensor([[1.0], [3.0]]), torch.tensor([[0, 1], [1, 0]]), torch.zeros(2).long()
    )
    torch.testing.assert_close(model(graphs[0]), model(floats[0]))


@pytest.mark.parametrize("norm", ["batch_norm", "layer_norm", None])
@pytest.mark.parametrize("act", ["relu", "tanh", None])
def test_state_dict_reproduces_the_network(norm, act):
    case = Case()
    first = FlexGCN(5, [4, 3], 2, orders=[3, 2, 2], norm=norm, act=act, dropout=[0.1, 0.2])
    second = copy.deepcopy(first)
    second.reset_parameters()
    batch = case.graphs.batch(slice(None))
    first(batch)  # moves running statistics
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.eval()(batch), second.eval()(batch))


def test_reset_parameters_draws_anew_and_within_bounds():
    model = FlexGCN(5, 4, 2, orders=[3, 2], norm="batch_norm")
    before = model.convs[0].weight.clone()
    model.reset_parameters()
    assert not torch.equal(before, model.convs[0].weight)
    assert model.convs[0].weight.abs().max() <= (3 * 5) ** -0.5


def test_repr_tells_the_architecture():
    assert str(FlexConv(9, 27, order=4)) == "FlexConv(9, 27, order=4, normalize=True, bias=True)"
    text = str(FlexGCN(9, 27, 1, orders=[4, 2], norm="batch_norm", dropout=0.3, encoder="atom"))
    for part in ("AtomEncoder(9, columns=9)", "FlexConv(27, 1, order=2", "BatchNorm(27", "p=0.3"):
        assert part in text


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pool", ["mean", "max", None])
def test_autocast_runs_both_lanes_in_low_precision(pool, dtype):
    case = Case(sizes=(5, 3, 9))
    model = FlexGCN(5, [8, 4], 2, orders=[3, 2, 2], pool=pool)
    weight = case.edge_weight
    with torch.autocast("cpu", dtype=dtype):
        fast = model(case.graphs.batch(slice(None)))
        loose = model(case.x, case.edge_index, weight, case.batch, 3)
    want = model(case.graphs.batch(slice(None)))
    assert fast.dtype == loose.dtype == dtype
    for got in (fast, loose):
        torch.testing.assert_close(got.float(), want, rtol=0.05, atol=0.05)
    got.float().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_autocast_leaves_float64_as_it_is():
    case, model = Case(sizes=(5, 3, 9)), FlexGCN(5, [8], 2, orders=[3, 2], pool=None).double()
    given = case.x.double(), case.edge_index, case.edge_weight.double(), case.batch
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = model(*given)
    assert got.dtype == torch.float64  # as of torch.nn.Linear
    torch.testing.assert_close(got, model(*given))


@pytest.mark.parametrize("backend", ["auto", "torch", "reference"])
@pytest.mark.parametrize("casts", [True, False])
@pytest.mark.parametrize("of_graphs", [torch.float32, torch.float64])
def test_float64_goes_with_nothing_else_under_autocast_either(of_graphs, casts, backend):
    case = Case(sizes=(5, 3, 9))
    other = torch.float64 if of_graphs == torch.float32 else torch.float32
    model = FlexGCN(5, [8], 2, orders=[3, 2], backend=backend).to(other)
    batch = case.graphs.to(dtype=of_graphs).batch([2, 0])
    inputs = (batch.x, batch.edge_index, batch.edge_weight, batch.batch)
    for given in ((batch,), inputs):
        refused = pytest.raises(InputError, match=f"{of_graphs} but the weights are {other}: c")
        with torch.autocast("cpu", torch.bfloat16, enabled=casts), refused:
            model(*given)


def test_a_network_in_float64_wants_the_propagation_matrix_as_exact():
    graphs = PackedGraphs.from_arrays(
        torch.zeros(3, 9).long(), [[0, 1, 1, 2], [1, 0, 2, 1]], [0] * 3
    )
    model = FlexGCN(9, [8], 2, orders=[3, 2], encoder="atom").double()
    with pytest.raises(InputError, match=r"graphs\.to\(dtype=torch\.float64\)"):
        model(graphs.batch(slice(None)))
    batch = graphs.to(dtype=torch.float64).batch(slice(None))
    want = model(batch.x, batch.edge_index, batch=batch.batch)
    torch.testing.assert_close(model(batch), want, rtol=1e-14, atol=1e-14)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's own, at a graph break
@pytest.mark.parametrize("pool", ["mean", "max", None])
def test_compiled_model_takes_packed_batches(pool):
    case = Case(sizes=(5, 3, 9, 4))
    model = FlexGCN(5, 6, 2, orders=[3, 2], pool=pool)
    compiled = torch.compile(model, backend="aot_eager", dynamic=True)
    for ids in ([1, 0], [3, 2, 1]):
        torch.testing.assert_close(compiled(case.graphs.batch(ids)), model(case.graphs.batch(ids)))


def test_an_exported_model_takes_graphs_of_other_sizes():
    case, other = Case(sizes=(3, 2, 5)), Case(sizes=(4, 1, 7))
    model = FlexGCN(5, 4, 2, orders=[3, 2], norm="batch_norm").eval()
    size = torch.export.Dim.AUTO
    shapes = {"x": {0: size}, "edge_index": {1: size}, "batch": {0: size}, "batch_size": None}
    named = {"batch": case.batch, "batch_size": 3}
    program = torch.export.export(model, (case.x, case.edge_index), named, dynamic_shapes=shapes)
    out = program.module()(other.x, other.edge_index, batch=other.batch, batch_size=3)
    torch.testing.assert_close(out, model(other.x, other.edge_index, batch=other.batch))


class Squared(nn.ReLU):
    def forward(self, x):
        return super().forward(x).square()


class Doubled(nn.Dropout):
    def forward(self, x):
        return 2 * x


class Shifted(nn.Identity):
    def forward(self, x):
        return x + 1


class Centred(BatchNorm):
    def forward(self, x):
        return super().forward(x) - 1


class Averaged(AtomEncoder):
    def forward(self, x):
        out = super().forward(x)
        return out - out.mean(0)


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("part", ["act", "dropout", "norm", "own batch norm", "encoder"])
def test_modules_that_inherit_from_ours_or_from_pytorchs_do_their_own(part, training, backend):
    case = Case(symmetric=True, weighted=False)
    x = torch.arange(case.num_nodes)[:, None] % 7 // 3
    graphs = PackedGraphs.from_arrays(x, case.edge_index, case.batch, num_graphs=12)
    encoder = (Averaged if part == "encoder" else AtomEncoder)(4, [3])
    act = Squared() if part == "act" else "relu"
    model = FlexGCN(4, 5, 2, [2, 2], act=act, encoder=encoder, backend=backend)
    if part == "dropout":
        model.dropouts[0] = Doubled(0.0)
    if "norm" in part:
        model.norms[0] = Centred(5) if part == "own batch norm" else Shifted()
    model.train(training)
    batch = graphs.batch([1, 3, 6, 9, 10])
    h = model.convs[0](model.encoder(batch.x), batch)
    h = model.dropouts[0](model.act(model.norms[0](h)))
    expected = segment_mean(model.convs[1](h, batch), batch)
    torch.testing.assert_close(model(batch), expected)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("part", ["encoder", "norm"])
def test_weights_that_a_hook_makes_are_made_for_every_call(part, training):
    case = Case(symmetric=True, weighted=False)
    x = torch.arange(case.num_nodes)[:, None] % 7 // 3
    batch = PackedGraphs.from_arrays(x, case.edge_index, case.batch, num_graphs=12).batch([3, 6, 9])
    model = FlexGCN(4, 5, 2, [2, 2], norm="batch_norm", encoder=AtomEncoder(4, [3]))
    pruned = model.encoder if part == "encoder" else model.norms[0]
    model.train(training)
    prune.random_unstructured(pruned, "weight", amount=0.5)
    for _ in range(2):
        model.zero_grad()
        model(batch).sum().backward()
        assert pruned.weight_orig.grad is not None
        with torch.no_grad():
            pruned.weight_orig.mul_(2)
    found = model(batch)
    prune.remove(pruned, "weight")
    torch.testing.assert_close(found, model(batch))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm", [None, "batch_norm", "layer_norm"])
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_a_part_whose_forward_pass_is_the_users_own_is_called(backend, norm, training):
    batch = Case().graphs.batch([3, 6, 9])
    model = FlexGCN(5, 4, 2, orders=[3, 2], norm=norm, backend=backend).train(training)
    want, called = model(batch), []
    for part in (model.act, model.norms[0], model.dropouts[0]):
        forward = part.forward
        part.forward = lambda x, forward=forward: called.append(x) or forward(x)
        torch.testing.assert_close(model(batch), want)
        assert called
        called.clear()
        del part.forward


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_a_batch_norm_may_be_told_to_keep_its_statistics(backend):
    model = FlexGCN(5, 4, 2, orders=[3, 2], norm="batch_norm", backend=backend)
    model.norms[0].track_running_stats = False
    before = copy.deepcopy(model.state_dict())
    model(Case().graphs.batch(slice(None))).sum().backward()
    torch.testing.assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)


def segment_mean(x, batch):
    return torch.stack([part.mean(0) for part in x.split(batch.sizes.tolist())])


def test_a_pooled_layer_alone_checks_what_it_is_given():
    model, batch = FlexGCN(5, [], 1, [2]), Case().graphs.to(dtype=torch.float64).batch([0])
    with pytest.raises(InputError, match=r"x is torch.float64 but the weights are torch.float32"):
        model(batch)


def test_explain_takes_what_a_layer_takes():
    conv, case = FlexConv(5, 4, order=2), Case()
    batch = case.graphs.batch(slice(None))
    assert explain(conv, batch.x, batch) == explain(conv, batch.x, batch.adjacency(True))
    with pytest.raises(InputError, match=r"give conv\(x, edge_index\) or conv\(batch.x, batch\)"):
        explain(conv, batch)
    compiled = nn.Module()
    compiled._orig_mod = conv  # as torch.compile has it
    with pytest.raises(InputError, match=r"is not a FlexGCN or FlexConv: give model\._orig_mod"):
        explain(compiled, batch.x, batch)


def test_a_norm_may_need_what_it_gave_for_its_gradient():
    case = Case()
    model = FlexGCN(5, [4], 1, orders=[2, 2])
    model.norms[0] = nn.Softmax(dim=1)  # an activation in place would change its output
    model(case.graphs.batch(slice(None))).square().sum().backward()
    assert model.convs[0].weight.grad.isfinite().all()


def test_weights_begin_as_those_of_a_linear_layer_on_every_hop():
    conv = FlexConv(50, 400, order=3)
    for parameter in conv.parameters():
        largest = float(parameter.detach().abs().max()) * 150**0.5
        assert 0.98 < largest <= 1.000001


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
    accept_sparse_csr()  # or torch warns of them
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
