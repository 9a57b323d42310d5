"""Flexible graph convolutions as ordinary modules."""

from collections.abc import Callable, Sequence
from functools import partial
from numbers import Integral
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import native, ops
from .adjacency import Adjacency
from .batch import GraphBatch
from .batch_edges import BatchAdjacency
from .dispatch import check_backend
from .errors import InputError
from .loose import LooseGraphs

#: Categories in each of OGB's nine atom columns (`ogb.utils.features.get_atom_feature_dims`).
ATOM_CARDINALITIES = (119, 5, 12, 12, 10, 6, 6, 2, 2)


class BatchNorm(nn.BatchNorm1d):
    """`nn.BatchNorm1d` that takes a batch of one node or none, of which there is no deviation.

    Such a batch is normalised with the running statistics and leaves them as they are.
    """

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.shape[0] < 2:
            stats = (self.running_mean, self.running_var)
            return F.batch_norm(x, *stats, self.weight, self.bias, eps=self.eps)
        return super().forward(x)

    def folded_into(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """Weights [κ, h_in, h] and bias [h] of a convolution with this norm behind it."""
        assert self.running_mean is not None and self.running_var is not None
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        shift = self.bias - scale * self.running_mean
        return weight * scale, shift if bias is None else torch.addcmul(shift, scale, bias)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": partial(nn.ReLU, inplace=True),  # a layer's backward never needs its own output
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "leaky_relu": nn.LeakyReLU,
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch_norm": BatchNorm,
    "layer_norm": nn.LayerNorm,
}


