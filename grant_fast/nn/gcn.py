"""Networks of flexible graph convolutions."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from .. import ops
from ..batches import GraphBatch
from ..batches.loose import LooseGraphs
from ..batches.padded import NodesAskedFor
from ..errors import InputError, whole_number, yes_or_no
from ..graphs.flat import FlatGraphs
from ..graphs.on_the_fly import packed
from ..ops.dispatch import check_backend, is_reference
from . import one_pass
from .checks import check_layers, check_pool, choose, embeds_kinds, is_hooked, per_layer
from .conv import FlexConv, check_precision
from .modules import ACTIVATIONS, ATOM_CARDINALITIES, NORMS, AtomEncoder, BatchNorm


class FlexGCN(nn.Module):
    """A flexible GCN (paper §4.1): L layers, each with its own order κ_ℓ, then pooling.

    Hidden layer: convolution → norm → activation → dropout. The last layer is a convolution to
    `out_channels`, pooled over each graph (or not, for node-level targets).

    Called with a `GraphBatch`, it takes the fast path: where it pays, a first layer on constant
    features reads [X, ÂX, …] from the dataset's cache and is one product; a last layer under a
    linear pooling is a κ-weighted sum over each graph and one product per *graph*. Called with
    PyG's tensors, it computes the same function without those caches; on a CPU the tensors are
    packed for the call. Either way, its layers, norms, activations and dropouts are not necessarily
    called one by one; a module that has hooks is.

    Args:
        in_channels: width of X, or of the encoder's output.
        hidden_channels: one width for every hidden layer, or a list of len(orders) - 1.
        out_channels: width of the output.
        orders: κ of each layer; one entry per layer.
        act: "relu", "elu", "gelu", "leaky_relu", "sigmoid", "silu", "tanh", a module, or None.
        norm: "batch_norm", "layer_norm" or None.
        dropout: probability after every hidden layer, or a list, one for each.
        pool: "mean", "sum", "max", or None for one output per node.
        normalize: propagate with D^{-1/2} A D^{-1/2} instead of A.
        bias: learn a bias in every convolution.
        encoder: a module applied to X first ("atom": an `AtomEncoder` of width `in_channels`).
        backend: as for `FlexConv`, for every convolution and for the pooled last layer. A first
            layer that is one product with cached features is computed by PyTorch under all of them,
            except under "auto" on a CPU, where the CPU kernels compute it (see
            `grant_fast.explain`).

    **Shapes:** X [n, F] → [num_graphs, out_channels], or [n, out_channels] where `pool` is None.

    Raises:
        InputError: a width, an order or a probability that is not valid, a list of another length
            than there are layers (or gaps between them), or an unknown name.
    """

    if TYPE_CHECKING:  # a module's own says nothing
        __call__: Callable[..., Tensor]

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
        orders = list(orders) if isinstance(orders, Iterable) else []
        if not orders:
            raise InputError(
                "orders must be a list: give one order for each layer, as orders=[3, 2]"
            )
        check_pool(pool)
        hidden = per_layer("hidden_channels", hidden_channels, len(orders) - 1)
        rates = per_layer("dropout", dropout, len(orders) - 1)
        if any(not 0 <= rate < 1 for rate in rates):
            raise InputError(f"dropout is {dropout}: a probability must lie in [0, 1)")
        counts = {"in_channels": [in_channels], "hidden_channels": hidden, "orders": orders}
        for name, values in counts.items():
            for value in values:
                whole_number(name, value)
        self.pool, self.normalize = pool, yes_or_no("normalize", normalize)
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
        """What computes the convolutions; setting it sets it for all of them."""
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
            x: a `GraphBatch`, or PyG's `Data` or `Batch`, alone (without what it has as edge_attr);
                or features [n, F] with the rest as in PyG.
            edge_index: as in `FlexConv.forward`.
            edge_weight: [E], floating point, or None; give `batch`, which comes after it, by name.
            batch: [n], the graph of every node; None for one graph.
            batch_size: number of graphs; needed if trailing graphs are empty; it also saves a host
                synchronisation.

        Raises:
            InputError: wrong shapes or dtypes, or (on the CPU) edges out of range.
        """
        graphs = as_graphs(x, edge_index, edge_weight, batch, batch_size)
        if isinstance(graphs, LooseGraphs) and self._conv(0).any_parameter.dtype == torch.float64:
            graphs.dtype = torch.float64
        if isinstance(graphs, GraphBatch) and torch.compiler.is_compiling():
            return self._layers_uncompiled(graphs)
        return self._layers(graphs)

    def _layers(self, batch: GraphBatch | LooseGraphs) -> Tensor:
        if not (isinstance(batch, GraphBatch) and one_pass.is_planned(self, batch)):
            self._check(batch)
        if isinstance(batch, LooseGraphs):
            batch = self._packed(batch)
        if isinstance(batch, GraphBatch) and (out := one_pass.run(self, batch)) is not None:
            if self.pool in ("mean", "sum"):
                return self._product(out, self._conv(-1).weight, batch)
            return self._pool(out, batch)
        hidden = self.hidden if self._overrides("hidden") else self._hidden_layers
        return self._last_layer(hidden(batch), batch)

    def _check(self, batch: GraphBatch | LooseGraphs) -> None:
        """Refuse layers or graphs that are no longer what they were made as, and a matrix Â that is
        less exact than the weights."""
        check_layers(self)
        if not isinstance(batch, GraphBatch):
            return
        batch.check_unchanged()
        check_precision(batch, self._conv(0).any_parameter, self.normalize)

    def _packed(self, batch: LooseGraphs) -> GraphBatch | LooseGraphs:
        first = self._conv(0)
        return packed(batch, first.any_parameter, self.pool is not None, first.backend)

    def _overrides(self, name: str) -> bool:
        """Whether a method of this name is not `FlexGCN`'s own."""
        # What is compiled has no vars() and no A | B as a type: torch 2.6 can compile neither.
        return getattr(type(self), name) is not getattr(FlexGCN, name) or name in self.__dict__

    # What a batch gathers and keeps has new sizes each time: a compiler would never be done.
    # (Torch's public decorator of this kind would import the compiler with the package.)
    _layers_uncompiled = torch._disable_dynamo(_layers)

    def _conv(self, layer: int) -> FlexConv:
        return cast(FlexConv, self.convs[layer])

    def hidden(self, batch: GraphBatch | LooseGraphs) -> Tensor:
        """What the last layer takes, [n, h], of a `GraphBatch` (or a model's own packed call).

        Raises:
            InputError: it is given something else, or graphs with other features.
        """
        if not isinstance(batch, (GraphBatch, LooseGraphs)):
            kind = type(batch).__name__
            raise InputError(f"hidden takes a GraphBatch of packed graphs, not a {kind}")
        self._check(batch)
        return self._hidden_layers(batch)

    def _hidden_layers(self, batch: GraphBatch | LooseGraphs) -> Tensor:
        h = None
        for layer in range(len(self.norms)):
            h = self._hidden_layer(layer, h, batch)
        return self._encode(batch) if h is None else h

    def _encode(self, batch: GraphBatch | LooseGraphs) -> Tensor:
        own = type(self.encoder) is AtomEncoder and "forward" not in self.encoder.__dict__
        if own and is_reference(self.backend):
            return cast(AtomEncoder, self.encoder)(batch.x, smooth=True)
        if (
            isinstance(batch, GraphBatch)
            and embeds_kinds(self.encoder)
            and batch.graphs.kinds is not None
            and batch.node_count is None  # else there is padding, for which no row is to be made
        ):  # a few hundred kinds of atoms: embed them, then copy
            rows = self.encoder.of_kinds(batch.graphs, self.backend)
            return ops.embed(rows, batch, self.backend)
        if self.encoder is not None:
            return self.encoder(batch.x)
        x = batch.x
        if x.is_floating_point() or x.is_complex():  # the latter for the layer to refuse
            return x
        if x.shape[1:] == (len(ATOM_CARDINALITIES),) != (self._conv(0).in_channels,):
            raise InputError(
                f"x holds {x.shape[1]} columns of integers, and this network takes "
                f'{self._conv(0).in_channels}: if they are OGB\'s of atoms, give it encoder="atom"'
            )
        return x.to(self._conv(0).any_parameter.dtype)

    def _hidden_layer(
        self, layer: int, h: Tensor | None, batch: GraphBatch | LooseGraphs
    ) -> Tensor:
        """Convolution → norm → activation → dropout; the first layer has no h, but X."""
        conv, norm = self._conv(layer), self.norms[layer]
        if self._is_called(layer):
            return self._called_layer(layer, h, batch)
        weight: Tensor = conv.weight
        bias: Tensor | None = conv.bias
        ours = type(norm) is BatchNorm
        folded = ours and not norm.training and cast(BatchNorm, norm).is_affine_map
        if folded:  # an affine map of the convolution: one pass over the nodes less
            weight, bias = cast(BatchNorm, norm).folded_into(weight, bias)
        dropout = self.dropouts[layer]
        known = type(dropout) is nn.Dropout and not is_hooked(dropout)
        rate = cast(nn.Dropout, dropout).p if known and dropout.training else 0.0
        drops = rate > 0 or not known
        rectified = type(self.act) is nn.ReLU and not is_hooked(self.act)
        plain = folded or type(norm) is nn.Identity
        relu = plain and rectified and not drops
        y = self._convolved(h, batch, weight, bias, relu, conv.backend)
        if relu:
            return y
        # A layer's backward never needs its own output, nor does that of these norms.
        own = rectified and (plain or ours or type(norm) is nn.LayerNorm)
        act = F.relu_ if own else self.act
        if plain:
            return dropout(act(y))
        if ours:
            drop = rate if rectified and rate < 1 else 0.0
            settings = rectified, conv.backend, batch.node_count, drop
            normed = cast(BatchNorm, norm).by_kernels(y, *settings)
            if normed is not None:
                out = normed if rectified else self.act(normed)
                return out if drop else dropout(out)
        if batch.node_count is not None:
            raise NodesAskedFor("a recorded step has norms that only the kernels compute")
        return dropout(act(norm(y)))

    def _convolved(
        self,
        h: Tensor | None,
        batch: GraphBatch | LooseGraphs,
        weight: Tensor,
        bias: Tensor | None,
        relu: bool,
        backend: str | None,
    ) -> Tensor:
        """Σ Â^k h W_k + b, and its ReLU if asked; of X, the features of the graphs, without h."""
        if h is None and isinstance(batch, GraphBatch):
            source, encode = self._first_reads(batch, weight, backend)
            if source != "batch":
                return ops.first_flex_conv(
                    source, batch, weight, bias, self.normalize, relu, backend, encode
                )
        x = self._encode(batch) if h is None else h
        return ops.flex_conv(
            x, weight, bias, batch.adjacency(self.normalize), relu=relu, backend=backend
        )

    def _first_reads(
        self, batch: GraphBatch, weight: Tensor, backend: str | None
    ) -> tuple[ops.Source, Callable[[FlatGraphs], Tensor] | None]:
        """What the first layer reads, see `ops.reads`, and what embeds the kinds of nodes."""
        encoder = self.encoder
        if encoder is not None and not embeds_kinds(encoder):
            return "batch", None
        encode = None if encoder is None else partial(encoder.of_kinds, backend=backend)
        return ops.reads(weight, batch, self.normalize, backend, encode), encode

    def _is_called(self, layer: int) -> bool:
        """Whether the modules of a layer are called one by one: for hooks, which are to see it."""
        hidden = layer < len(self.norms)
        return is_hooked(self._conv(layer)) or (hidden and is_hooked(self.norms[layer]))

    def _pools_first(self, batch: GraphBatch | LooseGraphs) -> bool:
        """Whether the last layer is ρ(Σ_k Â^k X W_k) = Σ_k (ρÂ^k) X W_k: one product per graph."""
        linear = self.pool in ("mean", "sum") and isinstance(batch, GraphBatch)
        return linear and not self._is_called(len(self.norms))

    def _called_layer(
        self, layer: int, h: Tensor | None, batch: GraphBatch | LooseGraphs
    ) -> Tensor:
        """`_hidden_layer` module by module, for hooks; what they were shown is not written over."""
        x = self._encode(batch) if h is None else h
        y = self.norms[layer](self._conv(layer)(x, batch.adjacency(self.normalize)))
        in_place = type(self.act) is nn.ReLU and not is_hooked(self.act)
        return self.dropouts[layer](F.relu(y) if in_place else self.act(y))

    def _last_layer(self, h: Tensor, batch: GraphBatch | LooseGraphs) -> Tensor:
        conv, mean = self._conv(-1), self.pool == "mean"
        if self._pools_first(batch):
            assert isinstance(batch, GraphBatch)
            weight = conv.weight
            ops.check_features(h, weight)
            pooled = ops.readout(h, batch, conv.order, self.normalize, mean, conv.backend)
            return self._product(pooled, weight, batch)
        return self._pool(conv(h, batch.adjacency(self.normalize)), batch)

    def _pool(self, out: Tensor, batch: GraphBatch | LooseGraphs) -> Tensor:
        """The network's output, from the last layer's, [n, out_channels]."""
        if self.pool is None:
            return out
        if self.pool == "max":
            index = batch.batch[:, None].expand_as(out)
            zeros = out.new_zeros(batch.num_graphs, out.shape[1])
            return zeros.scatter_reduce(0, index, out, "amax", include_self=False)
        return ops.spmm(out, batch.pooling(self.pool == "mean"), self._conv(-1).backend)

    def _product(self, pooled: Tensor, weight: Tensor, batch: GraphBatch) -> Tensor:
        """The network's output: what was pooled for the last layer, [B, κh], times its weights."""
        flat, bias = weight.flatten(0, 1).T, self._conv(-1).bias
        if bias is None or (self.pool == "mean" and batch.graphs.min_nodes):
            return F.linear(pooled, flat, bias)
        out = F.linear(pooled, flat)
        count = batch.sizes.clamp(max=1) if self.pool == "mean" else batch.sizes
        return torch.addcmul(out, count[:, None].to(out.dtype), bias.to(out.dtype))


