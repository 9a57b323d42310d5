"""The compiled CPU kernels (`kernels/cpu/`): how Python calls them, and their gradients.

They compute in float32 what `reference.py` defines, straight from the packed dataset: a batch is
its graphs' positions, and no edge is gathered. A machine that had no C compiler when this package
was installed does without them, and PyTorch's operators give the same results more slowly.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .adjacency import Adjacency
from .batch_edges import BatchAdjacency
from .packing import DatasetEdges, DatasetSide

if TYPE_CHECKING:
    from .flat import FlatGraphs

#: A tile holds whole graphs: beyond this many nodes in one, it would no longer fit in the cache.
MAX_NODES = 4096
#: Rows of a part, the unit of work of a thread; and how many parts there are at most.
PART_ROWS, MAX_PARTS = 1024, 64
#: Every part adds up its own dW; all of them together stay below this.
PARTIAL_BYTES = 32 << 20

#: What `interface` of kernels/cpu/cpu.c must say.
INTERFACE = 2

#: The builds of `kernels/cpu/`, by what torch says of this CPU; the baseline serves the others.
BUILDS = {"AVX512": ("_cpu_v4", "_cpu_v3", "_cpu"), "AVX2": ("_cpu_v3", "_cpu")}


@cache
def _found() -> tuple[str, str] | None:
    """Name and path of the build for this CPU."""
    for name in BUILDS.get(torch.backends.cpu.get_cpu_capability(), ("_cpu",)):
        found = find_spec(f"{__package__}.{name}")
        if found is not None and found.origin is not None:
            return name, found.origin
    return None


@cache
def library() -> ctypes.CDLL | None:
    """The build for this CPU; None where none was made, or one of other sources is left over."""
    found = _found()
    kernels = None if found is None else ctypes.CDLL(found[1])
    if kernels is None or getattr(kernels, "interface", lambda: 0)() != INTERFACE:
        return None
    kernels.use_openmp(_openmp())
    return kernels


def _openmp() -> ctypes.c_void_p | None:
    """The entry to the threads of PyTorch's own operators, where it brings GNU's OpenMP."""
    for path in (Path(torch.__file__).parent / "lib").glob("libgomp*.so*"):
        return ctypes.cast(ctypes.CDLL(str(path)).GOMP_parallel, ctypes.c_void_p)
    return None


def build() -> str | None:
    """Its name: `_cpu_v4` for AVX-512, `_cpu_v3` for AVX2, `_cpu` for any CPU; or None."""
    found = _found()
    return None if found is None else found[0]


def takes(x: Tensor, adjacency: Adjacency | None = None, weight: Tensor | None = None) -> bool:
    """Whether the kernels compute this layer; `why_not` gives the reason where they do not."""
    return why_not(x, adjacency, weight) is None


def why_not(
    x: Tensor, adjacency: Adjacency | None = None, weight: Tensor | None = None
) -> str | None:
    """Why the compiled kernels cannot compute this, or None where they can."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return "the call is being traced"
    if library() is None:
        return "they were not compiled: install grant_fast again where there is a C compiler"
    if x.device.type != "cpu" or type(x) not in (Tensor, nn.Parameter):
        return f"x is a {type(x).__name__} on the {x.device.type}"
    if x.dtype != torch.float32 or (weight is not None and weight.dtype != torch.float32):
        return f"x is {x.dtype}, not float32"
    if adjacency is None:
        return None
    if not isinstance(adjacency, BatchAdjacency):
        return "the graphs are no GraphBatch of a PackedGraphs"
    graphs = adjacency.batch.graphs
    if graphs.scale.dtype != torch.float32:
        return f"the graphs are {graphs.scale.dtype}, not float32"
    if graphs.max_nodes > MAX_NODES:
        return f"the dataset has a graph of {graphs.max_nodes} nodes (above {MAX_NODES})"
    return None


class _Side(ctypes.Structure):
    """`side` of kernels/cpu/graphs.h."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in DatasetSide._fields)


class _Graphs(ctypes.Structure):
    """`graphs` of kernels/cpu/graphs.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("ptr", "first", "scale")),
        ("sides", _Side * 2),
        ("part", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("count", "degree")),
    )


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _number(value: int) -> ctypes.c_int64:
    return ctypes.c_int64(value)


