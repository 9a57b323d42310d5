"""Every path of the layer on a device, in every dtype and size, against float64.

`python -m benchmarks.checks [cpu|cuda]` runs a few of them: what compute-sanitizer is given.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from grant_fast import InputError, PackedGraphs, ops, reference
from grant_fast.adjacency import Adjacency

from .measure import WrongAnswer, relative_error

#: Nodes of the graphs: empty ones, single nodes, and both sides of every boundary of a tile.
SIZES = (0, 1, 2, 15, 16, 17, 0, 31, 32, 33, 63, 64, 65, 128, 150, 192, 200, 0)
#: ‖error‖ / ‖answer‖ that a dtype is allowed: float32's own (TF32 alone would give 3e-4), and one
#: rounding of what was summed in float32.
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 6e-3, torch.float16: 1e-3}


@dataclass(frozen=True)
class Check:
    """One layer on one set of awkward graphs.

    Args:
        backend: "torch" or "triton".
        h_in, h_out, order: of the layer.
        dtype: of X, W and b.
        normalize, relu: Â or A, and whether a ReLU follows.
        symmetric: undirected graphs; else directed.
        weighted: random edge weights.
        repeated: some edges twice, which bits cannot hold.
    """

    backend: str
    h_in: int
    h_out: int
    order: int
    dtype: torch.dtype = torch.float32
    normalize: bool = True
    relu: bool = False
    symmetric: bool = True
    weighted: bool = False
    repeated: bool = False

    @property
    def name(self) -> str:
        marks = ["" if self.normalize else "A", "relu" if self.relu else ""]
        marks += ["" if self.symmetric else "directed", "weighted" if self.weighted else ""]
        marks += ["repeated edges" if self.repeated else ""]
        dtype = str(self.dtype).removeprefix("torch.")
        layer = f"{self.h_in}→{self.h_out} κ={self.order}"
        return " ".join(filter(None, [self.backend, layer, dtype, *marks]))


def checks(backends: tuple[str, ...] = ("torch", "triton")) -> list[Check]:
    """Widths at one order, orders at one pair of widths, kinds of graphs, dtypes."""
    return [check for backend in backends for check in _of(backend)]


def _of(backend: str) -> Iterator[Check]:
    for width in (9, 27, 64, 128, 300):  # as the suite measures them: what is compiled here is kept
        yield Check(backend, width, width, 3)
    for order in (2, 4, 5):
        yield Check(backend, 27, 27, order)
    for width in (1, 3, 16, 65, 512):
        yield Check(backend, width, width, 3, relu=True)
    for order in (1, 5):
        yield Check(backend, 9, 64, order, relu=True)
        yield Check(backend, 64, 16, order, symmetric=False)
    for normalize in (True, False):
        for kind in ({}, {"symmetric": False}, {"weighted": True}, {"repeated": True}):
            yield Check(backend, 27, 18, 3, normalize=normalize, **kind)
    for dtype in (torch.bfloat16, torch.float16):
        for h_in, h_out in ((9, 27), (64, 64), (128, 128)):
            yield Check(backend, h_in, h_out, 3, dtype=dtype)


def run(check: Check, device: torch.device) -> dict[str, float | str]:
    """The error of Y and of each gradient; {"not taken": why} where the kernels leave it.

    Raises:
        WrongAnswer: an error beyond the dtype's tolerance, NaN, or two runs that differ by a bit.
    """
    graphs = awkward_graphs(check).to(device)
    batch = graphs.batch(slice(None))
    adjacency = batch.adjacency(check.normalize)
    generator = torch.Generator().manual_seed(1)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator).to(device, check.dtype)

    x, grad = normal(batch.num_nodes, check.h_in), normal(batch.num_nodes, check.h_out)
    weight = normal(check.order, check.h_in, check.h_out) / (check.order * check.h_in) ** 0.5
    inputs = [x, weight, normal(check.h_out)]
    want, kept = _exact(check, inputs, grad, adjacency)
    try:
        first, second = (_once(check, inputs, kept, adjacency) for _ in range(2))
    except InputError as error:  # "triton" where the kernels cannot run, and why not
        return {"not taken": str(error)}
    errors: dict[str, float | str] = {}
    for name, got, again, exact in zip(("Y", "dX", "dW", "db"), first, second, want, strict=True):
        errors[name] = error = relative_error([got], [exact])
        if not error <= TOLERANCES[check.dtype]:
            raise WrongAnswer(f"{name} is off by {error:.1e} of its size")
        if not torch.equal(got, again):
            raise WrongAnswer(f"{name} differs between two runs")
    return errors


def _once(check: Check, inputs: list[Tensor], grad: Tensor, adjacency: Adjacency) -> list[Tensor]:
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    # In its deterministic mode torch fills fresh memory with NaN: what a kernel leaves shows.
    torch.use_deterministic_algorithms(check.backend == "triton", warn_only=True)
    try:
        y = ops.flex_conv(*leaves, adjacency, relu=check.relu, backend=check.backend)
        return [y.detach(), *torch.autograd.grad(y, leaves, grad)]
    finally:
        torch.use_deterministic_algorithms(False)


def _exact(
    check: Check, inputs: list[Tensor], grad: Tensor, adjacency: Adjacency
) -> tuple[list[Tensor], Tensor]:
    """Y, dX, dW and db in float64 on the CPU, and dY as it was taken.

    dY is cleared where the ReLU's input is so near 0 that rounding decides on which side it falls.
    """
    host = [tensor.detach().cpu().double() for tensor in (*inputs, grad)]
    x, weight, bias, dy = host
    csr, csr_t = (
        [part.cpu() if not part.is_floating_point() else part.cpu().double() for part in parts]
        for parts in (adjacency.csr, adjacency.transposed)
    )
    y = reference.flex_conv(x, weight, bias, *csr)
    if check.relu:
        near = y.abs() < 1e-3 if check.dtype == torch.float32 else y.abs() < 0.05
        dy = dy * ~near
        kept = dy
        dy = dy * (y > 0)
        y = y.relu()
    else:
        kept = dy
    dx, dw = reference.flex_conv_backward(dy, x, weight, *csr, *csr_t, needs_dx=True)
    assert dx is not None
    device = inputs[0].device
    want = [tensor.to(device) for tensor in (y, dx, dw, dy.sum(0))]
    return want, kept.to(device, check.dtype)


def awkward_graphs(check: Check) -> PackedGraphs:
    """A tenth of all pairs an edge, self loops among them; every graph's last node is isolated."""
    generator = torch.Generator().manual_seed(0)
    edges, start = [torch.empty(2, 0, dtype=torch.long)], 0
    for size in SIZES:
        a = torch.rand(size, size, generator=generator) < 0.1
        a = a | a.T if check.symmetric else a
        if size > 2:
            a[-1], a[:, -1] = False, False
        edges.append(a.nonzero().T + start)
        start += size
    index = torch.cat(edges, 1)
    if check.repeated:
        index = torch.cat([index, index[:, ::7], index[:, ::7].flip(0)], 1)
    batch = torch.repeat_interleave(torch.arange(len(SIZES)), torch.tensor(SIZES))
    weight = torch.rand(index.shape[1], generator=generator) if check.weighted else None
    x = torch.zeros(start, 1)
    return PackedGraphs.from_arrays(x, index, batch, edge_weight=weight, num_graphs=len(SIZES))


def main(device: str) -> int:
    """A few checks, one of each kind, printed."""
    few = [
        c for c in checks() if (c.h_in, c.order) in ((9, 2), (27, 3), (64, 3)) and not c.weighted
    ]
    for check in few:
        print(check.name, run(check, torch.device(device)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:] or ["cuda"]))
