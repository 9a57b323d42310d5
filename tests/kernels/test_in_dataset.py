"""A first layer reads the dataset's features, or its kinds of nodes, where they lie."""

import pytest
import torch
from torch import Tensor

from grant_fast import FlexGCN, InputError, PackedGraphs
from grant_fast.batches import GraphBatch
from grant_fast.nn import AtomEncoder
from tests.cases import dense_graphs

#: Small, larger, and one that is left to CSR.
SIZES = (20, 0, 3, 40, 260, 9, 1, 0, 31)
WHERE = {
    "some, twice": [8, 4, 2, 2, 0, 7],
    "small": [8, 2, 1, 0],
    "all": slice(None),
    "none": [],
    "small, in a row": slice(5, 9),
}
CARDINALITIES = (3, 2, 4)


@pytest.fixture(autouse=True)
def triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRANT_FAST_BACKEND", "triton")


def atoms(many: bool = False) -> PackedGraphs:
    graphs = dense_graphs(SIZES, 1)
    rows = torch.stack([torch.randint(size, (5,)) for size in CARDINALITIES], 1)
    if many:
        rows = torch.stack([torch.randint(size, (graphs.num_nodes,)) for size in CARDINALITIES], 1)
        rows = torch.cat([rows, torch.arange(graphs.num_nodes)[:, None]], 1)
    x = rows[torch.arange(graphs.num_nodes) % len(rows)].to(torch.int16)
    return PackedGraphs(x, None, graphs.ptr, graphs.adj, graphs.adj_t)


def training_step(model: FlexGCN, batch: GraphBatch) -> list[Tensor]:
    out = model(batch)
    return [out, *torch.autograd.grad(out.square().sum(), list(model.parameters()))]


def check(model: FlexGCN, graphs: PackedGraphs, where: list[int] | slice) -> GraphBatch:
    """Outputs and gradients are those of PyTorch's operators in float64, twice bit for bit."""
    batch = graphs.batch(where)
    got = training_step(model, batch)
    for first, second in zip(got, training_step(model, graphs.batch(where)), strict=True):
        assert torch.equal(first, second)
    model.double().backend = "torch"
    want = training_step(model, graphs.to(dtype=torch.float64).batch(where))
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)
    return batch


@pytest.mark.parametrize("where", WHERE.values(), ids=WHERE)
@pytest.mark.parametrize("norm", ["batch_norm", None])
def test_features_are_never_gathered(norm, where):
    batch = check(FlexGCN(5, [7, 4], 2, orders=[3, 2, 2], norm=norm), dense_graphs(SIZES, 5), where)
    assert "x" not in vars(batch)


@pytest.mark.parametrize("where", WHERE.values(), ids=WHERE)
@pytest.mark.parametrize("pool", ["sum", None])
def test_kinds_of_nodes_are_embedded_where_they_are_read(pool, where):
    encoder = AtomEncoder(6, CARDINALITIES)
    batch = check(FlexGCN(6, [7], 2, orders=[4, 2], encoder=encoder, pool=pool), atoms(), where)
    assert "x" not in vars(batch)


def test_scoring_needs_no_rows_of_the_batch():
    model = FlexGCN(6, [7], 2, orders=[4, 2], encoder=AtomEncoder(6, CARDINALITIES))
    batch = atoms().batch(WHERE["small"])
    with torch.no_grad():
        model(batch)
    assert "nodes" not in vars(batch)


def test_many_kinds_are_gathered_and_mean_the_same():
    graphs = atoms(many=True)
    assert graphs.kinds is None
    encoder = AtomEncoder(6, (*CARDINALITIES, graphs.num_nodes))
    check(FlexGCN(6, [7], 2, orders=[4, 2], encoder=encoder), graphs, WHERE["some, twice"])


def test_features_that_ask_for_a_gradient_get_one():
    model, where = FlexGCN(5, [7], 2, orders=[3, 2]), WHERE["some, twice"]
    results = []
    for backend in ("triton", "torch"):
        model.backend, graphs = backend, dense_graphs(SIZES, 5)
        graphs.x.requires_grad_()
        batch = graphs.batch(where)
        results.append(torch.autograd.grad(model(batch).square().sum(), graphs.x)[0])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("width", "dtype", "message"),
    [
        (7, torch.float32, r"x has shape \(\d+, 7\), but this layer takes \[num_nodes, 6\]"),
        (6, torch.float16, r"x is torch\.float16 but the weights are torch\.float32"),
    ],
)
def test_an_encoder_that_does_not_fit_is_named(width, dtype, message):
    encoder = AtomEncoder(width, CARDINALITIES).to(dtype)
    model = FlexGCN(6, [7], 2, orders=[3, 2], encoder=encoder)
    with pytest.raises(InputError, match=message):
        model(atoms().batch([0, 2]))


def test_features_of_another_width_are_named():
    with pytest.raises(InputError, match="takes"):
        FlexGCN(6, [7], 2, orders=[3, 2])(dense_graphs(SIZES, 5).batch([0, 2]))
