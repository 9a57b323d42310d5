"""Who computes a layer, and what they say who cannot."""

import subprocess
import sys

import pytest
import torch
from torch.library import opcheck

from grant_fast import FlexConv, FlexGCN, InputError, PackedGraphs, explain, ops
from grant_fast.dispatch import takes_kernels
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


def test_the_backend_never_changes_the_meaning(case):
    arguments = layer_arguments(case)
    want = ops.flex_conv(*arguments, backend="torch", relu=True)
    got = ops.flex_conv(*arguments, backend="triton", relu=True)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_the_environment_chooses_where_the_argument_does_not(case, monkeypatch):
    x, weight, _, adjacency = layer_arguments(case)
    assert not takes_kernels(x, weight, adjacency)  # "auto" never interprets
    monkeypatch.setenv("GRANT_FAST_BACKEND", "triton")
    assert takes_kernels(x, weight, adjacency)
    assert not takes_kernels(x, weight, adjacency, "torch")
    monkeypatch.setenv("GRANT_FAST_BACKEND", "cuda")
    with pytest.raises(InputError, match="GRANT_FAST_BACKEND is 'cuda': choose one of auto"):
        takes_kernels(x, weight, adjacency)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"x": torch.ones(44, 5).double(), "weight": torch.ones(2, 5, 4).double()}, "x is .*64"),
        ({"weight": torch.ones(2, 5, 65)}, "the layer is 65 wide .* up to 64"),
        ({"weight": torch.ones(6, 5, 4)}, "the order is 6 .* up to 5"),
    ],
    ids=["float64", "width", "order"],
)
def test_an_impossible_choice_says_why(case, change, reason):
    x, weight, bias, adjacency = layer_arguments(case)
    arguments = {"x": x, "weight": weight, "bias": bias, "adjacency": adjacency} | change
    with pytest.raises(InputError, match=f"backend is 'triton', but {reason}"):
        ops.flex_conv(**arguments, backend="triton")


def test_loose_and_weighted_graphs_say_why(case):
    conv = FlexConv(5, 4)
    loose = case.graphs.batch(slice(None)).adjacency(True).transpose()
    with pytest.raises(InputError, match="no GraphBatch"):
        ops.flex_conv(case.x, conv.weight, None, loose, backend="triton")
    weighted = Case().graphs
    adjacency = weighted.batch(slice(None)).adjacency(True)
    with pytest.raises(InputError, match="the edges have weights"):
        ops.flex_conv(weighted.x, conv.weight, None, adjacency, backend="triton")


def test_without_the_interpreter_a_cpu_says_why(case, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(InputError, match="x is on the cpu, not on a GPU"):
        ops.flex_conv(*layer_arguments(case), backend="triton")


def operator_arguments(case: Case, relu: bool):
    x, weight, bias, adjacency = layer_arguments(case)
    graphs, layout = case.graphs, adjacency.batch.tiles
    tables = (graphs.scale, graphs.ptr, graphs.bits.bits, *layout[:-1])
    return (
        x.requires_grad_(),
        weight.requires_grad_(),
        bias.requires_grad_(),
        *tables,
        relu,
        False,
    )


@pytest.mark.parametrize("relu", [True, False])
def test_the_operator_passes_opcheck(case, relu):
    opcheck(torch.ops.grant_fast.flex_conv_tiles, operator_arguments(case, relu))


def test_a_layer_keeps_one_copy_of_its_input_whatever_the_order(case):
    def kept(order: int) -> int:
        x, weight, bias, adjacency = layer_arguments(case, order, width=8)
        graphs = case.graphs
        structure = (graphs.scale, graphs.ptr, graphs.bits.bits, *adjacency.batch.tiles[:-1])
        known = {t.data_ptr() for t in (*structure, weight)}
        sizes = []

        def pack(tensor):
            if tensor.data_ptr() not in known:
                sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            ops.flex_conv(x.requires_grad_(), weight, bias, adjacency, backend="triton")
        return sum(sizes)

    assert kept(2) == kept(5) == case.x.numel()


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


def test_autocast_runs_the_kernels_in_its_dtype(case):
    arguments = layer_arguments(case)
    with torch.autocast("cpu", torch.bfloat16):
        got = ops.flex_conv(*arguments, backend="triton")
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(
        got.float(), ops.flex_conv(*arguments, backend="torch"), rtol=0.02, atol=0.05
    )


def test_kernels_are_imported_only_when_they_run():
    program = (
        "import sys, torch, grant_fast.ops, grant_fast.graphs; "
        "print('grant_fast.kernels' in sys.modules)"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "False"


def test_explain_names_the_path_of_every_layer_and_why(monkeypatch):
    graphs = dense_graphs((3, 40, 9, 200), 5)
    model = FlexGCN(5, [8, 80, 6, 4], 1, orders=[2, 2, 2, 3, 2])
    batch = graphs.batch(slice(None))
    assert explain(model, batch) == [
        "layer 0 (5 → 8, order 2): one product with the dataset's cached [X, ÂX, …] (PyTorch)",
        "layer 1 (8 → 80, order 2): PyTorch: the layer is 80 wide (the kernels take up to 64)",
        "layer 2 (80 → 6, order 2): PyTorch: the layer is 80 wide (the kernels take up to 64)",
        "layer 3 (6 → 4, order 3): PyTorch: the backend is chosen so",
        "layer 4 (4 → 1, order 2): pooled first, then one product a graph (PyTorch)",
    ]
    monkeypatch.setenv("GRANT_FAST_BACKEND", "triton")
    narrow = FlexGCN(5, 8, 1, orders=[2, 2, 2])
    assert explain(narrow, batch)[1] == (
        "layer 1 (8 → 8, order 2): Triton: 2 graphs in 1 tiles, 1 larger graphs block by block, "
        "1 with repeated edges or too large through CSR"
    )


def test_a_model_trains_the_same_on_either_backend(monkeypatch):
    graphs = dense_graphs((3, 40, 0, 9, 17), 5)
    model = FlexGCN(5, [8, 6], 1, orders=[2, 3, 2])
    gradients = []
    for backend in ("torch", "triton"):
        monkeypatch.setenv("GRANT_FAST_BACKEND", backend)
        out = model(graphs.batch([4, 1, 2, 3, 0]))
        gradients.append([out, *torch.autograd.grad(out.square().sum(), list(model.parameters()))])
    for want, got in zip(*gradients, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)
