"""The dynamic graph neural tangent kernel: how a step on one graph moves the output on another.

K_θ(G, G') = ⟨∂f_θ(G)/∂θ, ∂f_θ(G')/∂θ⟩ (paper §4.2). It is "dynamic" because θ moves: at finite
width the kernel changes during training. All of this is for looking on, on some hundreds of graphs;
training needs none of it.
"""

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from ..batches import GraphBatch
from ..errors import InputError, whole_number
from ..graphs import PackedGraphs
from ..indexing import positions_of
from ..nn import FlexConv, FlexGCN
from ..nn.checks import check_layers, embeds_kinds, is_hooked
from ..nn.evaluating import evaluating
from ..reference import dense_flex_conv, expand_rows
from ..tasks import Kind, Task, check_task, measured
from .residuals import loss, residual
from .scoring import Ids

# The largest second derivative in f of a graph's loss, of which `residual` is the first one.
SMOOTHNESS: dict[Kind, float] = {
    "regression": 1.0,
    "binary": 0.25,
    "multilabel": 0.25,
    "multiclass": 0.5,
}


def output_jacobian(
    model: FlexGCN, graphs: PackedGraphs, ids: Ids, *, chunk_size: int = 64
) -> Tensor:
    """∂f_θ(G_i)/∂θ of every output of each graph, in evaluation mode: [G, C, P].

    The network is evaluated by its definition, on dense Â padded to a chunk's largest graph, so
    that `torch.func` can map over graphs: our operators have no such rule.

    Args:
        model: with pooling, so that it gives [num_graphs, C].
        graphs: where the graphs are.
        ids: positions of the G graphs.
        chunk_size: graphs differentiated at a time; each takes about C·n² + C·P numbers.

    Returns:
        Over the P parameters that require gradients, in the order of `model.parameters()`.

    Raises:
        InputError: no graphs, or one that is not there; another model, one that gives a row a
            node, or `chunk_size` below 1.
    """
    if not isinstance(model, FlexGCN):
        raise InputError(
            f"the tangent kernel is defined for a FlexGCN, not for a {type(model).__name__}"
        )
    hooked = any(map(is_hooked, (model, *model.convs)))
    if hooked or model._overrides("forward") or model._overrides("hidden"):
        raise InputError(
            "this FlexGCN has hooks or its own forward pass, which the tangent kernel cannot "
            "account for: give one without"
        )
    check_layers(model)
    if model.pool is None:
        raise InputError("the tangent kernel compares graphs: give a model that pools its nodes")
    whole_number("chunk_size", chunk_size)
    positions = positions_of(ids, graphs.num_graphs)
    if not len(positions):
        raise InputError("there are no graphs to differentiate at: give some ids")
    dense = _Dense(model)
    parameters = {name: p.detach() for name, p in dense.named_parameters() if p.requires_grad}
    if not parameters:
        raise InputError("no parameter of the model requires a gradient: there is no tangent")

    def output(values: dict[str, Tensor], x: Tensor, adjacency: Tensor, real: Tensor) -> Tensor:
        return functional_call(dense, values, (x, adjacency, real))

    rows = []
    with evaluating(model):
        for part in positions.split(chunk_size):
            padded = _padded(graphs.batch(part), model.normalize)
            # One output at a time: torch maps a PReLU wrongly over graphs and outputs at once.
            each = jacrev(output, chunk_size=1)
            found = vmap(each, in_dims=(None, 0, 0, 0))(parameters, *padded)
            rows.append(torch.cat([block.flatten(2) for block in found.values()], dim=2))
    return torch.cat(rows)


