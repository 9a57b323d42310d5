"""The collapsed readout of the kernels against the definition in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.library import opcheck

from grant_fast import FlexGCN, ops
from grant_fast.batches import tiles
from grant_fast.graphs import PackedGraphs
from tests.cases import Case, dense_graphs
from tests.kernels.checks import SIZES

READOUT_SIZES = (*SIZES, 193, 0)


def check(graphs: PackedGraphs, order: int, normalize: bool, mean: bool, positions=slice(None)):
    batch, exact = graphs.batch(positions), graphs.to(dtype=torch.float64).batch(positions)
    x = batch.x.clone().requires_grad_()
    x64 = batch.x.double().requires_grad_()
    got = ops.readout(x, batch, order, normalize, mean, "triton")
    want = ops.readout(x64, exact, order, normalize, mean, "torch")
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)
    grad = torch.randn(1, got.shape[1]).expand_as(got)
    (dx,) = torch.autograd.grad(got, x, grad)
    (dx64,) = torch.autograd.grad(want, x64, grad.double())
    torch.testing.assert_close(dx.double(), dx64, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("width", [1, 3, 9, 16, 27, 64, 65, 300])
def test_every_size_at_every_width(width):
    check(dense_graphs(READOUT_SIZES, width), 1 + width % 5, width % 2 == 0, width % 3 == 0)


@pytest.mark.parametrize("segment", [1, 7, 29])
def test_large_graphs_are_added_up_in_segments(segment, monkeypatch):
    monkeypatch.setattr(tiles, "SEGMENT", segment)
    graphs = dense_graphs((9, 0, 1, 30, 7, 14, 0), 5)
    assert graphs.batch(slice(None)).segments.graph_ptr is not None
    check(graphs, 3, True, True)
    check(graphs, 2, False, False, positions=[4, 1, 3, 3])


def test_weighted_graphs_and_any_order_of_them():
    check(Case().graphs, 3, True, False, positions=[9, 2, 2, 0, 7, 11])


@pytest.mark.parametrize("sizes", [(0,), (0, 0)], ids=str)
def test_no_graphs_and_no_nodes(sizes):
    check(dense_graphs(sizes, 3), 2, True, True)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=5),
    width=st.integers(1, 70),
    order=st.integers(1, 5),
    mean=st.booleans(),
    seed=st.integers(0, 100),
)
def test_any_readout(sizes, width, order, mean, seed):
    check(dense_graphs(tuple(sizes), width, seed=seed), order, True, mean)


def test_what_is_not_finite_stays_in_its_graph():
    graphs = dense_graphs((5, 4, 3), 2)
    batch = graphs.batch(slice(None))
    x = batch.x.clone()
    x[6, 1], x[5, 0] = torch.nan, torch.inf
    with np.errstate(all="ignore"):
        got = ops.readout(x, batch, 2, True, True, "triton")
    want = ops.readout(x, batch, 2, True, True, "torch")
    assert want[[0, 2]].isfinite().all() and not want[1].isfinite().any()
    torch.testing.assert_close(got, want, equal_nan=True)


def test_the_operator_passes_opcheck_where_a_graph_has_several_segments(monkeypatch):
    monkeypatch.setattr(tiles, "SEGMENT", 4)
    graphs = dense_graphs((5, 0, 9), 3)
    tables = graphs.batch(slice(None)).segments
    weights = graphs.pool_weights(2, True, True)
    opcheck(torch.ops.grant_fast.readout, (graphs.x.clone().requires_grad_(), weights, *tables))


def test_a_first_layer_of_one_kernel_does_without_the_cache():
    graphs = dense_graphs((3, 40, 9), 5)
    model = FlexGCN(5, 8, 2, orders=[3, 2], backend="triton")
    got = model(graphs.batch([1, 0]))
    assert not any(key[0] == "hops" for key in graphs._cache)
    model.backend = "torch"
    torch.testing.assert_close(got, model(graphs.batch([1, 0])), rtol=1e-4, atol=1e-5)
