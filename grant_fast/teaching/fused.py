"""Scoring a `FlexGCN` on a packed dataset by the kernels: what they take, and who does the rest.

`score` is the whole network in one kernel, `tail` what follows the hidden layers of a wider one.
"""

from itertools import starmap
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from ..batches import GraphBatch
from ..batches.tiles import TILE
from ..graphs.flat import FlatGraphs
from ..indexing import upload
from ..nn import AtomEncoder, BatchNorm, FlexConv, FlexGCN
from ..nn.checks import is_hooked
from ..ops import check_features, dispatch
from ..tasks import Task
from .residuals import ResidualKind

if TYPE_CHECKING:
    from ..kernels.score import Network

#: Widths of hidden layers and of f up to which nothing spills (`configurations._NETWORKS`).
MAX_HIDDEN, MAX_OUT = 32, 64
#: Bytes of weights that every program reads.
MOST_WEIGHTS = 128 << 10
#: κ times outputs up to which `tail` reads the last weights anew for each graph.
MAX_TAIL_OUT = 64


def fits(model: FlexGCN, batch: GraphBatch, task: Task) -> bool:
    """Whether the one kernel can score these graphs with this model, a plain one (`is_plain`)."""
    convs = [cast(FlexConv, conv) for conv in model.convs]
    return (
        all(type(norm) is nn.Identity or _is_affine(norm) for norm in model.norms)
        and all(type(dropout) in (nn.Dropout, nn.Identity) for dropout in model.dropouts)
        and type(model.act) is nn.ReLU
        and not any(map(is_hooked, model.modules()))
        and max((conv.out_channels for conv in convs[:-1]), default=0) <= MAX_HIDDEN
        and convs[-1].out_channels <= MAX_OUT
        and convs[0].in_channels <= dispatch.MAX_WIDTH
        and max(conv.order for conv in convs) <= dispatch.MAX_ORDER
        and 4 * sum(conv.weight.numel() for conv in convs) <= MOST_WEIGHTS
        and all(p.dtype == torch.float32 for p in model.parameters())
        and (model.encoder is None or type(model.encoder) is AtomEncoder)
        and _chain(model, batch.graphs)
        and targets_fit(model, batch.graphs, task)
        and (batch.graphs.x.is_floating_point() or model.encoder is not None)
        and batch.tiles is not None  # none where edges have weights
    )


def _is_affine(norm: nn.Module) -> bool:
    return type(norm) is BatchNorm and norm.is_affine_map


def _chain(model: FlexGCN, graphs: FlatGraphs) -> bool:
    """Whether each layer is as wide as what it reads; PyTorch says what is wrong where not."""
    encoder, width = model.encoder, graphs.x.shape[1]
    if isinstance(encoder, AtomEncoder):
        width = encoder.weight.shape[1]
    for layer in starmap(_whole, zip(model.convs, [*model.norms, None], strict=True)):
        if layer is None or layer.in_channels != width:
            return False
        width = layer.out_channels
    return True


def _whole(module: nn.Module, norm: nn.Module | None = None) -> FlexConv | None:
    """A layer whose weights, bias and norm have the shapes that its numbers say; else None."""
    conv = cast(FlexConv, module)
    weight: Tensor = conv.weight
    bias: Tensor | None = conv.bias
    vectors: list[Tensor | None] = [bias]
    if isinstance(norm, BatchNorm):
        vectors += [norm.weight, norm.bias, norm.running_mean, norm.running_var]
    width = conv.out_channels
    is_whole = weight.shape == (conv.order, conv.in_channels, width)
    return conv if is_whole and all(v is None or v.shape == (width,) for v in vectors) else None


def tail_fits(model: FlexGCN, graphs: FlatGraphs, task: Task) -> bool:
    """Whether `tail` can score these graphs with this model, a plain one (`is_plain`)."""
    last = cast(FlexConv, model.convs[-1])
    outputs = last.out_channels * (1 if model.pool is None else last.order)
    return (
        last.order <= dispatch.MAX_ORDER
        and not is_hooked(last)
        and outputs <= MAX_TAIL_OUT
        and _whole(last) is not None
        and last.weight.dtype == torch.float32
        and targets_fit(model, graphs, task)
    )


def targets_fit(model: FlexGCN, graphs: FlatGraphs, task: Task) -> bool:
    """Whether the readout is a mean or a sum (of nodes, none), and outputs and targets are the
    task's."""
    if (model.pool is None) != (task.level == "node") or model.pool == "max":
        return False
    y = graphs.y
    if y is None or task.level != graphs.y_level:
        return False
    classes = task.kind == "multiclass"
    if y.dtype != (torch.int64 if classes else torch.float32):
        return False
    if y.dim() == 2 and y.shape[1] != (1 if classes else task.num_outputs):
        return False
    if cast(FlexConv, model.convs[-1]).out_channels != task.num_outputs:
        return False
    if not classes:
        return True
    low, high = graphs.class_range
    return low >= 0 and high < task.num_outputs