class FlexConv(nn.Module):
    r"""One flexible graph convolution (paper §4.1, the layer before its activation).

    .. math:: Y = \sum_{k=0}^{\kappa-1} \hat A^k X W_k + b

    with :math:`\hat A = D^{-1/2} A D^{-1/2}` (D the weighted in-degree, no self loops added) where
    `normalize`, else :math:`\hat A = A`. It is PyG's `TAGConv` with `K = order - 1`, and keeps one
    copy of X for the backward pass instead of κ.

    Args:
        in_channels: width of X.
        out_channels: width of Y.
        order: κ, the number of terms; 1 is a linear layer on the nodes.
        normalize: use :math:`\hat A` instead of A.
        bias: learn b.
        backend: who computes it: "triton" (our kernels), "torch", or "auto", see
            `grant_fast.explain`. None: what the environment variable GRANT_FAST_BACKEND says,
            "auto" where that is not set. The result means the same, and no saved weights depend
            on it; the attribute may be set anew at any time.

    **Shapes:** input [n, in_channels], output [n, out_channels]; `weight`
    [order, in_channels, out_channels], `bias` [out_channels].
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        order: int = 4,
        normalize: bool = True,
        bias: bool = True,
        backend: str | None = None,
    ) -> None:
        super().__init__()
        for name, value in (
            ("in_channels", in_channels),
            ("out_channels", out_channels),
            ("order", order),
        ):
            check_positive(name, value)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.order, self.normalize = order, normalize
        self.backend = check_backend(backend)
        self.weight = nn.Parameter(torch.empty(order, in_channels, out_channels))
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """U(-1/√fan_in, 1/√fan_in) with fan_in = κ·in_channels, as `nn.Linear` on [X, ÂX, …]."""
        bound = (self.order * self.in_channels) ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        """Y, [n, out_channels].

        Args:
            x: [n, in_channels].
            edge_index: [2, E] (source → target), a PyG `EdgeIndex`, the transposed adjacency as a
                torch sparse tensor or `torch_sparse.SparseTensor`, or a ready `Adjacency`, which
                is taken as it is (already normalised or not).
            edge_weight: [E], may require gradients; None is 1 everywhere.

        Raises:
            InputError: wrong shapes or dtypes, (on the CPU) edges out of range, or a backend that
                cannot compute this, and why not.
        """
        if not isinstance(edge_index, Adjacency):
            structure = LooseGraphs(x, edge_index, edge_weight, None, None)
            edge_index = structure.adjacency(self.normalize)
        return ops.flex_conv(x, self.weight, self.bias, edge_index, backend=self.backend)

    def flat_weight(self) -> Tensor:
        """The weights as the paper stacks them, [κ · in_channels, out_channels]."""
        return self.weight.flatten(0, 1)

    @classmethod
    def from_tag_conv(cls, conv: nn.Module) -> "FlexConv":
        """A layer with the weights of a PyG `TAGConv`, equal to it in value and gradients.

        Raises:
            InputError: `conv` is not a `TAGConv`.
        """
        if not hasattr(conv, "lins") or not hasattr(conv, "normalize"):
            raise InputError(f"from_tag_conv takes a PyG TAGConv, not a {type(conv).__name__}")
        lins: Sequence[nn.Linear] = conv.lins  # type: ignore[assignment]
        bias: Tensor | None = conv.bias  # type: ignore[assignment]
        out = cls(
            lins[0].weight.shape[1],
            lins[0].weight.shape[0],
            order=len(lins),
            normalize=bool(conv.normalize),
            bias=bias is not None,
        ).to(lins[0].weight)
        with torch.no_grad():
            out.weight.copy_(torch.stack([lin.weight.T for lin in lins]))
            if out.bias is not None and bias is not None:
                out.bias.copy_(bias)
        return out

    def extra_repr(self) -> str:
        chosen = "" if self.backend is None else f", backend={self.backend!r}"
        return (
            f"{self.in_channels}, {self.out_channels}, order={self.order}, "
            f"normalize={self.normalize}, bias={self.bias is not None}{chosen}"
        )


class AtomEncoder(nn.Module):
    """The sum of one learned vector a categorical column, as OGB's atom encoder.

    Args:
        out_channels: width of the vectors.
        cardinalities: categories in each column; OGB's nine atom columns by default.

    **Shapes:** input [n, len(cardinalities)] integers, output [n, out_channels]; `weight`
    [sum(cardinalities), out_channels], the columns' tables one under another.
    """

    offset: Tensor

    def __init__(
        self, out_channels: int, cardinalities: Sequence[int] = ATOM_CARDINALITIES
    ) -> None:
        super().__init__()
        check_positive("out_channels", out_channels)
        self.out_channels, self.cardinalities = out_channels, tuple(cardinalities)
        self.weight = nn.Parameter(torch.empty(sum(self.cardinalities), out_channels))
        starts = torch.tensor((0, *self.cardinalities)).cumsum(0)[:-1]
        self.register_buffer("offset", starts, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier-uniform in each column's own table."""
        for table in self.weight.split(self.cardinalities):
            nn.init.xavier_uniform_(table)

    def forward(self, x: Tensor) -> Tensor:
        """[n, out_channels]; raises InputError on a wrong width or, on the CPU, category."""
        if x.dim() != 2 or x.shape[1] != len(self.cardinalities) or x.is_floating_point():
            raise InputError(
                f"the encoder takes integers [num_nodes, {len(self.cardinalities)}], "
                f"not {x.dtype} of shape {tuple(x.shape)}"
            )
        if x.device.type == "cpu" and not torch.compiler.is_compiling() and x.numel():
            self._check_categories(x)
        return F.embedding_bag(x.long() + self.offset, self.weight, mode="sum")

    def _check_categories(self, x: Tensor) -> None:
        low, high = x.amin(0).tolist(), x.amax(0).tolist()
        for column, size in enumerate(self.cardinalities):
            if low[column] < 0 or high[column] >= size:
                wrong = low[column] if low[column] < 0 else high[column]
                raise InputError(
                    f"x holds category {wrong} in column {column}, which has 0 to {size - 1}"
                )

    def extra_repr(self) -> str:
        return f"{self.out_channels}, columns={len(self.cardinalities)}"


