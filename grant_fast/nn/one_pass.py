"""A whole `FlexGCN` in one pass of the compiled CPU kernels, where they take it."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from .. import native, ops
from ..batches import GraphBatch
from ..graphs.kinds import MOST_KINDS
from .checks import embeds_kinds, is_hooked
from .conv import FlexConv
from .modules import BatchNorm

if TYPE_CHECKING:
    from .gcn import FlexGCN


#: The layers, what the rows of the first one's input are (`native.Network.source`, or "hops"), and
#: the activation.
Plan = tuple[list[native.Layer], str, native.Activation]

#: Of models that are `unchanging`: for each kind of call the plan, and `is_inference`.
_plans: "WeakKeyDictionary[FlexGCN, dict[Any, tuple[Plan, bool]]]" = WeakKeyDictionary()


@contextmanager
def unchanging(model: "FlexGCN") -> Iterator[None]:
    """For a time in which nothing changes of a model but its mode and the values of its parameters,
    and nothing of the packed graphs that it is called for: each kind of call is checked and planned
    once. (Else that takes a tenth of a step on few graphs.)"""
    _plans[model] = {}
    try:
        yield
    finally:
        _plans.pop(model, None)


def is_planned(model: "FlexGCN", batch: GraphBatch) -> bool:
    """Whether a call needs no check, since one of its kind was planned, see `unchanging`."""
    return model in _plans and _kind(model, batch) in _plans[model]


def _kind(model: "FlexGCN", batch: GraphBatch) -> tuple[Any, ...]:
    """What a plan may depend on within a time of no changes."""
    return batch.graphs, model.training, torch.is_grad_enabled(), batch.num_nodes < 2


def run(model: "FlexGCN", batch: GraphBatch) -> Tensor | None:
    """What the model's layers make of a batch, differentiable once; None where they cannot here.

    Under mean or sum pooling that is [B, κh], what the last layer's product takes; else the last
    layer's output for every node, [n, out_channels].
    """
    if batch.device.type != "cpu":
        return None
    steps, inference = planned(model, batch)
    found = None if steps is None else _as_planned(model, batch, steps)
    if found is None:
        return None
    return native.evaluate(*found) if inference else native.train(*found)


def class_scores(model: "FlexGCN", batch: GraphBatch) -> Tensor | None:
    """‖softmax(f) − onehot(y)‖_F / n_i of each graph, [B] float32, of a network for nodes.

    y are the int64 classes of the nodes, below 0 where missing. One pass, in evaluation mode
    without gradients; None where that cannot be, or a class is beyond the outputs.
    """
    if not is_inference(model):
        return None
    found = as_network(model, batch)
    if found is None or batch.graphs.class_range[1] >= found[0].layers[-1].weight.shape[2]:
        return None
    return native.evaluate(*found, labels=batch.graphs.y)


def is_inference(model: "FlexGCN") -> bool:
    """Whether neither the weights nor what goes through them would be learned from."""
    parts = (*model.norms, *model.dropouts)
    return not torch.is_grad_enabled() and not any(part.training for part in parts)


def can_train(model: "FlexGCN", batch: GraphBatch) -> bool:
    """Whether the kernels do with its batch norms what is due where `is_inference` is False."""
    batch_norms = [norm for norm in model.norms if isinstance(norm, BatchNorm)]
    if not all(norm.training for norm in batch_norms):
        return False  # a norm that stands still is folded into its layer, layer by layer
    return not batch_norms or batch.num_nodes >= 2


def as_network(model: "FlexGCN", batch: GraphBatch) -> tuple[native.Network, Tensor] | None:
    """The model as the kernels take it, and its input; None where they do not."""
    steps = plan(model, batch)
    return None if steps is None else _as_planned(model, batch, steps)


def _as_planned(
    model: "FlexGCN", batch: GraphBatch, steps: Plan
) -> tuple[native.Network, Tensor] | None:
    layers, source, act = steps
    x, code = _input(model, batch, source)
    if source == "hops":
        first, *rest = layers
        stacked = first.weight.flatten(0, 1)[None]
        layers = [native.Layer(stacked, first.tensors[1], first.norm, first.p), *rest]
        source = "dataset"
    if not native.is_readable(x) or x.dim() != 2 or x.shape[1] != layers[0].weight.shape[1]:
        return None
    if source == "batch" and len(x) != batch.num_nodes:
        return None
    weights = None
    if model.pool in ("mean", "sum"):
        order = cast(FlexConv, model.convs[-1]).order
        weights = batch.graphs.pool_weights(order, model.normalize, model.pool == "mean")
    adjacency = batch.adjacency(model.normalize)
    return native.Network(layers, source, adjacency, weights, code, act), native.by_rows(x)


def planned(model: "FlexGCN", batch: GraphBatch) -> tuple[Plan | None, bool]:
    """The plan of a call, None where the kernels may not take it; and `is_inference`."""
    plans, kind = _plans.get(model), _kind(model, batch)
    if plans is not None and kind in plans:
        return plans[kind]
    inference = is_inference(model)
    steps = plan(model, batch) if inference or can_train(model, batch) else None
    if plans is not None and steps is not None and _is_for_all(steps, batch):
        plans[kind] = steps, inference
    return steps, inference


def _is_for_all(steps: Plan, batch: GraphBatch) -> bool:
    """Whether a plan is that of any batch of the dataset: nothing computes a weight anew for each
    call, and no graph is so large that it depends on the batch whether the kernels take it."""
    tensors = [tensor for layer in steps[0] for tensor in layer.tensors]
    learned = all(tensor is None or type(tensor) is nn.Parameter for tensor in tensors)
    return learned and batch.graphs.max_nodes <= native.PART_ROWS


def plan(model: "FlexGCN", batch: GraphBatch) -> Plan | None:
    """How the kernels compute a batch; None where they do not. No part of the model is called."""
    act = native.Activation.of(model.act)
    if act is None or model._overrides("hidden"):
        return None
    if not batch.graphs.num_nodes:
        return None
    first, adjacency = cast(FlexConv, model.convs[0]), batch.adjacency(model.normalize)
    backends = {cast(FlexConv, conv).backend for conv in model.convs}
    if not all(ops.takes_network(first.any_parameter, adjacency, each) for each in backends):
        return None
    parts = (model.act, *model.convs, *model.norms, *model.dropouts)
    if any(map(is_hooked, parts)):
        return None
    if not _is_known(model) or not _fit(layers := _layers(model)):
        return None
    if embeds_kinds(model.encoder) and batch.graphs.kinds is not None:
        return layers, "kinds", act
    x = batch.graphs.x
    constant = x.dtype == torch.float32 and x.stride(1) == 1 and not x.requires_grad
    if model.encoder is not None or not constant:
        return layers, "batch", act
    kinds = batch.graphs.kinds
    few = kinds is not None and len(kinds[0]) <= MOST_KINDS
    source = native.first_source(layers[0].weight, batch.graphs, few)
    if source == "hops" and batch.graphs.hops(first.order, model.normalize) is None:
        source = "dataset"  # they would take too much memory
    return layers, source, act


def _fit(layers: Sequence[native.Layer]) -> bool:
    """Whether each layer takes what the one before it gives, and bias and norm are as wide as what
    it gives itself; PyTorch says what is wrong where they are not."""
    width = None
    for layer in layers:
        weight, bias, *affine = layer.tensors
        if not native.is_readable(weight) or weight.dim() != 3:
            return False
        if width not in (None, weight.shape[1]):
            return False
        width = weight.shape[2]
        vectors: list[Tensor | None] = [] if bias is None else [bias]
        if layer.norm is not None:
            vectors += *affine, *layer.running
        if not all(native.is_readable(vector, width) for vector in vectors):
            return False
        if getattr(layer.norm, "normalized_shape", (width,)) != (width,):
            return False
    return True


def _input(model: "FlexGCN", batch: GraphBatch, source: str) -> tuple[Tensor, Tensor | None]:
    """What the first layer reads, and `native.Network.code`."""
    encoder, flat = model.encoder, batch.graphs
    if source == "kinds":
        assert flat.kinds is not None, "the plan was made with them"
        rows, code = flat.kinds
        return (encoder.of_kinds(flat, model.backend) if embeds_kinds(encoder) else rows), code
    if source == "hops":
        hops = flat.hops(cast(FlexConv, model.convs[0]).order, model.normalize)
        assert hops is not None, "the plan was made with them"
        return hops, None
    return (flat.x if source == "dataset" else model._encode(batch).contiguous()), None


def _is_known(model: "FlexGCN") -> bool:
    """Whether the kernels know all of the model's layers; weights are not read, as something may
    compute them."""
    convs = list(cast(Iterable[FlexConv], model.convs))
    computed = convs[:-1] if model.pool in ("mean", "sum") else convs
    wide = (native.is_wide(conv.in_channels, conv.out_channels) for conv in computed)
    parts = zip(model.norms, model.dropouts, strict=True)
    return len(model.norms) > 0 and not any(wide) and all(_knows(*modules) for modules in parts)


def _knows(norm: nn.Module, dropout: nn.Module) -> bool:
    """Whether the kernels know what follows a hidden layer."""
    if type(dropout) is not nn.Dropout or (dropout.training and dropout.p == 1):
        return False
    if type(norm) in (nn.Identity, nn.LayerNorm):
        return True
    if type(norm) is not BatchNorm or norm.momentum is None:
        return False
    if norm.training and not (norm.track_running_stats and norm.eps > 0):
        return False  # switched off after it was made; PyTorch refuses such an eps
    running = (norm.running_mean, norm.running_var)  # which the kernels move in place
    return not any(t is None or t.is_neg() or not t.is_contiguous() for t in running)


def _layers(model: "FlexGCN") -> list[native.Layer]:
    """All that the kernels compute: hidden layers, and the last one unless it is pooled first."""
    parts = zip(model.convs, model.norms, model.dropouts, strict=False)
    layers = [_layer(*modules) for modules in parts]
    if model.pool not in ("mean", "sum"):
        last = cast(FlexConv, model.convs[-1])
        layers.append(native.Layer(last.weight, last.bias))
    return layers


def _layer(conv: nn.Module, norm: nn.Module, dropout: nn.Module) -> native.Layer:
    """A hidden layer that the kernels know."""
    conv, norm = cast(FlexConv, conv), cast(BatchNorm | nn.LayerNorm | nn.Identity, norm)
    p = cast(nn.Dropout, dropout).p if dropout.training else 0.0
    return native.Layer(conv.weight, conv.bias, None if isinstance(norm, nn.Identity) else norm, p)
