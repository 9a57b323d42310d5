"""What is not a layer, against float64: readouts, norms, kinds of nodes, edges' gradients, scores,
the choice."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from grant_fast import FlexConv, FlexGCN, Task, ops, score_graphs, select_graphs
from grant_fast.nn import AtomEncoder
from grant_fast.nn.evaluating import evaluating
from grant_fast.ops.dispatch import takes_kernels
from grant_fast.ops.embedded import embed
from grant_fast.ops.normed import batch_norm
from grant_fast.teaching import fused, graph_residuals

from . import awkward
from .awkward import TOLERANCES, awkward_graphs

Prepared = tuple[Callable[[], list[Tensor]], dict[str, Tensor]]


def of(backend: str) -> Iterator[Any]:
    """All of these checks for a backend."""
    for width, order, mean in ((9, 2, True), (27, 3, False), (64, 5, True), (300, 3, True)):
        yield Readout(backend, width, order, mean)
    yield Readout(backend, 27, 3, True, torch.bfloat16)
    yield Norm(backend, 33_000, 27)
    yield Kinds(backend, 33_000, 300, 9)
    yield Kinds(backend, 33_000, 300, 64)
    yield EdgeGradients(backend, 9, 27, 3)
    yield EdgeGradients(backend, 70, 9, 3)
    for hidden in ((27, 18), (70, 64)):  # one kernel for the network, then layer by layer
        yield Scores(backend, Task("binary"), hidden, atoms=True)
        yield Scores(backend, Task("regression", num_outputs=3), hidden)
        yield Scores(backend, Task("multilabel", num_outputs=12), hidden, symmetric=False)
        yield Scores(backend, Task("multiclass", "node", 10), hidden)
    for size in (2, 1024, 5000):
        yield Selection(backend, size)


def _normal(*size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(1))


@dataclass(frozen=True)
class Readout:
    """The pooled rows that a last layer is a product with, and their gradient."""

    backend: str
    width: int
    order: int
    mean: bool
    dtype: torch.dtype = torch.float32

    @property
    def name(self) -> str:
        pool, dtype = "mean" if self.mean else "sum", str(self.dtype).removeprefix("torch.")
        return f"{self.backend} readout {self.width} κ={self.order} {pool} {dtype}"

    @property
    def tolerance(self) -> float:
        return TOLERANCES[self.dtype]

    def prepare(self, device: torch.device) -> Prepared:
        graphs = awkward_graphs()
        x = _normal(graphs.num_nodes, self.width).to(self.dtype)
        grad = _normal(len(graphs), self.order * self.width).to(self.dtype)

        def both(graphs: Any, x: Tensor, grad: Tensor, backend: str) -> list[Tensor]:
            x = x.clone().requires_grad_()
            batch = graphs.batch(slice(None))
            pooled = ops.readout(x, batch, self.order, True, self.mean, backend)
            return [pooled.detach(), *torch.autograd.grad(pooled, x, grad)]

        exact = both(graphs.to(dtype=torch.float64), x.double(), grad.double(), "torch")
        operands = (graphs.to(device), x.to(device), grad.to(device), self.backend)
        return lambda: both(*operands), dict(zip(("pooled", "dX"), exact, strict=True))


NORM = "Y", "dX", "dw", "db"


@dataclass(frozen=True)
class Norm:
    """A batch of `rows` rows, normalised and rectified, and its gradients."""

    backend: str
    rows: int
    width: int
    tolerance = TOLERANCES[torch.float32]

    @property
    def name(self) -> str:
        return f"{self.backend} norm {self.rows} × {self.width}"

    def prepare(self, device: torch.device) -> Prepared:
        x, weight, bias = _normal(self.rows, self.width), *_normal(2, self.width)
        grad = _normal(self.rows, self.width).flip(0)
        exact = F.batch_norm(x.double(), None, None, weight.double(), bias.double(), training=True)
        grad = grad * (exact.abs() > 0.05)  # rounding decides no ReLU

        def both(backend: str, grad: Tensor, *tensors: Tensor) -> list[Tensor]:
            leaves = x, weight, bias = [tensor.clone().requires_grad_() for tensor in tensors]
            if takes_kernels(x, backend):
                y, _ = batch_norm(x, weight, bias, 1e-5, relu=True)
            else:
                y = F.batch_norm(x, None, None, weight, bias, training=True).relu()
            return [y.detach(), *torch.autograd.grad(y, leaves, grad)]

        given = grad, x, weight, bias
        want = both("torch", *(tensor.double() for tensor in given))
        operands = [tensor.to(device) for tensor in given]
        return lambda: both(self.backend, *operands), dict(zip(NORM, want, strict=True))


@dataclass(frozen=True)
class Kinds:
    """A row of a table for each of `rows` nodes, most of them of few kinds, and its gradient."""

    backend: str
    rows: int
    kinds: int
    width: int
    tolerance = TOLERANCES[torch.float32]

    @property
    def name(self) -> str:
        return f"{self.backend} {self.kinds} kinds of {self.rows} × {self.width}"

    def prepare(self, device: torch.device) -> Prepared:
        table, grad = _normal(self.kinds, self.width), _normal(self.rows, self.width)
        kind = (grad[:, 0].abs() * self.kinds / 8).int().clamp_(max=self.kinds - 1)

        def both(backend: str, table: Tensor, kind: Tensor, grad: Tensor) -> list[Tensor]:
            table = table.clone().requires_grad_()
            by_kernels = takes_kernels(table, backend)
            rows = embed(table, kind) if by_kernels else F.embedding(kind, table)
            return [rows.detach(), *torch.autograd.grad(rows, table, grad)]

        exact = both("torch", table.double(), kind, grad.double())
        operands = [tensor.to(device) for tensor in (table, kind, grad)]
        return lambda: both(self.backend, *operands), dict(zip(("X", "dT"), exact, strict=True))


@dataclass(frozen=True)
class EdgeGradients:
    """The gradient of a layer in the weights of its edges."""

    backend: str
    h_in: int
    h_out: int
    order: int
    tolerance: float = TOLERANCES[torch.float32]

    @property
    def name(self) -> str:
        return f"{self.backend} edges' gradient {self.h_in}→{self.h_out} κ={self.order}"

    def prepare(self, device: torch.device) -> Prepared:
        torch.manual_seed(1)
        layer = FlexConv(self.h_in, self.h_out, order=self.order)
        graphs = awkward_graphs(symmetric=False)
        edges = graphs.batch(slice(None)).edge_index
        x, grad = (_normal(graphs.num_nodes, width) for width in (self.h_in, self.h_out))
        weight = 0.1 + _normal(edges.shape[1]).abs()

        def gradient(layer: FlexConv, x: Tensor, weight: Tensor, grad: Tensor) -> list[Tensor]:
            weight = weight.clone().requires_grad_()
            out = layer(x, edges.to(x.device), weight)
            return list(torch.autograd.grad(out, weight, grad))

        double = copy.deepcopy(layer).double()
        layer, double.backend, layer.backend = layer.to(device), "torch", self.backend
        exact = gradient(double, x.double(), weight.double(), grad.double())
        operands = [tensor.to(device) for tensor in (x, weight, grad)]
        return lambda: gradient(layer, *operands), {"dA": exact[0]}


@dataclass(frozen=True)
class Scores:
    """The teacher's look at a network: by one kernel where it is narrow, else layer by layer.

    Graphs too large for the one kernel go layer by layer in any case. Some labels are missing.
    """

    backend: str
    task: Task
    hidden: tuple[int, ...]
    atoms: bool = False
    symmetric: bool = True
    tolerance: float = 5e-5  # of several layers, one after another

    @property
    def name(self) -> str:
        task = f"{self.task.kind} {self.task.level} {self.task.num_outputs}"
        marks = ["atoms" if self.atoms else "", "" if self.symmetric else "directed"]
        widths = "-".join(map(str, self.hidden))
        return " ".join(filter(None, [self.backend, "scores", widths, task, *marks]))

    def prepare(self, device: torch.device) -> Prepared:
        torch.manual_seed(1)
        task, nodes = self.task, sum(awkward.SIZES)
        x = torch.randint(3, (nodes, 4)) if self.atoms else torch.randn(nodes, 9)
        y = self._targets(nodes if task.level == "node" else len(awkward.SIZES))
        graphs = awkward_graphs(self.symmetric, x=x, y=y)
        model = FlexGCN(
            9,
            self.hidden,
            task.num_outputs,
            orders=[4, 3, 2],
            norm="batch_norm",
            pool=None if task.level == "node" else "mean",
            encoder=AtomEncoder(9, (3, 3, 3, 3)) if self.atoms else None,
        )
        with_statistics(model)
        double, whole = copy.deepcopy(model).double(), slice(None)
        double.backend, model.backend = "torch", self.backend
        batch = graphs.to(dtype=torch.float64).batch(whole)
        with evaluating(double):
            assert batch.y is not None
            exact = graph_residuals(double(batch), batch.y, task, batch.ptr)
        model, graphs = model.to(device), graphs.to(device)
        alone = fused.fits(model, graphs.batch(whole), task)
        assert alone == (max(self.hidden) <= fused.MAX_HIDDEN)
        assert fused.tail_fits(model, graphs, task)
        if not alone or self.backend != "triton":
            return lambda: [score_graphs(model, graphs, task)], {"scores": exact}

        def once() -> list[Tensor]:
            scores = score_graphs(model, graphs, task)
            with evaluating(model):  # what is NaN would be computed again, in another way
                mine, _, _, rest = fused.score(model, graphs.batch(whole), task, "gradient")
            rest = rest.to(device)
            return [scores, mine.index_copy(0, rest, scores[rest])]

        return once, {"scores": exact, "scores of the one kernel": exact}

    def _targets(self, rows: int) -> Tensor:
        if self.task.kind == "multiclass":
            y = torch.randint(self.task.num_outputs, (rows,))
            return y.masked_fill(torch.rand(rows) < 0.2, -100)
        y = torch.randn(rows, self.task.num_outputs)
        y = y if self.task.kind == "regression" else (y > 0).float()
        return y.masked_fill(torch.rand(y.shape) < 0.2, torch.nan)


def with_statistics(model: FlexGCN) -> None:
    """Give batch norms something to fold."""
    with torch.no_grad():
        for norm in model.norms:
            for name, tensor in [*norm.named_parameters(), *norm.named_buffers()]:
                if name != "num_batches_tracked":
                    tensor.uniform_(0.5, 1.5)


@dataclass(frozen=True)
class Selection:
    """The largest scores, many of them equal, as a stable sort finds them."""

    backend: str
    size: int
    tolerance: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.backend} selection of {self.size}"

    def prepare(self, device: torch.device) -> Prepared:
        scores = (_normal(self.size) * 8).round().abs()
        counts = {f"m={m}": m for m in sorted({0, self.size // 3, self.size - 1, self.size})}
        order = torch.sort(scores, descending=True, stable=True).indices
        exact = {name: order[:m].sort().values for name, m in counts.items()}
        scores = scores.to(device)
        return (
            lambda: [select_graphs(scores, m, backend=self.backend) for m in counts.values()],
            exact,
        )