class FlexGCN(nn.Module):
    """A flexible GCN (paper §4.1): L layers of their own orders κ_ℓ, then pooling.

    Hidden layer: convolution → norm → activation → dropout. The last layer is a convolution to
    `out_channels`, pooled over each graph (or not, for node-level targets).

    Called with a `GraphBatch` it takes the fast lane: a first layer on constant features reads
    [X, ÂX, …] from the dataset's cache and is one product; a last layer under a linear pooling is
    a κ-weighted sum over each graph and one product per *graph*. Called with PyG's tensors it
    computes the same function without those caches.

    Args:
        in_channels: width of X, or of the encoder's output.
        hidden_channels: one width for every hidden layer, or a list of len(orders) - 1.
        out_channels: width of the output.
        orders: κ of each layer; their number is the number of layers.
        act: "relu", "elu", "gelu", "leaky_relu", "sigmoid", "silu", "tanh", a module, or None.
        norm: "batch_norm", "layer_norm" or None.
        dropout: probability after every hidden layer, or a list, one for each.
        pool: "mean", "sum", "max", or None for one output a node.
        normalize: propagate with D^{-1/2} A D^{-1/2} instead of A.
        bias: learn a bias in every convolution.
        encoder: a module applied to X first ("atom": an `AtomEncoder` of width `in_channels`).
        backend: as for `FlexConv`, of every convolution and of the pooled last layer. A first
            layer that is one product with cached features is PyTorch's whatever is chosen.

    **Shapes:** X [n, F] → [num_graphs, out_channels], or [n, out_channels] where `pool` is None.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int | Sequence[int],
        out_channels: int,
        orders: Sequence[int] = (4, 3, 2, 2),
        act: str | nn.Module | None = "relu",
        norm: str | None = None,
        dropout: float | Sequence[float] = 0.0,
        pool: str | None = "mean",
        normalize: bool = True,
        bias: bool = True,
        encoder: nn.Module | str | None = None,
        backend: str | None = None,
    ) -> None:
        super().__init__()
        if isinstance(orders, int) or not orders:
            raise InputError(
                "orders must be a list: give one order for each layer, as orders=[3, 2]"
            )
        if pool not in ("mean", "sum", "max", None):
            raise InputError(f"unknown pool {pool!r}: choose 'mean', 'sum', 'max' or None")
        hidden = per_layer("hidden_channels", hidden_channels, len(orders) - 1)
        rates = per_layer("dropout", dropout, len(orders) - 1)
        if any(not 0 <= rate < 1 for rate in rates):
            raise InputError(f"dropout is {dropout}: a probability lies in [0, 1)")
        self.pool, self.normalize = pool, normalize
        if encoder == "atom":
            encoder = AtomEncoder(in_channels)
        if not isinstance(encoder, nn.Module | None):
            raise InputError(f"unknown encoder {encoder!r}: choose 'atom', a module or None")
        self.encoder: nn.Module | None = encoder
        widths = [in_channels, *hidden, out_channels]
        self.convs = nn.ModuleList(
            FlexConv(a, b, order=order, normalize=normalize, bias=bias, backend=backend)
            for a, b, order in zip(widths, widths[1:], orders, strict=False)
        )
        self.norms = nn.ModuleList(choose("norm", norm, NORMS)(width) for width in hidden)
        self.act = act if isinstance(act, nn.Module) else choose("act", act, ACTIVATIONS)()
        self.dropouts = nn.ModuleList(nn.Dropout(rate) for rate in rates)

    @property
    def backend(self) -> str | None:
        """Who computes the convolutions; setting it sets it for all of them."""
        return self._conv(0).backend

    @backend.setter
    def backend(self, backend: str | None) -> None:
        for layer in range(len(self.convs)):
            self._conv(layer).backend = check_backend(backend)

    def reset_parameters(self) -> None:
        """Draw every parameter anew."""
        for module in self.modules():
            reset = getattr(module, "reset_parameters", None)
            if module is not self and reset is not None:
                reset()

    def forward(
        self,
        x: Tensor | GraphBatch,
        edge_index: Any = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
        batch_size: int | None = None,
    ) -> Tensor:
        """Predictions for a batch of graphs.

        Args:
            x: a `GraphBatch`, alone; or features [n, F] with the rest as in PyG.
            edge_index: as in `FlexConv.forward`.
            edge_weight: [E] or None.
            batch: [n], the graph of every node; None for one graph.
            batch_size: number of graphs; needed where trailing graphs are empty, and it saves a
                host synchronisation.

        Raises:
            InputError: wrong shapes or dtypes, or (on the CPU) edges out of range.
        """
        graphs = as_graphs(x, edge_index, edge_weight, batch, batch_size)
        if isinstance(graphs, GraphBatch) and torch.compiler.is_compiling():
            return self._layers_uncompiled(graphs)
        return self._layers(graphs)

    def _layers(self, graphs: GraphBatch | LooseGraphs) -> Tensor:
        if isinstance(graphs, GraphBatch):
            out = self._in_one_pass(graphs)
            if out is not None:
                return out
        h = None
        for layer in range(len(self.norms)):
            h = self._hidden_layer(layer, h, graphs)
        return self._last_layer(self._encode(graphs) if h is None else h, graphs)

    # What a batch gathers and keeps has new sizes each time: a compiler would never be done.
    # (Torch's public decorator of this kind would import the compiler with the package.)
    _layers_uncompiled = torch._disable_dynamo(_layers)

    def class_scores(self, graphs: GraphBatch, num_classes: int) -> Tensor | None:
        """‖softmax(f) − onehot(y)‖_F / n_i of each graph, [B] float32, of a network for nodes.

        y are the int64 classes of the nodes, in range, below 0 where missing. One pass of the
        compiled kernels, in evaluation mode without gradients; None where they cannot.
        """
        if self.pool is not None or self._is_training() or torch.is_grad_enabled():
            return None
        found = self._network(graphs)
        if found is None or found[0].layers[-1].weight.shape[2] != num_classes:
            return None
        return native.evaluate(*found, labels=graphs.graphs.y)

    def _is_training(self) -> bool:
        return any(module.training for module in (*self.norms, *self.dropouts))

    def _in_one_pass(self, graphs: GraphBatch) -> Tensor | None:
        """The whole network by the compiled kernels; None where they cannot."""
        found = self._network(graphs)
        if found is None:
            return None
        network, x = found
        if not torch.is_grad_enabled() and not self._is_training():
            out = native.evaluate(network, x)
        elif all(norm.training or isinstance(norm, nn.Identity) for norm in self.norms):
            if any(layer.norm for layer in network.layers) and graphs.num_nodes < 2:
                return None
            out = native.train(network, x)
        else:  # a norm that stands still is folded into its layer, layer by layer
            return None
        if self.pool == "max":
            return self._largest(out, graphs)
        return out if self.pool is None else self._pooled(out, graphs)

    def _network(self, graphs: GraphBatch) -> tuple[native.Network, Tensor] | None:
        """This network as the compiled kernels take it, and its input; None where they do not."""
        adjacency = graphs.adjacency(self.normalize)
        if not self.norms or not isinstance(self.act, nn.ReLU):
            return None
        if not isinstance(adjacency, BatchAdjacency):
            return None
        if not ops.takes_network(self._conv(0).weight, adjacency, self.backend):
            return None
        layers = []
        for module, norm, dropout in zip(self.convs, self.norms, self.dropouts, strict=False):
            conv, found = cast(FlexConv, module), norm if type(norm) is BatchNorm else None
            if found is None and not isinstance(norm, nn.Identity):
                return None
            if found is not None and (
                found.momentum is None or not (found.affine and found.track_running_stats)
            ):
                return None
            p = cast(nn.Dropout, dropout).p if dropout.training else 0.0
            layers.append(native.Layer(conv.weight, conv.bias, found, p))
        x, source = self._source(graphs)
        if source == "hops":
            layers[0] = layers[0]._replace(weight=layers[0].weight.flatten(0, 1)[None])
            source = "dataset"
        if x.dtype != torch.float32 or x.shape[1] != layers[0].weight.shape[1]:
            return None
        last, weights = self._conv(-1), None
        if self.pool in ("mean", "sum"):
            weights = graphs.graphs.pool_weights(last.order, self.normalize, self.pool == "mean")
        else:
            layers.append(native.Layer(last.weight, last.bias))
        tensors = (t for layer in layers for t in layer.tensors if t is not None)
        if any(t.dtype != torch.float32 or t.device.type != "cpu" for t in tensors):
            return None
        return native.Network(layers, source, adjacency, weights), x

    def _source(self, graphs: GraphBatch) -> tuple[Tensor, str]:
        """The first layer's input, and what its rows are: `native.Network.source`, or "hops"."""
        kinds, first = graphs.graphs.kinds, self._conv(0)
        if isinstance(self.encoder, AtomEncoder) and kinds is not None:
            return self.encoder(kinds[0]), "kinds"
        x = graphs.graphs.x
        constant = x.dtype == torch.float32 and x.stride(1) == 1 and not x.requires_grad
        if self.encoder is None and constant:
            if native.cached_hops_pay(first.weight, graphs.graphs):
                hops = graphs.graphs.hops(first.order, self.normalize)
                if hops is not None:
                    return hops, "hops"
            return x, "dataset"
        return self._encode(graphs).contiguous(), "batch"

    def _conv(self, layer: int) -> FlexConv:
        return cast(FlexConv, self.convs[layer])

    def _encode(self, graphs: GraphBatch | LooseGraphs) -> Tensor:
        if isinstance(self.encoder, AtomEncoder) and isinstance(graphs, GraphBatch):
            kinds = graphs.graphs.kinds
            if kinds is not None:  # a few hundred kinds of atoms: embed the kinds, then copy
                return ops.embed(self.encoder(kinds[0]), graphs)
        if self.encoder is not None:
            return self.encoder(graphs.x)
        x = graphs.x
        return x if x.is_floating_point() else x.to(self._conv(0).weight.dtype)

    def _hidden_layer(
        self, layer: int, h: Tensor | None, graphs: GraphBatch | LooseGraphs
    ) -> Tensor:
        """Convolution → norm → activation → dropout; the first layer has no h, but X."""
        conv, norm = self._conv(layer), self.norms[layer]
        weight: Tensor = conv.weight
        bias: Tensor | None = conv.bias
        folded = isinstance(norm, BatchNorm) and not norm.training
        if folded:  # an affine map of the convolution: one pass over the nodes less
            weight, bias = cast(BatchNorm, norm).folded_into(weight, bias)
        dropout = cast(nn.Dropout, self.dropouts[layer])
        p = dropout.p if dropout.training else 0.0
        rectified = isinstance(self.act, nn.ReLU)
        plain = folded or isinstance(norm, nn.Identity)
        relu = plain and rectified and not p
        y = None
        if h is None and isinstance(graphs, GraphBatch):
            how = (graphs, weight, bias, self.normalize, relu, conv.backend)
            if self.encoder is None:
                y = ops.hops_product(*how)
            elif isinstance(self.encoder, AtomEncoder):
                y = ops.embedded_flex_conv(self.encoder, *how)
        if y is None:
            x = self._encode(graphs) if h is None else h
            adjacency = graphs.adjacency(self.normalize)
            y = ops.flex_conv(x, weight, bias, adjacency, relu=relu, backend=conv.backend)
        return y if relu else dropout(self.act(y if plain else norm(y)))

    def _last_layer(self, h: Tensor, graphs: GraphBatch | LooseGraphs) -> Tensor:
        conv, mean = self._conv(-1), self.pool == "mean"
        if self.pool in ("mean", "sum") and isinstance(graphs, GraphBatch):
            # ρ(Σ_k Â^k X W_k) = Σ_k (ρÂ^k) X W_k: pool first, then one product per graph.
            pooled = ops.readout(h, graphs, conv.order, self.normalize, mean, conv.backend)
            return self._pooled(pooled, graphs)
        out = conv(h, graphs.adjacency(self.normalize))
        if self.pool is None:
            return out
        if self.pool == "max":
            return self._largest(out, graphs)
        return ops.spmm(out, graphs.pooling(mean))

    def _largest(self, out: Tensor, graphs: GraphBatch | LooseGraphs) -> Tensor:
        index = graphs.batch[:, None].expand_as(out)
        zeros = out.new_zeros(graphs.num_graphs, out.shape[1])
        return zeros.scatter_reduce(0, index, out, "amax", include_self=False)

    def _pooled(self, pooled: Tensor, graphs: GraphBatch) -> Tensor:
        """The last layer's product with what was pooled for it, [B, κh]."""
        conv = self._conv(-1)
        weight = conv.flat_weight().T
        if conv.bias is None or (self.pool == "mean" and graphs.graphs.min_nodes):
            return F.linear(pooled, weight, conv.bias)
        out = F.linear(pooled, weight)
        count = graphs.sizes.clamp(max=1) if self.pool == "mean" else graphs.sizes
        return torch.addcmul(out, count[:, None].to(out.dtype), conv.bias.to(out.dtype))