@torch.no_grad()
def tail(
    model: FlexGCN, batch: GraphBatch, task: Task, residual: ResidualKind, counts: Tensor
) -> Tensor:
    """Scores of a batch, [B] float32, in evaluation mode; graphs of any size, edges of any weight.

    The hidden layers run one by one, and for a network for nodes the last one too; the pooling, the
    last product and the residual are one kernel.

    Args:
        model, batch, task: which `tail_fits`.
        residual: as in `residuals.residual`.
        counts: the histogram that `kernels.select.largest` takes; these scores are added to it.
    """
    from ..kernels import tail as kernel

    graphs, last, head = batch.graphs, cast(FlexConv, model.convs[-1]), None
    if model.pool is None:
        x = model(batch)
    else:
        x = model.hidden(batch)
        check_features(x, last.weight)
        weights = graphs.pool_weights(last.order, model.normalize, model.pool == "mean")
        bias = last.weight.new_zeros(last.out_channels) if last.bias is None else last.bias
        head = (last.weight.contiguous(), bias.contiguous(), weights.float().contiguous())
    assert graphs.y is not None
    return kernel.score(
        x.contiguous(), head, graphs.y.float().contiguous(), batch.ptr,
        upload(batch.positions, graphs.device), graphs.ptr, counts,
        width=last.out_channels, mean=model.pool == "mean", **_switches(task, residual),
    )  # fmt: skip


@torch.no_grad()
def score(
    model: FlexGCN, batch: GraphBatch, task: Task, residual: ResidualKind, predict: bool = False
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Scores of the small graphs of a batch, in evaluation mode.

    Args:
        model, batch, task: which `fits`.
        residual: as in `residuals.residual`.
        predict: give the outputs too.

    Returns:
        scores [G] float32, by position in the dataset; the histogram that `kernels.select.largest`
        takes; outputs f, [G, T] or [N, T], or None; and the positions within the batch of the
        graphs that are left to others, int64 on the CPU: the larger ones, and those without nodes.
    """
    from ..kernels import score as kernel
    from ..kernels.select import empty_counts

    graphs, tiles = batch.graphs, batch.tiles
    assert tiles is not None and graphs.bits is not None and graphs.y is not None
    network = _network(model)
    x, code = _features(model, batch)
    pool = None
    if model.pool is not None:
        pool = graphs.pool_weights(network.orders[-1], model.normalize, model.pool == "mean")
        pool = pool.float().contiguous()
    data = kernel.Data(
        x,
        code,
        pool,
        graphs.y.float().contiguous(),
        graphs.ptr,
        graphs.bits.bits,
        graphs.scale.float(),
    )
    scores = torch.zeros(graphs.num_graphs, dtype=torch.float32, device=graphs.device)
    counts = empty_counts(graphs.device)
    rows = graphs.num_graphs if model.pool is not None else graphs.num_nodes
    pred = scores.new_zeros(rows, task.num_outputs) if predict else None
    switches = _switches(task, residual)
    kernel.score(network, data, tiles.tile, tiles.graph, scores, counts, pred, **switches)
    sizes = batch.host_rows[0].diff()
    fits = graphs.bits.fits[batch.positions]
    rest = (~fits | (sizes == 0) | (sizes > TILE)).nonzero().flatten()
    return scores, counts, pred, rest


def _switches(task: Task, residual: ResidualKind) -> dict[str, bool]:
    """Which residual the kernels are to take."""
    return {
        "classes": task.kind == "multiclass",
        "sigmoid": task.kind in ("binary", "multilabel"),
        "raw": residual == "raw",
    }


def _network(model: FlexGCN) -> "Network":
    """The weights in evaluation mode, one after another."""
    from ..kernels.score import Network

    flat, convs = [], [cast(FlexConv, conv) for conv in model.convs]
    for conv, norm in zip(convs, [*model.norms, None], strict=True):
        weight: Tensor = conv.weight
        bias: Tensor | None = conv.bias
        if isinstance(norm, BatchNorm):
            weight, bias = norm.folded_into(weight, bias)
        zero = weight.new_zeros(conv.out_channels)
        flat += [weight.flatten(), zero if bias is None else bias]
    widths = (convs[0].in_channels, *(conv.out_channels for conv in convs))
    orders = tuple(conv.order for conv in convs)
    return Network(torch.cat(flat), widths, orders, model.pool, model.normalize)


def _features(model: FlexGCN, batch: GraphBatch) -> tuple[Tensor, Tensor | None]:
    graphs = batch.graphs
    if model.encoder is None:
        return graphs.x.float().contiguous(), None
    if graphs.kinds is None:
        return model.encoder(graphs.x).contiguous(), None
    assert isinstance(model.encoder, AtomEncoder)
    return model.encoder.of_kinds(graphs).contiguous(), graphs.kinds[1]


def rows_of(batch: GraphBatch, which: Tensor, task: Task) -> Tensor:
    """The rows of a batch's outputs that belong to these of its graphs."""
    if task.level == "graph":
        return which.to(batch.device)
    chosen = which.new_zeros(batch.num_graphs, dtype=torch.bool).index_fill_(0, which, True)
    return chosen.to(batch.device)[batch.batch].nonzero().flatten()
