"""Offsets beyond 2^31 in the kernels over CSR, for wide layers, the readout, kinds and the norm.

What lies far away is computed as what lies near: in sparse files of any size, or rows of huge
strides.
"""

import pytest
import torch
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from grant_fast.kernels import csr, kinds, norm, readout, wide
from grant_fast.ops.tiled import kernel_graphs
from tests.cases import dense_graphs
from tests.kernels.checks import moved

FAR = 1 << 25  # times 64 columns is 2^31


@pytest.mark.parametrize("size", [20, 40])
def test_hops_of_wide_layers(size, untouched):
    graphs = dense_graphs((size,), 32)
    near = kernel_graphs(graphs.batch(slice(None)), normalize=True)
    there = moved(near, FAR)
    t, z = (untouched(torch.float32, FAR + size, 64) for _ in range(2))
    y = untouched(torch.float32, FAR + size, 64)[:, 32:]
    t[FAR:] = torch.randn(size, 64)
    want = torch.empty(size, 32)
    wide.horner(t[FAR:].clone(), 2, None, near, want, False, True)
    wide.horner(t, 2, None, there, y, False, True)
    assert torch.equal(y[FAR:], want)
    y[FAR:] = graphs.x
    want = wide.powers(graphs.x, 2, near, True)
    wide.powers_into(z, y, 2, there, True)
    assert torch.equal(z[FAR:], want)


def matrix() -> csr.CSR:
    graphs = dense_graphs((12,), 1)
    return csr.CSR(*graphs.batch(slice(None)).adjacency(True).csr)


def test_rows_of_z_and_of_the_result(untouched):
    near, stride = matrix(), 1 << 28
    z, term, out = (untouched(torch.float32, 12, stride)[:, :20] for _ in range(3))
    z.copy_(torch.randn(12, 20)), term.copy_(torch.randn(12, 20))
    want = csr.spmm(near, z.clone(), term=term.clone())
    assert torch.equal(csr.spmm(near, z, term=term, out=out), want)
    got, want = torch.empty(near.col.shape[0]), torch.empty(near.col.shape[0])
    csr.value_grad(near, term, z, got, add=False)
    csr.value_grad(near, term.clone(), z.clone(), want, add=False)
    assert torch.equal(got, want)


def test_sources(untouched):
    near = matrix()
    z = untouched(torch.float32, FAR + 12, 64)
    z[FAR:] = torch.randn(12, 64)
    there = near._replace(col=near.col + FAR)
    assert torch.equal(csr.spmm(there, z), csr.spmm(near, z[FAR:].clone()))


def test_edges(untouched):
    near, far = matrix(), 1 << 31
    edges = near.col.shape[0]
    col, value = (untouched(dtype, far + edges) for dtype in (torch.int32, torch.float32))
    out = untouched(torch.float32, far + edges)
    col[far:], value[far:] = near.col, near.value
    there = csr.CSR(near.rowptr.long() + far, col, value)
    z, dz, want = torch.randn(12, 5), torch.randn(12, 5), torch.empty(edges)
    assert torch.equal(csr.spmm(there, z), csr.spmm(near, z))
    csr.value_grad(near, dz, z, want, add=False)
    csr.value_grad(there, dz, z, out, add=False)
    assert torch.equal(out[far:], want)


def test_nodes_and_rows_of_the_readout(untouched):
    graphs = dense_graphs((12, 5), 64)
    near = graphs.pool_weights(3, True, True)
    ptr, start, graph, _ = graphs.batch(slice(None)).segments
    nodes = 1 << 30
    weights = untouched(torch.float32, 3, nodes + 17)
    weights[:, nodes:] = near
    x, dx = (untouched(torch.float32, FAR + 17, 64) for _ in range(2))
    x[FAR:] = graphs.x
    want = readout.readout(graphs.x, near, ptr, start, None)
    got = readout.readout(x, weights, ptr + FAR, start + nodes, None)
    assert torch.equal(got, want)
    want = readout.readout_grad(want, near, ptr, start, graph, torch.empty_like(graphs.x))
    readout.readout_grad(got, weights, ptr + FAR, start + nodes, graph, dx)
    assert torch.equal(dx[FAR:], want)


@pytest.fixture
def at(monkeypatch):
    """Programs count from there: the interpreter would not be done with all that come before."""
    first, get = {}, InterpreterBuilder.create_get_program_id

    def shifted(builder, axis):
        i = get(builder, axis)
        return TensorHandle(i.data + first.get(axis, 0), i.dtype)

    monkeypatch.setattr(InterpreterBuilder, "create_get_program_id", shifted)
    return first.__setitem__


@pytest.mark.interpreted
def test_rows_and_shares_of_a_gradient_by_kind(untouched, at):
    near, kind = torch.randn(32, 64), torch.randint(5, (32,), dtype=torch.int32)
    want, first = kinds.sums(near, kind, 5), FAR // 32
    dx, partial = untouched(torch.float32, FAR + 32, 64), untouched(torch.float32, first + 1, 5, 64)
    dx[FAR:], where = near, untouched(torch.int32, FAR + 32)
    where[FAR:] = kind
    at(1, first)
    sizes, shape = (FAR + 32, 5, 32), kinds.sum_shape(64, 5)
    kinds.launch(
        kinds.sum_by_kind, (1, 1, 2), dx, where, partial, *sizes,
        written=(partial,), WIDTH=64, PRECISION="ieee", **shape,
    )  # fmt: skip
    assert torch.equal(partial[-1], want)


@pytest.mark.interpreted
def test_rows_and_shares_of_a_norm(untouched, at):
    """The last rows' program alone."""
    rows = {"WIDTH": 64, "ROWS": 32, "BLOCK": 64}
    weight, bias = torch.rand(64), torch.randn(64)
    stats, sums = torch.rand(3, 64), torch.zeros(2, 64)  # or they were of another number of rows

    def run(x, grad, keep, y, dx, partial):
        count = torch.tensor([len(x)])
        norm.launch(norm.norm_moments, (1, 1), x, partial, count, 32, written=(partial,), **rows)
        moments = partial[-1].clone()
        operands, rest = (grad, x, stats, weight, bias, keep), {"RELU": True, "DROPS": True, **rows}
        norm.launch(
            norm.norm_grad_sums, (1, 1), *operands, partial, count, 32, 2.0,
            written=(partial,), **rest,
        )  # fmt: skip
        norm.launch(norm.norm_rows, (1, 1), *operands[1:], y, count, 2.0, written=(y,), **rest)
        norm.launch(
            norm.norm_grad_rows, (1, 1), *operands, sums, dx, count, 2.0, written=(dx,), **rest
        )
        return moments, partial[-1], y[-32:], dx[-32:]

    keep = torch.randint(2, (32, 64), dtype=torch.uint8)
    near = [torch.randn(32, 64), torch.randn(32, 64), keep, *torch.empty(2, 32, 64)]
    want = run(*near, torch.empty(1, 2, 64))
    far = [untouched(tensor.dtype, FAR + 32, 64) for tensor in near]
    for there, here in zip(far[:3], near, strict=False):
        there[FAR:] = here
    first = FAR // 32
    at(0, first)
    got = run(*far, untouched(torch.float32, first + 1, 2, 64))
    for there, here in zip(got, want, strict=True):
        assert torch.equal(there, here)
