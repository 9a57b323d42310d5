"""Who computes a layer, and what they say who cannot."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.memory import held_for_backward
from grant_fast import FlexGCN, InputError, PackedGraphs, devices, explain, ops
from grant_fast.adjacency import Adjacency
from grant_fast.kernels import launch
from grant_fast.ops import dispatch
from grant_fast.ops.dispatch import takes_kernels
from grant_fast.ops.tiled import structure
from tests.cases import Case, dense_graphs


@pytest.fixture
def case() -> Case:
    case = Case(sizes=(3, 0, 40, 1), weighted=False, seed=3)
    edges = case.edge_index.unique(dim=1)  # bits hold no repeated edges
    case.graphs = PackedGraphs.from_arrays(case.x, edges, case.batch, num_graphs=4)
    return case


def layer_arguments(case: Case, order: int = 3, width: int = 4):
    adjacency = case.graphs.batch(slice(None)).adjacency(True)
    return case.x, torch.randn(order, 5, width), torch.randn(width), adjacency


def test_the_environment_chooses_where_the_argument_does_not(case, monkeypatch):
    assert not takes_kernels(case.x)  # "auto" never interprets
    monkeypatch.setenv("GRANT_FAST_BACKEND", "triton")
    assert takes_kernels(case.x)
    assert not takes_kernels(case.x, "torch")
    monkeypatch.setenv("GRANT_FAST_BACKEND", "cuda")
    with pytest.raises(InputError, match="GRANT_FAST_BACKEND is 'cuda': choose one of auto"):
        takes_kernels(case.x)


def test_an_impossible_choice_says_why(case):
    x, weight, bias, adjacency = layer_arguments(case)
    with pytest.raises(InputError, match=r"backend is 'triton', but x is torch\.float64"):
        ops.flex_conv(x.double(), weight.double(), bias.double(), adjacency, backend="triton")


def test_an_apple_gpu_is_refused(case):
    _, weight, bias, adjacency = layer_arguments(case)
    there = SimpleNamespace(device=SimpleNamespace(type="mps"))
    with pytest.raises(InputError, match=r"on an Apple GPU \(mps\): move the model and the graphs"):
        dispatch.choose(there, weight, bias, adjacency, "auto")
    assert dispatch.choose(there, weight, bias, adjacency, "reference").who == "reference"


@pytest.mark.parametrize("kind", ["loose", "weighted", "wide", "deep"])
def test_kernels_take_every_kind_of_layer(kind):
    graphs = Case().graphs if kind == "weighted" else dense_graphs((3, 40, 0, 9, 260), 5)
    batch = graphs.batch([4, 1, 2, 0])
    adjacency = batch.adjacency(True)
    if kind == "loose":
        adjacency = Adjacency(*adjacency.csr, batch.num_nodes)
    weight = torch.randn(6 if kind == "deep" else 2, 5, 70 if kind == "wide" else 4) / 3
    results = []
    for backend in ("torch", "triton"):
        leaves = [batch.x.clone().requires_grad_(), weight.clone().requires_grad_()]
        out = ops.flex_conv(*leaves, None, adjacency, backend=backend)
        results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.interpreted
def test_without_the_interpreter_a_cpu_says_why(case, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(InputError, match="x is on the cpu, not on a GPU"):
        ops.flex_conv(*layer_arguments(case), backend="triton")


@pytest.mark.parametrize("width", [8, 80])
def test_a_layer_keeps_one_copy_of_its_input_whatever_the_order(case, width):
    def kept(order: int) -> int:
        x, weight, bias, adjacency = layer_arguments(case, order, width)
        given = [t for t in (*structure(adjacency), weight) if t is not None]
        layer = partial(ops.flex_conv, x.requires_grad_(), weight, bias, adjacency)
        return held_for_backward(partial(layer, backend="triton"), given)

    assert kept(2) == kept(5) == case.x.nbytes


def test_a_compiled_layer_takes_batches_of_any_shape(case):
    weight = torch.randn(3, 5, 4)
    torch._dynamo.reset()

    @torch.compile(backend="aot_eager", dynamic=True)
    def layer(x, adjacency):
        return ops.flex_conv(x, weight, None, adjacency, backend="triton").square()

    for positions in ([0, 2], [2, 3, 0], [1, 2]):
        batch = case.graphs.batch(positions)
        adjacency = batch.adjacency(True)
        want = ops.flex_conv(batch.x, weight, None, adjacency, backend="torch").square()
        torch.testing.assert_close(layer(batch.x, adjacency), want, rtol=1e-5, atol=1e-5)


def test_explain_names_the_path_of_every_layer_and_why(monkeypatch, no_cpu_kernels):
    graphs = dense_graphs((3, 40, 9, 260), 5)
    model = FlexGCN(5, [8, 80, 6, 4], 1, orders=[2, 2, 2, 3, 2])
    batch = graphs.batch(slice(None))
    monkeypatch.setenv("GRANT_FAST_BACKEND", "torch")
    assert explain(model, batch) == [
        "layer 0 (5 → 8, order 2): one product with the dataset's cached [X, ÂX, …] (PyTorch)",
        "layer 1 (8 → 80, order 2): PyTorch: the backend setting says so",
        "layer 2 (80 → 6, order 2): PyTorch: the backend setting says so",
        "layer 3 (6 → 4, order 3): PyTorch: the backend setting says so",
        "layer 4 (4 → 1, order 2): pooled first, then one product per graph (PyTorch)",
    ]
    monkeypatch.setenv("GRANT_FAST_BACKEND", "triton")
    tiles = "2 graphs in 1 tiles, 1 larger graphs one by one"
    rest = "1 with repeated edges or too large over CSR"
    assert [line.split("Triton: ")[1] for line in explain(model, batch)[1:4]] == [
        f"products with BLAS, hops of {tiles}, {rest}",
        f"products with BLAS, hops of {tiles}, {rest}",
        f"{tiles}, {rest}",
    ]
    weighted = Case().graphs.batch(slice(None))
    assert explain(FlexGCN(5, 8, 1, orders=[2, 2, 2]), weighted)[1].endswith(
        "Triton: products with BLAS, hops over CSR"
    )


def test_a_torch_whose_triton_is_too_old_is_refused_on_a_gpu(monkeypatch):
    monkeypatch.setattr(devices, "nvidia_major", lambda device: 9)
    monkeypatch.setattr(dispatch, "TORCH", (2, 7))
    with FakeTensorMode():
        x = torch.empty(2, 3, device="cuda")
    with pytest.raises(InputError, match=r"cannot compile them \(torch 2.8 can\): choose 'auto'"):
        takes_kernels(x, "triton")
    assert takes_kernels(torch.empty(2, 3), "triton")  # the interpreter can


def check_gpu(refusal):
    """The kernels refuse a GPU in these words, or take it where there are none."""
    with FakeTensorMode():
        x = torch.empty(2, 3, device="cuda")
    assert not takes_kernels(x, "torch")
    if refusal is None:
        assert takes_kernels(x, "triton")
    else:
        with pytest.raises(InputError, match=refusal):
            takes_kernels(x, "triton")


@pytest.mark.parametrize(
    ("major", "refusal"),
    [
        (7, "older than Ampere"),
        (8, None),
        (9, None),
        (10, "Triton has miscompiled"),
        (11, "Triton has miscompiled"),
        (12, None),
        (0, None),
    ],
)
def test_a_gpu_without_the_matrix_units_is_refused(monkeypatch, major, refusal):
    monkeypatch.setattr(dispatch, "HAS_COMPILER", True)
    monkeypatch.setattr(devices, "nvidia_major", lambda device: major)  # 0: not NVIDIA's
    check_gpu(refusal)


@pytest.mark.parametrize(
    ("name", "refused"),
    [("gfx90a:sramecc+:xnack-", False), ("gfx942", False), ("gfx1100", True), ("gfx906", True)],
)
def test_an_amd_gpu_without_the_matrix_units_is_refused(monkeypatch, name, refused):
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(dispatch, "HAS_COMPILER", True)
    of = SimpleNamespace(gcnArchName=name)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: of)
    check_gpu("Instinct has them since MI100" if refused else None)


def test_a_machine_on_which_triton_cannot_launch_is_refused(monkeypatch):
    monkeypatch.setattr(devices, "nvidia_major", lambda device: 9)
    monkeypatch.setattr(dispatch, "HAS_COMPILER", False)
    check_gpu(r"needs a C compiler \(gcc or clang\) and Python's headers")
    assert takes_kernels(torch.empty(2, 3), "triton")  # the interpreter launches nothing


@pytest.mark.parametrize("major", [8, 9, 10, 11, 12])
def test_only_hopper_takes_blocks_of_its_shape(monkeypatch, major):
    monkeypatch.setattr(devices, "nvidia_major", lambda device: major)
    assert devices.has_hopper_units(torch.device("cuda")) == (major == 9)


def test_tf32_is_allowed_by_either_of_pytorchs_switches(monkeypatch):
    """The older one raises where the newer one was used."""
    monkeypatch.setattr(devices, "nvidia_major", lambda device: 9)
    cuda, matmul = torch.device("cuda"), torch.backends.cuda.matmul
    try:
        assert launch.precision(torch.float32, cuda) == "tf32x3"
        torch.backends.cuda.matmul.allow_tf32 = True
        assert launch.precision(torch.float32, cuda) == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = False
        assert launch.precision(torch.float32, cuda) == "tf32x3"
        if hasattr(matmul, "fp32_precision"):
            matmul.fp32_precision = "tf32"
            assert launch.precision(torch.float32, cuda) == "tf32"
            matmul.fp32_precision = "ieee"
            assert launch.precision(torch.float32, cuda) == "tf32x3"
    finally:
        if hasattr(matmul, "fp32_precision"):
            matmul.fp32_precision = "none"
