"""One flexible layer beside its peers: the same graphs, the same weights, the same gradients."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from grant_fast import ops, reference
from grant_fast.adjacency import Adjacency
from grant_fast.batches import GraphBatch

from .memory import LayerShape, held_for_backward
from .peers.paper import PaperLayer
from .peers.vendor import VendorLayer
from .work import Side, Work


@dataclass(frozen=True)
class Problem:
    """X, W, b, dY of one layer on one batch, drawn at random; square, `width` to `width`."""

    batch: GraphBatch
    x: Tensor
    weight: Tensor
    bias: Tensor
    grad: Tensor

    @classmethod
    def draw(cls, batch: GraphBatch, width: int, order: int) -> "Problem":
        """The same numbers for the same sizes on the same kind of device, every time."""
        generator = torch.Generator(batch.device).manual_seed(0)

        def normal(*size: int) -> Tensor:
            return torch.randn(size, generator=generator, device=batch.device)

        x, grad = normal(batch.num_nodes, width), normal(batch.num_nodes, width)
        weight = normal(order, width, width) / (order * width) ** 0.5
        return cls(batch, x.requires_grad_(), weight, normal(width), grad)

    def exact(self, train: bool) -> list[Tensor]:
        """Y, or Y, dX, dW and db, in float64."""
        inputs = (self.x, self.weight, self.bias)
        grad = self.grad if train else None
        return exact_layer(inputs, grad, self.batch.adjacency(True), self.batch.device)


def exact_layer(
    inputs: Sequence[Tensor], grad: Tensor | None, adjacency: Adjacency, device: torch.device
) -> list[Tensor]:
    """Y, and where dY is given dX, dW and db, of X, W and b in float64 on the device."""

    def exact(tensor: Tensor) -> Tensor:
        return tensor.detach().to(device, torch.float64)

    csr, csr_t = (
        (rowptr.to(device), col.to(device), exact(value))
        for rowptr, col, value in (adjacency.csr, adjacency.transposed)
    )
    x, weight, bias = map(exact, inputs)
    y = reference.flex_conv(x, weight, bias, *csr)
    if grad is None:
        return [y]
    dy = exact(grad)
    dx, dw = reference.flex_conv_backward(dy, x, weight, *csr, *csr_t, needs_dx=True)
    assert dx is not None
    return [y, dx, dw, dy.sum(0)]


def layer_work(
    batch: GraphBatch,
    width: int,
    order: int,
    train: bool,
    compiled: bool,
    backends: Sequence[str] = ("auto",),
) -> Work:
    """A layer and its peers on a batch.

    Args:
        train: forward and backward, with the gradient of X, W and b; else forward alone.
        compiled: have the peer under `torch.compile`, too (it takes long to compile).
        backends: of ours, each a side of its own.
    """
    problem = Problem.draw(batch, width, order)
    sides: dict[str, Callable[[], Side]] = {
        name: partial(_side, problem, make, train)
        for name, make in _layers(problem, compiled, backends)
    }
    bits = batch.graphs.bits
    small = bits is not None and bool(bits.fits.any())
    words = int((batch.sizes * ((batch.sizes + 63) // 64)).sum())
    shape = LayerShape(
        batch.num_nodes,
        batch.num_edges,
        width,
        width,
        order,
        words=words if small else None,
        fits=small,
    )
    return Work(
        ours=backends[0],
        sides=sides,
        exact=lambda: problem.exact(train),
        bytes=shape.train() if train else shape.forward(),
        facts={
            "graphs": batch.num_graphs,
            "nodes": batch.num_nodes,
            "edges": batch.num_edges,
            "bytes of x": 4 * batch.num_nodes * width,
        },
    )


class _Layer(NamedTuple):
    """A side's layer, its parameters, and how their gradients become [dW, db]."""

    call: Callable[[Tensor], Tensor]
    parameters: list[Tensor]
    arranged: Callable[[list[Tensor]], list[Tensor]]


#: How `TAGConv` takes the edges, see `peers.tag.edges_as`.
_FORMS = ("edge_index", "CSR", "SparseTensor")


def _layers(
    problem: Problem, with_compiled: bool, backends: Sequence[str]
) -> Iterator[tuple[str, Callable[[], _Layer]]]:
    """The name of each side, and how to make its layer."""
    weight, bias = (t.clone().requires_grad_() for t in (problem.weight, problem.bias))
    adjacency = problem.batch.adjacency(True)

    def ours(backend: str) -> _Layer:
        def call(x: Tensor) -> Tensor:
            return ops.flex_conv(x, weight, bias, adjacency, backend=backend)

        return _Layer(call, [weight, bias], list)

    def peer(kind: type) -> _Layer:
        layer = kind(adjacency)
        return _Layer(lambda x: layer(x, weight, bias), [weight, bias], list)

    def tag_conv(form: str, compiled: bool = False) -> _Layer:
        from .peers import tag

        edges = tag.edges_as(form, adjacency, problem.batch.edge_index)
        conv = tag.tag_layer(problem.weight, problem.bias, normalize=form == "edge_index")
        call = tag.compiled(conv) if compiled else conv
        parameters = [lin.weight for lin in conv.lins] + [conv.bias]
        return _Layer(lambda x: call(x, edges), parameters, _stacked)

    for backend in backends:
        yield backend, partial(ours, backend)
    yield "vendor SpMM", partial(peer, VendorLayer)
    if problem.batch.num_graphs > 1:  # Â² of the one big graph would have 1.8 billion entries
        yield "paper's formulation", partial(peer, PaperLayer)
    if find_spec("torch_geometric") is None:
        return
    for form in _FORMS:
        if form == "SparseTensor" and find_spec("torch_sparse") is None:
            continue
        yield f"TAGConv, {form}", partial(tag_conv, form)
        if form == "edge_index" and with_compiled:
            yield "TAGConv, compiled", partial(tag_conv, form, compiled=True)


def _structure(batch: GraphBatch) -> list[Tensor]:
    """What a batch and its data set keep of the edges, in whatever form: made once, not a layer."""
    adjacency = batch.adjacency(True)
    kept = [dict(vars(batch)), dict(vars(batch.graphs)), adjacency.csr, adjacency.transposed]
    return [leaf for leaf in tree_leaves(kept) if isinstance(leaf, Tensor)]


def _stacked(grads: list[Tensor]) -> list[Tensor]:
    """[dW, db] of a `TAGConv`'s gradients."""
    return [torch.stack([grad.T for grad in grads[:-1]]), grads[-1]]


def _side(problem: Problem, make: Callable[[], _Layer], train: bool) -> Side:
    """A side, made; a peer that cannot be made here then says why, and the rest go on."""
    layer, parameters, arranged = make()
    wanted = [problem.x, *parameters]

    def forward() -> Tensor:
        with torch.no_grad():
            return layer(problem.x)

    def step() -> tuple[Tensor, ...]:
        y = layer(problem.x)
        return y, *torch.autograd.grad(y, wanted, problem.grad)

    def answer() -> list[Tensor]:
        if not train:
            return [forward()]
        y, dx, *rest = step()
        return [y.detach(), dx, *arranged(rest)]

    def held() -> int:
        given = [*parameters, *_structure(problem.batch)]
        return held_for_backward(lambda: layer(problem.x), given)

    return Side(step if train else forward, answer, held if train else None)
