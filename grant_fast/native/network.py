"""A whole network in one pass over the batch: `kernels/cpu/network.h`."""

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..batches.edges import BatchAdjacency
from ..gradients import apply, once_differentiable, one_at_a_time
from .loading import aside, by_rows, call, padded, pointer, threads
from .structure import split

#: The activations of kernels/cpu/activations.h, in its order; and what those with one call `alpha`.
ACTIVATIONS: dict[type[nn.Module], str | None] = {
    nn.ReLU: None,
    nn.Identity: None,
    nn.LeakyReLU: "negative_slope",
    nn.ELU: "alpha",
    nn.GELU: None,
    nn.Sigmoid: None,
    nn.SiLU: None,
    nn.Tanh: None,
}


class Activation(NamedTuple):
    """Of each hidden layer: its number in `ACTIVATIONS`, and alpha."""

    kind: int
    alpha: float

    @classmethod
    def of(cls, act: nn.Module) -> "Activation | None":
        """What the kernels compute of a module as it is now; None where they do not know it."""
        if type(act) not in ACTIVATIONS or getattr(act, "approximate", "none") != "none":
            return None  # a GELU is exact, not its formula with a tanh
        name = ACTIVATIONS[type(act)]
        alpha = 0.0 if name is None else getattr(act, name)
        if not isinstance(alpha, int | float) or not abs(alpha) <= torch.finfo(torch.float32).max:
            return None
        return cls(list(ACTIVATIONS).index(type(act)), float(alpha))


class _Layer(ctypes.Structure):
    """`net_layer` of kernels/cpu/network.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("order", "h_in", "h_out")),
        *((name, ctypes.c_void_p) for name in ("w", "bias", "gamma", "beta", "mean", "var")),
        *((name, ctypes.c_double) for name in ("eps", "momentum")),
        *((name, ctypes.c_uint64) for name in ("seed", "level")),
        ("keep", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("y", "state", "dw", "db", "dgamma", "dbeta")),
    )


class _NetworkStruct(ctypes.Structure):
    """`network` of kernels/cpu/network.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("depth", "kind")),
        ("alpha", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("layers", "x")),
        *((name, ctypes.c_int64) for name in ("ldx", "packed")),
        ("code", ctypes.c_void_p),
        ("kinds", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("dx", "weight")),
        *((name, ctypes.c_int64) for name in ("order", "nodes")),
        *((name, ctypes.c_void_p) for name in ("out", "grad", "to", "from", "label", "seconds")),
    )