def is_plain(model: object) -> TypeGuard[FlexGCN]:
    """Whether calling `model` runs `FlexGCN.forward` and nothing beside: no hooks, no subclass."""
    return type(model) is FlexGCN and not is_hooked(model)


def as_graphs(
    x: Tensor | GraphBatch,
    edge_index: Any = None,
    edge_weight: Tensor | None = None,
    batch: Tensor | None = None,
    batch_size: int | None = None,
) -> GraphBatch | LooseGraphs:
    """The graphs that a model was called with; arguments and errors as `FlexGCN.forward`."""
    if isinstance(x, (FlatGraphs, Dataset)):  # PyG's have an edge_index, of all graphs unshifted
        whose = (
            "graphs.batch(slice(None))" if isinstance(x, FlatGraphs) else "those of a DataLoader"
        )
        kind = type(x).__name__
        raise InputError(f"a {kind} is a whole data set: give batches of it, as {whose}")
    if isinstance(x, GraphBatch) or hasattr(x, "edge_index"):
        if not (edge_index is edge_weight is batch is batch_size is None):
            kind = type(x).__name__
            raise InputError(f"give a {kind} alone: it has its own edges, weights and batch vector")
        return x if isinstance(x, GraphBatch) else _graphs_of_pyg(x)
    if edge_index is None:
        if hasattr(x, "to_homogeneous"):
            raise InputError(f"a {type(x).__name__} has several types: give x.to_homogeneous()")
        raise InputError("give a batch of graphs alone, or x and edge_index")
    return LooseGraphs(x, edge_index, edge_weight, batch, batch_size)


def _graphs_of_pyg(data: Any) -> LooseGraphs:
    """The graphs of a PyG `Data` or `Batch`."""
    names = ("x", "edge_index", "adj_t", "edge_weight", "batch")
    x, edges, transposed, weight, batch = (getattr(data, name, None) for name in names)
    edges = transposed if edges is None else edges
    if x is None or edges is None:
        missing = "x" if x is None else "edge_index"
        raise InputError(f"the {type(data).__name__} has no {missing}: give it one")
    size = None if batch is None else getattr(data, "num_graphs", None)
    return LooseGraphs(x, edges, weight, batch, size)
