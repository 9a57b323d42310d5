"""The compiled CPU kernels (`kernels/cpu.c`): how Python calls them, and their gradients.

They compute in float32 what `reference.py` defines, straight from the packed dataset: a batch is
its graphs' positions, and no edge is gathered. A machine that had no C compiler when this package
was installed does without them, and PyTorch's operators give the same results more slowly.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .adjacency import Adjacency
from .batch import GraphBatch
from .batch_edges import BatchAdjacency, DatasetEdges

#: A tile holds whole graphs: beyond this many nodes in one, it would no longer fit in the cache.
MAX_NODES = 4096
#: Rows of a part, the unit of work of a thread; and how many parts there are at most.
PART_ROWS, MAX_PARTS = 1024, 64
#: Every part adds up its own dW; all of them together stay below this.
PARTIAL_BYTES = 32 << 20

#: What `interface` of kernels/cpu.c must say.
INTERFACE = 1

#: The builds of `kernels/cpu.c`, by what torch says of this CPU; the baseline serves the others.
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
    stale = kernels is not None and getattr(kernels, "interface", lambda: 0)() != INTERFACE
    return None if stale else kernels


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


class _Graphs(ctypes.Structure):
    """`graphs` of kernels/cpu.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (*DatasetEdges._fields, "part")),
        ("count", ctypes.c_int64),
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


def _split(adjacency: BatchAdjacency, weight_bytes: int) -> tuple[Any, int]:
    """The batch's structure in `parts` parts for the threads, and how many those are."""
    batch = adjacency.batch
    limit = min(MAX_PARTS, batch.num_nodes // PART_ROWS, PARTIAL_BYTES // weight_bytes)
    parts = max(1, limit)
    made: dict[int, tuple[_Graphs, Tensor]] = adjacency.__dict__.setdefault("native", {})
    if parts not in made:
        edges = adjacency.in_dataset
        goals = np.arange(1, parts) * batch.num_nodes // parts
        inner = np.searchsorted(edges.ptr.numpy(), goals)
        part = torch.from_numpy(np.concatenate([[0], inner, [batch.num_graphs]]))
        struct = _Graphs(*(_pointer(tensor) for tensor in (*edges, part)), batch.num_graphs)
        made[parts] = struct, part  # the adjacency keeps all that the struct points at
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


class _NormReluDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, gamma, beta, norm, p):  # type: ignore[no-untyped-def]
        y = y.contiguous()
        n, h = y.shape
        level = min(round(p * 2**32), 2**32 - 1)
        # One number from torch's generator seeds the mask: reproducible, and resumed with it.
        seed = int(torch.randint(2**62, ())) if level else 0
        ctx.dropout = ctypes.c_uint64(seed), ctypes.c_uint32(level), ctypes.c_float(1 / (1 - p))
        state, out = y.new_empty(4, _padded(h)), torch.empty_like(y)
        running, rates = (None, None), (0.0, 0.0)
        if norm is not None:
            running, rates = (norm.running_mean, norm.running_var), (norm.eps, norm.momentum)
        _call(
            "norm_relu_dropout_forward",
            *(n, h, _threads(), y, gamma, beta, *map(ctypes.c_double, rates), *running),
            *(*ctx.dropout, state, out),
        )
        ctx.save_for_backward(y, state)
        ctx.has_norm = norm is not None
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        y, state = ctx.saved_tensors
        n, h = y.shape
        dy = torch.empty_like(y)
        dgamma, dbeta = y.new_empty(2, h) if ctx.has_norm else (None, None)
        _call(
            "norm_relu_dropout_backward",
            *(n, h, _threads(), y, grad.contiguous(), ctypes.c_int(ctx.has_norm), *ctx.dropout),
            *(state, dy, dgamma, dbeta),
        )
        return dy, dgamma, dbeta, None, None


def norm_relu_dropout(y: Tensor, norm: nn.BatchNorm1d | None, p: float) -> Tensor:
    """dropout(relu(norm(y)), p) in training, [n, h], n at least 2; updates the running statistics.

    The mask is a function of one number drawn from torch's generator, and is made again in the
    backward pass instead of being kept. p is exact to 2^-32.
    """
    if norm is None:
        return _NormReluDropout.apply(y, None, None, None, p)
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
    return _NormReluDropout.apply(y, norm.weight, norm.bias, norm, p)


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weights, batch):  # type: ignore[no-untyped-def]
        ctx.weights, ctx.batch = weights, batch
        out = x.new_empty(batch.num_graphs, weights.shape[0] * x.shape[1])
        _pool("pool_nodes", batch, weights, x.contiguous(), out, x.shape[1])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        width = grad.shape[1] // ctx.weights.shape[0]
        dx = grad.new_empty(ctx.batch.num_nodes, width)
        _pool("pool_nodes_backward", ctx.batch, ctx.weights, grad.contiguous(), dx, width)
        return dx, None, None


