"""Weights that something computes: torch.nn.utils.parametrize, and hooks that do the same."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.testing._internal.two_tensor import TwoTensor

from grant_fast import FlexGCN
from grant_fast.nn import AtomEncoder
from tests.cases import Case

BACKENDS = ["auto", "torch", "reference"]


class Twice(nn.Module):
    """A parametrization that counts how often it is computed."""

    count = 0

    def forward(self, weight):
        self.count += 1
        return 2 * weight


@pytest.mark.parametrize("pool", ["mean", None])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_parametrized_weight_is_computed_once_a_pass(backend, pool):
    batch = Case().graphs.batch(slice(None))
    model = FlexGCN(5, 4, 2, orders=[3, 2], norm="batch_norm", pool=pool, backend=backend)
    plain = copy.deepcopy(model)
    rules = []
    for conv, twin in zip(model.convs, plain.convs, strict=True):
        rules.append(Twice())
        nn.utils.parametrize.register_parametrization(conv, "weight", rules[-1])
        twin.weight.data *= 2
    calls = [
        lambda net: net(batch),
        lambda net: net(batch.x, batch.edge_index, batch.edge_weight, batch.batch),
        lambda net: net.convs[0](batch.x, batch.edge_index),
    ]
    for call in (*calls, torch.no_grad()(calls[0])):
        for rule in rules:
            rule.count = 0
        torch.testing.assert_close(call(model), call(plain))
        assert rules[0].count == 1 and rules[1].count <= 1


@pytest.mark.parametrize("what", ["width", "norm", "momentum"])
def test_so_it_is_where_the_cpu_kernels_do_not_take_the_network(what):
    hidden = 400 if what == "width" else 4
    model = FlexGCN(5, [hidden, hidden], 2, orders=[3, 2, 2], norm="batch_norm")
    if what == "norm":
        model.norms[1] = nn.GroupNorm(2, hidden)
    elif what == "momentum":
        model.norms[0].momentum = None
    rules = [Twice() for _ in model.convs]
    for conv, rule in zip(model.convs, rules, strict=True):
        nn.utils.parametrize.register_parametrization(conv, "weight", rule)
        rule.count = 0
    model(Case().graphs.batch(slice(None)))
    assert [rule.count for rule in rules] == [1, 1, 1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_parametrized_encoder_is_computed_once_a_pass(backend):
    case = Case(sizes=(200, 200))
    case.graphs.x = (case.x > 0).long()
    rule, encoder = Twice(), AtomEncoder(4, [2] * 5)
    nn.utils.parametrize.register_parametrization(encoder, "weight", rule)
    model = FlexGCN(4, 4, 2, orders=[3, 2], encoder=encoder, backend=backend)
    batch = case.graphs.batch(slice(None))
    calls = [
        lambda: model(batch),
        lambda: model(batch.x, batch.edge_index, batch.edge_weight, batch.batch),
        lambda: encoder(batch.x),
        lambda: encoder(batch.x[:9]),
    ]
    for call in (*calls, torch.no_grad()(calls[0])):
        rule.count = 0
        call()
        assert rule.count == 1


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_parametrized_parts_learn_and_copies_are_their_own(backend, packed):
    case = Case(sizes=(200, 200), num_features=2)
    x = (case.x[:, :1] > 0).long()
    graphs = case.graphs
    graphs.x = x.to(torch.uint8)
    model = FlexGCN(3, 3, 3, [2, 2], encoder="atom", backend=backend)
    model.encoder = type(model.encoder)(3, [2])
    plain = copy.deepcopy(model)
    for part in (model.encoder, *model.convs):
        nn.utils.parametrizations.weight_norm(part, "weight")
    batch = graphs.batch(slice(None))
    given = (batch,) if packed else (x, batch.edge_index, batch.edge_weight, batch.batch)
    model(*given).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())
    model.convs[1] = copy.deepcopy(model.convs[0])
    with torch.no_grad():
        model.convs[1].parametrizations.weight.original0.mul_(3)
    out = model(*given)
    for part, twin in zip(
        (model.encoder, *model.convs), (plain.encoder, *plain.convs), strict=True
    ):
        twin.weight.data.copy_(part.weight)
    plain.convs[1].bias.data.copy_(model.convs[1].bias)
    torch.testing.assert_close(plain(*given), out)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_weights_that_a_hook_makes_are_those_of_the_call(backend, mode):
    case = Case()
    case.graphs.x = (3 * case.x).to(torch.int8)
    model = FlexGCN(5, 4, 1, [2, 2], backend=backend)
    getattr(model, mode)()
    with torch.no_grad():
        model.convs[0].bias.normal_()
    prune.random_unstructured(model.convs[0], "weight", amount=0.5)
    prune.random_unstructured(model.convs[1], "bias", amount=1)
    with torch.no_grad():
        model.convs[0].weight_orig *= 2
    model.double()  # the pruned weights are made anew at the next call alone
    batch = case.graphs.to(torch.float64).batch(slice(None))
    out = model(batch)
    out.sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    prune.remove(model.convs[0], "weight")
    prune.remove(model.convs[1], "bias")
    torch.testing.assert_close(model(batch), out)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_replica_has_weights_that_are_no_parameters(backend, packed):
    """As those that `nn.DataParallel` makes."""
    batch = Case().graphs.batch(slice(None))
    given = (batch,) if packed else (batch.x, batch.edge_index, batch.edge_weight, batch.batch)
    model = FlexGCN(5, 4, 2, [3, 2], backend=backend)
    replica = copy.copy(model)
    replica._modules = dict(model._modules)
    replica.convs = nn.ModuleList(conv._replicate_for_data_parallel() for conv in model.convs)
    for conv, own in zip(replica.convs, model.convs, strict=True):
        conv.weight, conv.bias = 2 * own.weight, 2 * own.bias
    assert not list(replica.parameters())
    replica(*given).sum().backward()
    assert all(p.grad.any() for p in model.parameters())
    with torch.no_grad():
        for p in model.parameters():
            p *= 2
    torch.testing.assert_close(replica(*given), model(*given))


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("packed", [True, False])
def test_weights_of_another_class_of_tensor_are_left_to_torch(packed, layer):
    """Such as have no memory of their own, where the CPU kernels would read."""

    class Pair(nn.Module):
        def forward(self, weight):
            return TwoTensor(weight.detach(), weight.detach().clone())

    batch = Case().graphs.batch(slice(None))
    given = (batch,) if packed else (batch.x, batch.edge_index, batch.edge_weight, batch.batch)
    model = FlexGCN(5, 4, 2, [3, 2, 2])
    with torch.no_grad():
        want = model(*given)
        nn.utils.parametrize.register_parametrization(model.convs[layer], "weight", Pair())
        found = model(*given)
    torch.testing.assert_close(getattr(found, "a", found), want)


@pytest.mark.parametrize("weight", ["plain", "buffer", "of another network", "of integers"])
def test_weights_may_be_no_parameters(weight):
    case = Case()
    case.graphs.x = (3 * case.x).to(torch.int8)
    batch = case.graphs.batch(slice(None))
    model = FlexGCN(5, 4, 2, [3, 2])
    conv = model.convs[0]
    conv.bias = None
    want, values = None, conv.weight.detach().mul(9).round()
    with torch.no_grad():
        conv.weight.copy_(values)
        want = model(batch)
    del conv.weight
    if weight == "plain":
        conv.weight = values
    elif weight == "buffer":
        conv.register_buffer("weight", values)
    elif weight == "of another network":
        conv.weight = torch.ones((), requires_grad=True) * values
    else:
        conv.weight = nn.Parameter(values.to(torch.int8), requires_grad=False)
        nn.utils.parametrize.register_parametrization(conv, "weight", AsFloat(), unsafe=True)
    torch.testing.assert_close(model(batch), want)


class AsFloat(nn.Module):
    def forward(self, weight):
        return weight.float()
