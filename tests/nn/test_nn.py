"""FlexConv and FlexGCN: one function in every accepted form."""

import copy

import pytest
import torch
from torch import nn

from grant_fast import FlexConv, FlexGCN, InputError, PackedGraphs, explain
from grant_fast.reference import dense_flex_conv
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
    torch.nn.utils.parametrizations.orthogonal(model.convs[0])
    with pytest.raises(InputError, match="the weights are computed, by a parametrization"):
        model.reset_parameters()


def test_repr_tells_the_architecture():
    assert str(FlexConv(9, 27, order=4)) == "FlexConv(9, 27, order=4, normalize=True, bias=True)"
    text = str(FlexGCN(9, 27, 1, orders=[4, 2], norm="batch_norm", dropout=0.3, encoder="atom"))
    for part in ("AtomEncoder(9, columns=9)", "FlexConv(27, 1, order=2", "BatchNorm(27", "p=0.3"):
        assert part in text


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


def test_weights_begin_as_those_of_a_linear_layer_on_every_hop():
    conv = FlexConv(50, 400, order=3)
    for parameter in conv.parameters():
        largest = float(parameter.detach().abs().max()) * 150**0.5
        assert 0.98 < largest <= 1.000001