def _call(name: str, *args: Any) -> None:
    """A function of the library: tensors as pointers, ints as int64, the rest as it is."""
    converted = [
        ctypes.c_void_p(_pointer(arg))
        if arg is None or isinstance(arg, Tensor)
        else _number(arg)
        if type(arg) is int
        else arg
        for arg in args
    ]
    getattr(library(), name)(*converted)


def _padded(width: int) -> int:
    kernels = library()
    assert kernels is not None
    lanes = kernels.vector_lanes()
    return -(-width // lanes) * lanes


def _threads() -> ctypes.c_int:
    return ctypes.c_int(torch.get_num_threads())


def _degree(graphs: "FlatGraphs") -> int:
    """Edges a node: what a kernel's choice between two ways depends on."""
    return graphs.num_edges // max(1, graphs.num_nodes)


#: Of each dataset, normalised or not: what the kernels read, and what owns the memory. Not kept by
#: the dataset itself, which can be copied and pickled; pointers cannot.
_structures: "WeakKeyDictionary[FlatGraphs, dict[bool, tuple[_Graphs, DatasetEdges]]]"
_structures = WeakKeyDictionary()


def _structure(graphs: "FlatGraphs", normalize: bool) -> _Graphs:
    """All of `graphs` that is the same for every batch."""
    made = _structures.setdefault(graphs, {})
    if normalize not in made:
        edges = graphs.edges(normalize)
        sides = (_Side * 2)(*(_Side(*map(_pointer, side)) for side in edges.sides))
        struct = _Graphs(scale=_pointer(edges.scale), sides=sides, degree=_degree(graphs))
        made[normalize] = struct, edges
    return made[normalize][0]


def _split(adjacency: BatchAdjacency, weight_bytes: int) -> tuple[Any, int]:
    """The batch's structure in `parts` parts for the threads, and how many those are."""
    batch = adjacency.batch
    limit = min(MAX_PARTS, batch.num_nodes // PART_ROWS, PARTIAL_BYTES // weight_bytes)
    parts = max(1, limit)
    made: dict[int, tuple[_Graphs, Tensor]] = adjacency.__dict__.setdefault("native", {})
    if parts not in made:
        ptr, first = batch.host_rows
        part = np.zeros(parts + 1, np.int64)
        part[1:-1] = np.searchsorted(ptr.numpy(), np.arange(1, parts) * batch.num_nodes // parts)
        part[-1] = batch.num_graphs
        kept = torch.from_numpy(part)
        struct = _Graphs.from_buffer_copy(_structure(batch.graphs, adjacency.normalize))
        struct.ptr, struct.first, struct.part = map(_pointer, (ptr, first, kept))
        struct.count = batch.num_graphs
        made[parts] = struct, kept  # the adjacency keeps what the struct points at
    return ctypes.byref(made[parts][0]), parts


class _FlexConv(torch.autograd.Function):
    """Y = act(Σ_k Â^k X W_k + b); `packed`: X has a row for every node of the dataset."""

    @staticmethod
    def forward(ctx, x, weight, bias, adjacency, relu, packed):  # type: ignore[no-untyped-def]
        x, weight = x if x.stride(1) == 1 else x.contiguous(), weight.contiguous()
        bias = None if bias is None else bias.contiguous()
        order, h_in, h_out = weight.shape
        struct, parts = _split(adjacency, 1)
        y = x.new_empty(adjacency.batch.num_nodes, h_out)
        _call(
            "flex_conv_forward",
            *(struct, parts, _threads(), x, x.stride(0), int(packed)),
            *(order, h_in, h_out, int(relu), weight, bias, y),
        )
        ctx.save_for_backward(x, weight, y if relu else None)
        ctx.adjacency, ctx.packed, ctx.has_bias = adjacency, packed, bias is not None
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        x, weight, y = ctx.saved_tensors
        order, h_in, h_out = weight.shape
        needs_dx, _, needs_db = ctx.needs_input_grad[:3]
        struct, parts = _split(ctx.adjacency, 4 * weight.numel())
        dx = torch.empty_like(x) if needs_dx else None
        dw = torch.empty_like(weight)
        db = weight.new_empty(h_out) if ctx.has_bias and needs_db else None
        _call(
            "flex_conv_backward",
            *(struct, parts, _threads(), x, x.stride(0), int(ctx.packed)),
            *(order, h_in, h_out, int(y is not None), weight, y),
            *(grad.contiguous(), dx, dw, db),
        )
        return dx, dw, db, None, None, None


def flex_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    adjacency: Adjacency,
    relu: bool,
    packed: bool = False,
) -> Tensor:
    """Y = act(Σ_{k<κ} Â^k X W_k + b), [n, h_out], differentiable once in x, weight and bias.

    Args:
        x: X, [n, h_in]; with `packed`, [N, h_in] for all nodes of the dataset, without gradient.
        weight: [κ, h_in, h_out].  bias: [h_out] or None.
        adjacency: of a batch that `takes` says yes to.
        relu: act is a ReLU instead of the identity.
    """
    return _FlexConv.apply(x, weight, bias, adjacency, relu, packed)


def cached_hops_pay(weight: Tensor, graphs: "FlatGraphs") -> bool:
    """Whether a first layer on constant features is faster as one product with the dataset's cached
    [X, ÂX, …] than with its hops; its weights are [κ, h_in, h_out]."""
    kernels = library()
    assert kernels is not None
    return bool(kernels.cached_hops_pay(*map(_number, (_degree(graphs), *weight.shape))))


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
        ("depth", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("layers", "x")),
        *((name, ctypes.c_int64) for name in ("ldx", "packed")),
        ("code", ctypes.c_void_p),
        ("kinds", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("dx", "weight")),
        *((name, ctypes.c_int64) for name in ("order", "nodes")),
        *((name, ctypes.c_void_p) for name in ("out", "grad", "label", "seconds")),
    )


class Layer(NamedTuple):
    """A layer, dropout(relu(norm(Σ_k Â^k X W_k + b)), p); the last of a network for nodes is
    without what follows the sum. The norm is a `BatchNorm1d` with learned scale and shift and
    running averages, or None."""

    weight: Tensor
    bias: Tensor | None
    norm: nn.BatchNorm1d | None = None
    p: float = 0.0

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """What is learned of it: W, b, γ and β."""
        affine = (None, None) if self.norm is None else (self.norm.weight, self.norm.bias)
        return self.weight, self.bias, *affine


class Network(NamedTuple):
    """What the kernels compute in one go for a batch.

    Args:
        layers: the hidden ones; and where nothing is pooled, the last, for every node.
        source: what the rows of the first layer's input are: the batch's nodes ("batch",
            [n, h_in]), the dataset's ("dataset", [N, h_in], constant), or its kinds of nodes
            ("kinds", see `PackedGraphs.kinds`).
        adjacency: of a batch that `takes` says yes to.
        pool_weights: [κ, N] (`PackedGraphs.pool_weights`), to pool what the last hidden layer
            gives, [Σ_i p_0i x_i, …, Σ_i p_(κ-1)i x_i] over the nodes i of each graph; or None.
    """

    layers: Sequence[Layer]
    source: str
    adjacency: BatchAdjacency
    pool_weights: Tensor | None

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
        kinds = self.adjacency.batch.graphs.kinds if self.source == "kinds" else None
        order, nodes = (0, 0) if self.pool_weights is None else self.pool_weights.shape
        array = (_Layer * len(layers))(*layers)
        out = _NetworkStruct(
            depth=self.depth,
            layers=ctypes.cast(array, ctypes.c_void_p),
            x=_pointer(x),
            ldx=x.stride(0),
            packed=self.source == "dataset",
            code=None if kinds is None else _pointer(kinds[1]),
            kinds=x.shape[0],
            weight=_pointer(self.pool_weights),
            order=order,
            nodes=nodes,
            **{name: _pointer(tensor) for name, tensor in pointers.items()},
        )
        out.kept = array  # a pointer to it does not keep it
        return out


def _layer(layer: Layer, tensors: Sequence[Tensor | None]) -> _Layer:
    weight = tensors[0]
    assert weight is not None
    running: tuple[Tensor | None, ...] = (None, None)
    rates = (0.0, 0.0)
    if layer.norm is not None:
        running = (layer.norm.running_mean, layer.norm.running_var)
        rates = (layer.norm.eps, layer.norm.momentum or 0.0)
    return _Layer(*weight.shape, *map(_pointer, (*tensors, *running)), *rates)


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
    tensors = [[t if t is None else t.contiguous() for t in layer.tensors] for layer in net.layers]
    layers = [_layer(layer, mine) for layer, mine in zip(net.layers, tensors, strict=True)]
    struct, parts = _split(net.adjacency, 1)
    call = net.struct(layers, x, out=out, label=labels)
    _call("network_evaluate", struct, parts, _threads(), ctypes.byref(call))
    return out


class _Train(torch.autograd.Function):
    """A network in training; its inputs are x and the four tensors of each layer."""

    @staticmethod
    def forward(ctx, net, x, *tensors):  # type: ignore[no-untyped-def]
        tensors = [None if t is None else t.contiguous() for t in tensors]
        seed = 0
        if any(layer.p for layer in net.layers):
            # One number from torch's generator seeds the masks: reproducible, and resumed with it.
            seed = int(torch.randint(2**62, ()))
        rows = net.adjacency.num_nodes
        widths = [layer.weight.shape[2] for layer in net.layers[: net.depth]]
        kept = x.new_empty(sum(rows * width + 4 * _padded(width) for width in widths))
        place, layers = kept.data_ptr(), []
        for k, layer in enumerate(net.layers):
            made = _layer(layer, tensors[4 * k : 4 * k + 4])
            made.level, made.keep = min(round(layer.p * 2**32), 2**32 - 1), 1 / (1 - layer.p)
            made.seed = (seed + k * 0x9E3779B97F4A7C15) % 2**64
            if k < net.depth:
                made.y, made.state = place, place + 4 * rows * widths[k]
                place += 4 * (rows * widths[k] + 4 * _padded(widths[k]))
            layers.append(made)
        out = net.new_output(x)
        struct, parts = _split(net.adjacency, 1)
        ctx.call = net.struct(layers, x, out=out)
        _call("network_forward", struct, parts, _threads(), ctypes.byref(ctx.call))
        ctx.save_for_backward(x, kept, *tensors)  # the call points at them
        ctx.net = net
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        x, _, *tensors = ctx.saved_tensors
        grads = [None if t is None else torch.empty_like(t) for t in tensors]
        dx = torch.empty_like(x) if ctx.needs_input_grad[1] else None
        largest = max(layer.weight.numel() for layer in ctx.net.layers)
        struct, parts = _split(ctx.net.adjacency, 4 * largest)
        grad = grad.contiguous()
        ctx.call.dx, ctx.call.grad = _pointer(dx), _pointer(grad)
        for k, layer in enumerate(ctx.call.kept):
            pointers = map(_pointer, grads[4 * k : 4 * k + 4])
            layer.dw, layer.db, layer.dgamma, layer.dbeta = pointers
        _call("network_backward", struct, parts, _threads(), ctypes.byref(ctx.call))
        return None, dx, *grads


def train(net: Network, x: Tensor) -> Tensor:
    """The network in training, differentiable once in x and in what its layers learn.

    Batches have at least two nodes where there is a norm, whose running statistics move. Masks of
    dropout are a function of one number drawn from torch's generator, and are made again in the
    backward pass; p is exact to 2^-32. What is kept for that pass is each layer's output alone,
    before its norm. Args and result: as `evaluate`.
    """
    for layer in net.layers:
        if layer.norm is not None and layer.norm.num_batches_tracked is not None:
            layer.norm.num_batches_tracked.add_(1)
    return _Train.apply(net, x, *(t for layer in net.layers for t in layer.tensors))


def class_scores(pred: Tensor, y: Tensor, ptr: Tensor) -> Tensor:
    """‖softmax(f) − onehot(y)‖_F / n_i over the nodes of each graph that have a label, [B] float32.

    Args:
        pred: f, [n, C].
        y: [n] int64, below 0 where a label is missing.
        ptr: [B + 1] int64, the rows of each graph.
    """
    out = pred.new_empty(ptr.shape[0] - 1)
    args = (out.shape[0], _threads(), pred.shape[1], pred.contiguous(), out)
    _call("class_scores", ptr.contiguous(), y.contiguous(), *args)
    return out