def _pool(name: str, batch: GraphBatch, weights: Tensor, x: Tensor, out: Tensor, h: int) -> None:
    order, nodes = weights.shape
    sizes = (batch.num_graphs, _threads(), order, h, nodes)
    _call(name, *batch.host_rows, *sizes, weights, x, out)


def pool_nodes(x: Tensor, weights: Tensor, batch: GraphBatch) -> Tensor:
    """[Σ_i p_0i x_i, …, Σ_i p_(κ-1)i x_i] over the nodes i of each graph, [B, κh].

    Args:
        x: [n, h].
        weights: p, [κ, N], for all nodes of the dataset (`PackedGraphs.pool_weights`).
        batch: the graphs.
    """
    return _Pool.apply(x, weights.contiguous(), batch)


class _Layer(ctypes.Structure):
    """`net_layer` of kernels/cpu.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("order", "h_in", "h_out", "relu")),
        *((name, ctypes.c_void_p) for name in ("w", "bias", "gamma", "beta", "mean", "var")),
        ("eps", ctypes.c_double),
    )


class Layer(NamedTuple):
    """A layer in evaluation mode, act(norm(Σ_k Â^k X W_k + b)); the norm is a `BatchNorm1d` or an
    identity."""

    weight: Tensor
    bias: Tensor | None
    norm: nn.Module
    relu: bool

    def struct(self) -> _Layer:
        norm, eps = self.norm, 0.0
        affine: tuple[Tensor | None, ...] = (None,) * 4
        if isinstance(norm, nn.BatchNorm1d):
            affine, eps = (norm.weight, norm.bias, norm.running_mean, norm.running_var), norm.eps
        tensors = (self.weight, self.bias, *affine)
        return _Layer(*self.weight.shape, self.relu, *(_pointer(t) for t in tensors), eps)


def network(
    layers: Sequence[Layer],
    x: Tensor,
    source: str,
    adjacency: Adjacency,
    pool_weights: Tensor | None,
) -> Tensor:
    """The layers of a network one after another, tile by tile: nothing between them is stored.

    Args:
        layers: contiguous float32 weights; without gradients.
        x: [n, h_in] ("batch"), [N, h_in] for the nodes of the dataset ("hops"), or one row for each
            kind of node ("kinds", see `PackedGraphs.kinds`).
        source: which of these `x` is.
        pool_weights: [κ, N], to pool the last layer's output with, as `pool_nodes` does.

    Returns:
        The last layer's output, [n, h], or where that is pooled, [B, κh].
    """
    assert isinstance(adjacency, BatchAdjacency)
    batch = adjacency.batch
    kinds = batch.graphs.kinds if source == "kinds" else None
    code = None if kinds is None else kinds[1]
    width = layers[-1].weight.shape[2]
    order, nodes = (0, 0) if pool_weights is None else pool_weights.shape
    out = x.new_empty(*((batch.num_graphs, order * width) if order else (batch.num_nodes, width)))
    structs = (_Layer * len(layers))(*(layer.struct() for layer in layers))
    struct, parts = _split(adjacency, 1)
    _call(
        "network_forward",
        *(struct, parts, _threads(), len(layers), structs, x, x.stride(0)),
        *(int(source == "hops"), code, pool_weights, order, nodes, out),
    )
    return out


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table, code, batch):  # type: ignore[no-untyped-def]
        table = table.contiguous()
        ctx.code, ctx.batch, ctx.size = code, batch, table.shape
        x = table.new_empty(batch.num_nodes, table.shape[1])
        _call("embed_nodes", *batch.host_rows, batch.num_graphs, code, table.shape[1], table, x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        table, batch = grad.new_zeros(ctx.size), ctx.batch
        args = (batch.num_graphs, ctx.code, ctx.size[1], grad.contiguous(), table)
        _call("embed_nodes_backward", *batch.host_rows, *args)
        return table, None, None


def embed_nodes(table: Tensor, code: Tensor, batch: GraphBatch) -> Tensor:
    """table[code] for the nodes of a batch, [n, h]; code is [N] int32, of the whole dataset."""
    return _Embed.apply(table, code, batch)


def class_scores(pred: Tensor, y: Tensor, ptr: Tensor, first: Tensor | None = None) -> Tensor:
    """‖softmax(f) − onehot(y)‖_F / n_i over the nodes of each graph that have a label, [B] float32.

    Args:
        pred: f, [n, C].
        y: [n] int64, below 0 where a label is missing; with `first`, [N], of the whole dataset.
        ptr: [B + 1] int64, the rows of each graph.
        first: [B] int64, its first node in the dataset.
    """
    out = pred.new_empty(ptr.shape[0] - 1)
    args = (out.shape[0], _threads(), pred.shape[1], pred.contiguous(), out)
    _call("class_scores", ptr.contiguous(), first, y.contiguous(), *args)
    return out
