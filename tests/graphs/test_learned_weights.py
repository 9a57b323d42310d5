"""Weights of edges that learn: their gradients, and edges that are sorted once."""

import copy

import pytest
import torch

from grant_fast import FlexConv, FlexGCN, explain, native
from tests.answers import close
from tests.cases import Case

pytestmark = pytest.mark.skipif(native.build() is None, reason="the CPU kernels were not compiled")


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("pool", ["mean", "max", None])
@pytest.mark.parametrize("norm", ["layer_norm", None])
def test_weights_of_edges_that_learn(pool, norm, normalize):
    """Their gradient goes through the degrees, too; they are sorted for all layers at once."""
    case = Case()
    model = FlexGCN(5, [7, 18], 2, orders=[3, 1, 4], pool=pool, norm=norm, normalize=normalize)
    strength = torch.randn(case.edge_index.shape[1])

    def run(model, x):
        leaf = strength.to(x.dtype).requires_grad_()
        given = case.edge_index, leaf.sigmoid()[:, None], case.batch, case.num_graphs
        out = model(x, *given)
        return out, *torch.autograd.grad(out.square().sum(), [leaf, *model.parameters()])

    close(run(model, case.x), run(copy.deepcopy(model).double(), case.x.double()))
    paths = explain(model, case.x, case.edge_index, strength.requires_grad_(), case.batch)
    assert all("CPU kernels: hops" in line for line in paths)


def test_weights_that_learn_of_a_graph_that_no_tile_holds_are_sorted_once(monkeypatch):
    nodes, sorts, sort = native.MAX_NODES + 1, [], native.sort_edges
    monkeypatch.setattr(native, "sort_edges", lambda *of: sorts.append(sort(*of)) or sorts[-1])
    edges = torch.randint(nodes, (2, 3 * nodes))
    edges[:, 0] = torch.tensor([0, nodes - 1])
    conv, x = FlexConv(5, 4, order=3), torch.randn(nodes, 5)

    def run(conv, x):
        weight = torch.linspace(0.1, 1, edges.shape[1]).to(x.dtype).requires_grad_()
        out = conv(x, edges, weight)
        return out, *torch.autograd.grad(out.square().sum(), [weight, *conv.parameters()])

    want = run(copy.deepcopy(conv).double(), x.double())
    for _ in range(3):
        close(run(conv, x), want)
    assert [found is not None for found in sorts] == [False, True]


@pytest.mark.parametrize("edges", [[[], []], [[0, 1], [0, 1]], [[0, 1], [1, 0]]], ids=str)
def test_few_edges_that_learn(edges):
    edges, x = torch.tensor(edges, dtype=torch.long), torch.randn(3, 5)
    conv, weight = FlexConv(5, 4, order=3), torch.rand(edges.shape[1])
    leaves = [weight.requires_grad_(), weight.detach().double().requires_grad_()]
    got, want = (
        conv(x, edges, leaves[0]),
        copy.deepcopy(conv).double()(x.double(), edges, leaves[1]),
    )
    close([got], [want])
    close(
        *(
            torch.autograd.grad(out.sum(), leaf)
            for out, leaf in zip((got, want), leaves, strict=True)
        )
    )