def as_graphs(
    x: Tensor | GraphBatch,
    edge_index: Any = None,
    edge_weight: Tensor | None = None,
    batch: Tensor | None = None,
    batch_size: int | None = None,
) -> GraphBatch | LooseGraphs:
    """What a model was called with, in one view; arguments and errors as `FlexGCN.forward`."""
    if isinstance(x, GraphBatch):
        return x
    if edge_index is None:
        raise InputError("give a GraphBatch, or x and edge_index")
    return LooseGraphs(x, edge_index, edge_weight, batch, batch_size)


def per_layer(name: str, value: Any, layers: int) -> list[Any]:
    """One value for each of `layers` hidden layers."""
    values = [value] * layers if isinstance(value, int | float) else list(value)
    if len(values) != layers:
        raise InputError(
            f"{name} has {len(values)} entries for {layers} hidden layers "
            "(one fewer than orders, whose last entry is the output layer's)"
        )
    return values


def choose(name: str, key: str | None, table: dict[str, Any]) -> Any:
    """The constructor that `table` holds for `key`; None is the identity."""
    if key is None:
        return nn.Identity
    if key not in table:
        raise InputError(f"unknown {name} {key!r}: choose one of {', '.join(table)}, or None")
    return table[key]


def check_positive(name: str, value: int) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise InputError(f"{name} is {value}: it must be a whole number of at least 1")