class Layer:
    """A layer, dropout(act(norm(Σ_k Â^k X W_k + b)), p); the last of a network for nodes is
    without what follows the sum. The norm is a `BatchNorm1d` with running averages or a `LayerNorm`
    over h_out, each with learned scale and shift, or None.

    Attributes:
        tensors: what is learned of it: W, b, γ and β.
        running: the running averages of a batch norm; others have none.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        norm: nn.BatchNorm1d | nn.LayerNorm | None = None,
        p: float = 0.0,
    ) -> None:
        self.weight, self.norm, self.p = weight, norm, p
        affine = (None, None) if norm is None else (norm.weight, norm.bias)
        self.tensors: tuple[Tensor | None, ...] = (weight, bias, *affine)
        self.running: tuple[Tensor | None, ...] = ()
        if norm is not None and not isinstance(norm, nn.LayerNorm):
            self.running = norm.running_mean, norm.running_var


class Network(NamedTuple):
    """What the kernels compute in one go for a batch.

    Args:
        layers: the hidden ones; and where nothing is pooled, the last, for every node.
        source: what the rows of the first layer's input are: the batch's nodes ("batch",
            [n, h_in]), the dataset's ("dataset", [N, h_in], constant), or its kinds of nodes
            ("kinds", [m, h_in], see `PackedGraphs.kinds`).
        adjacency: of a batch that `takes` says yes to.
        pool_weights: [κ, N] (`PackedGraphs.pool_weights`), to pool what the last hidden layer
            gives, [Σ_i p_0i x_i, …, Σ_i p_(κ-1)i x_i] over the nodes i of each graph; or None.
        code: [N] int32, the kind of each of the dataset's nodes, where `source` is "kinds".
        act: what follows the norm in each hidden layer.
    """

    layers: Sequence[Layer]
    source: str
    adjacency: BatchAdjacency
    pool_weights: Tensor | None
    code: Tensor | None = None
    act: Activation = Activation(0, 0.0)

    @property
    def depth(self) -> int:
        return len(self.layers) - (self.pool_weights is None)

    def new_output(self, x: Tensor) -> Tensor:
        """[B, κh] where it is pooled, else [n, h]."""
        batch, width = self.adjacency.batch, self.layers[-1].weight.shape[2]
        if self.pool_weights is None:
            return x.new_empty(batch.num_nodes, width)
        return x.new_empty(batch.num_graphs, self.pool_weights.shape[0] * width)

    def struct(self, layers: "Sequence[_Layer]", x: Tensor, **pointers: Tensor | None) -> Any:
        """For the library: `layers`, and where it reads and writes."""
        order, nodes = (0, 0) if self.pool_weights is None else self.pool_weights.shape
        array = (_Layer * len(layers))(*layers)
        out = _NetworkStruct(
            depth=self.depth,
            kind=self.act.kind,
            alpha=self.act.alpha,
            layers=ctypes.cast(array, ctypes.c_void_p),
            x=pointer(x),
            ldx=x.stride(0),
            packed=self.source == "dataset",
            code=pointer(self.code),
            kinds=x.shape[0],
            weight=pointer(self.pool_weights),
            order=order,
            nodes=nodes,
            **{name: pointer(tensor) for name, tensor in pointers.items()},
        )
        out.kept = array, pointers  # pointers do not keep what they point at
        return out


def _layer(layer: Layer, tensors: Sequence[Tensor | None]) -> _Layer:
    weight = tensors[0]
    assert weight is not None
    rates = (0.0, 0.0)
    if layer.norm is not None:
        rates = (layer.norm.eps, getattr(layer.norm, "momentum", None) or 0.0)
    running = layer.running or (None, None)
    return _Layer(*weight.shape, *map(pointer, (*tensors, *running)), *rates)


def evaluate(net: Network, x: Tensor, labels: Tensor | None = None) -> Tensor:
    """The network in evaluation mode, tile by tile: nothing between its layers is stored.

    Args:
        net: of float32 weights; no gradients.
        x: the first layer's input, see `Network.source`.
        labels: [N] int64 classes of the dataset's nodes, below 0 where missing, for a network whose
            output is not pooled.

    Returns:
        `Network.new_output`; with labels, what `class_scores` makes of it, [B].
    """
    out = net.new_output(x) if labels is None else x.new_empty(net.adjacency.batch.num_graphs)
    labels = None if labels is None else labels.contiguous()
    tensors = [[t if t is None else aside(t) for t in layer.tensors] for layer in net.layers]
    layers = [_layer(layer, mine) for layer, mine in zip(net.layers, tensors, strict=True)]
    struct, parts = split(net.adjacency, 1)
    network = net.struct(layers, x, out=out, label=labels)
    call("network_evaluate", struct, parts, threads(), ctypes.byref(network))
    return out


def _training_layers(
    net: Network, tensors: Sequence[Tensor | None], kept: Tensor, seed: int
) -> list[_Layer]:
    """Weights from `tensors`, four a layer; what the backward pass needs lies in `kept`."""
    place, layers = kept.data_ptr(), []
    for k, layer in enumerate(net.layers):
        made = _layer(layer, tensors[4 * k : 4 * k + 4])
        made.level, made.keep = min(round(layer.p * 2**32), 2**32 - 1), 1 / (1 - layer.p)
        made.seed = (seed + k * 0x9E3779B97F4A7C15) % 2**64
        if k < net.depth:
            floats = net.adjacency.num_nodes * made.h_out
            made.y, made.state = place, place + 4 * floats
            place += 4 * (floats + 4 * padded(made.h_out))
        layers.append(made)
    return layers


class _Train(torch.autograd.Function):
    """A network in training; its inputs are x and the four tensors of each layer."""

    @staticmethod
    def forward(ctx, net, x, *tensors):  # type: ignore[no-untyped-def]
        tensors = [None if t is None else aside(t) for t in tensors]
        seed = 0
        if any(layer.p for layer in net.layers):
            # One number from torch's generator seeds the masks: reproducible, and resumed with it.
            seed = int(torch.randint(2**62, (), device="cpu"))
        rows = net.adjacency.num_nodes
        widths = [layer.weight.shape[2] for layer in net.layers[: net.depth]]
        kept = x.new_empty(sum(rows * width + 4 * padded(width) for width in widths))
        out = net.new_output(x)
        struct, parts = split(net.adjacency, 1)
        network = net.struct(_training_layers(net, tensors, kept, seed), x, out=out)
        call("network_forward", struct, parts, threads(), ctypes.byref(network))
        ctx.save_for_backward(x.detach(), kept, *tensors)
        ctx.net, ctx.seed = net, seed
        return out

    @staticmethod
    @once_differentiable
    @one_at_a_time
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        x, kept, *tensors = ctx.saved_tensors
        x = by_rows(x)  # a hook of saved tensors may have copied overlapping rows
        grads = [None if t is None else torch.empty_like(t) for t in tensors]
        dx = x.new_empty(x.shape) if ctx.needs_input_grad[1] else None
        layers = _training_layers(ctx.net, tensors, kept, ctx.seed)
        for k, layer in enumerate(layers):
            pointers = map(pointer, grads[4 * k : 4 * k + 4])
            layer.dw, layer.db, layer.dgamma, layer.dbeta = pointers
        largest = max(layer.weight.numel() for layer in ctx.net.layers)
        struct, parts = split(ctx.net.adjacency, 4 * largest)
        widths = [layer.h_out for layer in layers[: ctx.net.depth]]
        if dx is not None and ctx.net.code is not None:  # of each node first, then of each kind
            widths.append(layers[0].h_in)
        rows = ctx.net.adjacency.num_nodes
        to, back = x.new_empty(2, padded(rows * max(widths) + padded(1)))
        given = {"dx": dx, "grad": grad.resolve_neg().contiguous(), "to": to, "from": back}
        network = ctx.net.struct(layers, x, **given)
        call("network_backward", struct, parts, threads(), ctypes.byref(network))
        return None, dx, *grads


def train(net: Network, x: Tensor) -> Tensor:
    """The network in training, differentiable once in x and in what its layers learn.

    Batches have at least two nodes where there is a batch norm, whose running statistics move.
    Masks of dropout are a function of one number drawn from torch's generator, and are made again
    in the backward pass; p is exact to 2^-32. What is kept for that pass is each layer's output
    alone, before its norm. Args and result: as `evaluate`.
    """
    for layer in net.layers:
        tracked = getattr(layer.norm, "num_batches_tracked", None)
        if tracked is not None:
            tracked.add_(1)
    return apply(_Train, net, x, *(t for layer in net.layers for t in layer.tensors))
