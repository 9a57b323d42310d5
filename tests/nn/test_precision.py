"""Half precision and float64: what is cast, and what is refused."""

import pytest
import torch

from grant_fast import FlexConv, FlexGCN, InputError, PackedGraphs
from tests.cases import Case


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


@pytest.mark.parametrize(
    ("of_graphs", "of_weights"), [(torch.float32, torch.float64), (torch.bfloat16, torch.float32)]
)
def test_a_layer_wants_the_propagation_matrix_as_exact_as_its_weights(of_graphs, of_weights):
    batch = Case(weighted=False).graphs.to(dtype=of_graphs).batch([2, 0])
    conv, x = FlexConv(5, 4).to(of_weights), batch.x.to(of_weights)
    with pytest.raises(InputError, match=f"{of_graphs} but the weights are {of_weights}: convert"):
        conv(x, batch)
    if of_weights == torch.float32:
        with torch.autocast("cpu", torch.bfloat16):
            assert conv(batch.x, batch).dtype == torch.bfloat16
    conv.normalize = False  # ones are exact
    assert conv(x, batch).dtype == of_weights
