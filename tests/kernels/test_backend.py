"""Choosing a backend for a module: what it changes, what it must not, and what is said of it."""

import gc
import weakref

import pytest
import torch

from grant_fast import FlexConv, FlexGCN, InputError, explain, native
from grant_fast.adjacency import Adjacency
from grant_fast.cli.doctor import examine, speedup
from grant_fast.ops import operators
from tests.cases import Case, dense_graphs

OPTIONS = {"orders": [2, 3, 2], "norm": "batch_norm", "encoder": torch.nn.Identity()}


@pytest.fixture
def batch():
    return dense_graphs((3, 40, 0, 9, 17), 5).batch([4, 1, 2, 3, 0])


def test_either_backend_trains_the_same(batch):
    weights = FlexGCN(5, [8, 6], 1, **OPTIONS).state_dict()
    results = []
    for backend in ("torch", "triton"):
        model = FlexGCN(5, [8, 6], 1, **OPTIONS, backend=backend)
        model.load_state_dict(weights)
        out = model(batch)
        results.append([out, *torch.autograd.grad(out.square().sum(), list(model.parameters()))])
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["auto", "torch", "triton"])
@pytest.mark.parametrize("pool", ["mean", "max"])
def test_a_batch_is_free_as_soon_as_nobody_asks_for_it(backend, pool):
    graphs = dense_graphs((3, 40, 260, 9), 5)  # one too large for bits
    model = FlexGCN(5, [8, 70], 1, orders=[2, 3, 2], pool=pool, backend=backend)
    model(graphs.batch([2])).sum().backward()  # what is computed once for all batches
    gc.collect()
    gc.disable()
    try:
        batch = graphs.batch([1, 0, 2])
        model(batch).sum().backward()
        assert batch.edge_index.shape[0] == 2
        free = weakref.ref(batch)
        del batch
        assert free() is None
    finally:
        gc.enable()


def test_the_argument_wins_over_the_environment(batch, monkeypatch):
    monkeypatch.setenv("GRANT_FAST_BACKEND", "triton")
    free, bound = (FlexConv(5, 4, backend=backend) for backend in (None, "torch"))
    adjacency = batch.adjacency(True)
    assert "Triton" in explain(free, batch.x, edge_index=adjacency)[0]
    with pytest.raises(InputError, match=r"DataParallel is not a FlexGCN.*: give model\.module"):
        explain(torch.nn.DataParallel(free), batch)
    assert "PyTorch: the backend setting says so" in explain(bound, batch.x, adjacency)[0]
    calls = []
    tiles = operators.flex_conv_tiles

    def counted(*given):
        calls.append(given)
        return tiles(*given)

    monkeypatch.setattr(operators, "flex_conv_tiles", counted)
    want = bound(batch.x, adjacency)
    assert not calls
    free.load_state_dict(bound.state_dict())
    torch.testing.assert_close(free(batch.x, adjacency), want, rtol=1e-5, atol=1e-5)
    assert len(calls) == 1


def test_a_model_can_change_its_mind(batch):
    model = FlexGCN(5, 4, 2, orders=[2, 2, 2], backend="triton")
    assert model.backend == "triton"
    assert "Triton" in explain(model, batch)[1]
    model.backend = "torch"
    assert {conv.backend for conv in model.convs} == {"torch"}
    assert "PyTorch" in explain(model, batch)[1]
    with pytest.raises(InputError, match="backend is 'cuda': choose one of auto, triton, torch"):
        model.backend = "cuda"


@pytest.mark.parametrize("build", [lambda b: FlexConv(5, 4, backend=b), None], ids=["conv", "gcn"])
def test_an_unknown_backend_is_refused_at_once(build):
    build = build or (lambda backend: FlexGCN(5, 4, 1, backend=backend))
    with pytest.raises(InputError, match="backend is 'gpu': choose one of auto"):
        build("gpu")


def test_layers_without_a_convolution_of_their_own_are_no_obstacle(batch):
    # Where all is cached, only layer 1 has a convolution.
    model = FlexGCN(5, [8, 6], 100, orders=[9, 2, 9], backend="triton")
    assert [line.split(": ")[1].split(" ")[0] for line in explain(model, batch)] == [
        "one",
        "Triton",
        "pooled",
    ]
    assert model(batch).shape == (5, 100)
    loose = (batch.x, batch.edge_index, None, batch.batch, 5)
    torch.testing.assert_close(model(*loose), model(batch), rtol=1e-3, atol=1e-4)
    assert all("hops over CSR" in line for line in explain(model, *loose))


def test_the_choice_shows_in_the_repr():
    assert str(FlexConv(9, 27, backend="torch")).endswith("bias=True, backend='torch')")


@pytest.mark.parametrize("pool", ["mean", "max", None])
def test_explain_takes_what_the_model_takes(pool):
    case = Case(sizes=(3, 2))
    model = FlexGCN(5, [8, 6], 1, orders=[2, 2, 2], pool=pool, backend="torch")
    lines = explain(model, case.x, case.edge_index, case.edge_weight, case.batch, 2)
    assert lines == [
        f"layer {i} ({a} → {b}, order 2): PyTorch: the backend setting says so"
        for i, (a, b) in enumerate([(5, 8), (8, 6), (6, 1)])
    ]
    weighted = explain(model, case.graphs.batch([0]))
    assert weighted[1] == "layer 1 (8 → 6, order 2): PyTorch: the backend setting says so"
    conv = explain(FlexConv(5, 4, order=3, backend="torch"), case.x, case.edge_index)
    assert conv[0].startswith("layer 0 (5 → 4, order 3): PyTorch")
    with pytest.raises(InputError, match="give a batch of graphs alone, or x and edge_index"):
        explain(model, case.x)


