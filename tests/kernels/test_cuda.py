"""The kernels on a device: `python -m pytest -m cuda` where there is a GPU, of NVIDIA or AMD.

`make test` proves what can be proven without: results in the interpreter, registers and spills by
compiling, what a CUDA graph can record by watching the operators. This is the rest, in one command;
with pytest-xdist, `-n 8` shares out the compiling. `pytest --emulate sm_90` runs it without a GPU,
but for what PyTorch itself does there.
"""

import copy
import itertools
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grant_fast import FlexConv, FlexGCN, PackedGraphs, Task, ops, select_graphs
from grant_fast.errors import InputError
from grant_fast.kernels import layer
from grant_fast.nn import AtomEncoder
from grant_fast.teaching import loss
from tests import emulator
from tests.cases import Case, dense_graphs
from tests.kernels import test_in_dataset, test_kinds, test_norm, test_score
from tests.kernels.checks import (
    DEVICE_TOLERANCE,
    SIZES,
    SMALL_SIZES,
    check_far_offsets,
    check_layer,
    check_long_sum,
    check_repeats,
    close,
    with_repeated_edges,
)

#: CPU tensors are what an emulated GPU takes.
DEVICE = "cpu" if emulator.TARGET else "cuda"
NOT_EMULATED = pytest.mark.skipif(DEVICE == "cpu", reason="asks PyTorch for a GPU's own")

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        DEVICE == "cuda" and not torch.cuda.is_available(), reason="no GPU that PyTorch can use"
    ),
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") == "1",
        reason="kernels are interpreted here: the device's tests run alone, by `pytest -m cuda`",
    ),
    pytest.mark.filterwarnings("default"),  # a driver's remarks are no failure of ours
]

#: TF32 alone would be off by 3e-4 and more.
TOLERANCE = {torch.float32: DEVICE_TOLERANCE, torch.bfloat16: 0.02, torch.float16: 0.003}
DTYPES = list(TOLERANCE)
BOTH = pytest.mark.parametrize("backend", ["torch", "triton"])


def check(graphs: PackedGraphs, order: int, h_out: int, dtype=torch.float32, **options) -> None:
    options = {"tolerance": TOLERANCE[dtype]} | options
    check_layer(graphs, order, h_out, dtype=dtype, device=DEVICE, **options)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("width", [1, 3, 9, 16, 27, 64])
