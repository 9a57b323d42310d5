"""Which path each layer of a model takes on a batch, in words."""

from .batch import GraphBatch
from .dispatch import takes_kernels, why_not
from .nn import FlexConv, FlexGCN


def explain(model: FlexGCN, batch: GraphBatch) -> list[str]:
    """One line a layer: its shape, who computes it here, and why.

    Raises:
        InputError: the environment variable GRANT_FAST_BACKEND names a backend that cannot run.
    """
    lines = []
    last = len(model.convs) - 1
    for layer, conv in enumerate(model.convs):
        assert isinstance(conv, FlexConv)
        shape = f"{conv.in_channels} → {conv.out_channels}, order {conv.order}"
        if layer == last and model.pool in ("mean", "sum"):
            path = "pooled first, then one product a graph (PyTorch)"
        elif layer == 0 and model.encoder is None and _has_hops(model, batch, conv):
            path = "one product with the dataset's cached [X, ÂX, …] (PyTorch)"
        else:
            path = _convolution(model, batch, conv)
        lines.append(f"layer {layer} ({shape}): {path}")
    return lines


def _has_hops(model: FlexGCN, batch: GraphBatch, conv: FlexConv) -> bool:
    return batch.graphs.hops(conv.order, model.normalize) is not None


def _convolution(model: FlexGCN, batch: GraphBatch, conv: FlexConv) -> str:
    adjacency = batch.adjacency(model.normalize)
    weight = conv.weight  # has the device and dtype that the layer's input will have
    if not takes_kernels(weight, weight, adjacency):
        return f"PyTorch: {why_not(weight, weight, adjacency) or 'the backend is chosen so'}"
    tiles = batch.tiles
    assert tiles is not None
    small, large = tiles.graph.shape[0], tiles.large_graph.shape[0]
    rest = 0 if tiles.rest is None else tiles.rest.shape[0]
    parts = [
        f"{small} graphs in {tiles.tile.shape[0] - 1} tiles" if small else "",
        f"{large} larger graphs block by block" if large else "",
        f"{rest} with repeated edges or too large through CSR" if rest else "",
    ]
    return "Triton: " + (", ".join(filter(None, parts)) or "no nodes")