class _Dense(nn.Module):
    """A `FlexGCN` by its definition on one graph, in operations that torch.func can map."""

    def __init__(self, model: FlexGCN) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, adjacency: Tensor, real: Tensor) -> Tensor:
        """Output [C] of a graph: x [n, F], Â [n, n], and which of its n rows are nodes."""
        model, encoder = self.model, self.model.encoder
        convs = cast(list[FlexConv], list(model.convs))
        if embeds_kinds(encoder):
            h = F.embedding(x.long() + encoder.offset, encoder.weight).sum(1)
        else:
            h = x.to(convs[0].weight.dtype) if encoder is None else encoder(x)
        for layer, norm in enumerate(model.norms):
            h = dense_flex_conv(h, convs[layer].weight, convs[layer].bias, adjacency)
            h = model.dropouts[layer](model.act(norm(h)))
        h = dense_flex_conv(h, convs[-1].weight, convs[-1].bias, adjacency)
        count = real.sum()
        if model.pool == "max":
            return torch.where(real[:, None] | (count == 0), h, -torch.inf).amax(0) * (count > 0)
        total = torch.where(real[:, None], h, 0).sum(0)
        return total / count.clamp(min=1) if model.pool == "mean" else total


def _padded(batch: GraphBatch, normalize: bool) -> tuple[Tensor, Tensor, Tensor]:
    """x [B, n, F], Â [B, n, n] and which rows are nodes [B, n], n being the largest graph's."""
    rowptr, col, value = batch.adjacency(normalize).csr
    place = torch.arange(batch.num_nodes, device=batch.device) - batch.ptr[batch.batch]
    width = max(1, int(batch.sizes.max()))
    x = batch.x.new_zeros(batch.num_graphs, width, batch.x.shape[1])
    x[batch.batch, place] = batch.x
    row = expand_rows(rowptr, batch.num_edges).long()
    adjacency = value.new_zeros(batch.num_graphs, width, width)
    entry = (batch.batch[row], place[row], place[col.long()])
    adjacency.index_put_(entry, value, accumulate=True)  # an edge may be there twice
    real = torch.arange(width, device=batch.device) < batch.sizes[:, None]
    return x, adjacency, real


def tangent_kernel(
    model: FlexGCN,
    graphs: PackedGraphs,
    ids: Ids,
    others: Ids | None = None,
    *,
    chunk_size: int = 512,
) -> Tensor:
    """K_θ(G_i, G_j) for i in `ids` and j in `others`: [G, H, C, C].

    Args:
        model: with pooling; used in evaluation mode.
        graphs: where the graphs are.
        ids: positions of the G graphs, or a mask.
        others: those of the H graphs; `ids` again if None.
        chunk_size: graphs whose derivatives are held at a time, twice; each takes C·P numbers.

    Raises:
        InputError: as `output_jacobian`, or `chunk_size` below 1.
    """
    whole_number("chunk_size", chunk_size)
    left = positions_of(ids, graphs.num_graphs)
    right = left if others is None else positions_of(others, graphs.num_graphs)
    blocks = []
    for part in left.split(chunk_size):
        ours = output_jacobian(model, graphs, part)
        row = []
        for other in right.split(chunk_size):
            same = torch.equal(part, other)
            theirs = ours if same else output_jacobian(model, graphs, other)
            row.append(torch.einsum("gcp,hdp->ghcd", ours, theirs))
        blocks.append(torch.cat(row, dim=1))
    return torch.cat(blocks)


def functional_gradient(kernel: Tensor, residuals: Tensor) -> Tensor:
    """The functional gradient at the H graphs, (1/G) Σ_i ∂L/∂f(G_i) · K(G_i, ·): [H, C].

    A small step of gradient descent on the G graphs' mean loss moves f by −η times this (§4.2).

    Args:
        kernel: K, [G, H, C, C], from `tangent_kernel`.
        residuals: ∂L/∂f(G_i), [G, C], from `grant_fast.teaching.residual`.

    Raises:
        InputError: the shapes do not fit.
    """
    if residuals.shape != kernel.shape[::2]:
        raise InputError(
            f"residuals have shape {tuple(residuals.shape)} for a kernel of shape "
            f"{tuple(kernel.shape)}: give one row for each graph of the kernel's first axis"
        )
    return torch.einsum("ghcd,gc->hd", kernel, residuals) / len(kernel)