def test_every_width_and_order_at_every_graph_size(width, order, dtype):
    check(dense_graphs(SIZES, width, symmetric=order % 2 == 0), order, width, dtype, relu=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(0, 260), min_size=1, max_size=6),
    widths=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    order=st.integers(1, 6),
)
def test_any_layer(sizes, widths, order, dtype):
    check(dense_graphs(tuple(sizes), widths[0]), order, widths[1], dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("widths", [(1, 64), (64, 3), (9, 27), (27, 18), (64, 64)], ids=str)
def test_every_dtype_between_unequal_widths(widths, dtype):
    check(dense_graphs(SIZES, widths[0]), 3, widths[1], dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("relu", [True, False])
def test_every_kind_of_layer(normalize, symmetric, relu, dtype):
    check(dense_graphs(SMALL_SIZES, 5, symmetric), 3, 7, dtype, normalize=normalize, relu=relu)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_batch_of_small_large_huge_and_repeating_graphs(dtype):
    both = with_repeated_edges(dense_graphs((20, 200, 40, 3, 300, 192, 0), 9))
    check(both, 3, 5, dtype, relu=True, positions=[7, 2, 1, 0, 4, 3, 5, 2, 6])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("widths", [(70, 70), (9, 300), (512, 20)], ids=str)
@pytest.mark.parametrize("order", [1, 3, 7])
def test_wide_and_deep_layers(order, widths, dtype):
    check(dense_graphs(SIZES, widths[0]), order, widths[1], dtype, relu=order == 3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("symmetric", [True, False])
def test_weighted_and_repeated_edges(symmetric, dtype):
    check(Case(symmetric=symmetric).graphs, 3, 7, dtype, relu=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("widths", [(5, 8), (8, 5), (5, 70)], ids=str)
def test_the_gradient_of_edge_weights(widths, dtype):
    case = Case(num_features=widths[0])
    conv = FlexConv(*widths, order=4)
    exact = copy.deepcopy(conv).double()
    conv, conv.backend, exact.backend = conv.to(DEVICE), "triton", "torch"
    grads = []
    conv = conv.to(dtype)
    for module, device, kind in ((conv, DEVICE, dtype), (exact, "cpu", torch.float64)):
        weight = (case.edge_weight + 0.1).double().to(device)
        weight = (weight if kind == torch.float64 else weight.float()).requires_grad_()
        out = module(case.x.to(device, kind), case.edge_index.to(device), weight)
        grads.append(torch.autograd.grad(out.square().sum(), weight)[0].cpu().double())
    size = grads[1].abs().max().item()
    torch.testing.assert_close(*grads, rtol=0, atol=TOLERANCE[dtype] * size)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [1, 9, 27, 64, 300])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_batch_is_normalised(width, dtype, dropout):
    x, settings = torch.randn(3000, width).to(dtype), {"device": DEVICE, "dropout": dropout}
    test_norm.check(x, tolerance=TOLERANCE[dtype], **settings)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [1, 9, 27, 64, 300])
def test_the_gradient_of_kinds(width, dtype):
    kind = torch.randint(201, (3000,)).to(DEVICE)
    test_kinds.check(torch.randn(3000, width).to(DEVICE, dtype), kind, 200)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("order", [1, 3, 5])
@pytest.mark.parametrize("width", [1, 9, 27, 64, 300])
def test_the_readout_and_its_gradient(width, order, dtype):
    graphs = dense_graphs((*SIZES, 3000), width)
    batch = graphs.to(DEVICE).batch(slice(None))
    exact = graphs.to(dtype=torch.float64).batch(slice(None))
    x = batch.x.to(dtype).requires_grad_()
    x64 = x.detach().cpu().double().requires_grad_()
    got = ops.readout(x, batch, order, True, True, "triton")
    want = ops.readout(x64, exact, order, True, True, "torch")
    close(got, want, TOLERANCE[dtype])
    grad = torch.randn(got.shape, dtype=dtype)
    (dx,), (dx64,) = (
        torch.autograd.grad(out, at, grad.to(out)) for out, at in ((got, x), (want, x64))
    )
    close(dx, dx64, TOLERANCE[dtype])


@pytest.mark.parametrize("encoder", ["atom", None])
@pytest.mark.parametrize("where", [[8, 4, 2, 2, 0, 7], slice(5, 9)], ids=str)
def test_features_and_kinds_are_read_where_the_dataset_holds_them(where, encoder):
    if encoder:
        graphs, encoder = test_in_dataset.atoms(), AtomEncoder(6, test_in_dataset.CARDINALITIES)
    else:
        graphs = dense_graphs(test_in_dataset.SIZES, 6)
    model = FlexGCN(6, [7], 2, orders=[4, 2], encoder=encoder)
    exact = copy.deepcopy(model).double()
    model.backend, exact.backend = "triton", "torch"
    batch = graphs.to(DEVICE).batch(where)
    got, again = (test_in_dataset.training_step(model.to(DEVICE), batch) for _ in range(2))
    want = test_in_dataset.training_step(exact, graphs.to(dtype=torch.float64).batch(where))
    for mine, twice, truth in zip(got, again, want, strict=True):
        assert torch.equal(mine, twice)
        close(mine, truth, 1e-4)
    assert "x" not in vars(batch)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [4, 70])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_goes_where_the_edges_take_it(bad, width, dtype):
    batch = dense_graphs((5, 9, 12, 1, 3, 40, 70), width).to(DEVICE).batch(slice(None))
    x = batch.x.to(dtype)
    x[7, 1] = x[40, 1] = bad
    weight, adjacency = torch.ones(3, width, 3, device=DEVICE, dtype=dtype), batch.adjacency(True)
    got, want = (
        ops.flex_conv(x, weight, None, adjacency, backend=backend)
        for backend in ("triton", "torch")
    )
    assert torch.equal(got.isfinite(), want.isfinite())
    assert 0.2 < want.isfinite().float().mean() < 1


def test_tf32_where_the_user_allows_it():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        check(dense_graphs(SIZES, 27), 3, 18, tolerance=5e-3)
    finally:
        torch.set_float32_matmul_precision(before)


@NOT_EMULATED
def test_offsets_beyond_31_bits():
    """One test: side by side in several processes they would not fit on the device."""
    need = 48 << 30
    if torch.cuda.mem_get_info()[0] < need:
        pytest.skip(f"needs {need >> 30} GiB of free device memory")
    for size, dataset_x in itertools.product((20, 40), (True, False)):
        check_far_offsets(
            size,
            dataset_x,
            lambda dtype, *shape: torch.zeros(shape, dtype=dtype, device=DEVICE),
            DEVICE,
        )
    torch.cuda.empty_cache()


def test_a_sum_over_many_tiles_is_as_exact_as_any(monkeypatch):
    monkeypatch.setattr(layer, "PROGRAMS", 1)
    check_long_sum(60 if DEVICE == "cpu" else 1000, DEVICE)


def test_two_runs_are_bit_equal():
    check_repeats(dense_graphs(SIZES, 27), 3, 18, DEVICE)


def network(backend: str) -> FlexGCN:
    options = {"norm": "batch_norm", "encoder": torch.nn.Identity(), "backend": backend}
    return FlexGCN(9, [27, 18], 2, orders=[3, 2, 2], **options).to(DEVICE)


def training_step(model, batch, optimizer) -> torch.Tensor:
    value = loss(model(batch), batch.y, Task("regression", "graph", 2))
    optimizer.zero_grad(set_to_none=True)
    value.backward()
    optimizer.step()
    return value


def labelled() -> PackedGraphs:
    graphs = dense_graphs(SIZES, 9)
    graphs.y = torch.randn(graphs.num_graphs, 2)
    return graphs.to(DEVICE)


def test_either_backend_trains_the_same():
    graphs, models = labelled(), [network("torch"), network("triton")]
    models[1].load_state_dict(models[0].state_dict())
    values = []
    for model in models:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batches = [graphs.batch([8, 3, 12, 3, 0]), graphs.batch(slice(None))] * 3
        values.append(torch.stack([training_step(model, b, optimizer) for b in batches]))
    torch.testing.assert_close(values[0], values[1], rtol=1e-3, atol=1e-4)


@BOTH
@pytest.mark.parametrize("first", [1, 2, 3])
def test_neighbours_anywhere_in_the_dataset(backend, first):
    """Their edges' values are views, which begin off 16 bytes in some of these."""
    where = slice(first, len(SIZES))
    batch, model = labelled().batch(where), network(backend)
    exact = copy.deepcopy(model).double()
    exact.backend = "torch"
    doubles = labelled().to(dtype=torch.float64).batch(where)
    values = [
        batch.csr(False, normalize=True)[2],
        *(rho.csr[2] for rho in batch.readout(2, True, True)),
    ]
    assert all(value.data_ptr() % 16 == 0 for value in values) or DEVICE == "cpu"
    got, want = model(batch), exact(doubles)
    torch.testing.assert_close(got.double(), want, rtol=1e-3, atol=1e-4)
    got.square().sum().backward()
    want.square().sum().backward()
    for ours, theirs in zip(model.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-3, atol=1e-3)


def test_positions_on_a_device_are_looked_at_as_any():
    graphs = labelled()
    batch = graphs.batch(torch.tensor([-1, 0, -2], device=DEVICE))
    assert batch.positions.tolist() == [len(SIZES) - 1, 0, len(SIZES) - 2]
    torch.testing.assert_close(batch.y, graphs.y[batch.positions.to(DEVICE)])
    with pytest.raises(InputError, match=f"there is no graph {len(SIZES)}"):
        graphs.batch(torch.tensor([0, len(SIZES)], device=DEVICE))


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_computes_in_its_dtype(backend, dtype):
    batch, model = labelled().batch(slice(None)), network(backend).eval()
    with torch.autocast(DEVICE, dtype):
        got = model(batch)
    assert got.dtype == dtype
    exact = copy.deepcopy(model).double()
    exact.backend = "torch"
    want = exact(labelled().to(dtype=torch.float64).batch(slice(None)))
    torch.testing.assert_close(got.double(), want, rtol=0.05, atol=0.05)


@NOT_EMULATED
@BOTH
def test_a_step_on_a_gathered_batch_does_not_wait_for_the_device(backend):
    batch, model = labelled().batch(slice(None)), network(backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    training_step(model, batch, optimizer)
    torch.cuda.set_sync_debug_mode("error")
    try:
        training_step(model, batch, optimizer)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@NOT_EMULATED
@BOTH
def test_a_recorded_step_replays_as_the_step_itself(backend):
    batch, model = labelled().batch(slice(None)), network(backend)
    twin = copy.deepcopy(model)
    # The gradient of a bias before a norm is 0 but for rounding, which Adam alone would blow up.
    optimizers = [
        torch.optim.Adam(m.parameters(), eps=1e-3, capturable=True) for m in (model, twin)
    ]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):  # compiles, and lets the optimizer make its state
            training_step(model, batch, optimizers[0])
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizers[0].zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        training_step(model, batch, optimizers[0])
    for _ in range(3):
        graph.replay()
    for _ in range(6):
        training_step(twin, batch, optimizers[1])
    for got, want in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("level", ["graph", "node"])
@pytest.mark.parametrize(
    "task", test_score.TASKS, ids=lambda task: f"{task.kind}-{task.num_outputs}"
)
@pytest.mark.parametrize("width", [7, 70])
def test_scores_and_their_histogram(width, task, level, monkeypatch):
    monkeypatch.setenv("GRANT_FAST_BACKEND", "triton")
    task, pool = Task(task.kind, level, task.num_outputs), None if level == "node" else "mean"
    model = FlexGCN(5, width, task.num_outputs, orders=[2, 2], norm="batch_norm", pool=pool)
    check_scores = test_score.check if width == 7 else test_score.check_tail
    check_scores(test_score.trained(model), dense_graphs(SMALL_SIZES, 5), task, device=DEVICE)


@pytest.mark.parametrize("size", [1, 1025, 350_000])
def test_the_selection_is_that_of_a_stable_sort(size):
    scores = torch.randint(0, 1000, (size,), device=DEVICE).float()
    for m in (0, 1, size // 3, size):
        want = torch.sort(scores, descending=True, stable=True).indices[:m].sort().values
        assert torch.equal(select_graphs(scores, m, backend="triton"), want)


@NOT_EMULATED
def test_the_doctor_finds_nothing_wrong_and_times_a_step():
    from grant_fast.cli.doctor import examine  # the command's own packages may be missing there

    checks = {check.name: check for check in examine()}
    assert all(check.ok is not False for check in checks.values())
    assert "× as fast" in checks["Triton kernels on cuda:0"].detail


@NOT_EMULATED
@BOTH
@torch._dynamo.config.patch(error_on_recompile=True)
def test_a_compiled_layer_equals_the_layer_and_compiles_once(backend):
    torch._dynamo.reset()
    graphs = Case(sizes=(5, 3, 9, 40, 7, 12)).graphs.to(DEVICE)
    conv = FlexConv(5, 6, order=3, backend=backend).to(DEVICE)
    loose = torch.compile(conv, fullgraph=True, dynamic=True)
    weight = conv.weight.detach()
    packed = dense_graphs(SIZES, 5).to(DEVICE)

    @torch.compile(dynamic=True)
    def layer(x, adjacency):
        return ops.flex_conv(x, weight, None, adjacency, backend=backend)

    for positions in (range(0, 4), range(1, 6)):
        batch = graphs.batch(positions)
        arguments = (batch.x, batch.edge_index.contiguous(), batch.edge_weight)
        torch.testing.assert_close(loose(*arguments), conv(*arguments), rtol=1e-4, atol=1e-5)
    batch = packed.batch(slice(None))
    adjacency = batch.adjacency(True)
    want = ops.flex_conv(batch.x, weight, None, adjacency, backend="torch")
    # What a batch keeps is made outside the compiled layer, which would break at each of it.
    ops.flex_conv(batch.x, weight, None, adjacency, backend=backend)
    torch.testing.assert_close(layer(batch.x, adjacency), want, rtol=1e-4, atol=1e-5)
