"""Every kernel on a device, in every dtype and size, against float64.

Layers are here, what follows them is in `scoring_checks.py`, networks in `network_checks.py`.

`python -m benchmarks.checks [cpu|cuda]` runs a few of them: what compute-sanitizer is given.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from grant_fast import ops
from grant_fast.adjacency import Adjacency
from grant_fast.ops.dispatch import why_not

from . import network_checks, scoring_checks
from .awkward import TOLERANCES, awkward_graphs
from .layers import exact_layer
from .measure import WrongAnswer, relative_error
from .scoring_checks import Prepared


class Check(Protocol):
    """Something to compute on awkward graphs, and the answer.

    `name` is unique, `backend` "torch" or "triton", and `tolerance` of ‖error‖ / ‖answer‖.
    """

    @property
    def name(self) -> str: ...

    @property
    def backend(self) -> str: ...

    @property
    def tolerance(self) -> float: ...

    def prepare(self, device: torch.device) -> Prepared:
        """What to run on the device, and the names of its results with their values in float64."""
        ...


@dataclass(frozen=True)
class Layer:
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

    @property
    def tolerance(self) -> float:
        return TOLERANCES[self.dtype]

    def prepare(self, device: torch.device) -> Prepared:
        graphs = awkward_graphs(self.symmetric, self.weighted, self.repeated).to(device)
        batch = graphs.batch(slice(None))
        adjacency = batch.adjacency(self.normalize)
        generator = torch.Generator().manual_seed(1)

        def normal(*size: int) -> Tensor:
            return torch.randn(size, generator=generator).to(device, self.dtype)

        x, grad = normal(batch.num_nodes, self.h_in), normal(batch.num_nodes, self.h_out)
        weight = normal(self.order, self.h_in, self.h_out) / (self.order * self.h_in) ** 0.5
        inputs = [x, weight, normal(self.h_out)]
        want, kept = _exact(self, inputs, grad, adjacency)

        def once() -> list[Tensor]:
            x, weight, bias = leaves = [tensor.clone().requires_grad_() for tensor in inputs]
            y = ops.flex_conv(x, weight, bias, adjacency, relu=self.relu, backend=self.backend)
            return [y.detach(), *torch.autograd.grad(y, leaves, kept)]

        return once, dict(zip(("Y", "dX", "dW", "db"), want, strict=True))


def checks() -> list[Check]:
    """Whole networks, which take longest; layers: widths at one order, orders at one pair of
    widths, kinds of graphs, dtypes; then the readout, the scores, the choice among them."""
    return [
        check
        for backend in ("torch", "triton")
        for check in (*network_checks.of(backend), *_layers(backend), *scoring_checks.of(backend))
    ]


def _layers(backend: str) -> Iterator[Layer]:
    for width in (9, 27, 64, 128, 300):  # as the suite measures them: what is compiled here is kept
        yield Layer(backend, width, width, 3)
    for order in (2, 4, 5):
        yield Layer(backend, 27, 27, order)
    for width in (1, 3, 16, 65, 512):
        yield Layer(backend, width, width, 3, relu=True)
    for order in (1, 5):
        yield Layer(backend, 9, 64, order, relu=True)
        yield Layer(backend, 64, 16, order, symmetric=False)
    for normalize in (True, False):
        usual = Layer(backend, 27, 18, 3, normalize=normalize)
        yield usual
        yield replace(usual, symmetric=False)
        yield replace(usual, weighted=True)
        yield replace(usual, repeated=True)
    for dtype in (torch.bfloat16, torch.float16):
        for h_in, h_out in ((9, 27), (64, 64), (128, 128)):
            yield Layer(backend, h_in, h_out, 3, dtype=dtype)


def run(check: Check, device: torch.device) -> dict[str, float | str]:
    """The error of each result; {"not taken": why} where the kernels cannot run.

    Raises:
        WrongAnswer: an error beyond the tolerance, NaN, or two runs of our kernels that differ by
            a bit. (Those of a GPU's vendor may.)
    """
    kernels = check.backend == "triton"
    reason = why_not(torch.empty(0, device=device)) if kernels else None
    if reason is not None:
        return {"not taken": reason}
    once, want = check.prepare(device)
    # In its deterministic mode torch fills fresh memory with NaN: what a kernel leaves shows.
    torch.use_deterministic_algorithms(kernels, warn_only=True)
    try:
        first, second = once(), once()
    finally:
        torch.use_deterministic_algorithms(False)
    errors: dict[str, float | str] = {}
    for (name, exact), got, again in zip(want.items(), first, second, strict=True):
        errors[name] = off = relative_error([got], [exact.to(got.device)])
        if not off <= check.tolerance:
            raise WrongAnswer(f"{name} is off by {off:.1e} of its size")
        if kernels and not torch.equal(got, again):
            raise WrongAnswer(f"{name} differs between two runs")
    return errors


def _exact(
    check: Layer, inputs: list[Tensor], grad: Tensor, adjacency: Adjacency
) -> tuple[list[Tensor], Tensor]:
    """Y, dX, dW and db in float64 on the CPU, and dY as it was taken.

    dY is cleared where the ReLU's input is so near 0 that rounding decides on which side it falls.
    """
    host = torch.device("cpu")
    kept = dy = grad.to(host, torch.float64)
    if check.relu:
        (y,) = exact_layer(inputs, None, adjacency, host)
        kept = dy * (y.abs() >= (1e-3 if check.dtype == torch.float32 else 0.05))
        dy = kept * (y > 0)
    y, *rest = exact_layer(inputs, dy, adjacency, host)
    device = grad.device
    want = [tensor.to(device) for tensor in (y.relu() if check.relu else y, *rest)]
    return want, kept.to(device, check.dtype)


def _is_common(layer: Layer) -> bool:
    return (layer.h_in, layer.order) in ((9, 2), (27, 3), (64, 3)) and not layer.weighted


def main(device: str) -> int:
    """A few checks of the kernels, one of each kind, printed; on a CPU, of PyTorch."""
    backend = "torch" if device == "cpu" else "triton"
    few = [layer for layer in _layers(backend) if _is_common(layer)]
    for check in (*few, *scoring_checks.of(backend)):
        print(check.name, run(check, torch.device(device)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:] or ["cuda"]))
