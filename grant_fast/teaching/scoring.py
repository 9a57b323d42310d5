"""The teacher's look at the learner: one inference pass, one score for each graph."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from ..errors import InputError, require
from ..tasks import Task
from .residuals import ResidualKind, graph_residuals

Model = Callable[..., Any]
Predict = Callable[[Any, Any], Tensor]
Collate = Callable[[list[Any]], Any]
Positions = Tensor | Sequence[int]


@overload
def score_graphs(
    model: Model,
    graphs: Any,
    task: Task,
    *,
    ids: Positions | None = ...,
    predict: Predict | None = ...,
    residual: ResidualKind = ...,
    batch_size: int = ...,
    collate: Collate | None = ...,
    return_predictions: Literal[False] = ...,
) -> Tensor: ...


@overload
def score_graphs(
    model: Model,
    graphs: Any,
    task: Task,
    *,
    ids: Positions | None = ...,
    predict: Predict | None = ...,
    residual: ResidualKind = ...,
    batch_size: int = ...,
    collate: Collate | None = ...,
    return_predictions: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def score_graphs(
    model: Model,
    graphs: Any,
    task: Task,
    *,
    ids: Positions | None = None,
    predict: Predict | None = None,
    residual: ResidualKind = "gradient",
    batch_size: int = 1024,
    collate: Collate | None = None,
    return_predictions: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Score graphs by the size of the learner's error on them (`graph_residuals`, Algorithm 1).

    The model runs in evaluation mode and without gradients; afterwards every submodule is back in
    its own mode and the random state is as before, so that scoring leaves no trace in training.

    Args:
        model: a module, or any callable that `predict` knows how to use.
        graphs: a `PackedGraphs`, a sequence of PyG `Data`, or any sequence that `collate` takes.
        task: what is learned.
        ids: positions in `graphs` to score, in the order of the result; all of them if None.
        predict: `predict(model, batch)` gives the raw outputs, `[num_graphs, C]`, or
            `[num_nodes, C]` at node level; `model(batch)` if None.
        residual: "gradient" or "raw", as in `residuals.residual`.
        batch_size: graphs in one forward pass.
        collate: makes a batch of a list of graphs; it must have `y`, and `ptr` or `batch` for
            node-level tasks. PyG's own if None.
        return_predictions: give the raw outputs too, in the order of `ids`.

    Returns:
        float32 `[len(ids)]` on the model's device; with `return_predictions`, also the outputs,
        `[len(ids), C]` or, at node level, one row for each node.

    Raises:
        InputError: NaN predictions (the first such graph is named), no graphs, a batch without
            targets, or shapes that do not fit the task.
    """
    if batch_size < 1:
        raise InputError(f"batch_size={batch_size}: give at least 1")
    positions = torch.arange(len(graphs)) if ids is None else torch.as_tensor(ids).cpu()
    device = _device_of(model)
    if len(positions) == 0:
        raise InputError("there are no graphs to score: ids, or the dataset, is empty")
    scores: list[Tensor] = []
    outputs: list[Tensor] = []
    with evaluating(model):
        for chunk in positions.split(batch_size):
            batch = _gather(graphs, chunk, collate)
            if device is not None and hasattr(batch, "to"):
                batch = batch.to(device)
            pred = model(batch) if predict is None else predict(model, batch)
            scores.append(_score(pred, batch, len(chunk), task, residual))
            if return_predictions:
                outputs.append(pred)
    result = torch.cat(scores)
    _check_numbers(result, positions, graphs)
    return (result, torch.cat(outputs)) if return_predictions else result


@contextmanager
def evaluating(model: Model) -> Iterator[None]:
    """Evaluation mode without gradients; each submodule's own mode and the random state return."""
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    modes = [module.training for module in modules]
    device = _device_of(model)
    cuda = [device] if device is not None and device.type == "cuda" else []
    # no_grad, not inference_mode: what a model or dataset caches here must serve training too.
    with torch.random.fork_rng(devices=cuda), torch.no_grad():
        if isinstance(model, nn.Module):
            model.eval()
        try:
            yield
        finally:
            for module, mode in zip(modules, modes, strict=True):
                module.training = mode


def _device_of(model: Model) -> torch.device | None:
    if not isinstance(model, nn.Module):
        return None
    tensor = next(model.parameters(), None)
    return None if tensor is None else tensor.device


def _gather(graphs: Any, chunk: Tensor, collate: Collate | None) -> Any:
    if collate is None and callable(getattr(graphs, "batch", None)):
        return graphs.batch(chunk)
    # Graphs that are Python objects can only be fetched one by one.
    items = [graphs[position] for position in chunk.tolist()]
    if collate is None:
        collate = require("torch_geometric.data", "pyg").Batch.from_data_list
    return collate(items)


def _score(pred: Tensor, batch: Any, size: int, task: Task, residual: ResidualKind) -> Tensor:
    y = getattr(batch, "y", None)
    if y is None:
        raise InputError("these graphs carry no targets (y): the teacher needs them to score")
    ptr = _ptr(batch, size) if task.level == "node" else None
    scores = graph_residuals(pred, y, task, ptr, residual)
    if len(scores) != size:
        raise InputError(
            f"a batch of {size} graphs gave {len(scores)} predictions: a {task.level}-level task "
            "needs one for each graph, so pool the nodes, or set the task's level to 'node'"
        )
    return scores


def _ptr(batch: Any, size: int) -> Tensor:
    """The node ranges of a batch, from `ptr` or else from the graph number of each node."""
    ptr = getattr(batch, "ptr", None)
    if ptr is not None:
        return ptr
    numbers = getattr(batch, "batch", None)
    if numbers is None:
        raise InputError("a node-level task needs batches with ptr or batch: check collate")
    counts = torch.bincount(numbers, minlength=size)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def _check_numbers(scores: Tensor, positions: Tensor, graphs: Any) -> None:
    # Once for the whole pass: looking at each batch would make the device wait for each batch.
    wrong = scores.isnan()
    if not wrong.any():
        return
    position = int(positions[int(wrong.nonzero()[0])])
    identity = getattr(graphs, "ids", None)
    name = f"position {position}" if identity is None else f"id {int(identity[position])}"
    raise InputError(
        f"the model's prediction for the graph with {name} is NaN (so for {int(wrong.sum())} of "
        f"{len(scores)} graphs): lower the learning rate, or check the features and targets"
    )