@dataclass(frozen=True)
class LossReduction:
    """What one step of gradient descent did to the mean loss, and what was promised.

    The paper's proposition of sufficient loss reduction says that for η ≤ 1/(2τγ) the loss falls by
    at least ½ηγ‖(1/N) Σ ∂L/∂f(G_i)‖². Its proof puts the upper bound of a kernel where a lower one
    is needed, and so promises too much: where graphs hardly share a kernel (K near γI) the loss
    falls N/2 times less. `first_order` is what calculus gives, η rᵀKr / N²; descent is sure of half
    of it once the step is small.

    Args:
        before, after: mean loss, with ½(f − y)² for regression.
        lr: η, the step's length.
        largest_lr: 1/(2τγ).
        gamma: γ, the largest kernel value (for several outputs the largest spectral norm).
        proposition: the fall that the proposition promises.
        first_order: η rᵀKr / N², the fall to first order.
    """

    before: float
    after: float
    lr: float
    largest_lr: float
    gamma: float
    proposition: float
    first_order: float

    @property
    def fall(self) -> float:
        """By how much the loss fell; negative where it rose."""
        return self.before - self.after

    @property
    def keeps_proposition(self) -> bool:
        """Whether the loss fell by at least what the proposition promises."""
        return self.fall >= self.proposition

    @property
    def keeps_first_order(self) -> bool:
        """Whether the loss fell by at least half of what calculus gives."""
        return self.fall >= 0.5 * self.first_order


def check_loss_reduction(
    model: FlexGCN,
    graphs: PackedGraphs,
    task: Task,
    ids: Ids,
    lr: float | None = None,
) -> LossReduction:
    """Take one step of plain gradient descent on a copy of the weights, and compare.

    Args:
        model: with pooling; it is left as it is.
        graphs: with targets, all of them measured at `ids`.
        task: what is learned; graph level.
        ids: positions of the N graphs.
        lr: η; by default the largest that the proposition allows.

    Raises:
        InputError: a node-level task, a missing label, outputs that no weight moves, or as
            `output_jacobian`.
    """
    check_task(task)
    if task.level != "graph":
        raise InputError("the loss-reduction check needs a graph-level task: pool the nodes")
    batch = graphs.batch(ids)
    if (y := batch.y) is None:
        raise InputError("these graphs carry no targets (y): give graphs that have them")
    if not bool(measured(y, task).all()):
        raise InputError("a label is missing among these graphs: choose graphs that have them all")
    jacobian = output_jacobian(model, graphs, ids)
    with evaluating(model):
        pred = model(batch)
        errors = residual(pred, y, task)
        own_kernel = jacobian @ jacobian.mT
        gamma = float(torch.linalg.matrix_norm(own_kernel, 2).max())
        if not gamma:
            raise InputError("no weight moves the outputs of these graphs: choose some with nodes")
        largest = 1 / (2 * SMOOTHNESS[task.kind] * gamma)
        step = largest if lr is None else lr
        gradient = torch.einsum("gcp,gc->p", jacobian, errors) / len(errors)
        after = functional_call(model, _moved(model, gradient, -step), (batch,))
        return LossReduction(
            before=_mean_loss(pred, y, task),
            after=_mean_loss(after, y, task),
            lr=step,
            largest_lr=largest,
            gamma=gamma,
            proposition=0.5 * step * gamma * float(errors.mean(0).square().sum()),
            first_order=step * float(gradient.square().sum()),
        )


def _moved(model: FlexGCN, direction: Tensor, length: float) -> dict[str, Tensor]:
    """The parameters moved along a flat direction [P]; others stay out of the result."""
    learned = {name: p for name, p in model.named_parameters() if p.requires_grad}
    parts = direction.split([p.numel() for p in learned.values()])
    return {
        name: p + length * part.view_as(p)
        for (name, p), part in zip(learned.items(), parts, strict=True)
    }


def _mean_loss(pred: Tensor, y: Tensor, task: Task) -> float:
    """(1/N) Σ of the losses whose derivatives `residual` gives."""
    total = float(loss(pred.double(), y, task, reduction="sum")) / len(pred)
    return total / 2 if task.kind == "regression" else total