@pytest.mark.parametrize(
    ("dtype", "compiled", "reason"),
    [
        (
            torch.float32,
            False,
            "the CPU kernels were not compiled: where there is GCC or Clang, pip",
        ),
        (torch.float64, True, "x is torch.float64, not float32"),
        (torch.float32, True, "the graphs are no GraphBatch, and PyG's tensors"),
    ],
    ids=["not compiled", "float64", "a ready matrix"],
)
def test_explain_says_why_pytorch_computes_on_a_cpu(dtype, compiled, reason, monkeypatch):
    if not compiled:
        monkeypatch.setattr(native.loading, "library", lambda: None)
    elif native.build() is None:
        pytest.skip("the CPU kernels were not compiled")
    case = Case(sizes=(3, 2))
    conv = FlexConv(5, 4, order=3).to(dtype)
    matrix = Adjacency.from_edge_index(case.edge_index, None, case.num_nodes, dtype)
    line = explain(conv, case.x.to(dtype), matrix)[0]
    assert "PyTorch" in line and f": {reason}" in line


@pytest.mark.skipif(native.build() is None, reason="the CPU kernels were not compiled")
def test_explain_names_the_kernels_of_the_cpu(batch):
    lines = explain(FlexGCN(5, 4, 2, orders=[2, 2, 2]), batch)
    assert [line.split("): ")[1] for line in lines] == [
        "one product with the dataset's cached [X, ÂX, …] (CPU kernels)",
        "CPU kernels: the whole network in one pass, each layer in cache",
        "pooled first, then one product per graph (CPU kernels)",
    ]
    assert explain(FlexGCN(5, 4, 2, orders=[2, 2, 2], act="elu"), batch) == lines
    act = torch.nn.GELU("tanh")  # not one that the one pass computes
    by_layer = explain(FlexGCN(5, 4, 2, orders=[2, 2, 2], act=act), batch)
    assert "CPU kernels: hops, products" in by_layer[1] and "PyTorch" in by_layer[2]
    assert "CPU kernels" not in " ".join(explain(FlexGCN(5, 4, 2, backend="torch"), batch))


@pytest.mark.interpreted
def test_the_doctor_shows_the_path_of_a_usual_model(monkeypatch):
    monkeypatch.setenv("GRANT_FAST_BACKEND", "triton")
    checks = {check.name: check for check in examine()}
    assert "2 graphs in 1 tiles" in checks["usual layers on cpu"].detail
    kernels = checks["Triton kernels on cpu"]
    assert kernels.ok and "of float64" in kernels.detail
    monkeypatch.delenv("TRITON_INTERPRET")
    wrong = [check for check in examine() if check.ok is False]
    assert [check.detail for check in wrong] == [
        "GRANT_FAST_BACKEND is 'triton', but x is on the cpu, not on a GPU: "
        "choose 'auto' or 'torch'"
    ]


@pytest.mark.interpreted
def test_the_doctor_says_where_the_kernels_are_wrong(monkeypatch):
    def wrong_with_kernels(device, backend):
        if backend == "triton":
            raise ArithmeticError("values and gradients are off by 5.0e-01")
        return "right"

    monkeypatch.setattr("grant_fast.cli.doctor._compute", wrong_with_kernels)
    wrong = {check.name: check.detail for check in examine() if check.ok is False}
    assert wrong["Triton kernels on cpu"] == (
        "values and gradients are off by 5.0e-01; leave them off, which is the default "
        "(GRANT_FAST_BACKEND=auto)"
    )


@pytest.mark.interpreted
def test_the_doctor_times_a_step_on_either_backend(monkeypatch):
    ticks = iter(range(1000))
    monkeypatch.setattr("grant_fast.cli.doctor.clock", lambda device: next(ticks) ** 2)
    assert 0 < speedup("cpu", graphs=4, rounds=2) < 1  # the kernels' turn is the later one


@pytest.mark.skipif(native.build() is None, reason="the CPU kernels were not compiled")
def test_explain_says_what_this_very_call_runs(batch, monkeypatch):
    """Its mode, gradients and autocast decide, too: spies see who is called."""
    ran = []
    for name in ("train", "evaluate", "flex_conv"):
        kernel = getattr(native, name)
        monkeypatch.setattr(
            native, name, lambda *a, k=kernel, n=name, **o: ran.append(n) or k(*a, **o)
        )

    def said_and_ran(model, graphs):
        ran.clear()
        lines = explain(model, graphs)
        model(graphs)
        return sum("in one pass" in line for line in lines), lines, list(ran)

    model = FlexGCN(
        5, [4, 4], 2, orders=[2, 2, 2], norm="batch_norm", pool=None, encoder=OPTIONS["encoder"]
    )
    assert said_and_ran(model, batch)[::2] == (3, ["train"])
    alone = dense_graphs((1,), 5).batch([0])  # of one node there is no deviation
    assert said_and_ran(model, alone)[::2] == (0, ["flex_conv"] * 3)
    model.eval()  # with gradients: norms that stand still are folded into their layers
    assert said_and_ran(model, batch)[::2] == (0, ["flex_conv"] * 3)
    with torch.no_grad():
        assert said_and_ran(model, batch)[::2] == (3, ["evaluate"])
    with torch.autocast("cpu", torch.bfloat16):
        _, lines, found = said_and_ran(model, batch)
        assert found == [] and all("PyTorch: x is torch.bfloat16" in line for line in lines)
