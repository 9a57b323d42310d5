"""Every operator that the package registers: torch's own checks, strided inputs, autocast."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.library import opcheck

from grant_fast import FlexGCN, ops
from grant_fast.batches import GraphBatch
from grant_fast.indexing import take
from grant_fast.ops import embedded, normed, operators, pooled, sparse, tiled
from grant_fast.ops.registration import Operator
from grant_fast.ops.tiled import structure
from tests.cases import Case, dense_graphs
from tests.recording import Recording


def some_batch() -> GraphBatch:
    """Small, larger and repeating graphs: the last for CSR beside bits."""
    case = Case(sizes=(3, 0, 40, 1), weighted=False)
    return case.graphs.batch(slice(None))


def leaves(batch: GraphBatch, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    tensors = [batch.x.clone(), *(torch.randn(shape) for shape in shapes)]
    return [tensor.requires_grad_() for tensor in tensors]


def csr_tables(batch: GraphBatch) -> list[torch.Tensor]:
    """Â and its transpose, values that may be learned in fresh memory."""
    adjacency = batch.adjacency(True)
    return [t.clone() for t in (*adjacency.csr, *adjacency.transposed)]


def flex_conv() -> tuple[Any, ...]:
    tables = csr_tables(batch := some_batch())
    tables[2].requires_grad_()
    return *leaves(batch, (3, 5, 4), (4,)), True, "torch", *tables


def flex_conv_backward() -> tuple[Any, ...]:
    batch = some_batch()
    grad, weight = torch.randn(4, batch.num_nodes).T, torch.randn(3, 5, 4)
    y = torch.randn(batch.num_nodes, 4)
    return grad, batch.x, y, weight, True, True, "triton", *csr_tables(batch)


def spmm() -> tuple[Any, ...]:
    batch = some_batch()
    return *leaves(batch), "native", *csr_tables(batch)


def flex_conv_tiles() -> tuple[Any, ...]:
    batch = some_batch()
    x, *layer = leaves(batch, (3, 5, 4), (4,))
    return x, None, None, *layer, None, True, *structure(batch.adjacency(True))


def kinds_of_nodes(batch: GraphBatch) -> list[torch.Tensor]:
    """A row of X for each of four kinds, the kind of each node, and of each row of the batch."""
    code = torch.arange(batch.graphs.num_nodes, dtype=torch.int32) % 4
    return [torch.randn(4, 5, requires_grad=True), code, take(code, batch.nodes)]


def flex_conv_tiles_of_kinds() -> tuple[Any, ...]:
    batch = some_batch()
    _, *layer = leaves(batch, (3, 5, 4), (4,))
    tables = structure(batch.adjacency(True))
    return *kinds_of_nodes(batch), *layer, batch.num_nodes, True, *tables


def flex_conv_tiles_backward() -> tuple[Any, ...]:
    batch = some_batch()
    grad, y = torch.randn(4, batch.num_nodes).T, torch.randn(batch.num_nodes, 4)
    weight = torch.randn(3, 5, 4)
    tables = structure(batch.adjacency(True))
    return grad, batch.x, None, None, y, weight, False, True, True, *tables


def flex_conv_tiles_backward_of_kinds() -> tuple[Any, ...]:
    grad, _, _, _, y, weight, _, *rest = flex_conv_tiles_backward()
    table, *kinds = kinds_of_nodes(some_batch())
    return grad, table.detach(), *kinds, y, weight, True, *rest


def embed() -> tuple[Any, ...]:
    table, _, kind = kinds_of_nodes(some_batch())
    return table, kind


def embed_backward() -> tuple[Any, ...]:
    _, _, kind = kinds_of_nodes(some_batch())
    return torch.randn(5, len(kind)).T, kind, 4


def readout() -> tuple[Any, ...]:
    batch = some_batch()
    return *leaves(batch), batch.graphs.pool_weights(3, True, True), *batch.segments


def readout_backward() -> tuple[Any, ...]:
    batch = some_batch()
    weights = batch.graphs.pool_weights(3, True, True)
    ptr, start, graph, _ = batch.segments
    grad = torch.randn(3 * 5, batch.num_graphs).T
    return grad, weights, ptr, start, graph, batch.num_nodes


def batch_norm() -> tuple[Any, ...]:
    x, weight, bias = leaves(some_batch(), (5,), (5,))
    keep = torch.randint(2, x.shape, dtype=torch.uint8)
    return x, weight, bias, keep, 1e-5, torch.tensor([len(x)]), True, 2.0


def batch_norm_backward() -> tuple[Any, ...]:
    x = some_batch().x
    grad, stats = torch.randn(5, len(x)).T, torch.stack([x.mean(0), x.std(0), x.var(0)])
    operands = torch.rand(5), torch.randn(5), torch.randint(2, x.shape, dtype=torch.uint8)
    return grad, x, stats, *operands, torch.tensor([len(x)]), True, 2.0


ARGUMENTS: dict[str, Callable[[], tuple[Any, ...]]] = {
    make.__name__: make
    for make in (
        flex_conv,
        flex_conv_backward,
        spmm,
        flex_conv_tiles,
        flex_conv_tiles_of_kinds,
        flex_conv_tiles_backward,
        flex_conv_tiles_backward_of_kinds,
        embed,
        embed_backward,
        readout,
        readout_backward,
        batch_norm,
        batch_norm_backward,
    )
}


OPERATORS = {
    value.name: value
    for module in (embedded, normed, operators, pooled, sparse, tiled)
    for value in vars(module).values()
    if isinstance(value, Operator)
}


def operator(name: str) -> str:
    """Whose arguments these are; some operators have several."""
    return name.removesuffix("_of_kinds")


def test_no_operator_is_left_out():
    names = torch._C._dispatch_get_all_op_names()
    registered = {name.split("::")[1] for name in names if name.startswith("grant_fast::")}
    assert registered == {operator(name) for name in ARGUMENTS}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_every_operator_passes_opcheck(name):
    opcheck(getattr(torch.ops.grant_fast, operator(name)), ARGUMENTS[name]())


@pytest.mark.parametrize("name", ARGUMENTS)
def test_what_an_operator_runs_inside_can_be_recorded_in_a_cuda_graph(name):
    run = OPERATORS[operator(name)].compute
    arguments = ARGUMENTS[name]()
    with torch.no_grad():
        run(*arguments)  # what is made once a process is no part of a recording
        with Recording():
            run(*arguments)


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("kind", ["tiles", "csr", "wide"])
def test_strided_inputs_and_gradients_are_taken_as_they_are(kind, backend):
    graphs = (
        Case(sizes=(3, 20), weighted=True).graphs if kind == "csr" else dense_graphs((3, 40, 0), 5)
    )
    adjacency, width = graphs.batch(slice(None)).adjacency(True), 70 if kind == "wide" else 4
    n = adjacency.num_nodes
    strided = [
        torch.randn(5, n).T,
        torch.randn(width, 3, 5).permute(1, 2, 0),
        torch.randn(width, 2)[:, 0],
    ]
    grads = [
        torch.randn(width, n).T,
        torch.randn(1, width).expand(n, width),
        torch.ones(()).expand(n, width),
    ]
    assert not any(t.is_contiguous() for t in (*strided, *grads))
    results = []
    for change in (torch.Tensor.contiguous, lambda tensor: tensor):
        inputs = [change(t).detach().requires_grad_() for t in strided]
        out = ops.flex_conv(*inputs, adjacency, relu=True, backend=backend)
        results.append([out])
        for grad in grads:
            results[-1] += torch.autograd.grad(out, inputs, change(grad), retain_graph=True)
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("width", [8, 70])
def test_autocast_trains_with_the_kernels_in_its_dtype(width, dtype):
    batch = dense_graphs((3, 40, 9, 260), 5).batch(slice(None))
    model = FlexGCN(5, [width, 4], 2, orders=[2, 3, 2], encoder=torch.nn.Identity())
    results = []
    for backend in ("torch", "triton"):
        model.backend = backend
        with torch.autocast("cpu", dtype):
            out = model(batch)
        assert out.dtype == dtype
        grads = torch.autograd.grad(out.float().square().sum(), list(model.parameters()))
        assert all(grad.dtype == torch.float32 for grad in grads)
        results.append([out, *grads])
    for want, got in zip(*results, strict=True):
        size = want.float().abs().max().item()
        torch.testing.assert_close(got, want, rtol=0.05, atol=0.05 * size)


def test_float64_is_the_reference_s():
    batch = dense_graphs((3, 40, 9), 5).to(dtype=torch.float64).batch(slice(None))
    model = FlexGCN(5, [8, 4], 2, orders=[2, 3, 2]).double()
    parameters = list(model.parameters())
    assert torch.autograd.gradcheck(lambda *_: model(batch), parameters, fast_mode=True)
