"""Which path each layer of a model takes on a batch, in words."""

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor

from ..adjacency import Adjacency
from ..batches import GraphBatch
from ..batches.edges import BatchAdjacency
from ..batches.loose import LooseGraphs
from ..errors import InputError
from ..ops import autocasts
from ..ops.dispatch import Choice, choose, is_fused, native_products, takes_kernels
from . import one_pass
from .conv import FlexConv
from .gcn import FlexGCN, as_graphs

_CACHED = "one product with the dataset's cached [X, ÂX, …]"


def explain(model: FlexGCN | FlexConv, *inputs: Any, **options: Any) -> list[str]:
    """One line per layer: its shape, what computes it, and why.

    It describes a call made here and now: with the model's modules in their current modes, with or
    without gradients, under autocast or not.

    Args:
        model: a `FlexGCN`, or one `FlexConv`.
        inputs, options: what the model is called with: a `GraphBatch`, or PyG's tensors.

    Raises:
        InputError: the model is of another kind, cannot be called with inputs of this form, or has
            a backend that cannot compute them (only a call checks widths, dtypes and devices).
    """
    if not isinstance(model, FlexGCN | FlexConv):
        inner = next((name for name in ("module", "_orig_mod") if hasattr(model, name)), None)
        hint = "" if inner is None else f": give model.{inner}"
        raise InputError(f"a {type(model).__name__} is not a FlexGCN or FlexConv{hint}")
    if isinstance(model, FlexConv):
        adjacency = model._propagation(model.weight, *inputs, **options)
        return [_line(0, model, _convolution(model, adjacency))]
    graphs = as_graphs(*inputs, **options)
    if isinstance(graphs, LooseGraphs):
        graphs = model._packed(graphs)
    convs = list(cast(Iterable[FlexConv], model.convs))
    source = _source_in_one_pass(model, graphs)
    paths = [_path(model, layer, conv, graphs, source) for layer, conv in enumerate(convs)]
    return [_line(layer, *both) for layer, both in enumerate(zip(convs, paths, strict=True))]


def _line(layer: int, conv: FlexConv, path: str) -> str:
    return f"layer {layer} ({conv.in_channels} → {conv.out_channels}, order {conv.order}): {path}"


def _source_in_one_pass(model: FlexGCN, graphs: GraphBatch | LooseGraphs) -> str | None:
    """Where the CPU kernels begin that compute the whole network; None where they do not."""
    if not isinstance(graphs, GraphBatch) or model._overrides("forward"):
        return None
    steps, _ = one_pass.planned(model, graphs)
    return None if steps is None else steps[1]


def _path(
    model: FlexGCN,
    layer: int,
    conv: FlexConv,
    graphs: GraphBatch | LooseGraphs,
    source: str | None,
) -> str:
    adjacency, last = graphs.adjacency(model.normalize), layer == len(model.norms)
    if model._is_called(layer) and source is None:
        return f"{_convolution(conv, adjacency)} (called as a module, because it has hooks)"
    if not last and (model._overrides("forward") or model._overrides("hidden")):
        return f"{_convolution(conv, adjacency)} (where the model's own forward pass calls it)"
    if last and model._pools_first(graphs):
        who = "CPU kernels"
        if source is None:
            who = "Triton" if takes_kernels(conv.weight, conv.backend) else "PyTorch"
        return f"pooled first, then one product per graph ({who})"
    if layer == 0 and source is None and not last and isinstance(graphs, GraphBatch):
        source, _ = model._first_reads(graphs, conv.weight, conv.backend)
        if source == "hops":
            native = _choice(conv, adjacency).who == "native"
            return f"{_CACHED} ({'CPU kernels' if native else 'PyTorch'})"
        return _convolution(conv, adjacency)
    if source is None:
        return _convolution(conv, adjacency)
    if layer == 0 and source == "hops":
        return f"{_CACHED} (CPU kernels)"
    return "CPU kernels: the whole network in one pass, each layer in cache"


def _choice(conv: FlexConv, adjacency: Adjacency) -> Choice:
    weight = _cast(conv.weight)  # has the device and dtype that the layer's input will have
    return choose(weight, weight, conv.bias, adjacency, conv.backend)


def _convolution(conv: FlexConv, adjacency: Adjacency) -> str:
    who, why = _choice(conv, adjacency)
    if who == "native":
        return "CPU kernels: hops, products and activation in cache"
    if who == "csr":
        return "Triton: products with BLAS, hops over CSR"
    if who != "tiles":
        natively = native_products(_cast(conv.weight), adjacency.num_nodes, conv.backend)
        by_kernels = f" ({' and '.join(natively)} by the CPU kernels)" if natively else ""
        return f"PyTorch{by_kernels}: {why}"
    tiles = cast(BatchAdjacency, adjacency).batch.tiles
    assert tiles is not None
    how = "" if is_fused(conv.weight) else "products with BLAS, hops of "
    small = tiles.graph.shape[0]
    large = sum(table.shape[1] for table in tiles.larger)
    rest = 0 if tiles.rest is None else tiles.rest.shape[0]
    parts = [
        f"{small} graphs in {tiles.tile.shape[0] - 1} tiles" if small else "",
        f"{large} larger graphs one by one" if large else "",
        f"{rest} with repeated edges or too large over CSR" if rest else "",
    ]
    return f"Triton: {how}" + (", ".join(filter(None, parts)) or "no nodes")


def _cast(weight: Tensor) -> Tensor:
    """The weights as a layer computes with them: under autocast in its dtype."""
    if not autocasts(weight) or weight.dtype == torch.float64:
        return weight
    return weight.to(torch.get_autocast_dtype(weight.device.type))
