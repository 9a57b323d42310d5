"""PyG's edges that come again, in the next layer or the next epoch, are not sorted again."""

import copy
import weakref

import pytest
import torch

from grant_fast import FlexConv, FlexGCN, caching, native
from tests.answers import answers, close, exact
from tests.cases import Case

pytestmark = pytest.mark.skipif(native.build() is None, reason="the CPU kernels were not compiled")


@pytest.fixture
def case():
    return Case()


@pytest.fixture
def sorts(case, monkeypatch):
    """What each call of the sort was given."""
    caching._made.clear()
    calls, sort = [], native.sort_edges
    monkeypatch.setattr(native, "sort_edges", lambda *args: calls.append(args) or sort(*args))
    return calls


@pytest.mark.parametrize("weight", ["none", "given", "learned"])
def test_edges_are_sorted_once_for_all_layers_and_epochs(weight, case, sorts):
    values = {"none": None, "given": case.edge_weight}.get(weight)
    if weight == "learned":
        values = case.edge_weight.clone().requires_grad_()
    convs = [FlexConv(5, 5, order=3, normalize=normalize) for normalize in (True, False, True)]
    for _ in range(3):
        h = want = case.x
        for conv in convs:
            h = conv(h, case.edge_index, values)
            double = None if values is None else values.double()
            want = copy.deepcopy(conv).double()(want.double(), case.edge_index, double)
        close([h], [want])
        h.sum().backward()
    assert len(sorts) == 1


def test_a_network_on_one_graph_sorts_it_once(case, sorts):
    model = FlexGCN(5, [7, 18], 2, orders=[3, 2, 4])
    for pool in ("mean", None, "mean"):
        model.pool = pool
        for scale in (1.0, 2.0):
            given = scale * case.x, case.edge_index, case.edge_weight, case.batch, case.num_graphs
            close(answers(model, *given), exact(model, *given))
    assert len(sorts) == 2  # that of all graphs, and that of runs of nodes


def test_edges_with_and_without_weights_are_sorted_once_each(case, sorts):
    weighted, plain = FlexConv(5, 5, order=3), FlexConv(5, 5, order=3)
    for _ in range(3):
        h = plain(weighted(case.x, case.edge_index, case.edge_weight), case.edge_index)
    want = copy.deepcopy(weighted).double()(
        case.x.double(), case.edge_index, case.edge_weight.double()
    )
    close([h], [copy.deepcopy(plain).double()(want, case.edge_index)])
    assert len(sorts) == 2


def test_as_many_edges_as_are_kept_may_have_two_sets_of_weights_each(case, sorts):
    conv = FlexConv(5, 5, order=3)
    many = [case.edge_index.clone() for _ in range(caching.MOST_KEPT)]
    for _ in range(3):
        for edges in many:
            conv(case.x, edges), conv(case.x, edges, case.edge_weight)
    assert len(sorts) == 2 * len(many)


@pytest.mark.parametrize("first", ["inference_mode", "no_grad"])
def test_what_is_kept_of_edges_serves_training_as_well(first, case, sorts):
    conv = FlexConv(5, 6, order=3)
    with getattr(torch, first)():
        edges = case.edge_index.clone()
        conv(case.x, edges)
    close(answers(conv, case.x, edges), exact(conv, case.x, edges, None))
    assert len(sorts) == 1


@pytest.mark.parametrize("how", ["in place", "by NumPy", "weights", "nodes"])
def test_what_was_written_to_is_sorted_anew(how, case, sorts):
    conv = FlexConv(5, 6, order=3)
    x, edges, weight = case.x, case.edge_index.clone(), case.edge_weight.clone()
    conv(x, edges, weight)
    if how == "in place":
        edges[0] = edges[0].flip(0)
    elif how == "by NumPy":
        edges.numpy()[0] = edges.numpy()[0, ::-1].copy()
    elif how == "weights":
        weight.numpy()[:] += 1
    else:
        x = torch.cat([x, x])
    close(answers(conv, x, edges, weight), exact(conv, x, edges, weight))
    assert len(sorts) == 2


def test_the_same_edges_may_be_of_another_number_of_graphs(case):
    model, batch = FlexGCN(5, 4, 2, orders=[2, 2]).eval(), case.batch
    with torch.no_grad():
        for size in (12, 14, 13):
            out = model(case.x, case.edge_index, batch=batch, batch_size=size)
            assert out.shape == (size, 2)


def test_what_is_kept_of_edges_lives_no_longer_than_they(case):
    conv = FlexConv(5, 6, order=3)
    caching._made.clear()
    edges, x = case.edge_index.clone(), case.x.clone()
    conv(x, edges)
    assert len(caching._made) == 1
    seen = weakref.ref(x)
    del x
    assert seen() is None, "features are not kept"
    del edges
    assert len(caching._made) == 0
    many = [case.edge_index.clone() for _ in range(2 * caching.MOST_KEPT + 1)]
    for edges in many:
        conv(case.x, edges)
    assert len(caching._made) == 1
