"""NaN and infinities go where the edges take them, and nowhere else."""

import numpy as np
import pytest
import torch

from grant_fast import PackedGraphs, ops
from grant_fast.kernels import layer, wide
from grant_fast.ops import dispatch
from grant_fast.ops.tiled import kernel_graphs
from tests import emulator
from tests.cases import Case, dense_graphs
from tests.kernels.checks import DEVICE_TOLERANCE


@pytest.fixture(autouse=True)
def silent_numpy():
    with np.errstate(all="ignore"):
        yield


#: Who computes, and how its hops are done on AMD, on NVIDIA, or there of half precision.
WAYS = [
    *(("fused", precision) for precision in ("ieee", "tf32x3", "tf32")),
    *(("wide", precision) for precision in ("ieee", "tf32x3")),
    ("csr", "ieee"),
]


@pytest.fixture(params=WAYS, ids=" ".join)
def way(request, monkeypatch):
    monkeypatch.setattr(layer, "precision", lambda dtype, device: request.param[1])
    monkeypatch.setattr(wide, "hop_precision", lambda device: request.param[1])
    if request.param[0] == "wide":
        monkeypatch.setattr(dispatch, "MAX_WIDTH", 2)
    return request.param


@pytest.fixture
def batch(way):
    """Graphs that share a tile, ones of one plane to four, and one without bits; or all
    over CSR."""
    graphs = dense_graphs((5, 9, 12, 1, 3, 40, 70, 135, 200), 4)
    case = Case(sizes=(6,), num_features=4, weighted=way[0] == "csr")
    repeated = PackedGraphs.from_arrays(
        case.x, case.edge_index, case.batch, edge_weight=case.edge_weight
    )
    return PackedGraphs.concat([graphs, repeated]).batch(slice(None))


def assert_close(got, want, way, tolerance=1e-5):
    """What is finite is as close as it can be, and the same of it is NaN, or infinite."""
    bounds = {"rtol": tolerance, "atol": tolerance}
    ten_bits = way[1] == "tf32"  # of each term of a sum
    if ten_bits or emulator.TARGET:
        largest = float(want[want.isfinite()].abs().max())
        bounds = {"rtol": 0, "atol": (2e-3 if ten_bits else DEVICE_TOLERANCE) * largest}
    torch.testing.assert_close(got, want, equal_nan=True, **bounds)


#: The NaN of NVIDIA's arithmetic. PyTorch's own, and x86's, is 0x7fc00000.
FULL_NAN = torch.tensor(0x7FFFFFFF, dtype=torch.int32).view(torch.float32)

BAD = {
    "NaN": {(7, 1): torch.nan, (40, 1): torch.nan},
    "NaN of all ones": {(7, 1): FULL_NAN, (40, 1): FULL_NAN},
    "inf": {(7, 1): torch.inf, (75, 1): torch.inf, (143, 2): torch.inf, (278, 0): torch.inf},
    "both infinities": {(40, 0): torch.inf, (41, 0): -torch.inf, (8, 2): -torch.inf},
    "an overflow": {(7, 1): 3e38, (8, 1): -3e38, (35, 1): 3e38, (36, 1): 3e38},
}


@pytest.mark.parametrize(
    ("name", "normalize", "h_out"),
    [*((name, True, 3) for name in BAD), ("both infinities", False, 6), ("an overflow", False, 6)],
)
def test_the_layer_equals_the_sparse_product(batch, name, normalize, h_out, way):
    adjacency, bad = batch.adjacency(normalize), BAD[name]
    x = batch.x.clone()
    for where, value in bad.items():
        x[where] = value
    weight = torch.ones(3, 4, h_out)
    want = ops.flex_conv(x, weight, None, adjacency, backend="torch")
    got = ops.flex_conv(x, weight, None, adjacency, backend="triton")
    assert 0.1 < want.isfinite().float().mean() < 1
    if max(bad.values()) == 3e38:  # whether a sum overflows on its way depends on its order
        spoilt = batch.batch[[row for row, _ in bad]]
        keep = ~torch.isin(batch.batch, spoilt)
        got, want = got[keep], want[keep]
    assert_close(got, want, way)


@pytest.mark.parametrize(
    ("bad", "relu"),
    [(torch.nan, False), (FULL_NAN, False), (-torch.inf, True)],
    ids=["NaN", "all ones", "-inf by a ReLU"],
)
def test_the_gradient_equals_that_of_the_sparse_product(batch, bad, relu, way):
    adjacency, bias = batch.adjacency(True), torch.full((3,), 100.0)  # the ReLU lets all by
    weight, grad = torch.ones(3, 4, 3), torch.randn(batch.num_nodes, 3)
    grad[7, 1] = grad[40, 1] = grad[75, 1] = bad
    want, got = [], []
    for backend, grads in (("torch", want), ("triton", got)):
        x, w = batch.x.clone().requires_grad_(), weight.clone().requires_grad_()
        out = ops.flex_conv(x, w, bias, adjacency, relu=relu, backend=backend)
        grads += torch.autograd.grad(out, (x, w), grad)
    assert 0.2 < want[0].isfinite().float().mean() < 1
    assert_close(got[0], want[0], way)
    # Every order of the column that holds it is lost, as order 0 is in any case; no other is.
    assert not got[1][:, :, 1].isfinite().any() and not want[1][0, :, 1].isfinite().any()
    columns = [0, 2]
    assert_close(got[1][..., columns], want[1][..., columns], way, 1e-4)


@pytest.mark.parametrize("precision", ["ieee", "tf32x3"])
def test_it_goes_there_wherever_the_features_are_read(precision, monkeypatch):
    monkeypatch.setattr(layer, "precision", lambda dtype, device: precision)
    graphs, positions = dense_graphs((12, 20, 40, 9, 70, 33), 4), [3, 1, 5, 4, 2, 0]
    kinds, code = torch.randn(8, 20), torch.arange(graphs.num_nodes, dtype=torch.int32) % 6
    kinds[6, 19], kinds[7, 0] = torch.inf, torch.nan
    code[graphs.ptr[[1, 2, 4]] + 3] = torch.tensor([6, 7, 6], dtype=torch.int32)
    x = kinds[code]
    nodes = torch.cat([torch.arange(*graphs.ptr[p : p + 2].tolist()) for p in positions])
    batch = graphs.batch(positions)
    tables, weight = kernel_graphs(batch, normalize=True), torch.randn(3, 20, 7)
    places = [(x[nodes], False, None), (x, True, None), (kinds, True, code)]
    want, *others = (
        layer.forward(
            *(x, weight, None, tables, torch.empty(batch.num_nodes, 7)),
            relu=False, dataset_x=dataset_x, code=code,
        )
        for x, dataset_x, code in places
    )  # fmt: skip
    sparse = ops.flex_conv(x[nodes], weight, None, batch.adjacency(True), backend="torch")
    torch.testing.assert_close(want, sparse, equal_nan=True)
    assert 0.2 < want.isfinite().float().mean() < 0.8
    for got in others:
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
