"""The teacher's look at the learner: one inference pass, one score for each graph."""

import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeGuard, overload

import torch
from torch import Tensor, nn

from ..batches import GraphBatch
from ..errors import InputError, whole_number
from ..graphs import PackedGraphs
from ..indexing import count_graphs, positions_of, take
from ..nn import FlexGCN, is_plain, one_pass
from ..nn.checks import check_layers, is_hooked
from ..nn.evaluating import device_of, evaluating
from ..ops.dispatch import takes_kernels
from ..tasks import Task, check_task, has_labels_outside
from . import fused
from .aligned import are_probabilities
from .gathering import Collate, gather, node_ranges, scoring_runs
from .residuals import ResidualKind, check_residual, graph_residuals

Model = Callable[..., Any]
Predict = Callable[[Any, Any], Tensor]
Score = Callable[[Any, Any], Tensor]
Ids = Tensor | Sequence[int]


@overload
def score_graphs(
    model: Model,
    graphs: Any,
    task: Task,
    *,
    ids: Ids | None = ...,
    predict: Predict | None = ...,
    residual: ResidualKind = ...,
    batch_size: int | None = ...,
    collate: Collate | None = ...,
    return_predictions: Literal[False] = ...,
) -> Tensor: ...


@overload
def score_graphs(
    model: Model,
    graphs: Any,
    task: Task,
    *,
    ids: Ids | None = ...,
    predict: Predict | None = ...,
    residual: ResidualKind = ...,
    batch_size: int | None = ...,
    collate: Collate | None = ...,
    return_predictions: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def score_graphs(
    model: Model,
    graphs: Any,
    task: Task,
    *,
    ids: Ids | None = None,
    predict: Predict | None = None,
    residual: ResidualKind = "gradient",
    batch_size: int | None = None,
    collate: Collate | None = None,
    return_predictions: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Score graphs by the size of the learner's error on them (Algorithm 1).

    With f the raw outputs and y the targets, a graph scores

    - regression: |f − y|, or ‖f − y‖₂ / k over the k of several targets that were measured;
    - binary: |σ(f) − y|; multilabel: ‖σ(f) − y‖₂ / k over the k labels that were measured;
    - multiclass: ‖softmax(f) − onehot(y)‖₂;
    - at node level, the norm of all these differences over its nodes, divided by the number of
      nodes that have a label;

    and 0 if it has no label at all (`grant_fast.teaching.graph_residuals`).

    The model runs in evaluation mode and without gradients; afterwards every submodule is back in
    its own mode and PyTorch's random state is as before, so scoring leaves no trace in training.

    Args:
        model: a module, or any callable that `predict` knows how to use. A module is put into
            evaluation mode; modules that a plain function uses stay in the mode they are in.
        graphs: a `PackedGraphs`, a sequence of PyG `Data`, or any sequence that `collate` takes.
        task: what is learned.
        ids: positions in `graphs` to score, in the order of the result, or a mask; all if None.
        predict: `predict(model, batch)` gives the raw outputs (logits, or values in the units of
            y), `[num_graphs, C]`, or `[num_nodes, C]` at node level; `model(batch)` if None.
        residual: "gradient" or "raw", as in `grant_fast.teaching.residual`.
        batch_size: graphs in one forward pass. None means 1024; where a `FlexGCN` alone scores a
            `PackedGraphs`, as many as fit into the processor's cache.
        collate: makes a batch from a list of graphs; the batch must have `y`, and `ptr` or `batch`
            for node-level tasks. PyG's own if None.
        return_predictions: also return the raw outputs, in the order of `ids`.

    Returns:
        float32 `[len(ids)]` on the model's device; with `return_predictions`, also the outputs,
        `[len(ids), C]` or, at node level, one row for each node.

    Raises:
        InputError: NaN predictions (the first such graph is named), no graphs, a position that does
            not exist, a batch without targets, a task that is not a `Task`, shapes that do not fit
            it, or a model that does not take a batch, without a `predict` that says how to call it.
    """
    size = count_graphs(graphs)
    positions = None if ids is None else positions_of(ids, size)
    if predict is None and not callable(model):
        raise InputError(f"the model is a {type(model).__name__}: give a module or a callable")
    pass_over = ScoringPass(
        graphs,
        task,
        positions,
        predict=predict,
        residual=residual,
        batch_size=batch_size,
        collate=collate,
    )
    scores, _, outputs = pass_over(model, return_predictions)
    return scores if outputs is None else (scores, outputs)


class ScoringPass:
    """One look at some graphs: what `score_graphs` does, and the histogram beside it.

    Where the kernels are asked for and one of them takes the whole network, it scores the small
    graphs of a `PackedGraphs`. The others, and all graphs of wider networks, go layer by layer
    through the operators of inference, and one kernel takes pooling, head and residual behind them.
    What neither takes (see `fused`) is computed as in inference, and classes of nodes are scored
    in the same pass where the CPU kernels take it (`one_pass.class_scores`).

    Args: as `score_graphs`, and `score` as `GraNTSampler`; `whole` is the batch of all graphs at
        `positions`, if there is one; `usual` is the `batch_size`, where none is given, of a pass
        through another model than ours.
    """

    def __init__(
        self,
        graphs: Any,
        task: Task,
        positions: Tensor | None,
        *,
        predict: Predict | None = None,
        residual: ResidualKind = "gradient",
        batch_size: int | None = None,
        collate: Collate | None = None,
        whole: GraphBatch | None = None,
        score: Score | None = None,
        usual: int = 1024,
    ) -> None:
        # Those of a sampler may have been set since it was made.
        if batch_size is not None:
            batch_size = whole_number("batch_size", batch_size)
        if len(graphs if positions is None else positions) == 0:
            raise InputError("there are no graphs to score: ids, or the dataset, is empty")
        check_task(task)
        check_residual(residual)
        check_functions(predict, collate, score)
        self.graphs, self.task, self.positions = graphs, task, positions
        self.predict, self.residual, self.collate = predict, residual, collate
        self.batch_size, self._whole, self.score = batch_size, whole, score
        self._usual = usual

    def __call__(
        self, model: Model, return_predictions: bool = False, check: bool = True
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The scores; the histogram that `select_graphs` can use, if one was made; the outputs.

        Without `check` a score may be NaN, for `check_numbers` to find.
        """
        if isinstance(model, nn.Module) and self.predict is model:
            raise InputError(
                "predict is the model: give a function of (model, batch), or leave it out if the "
                "model takes a batch alone"
            )
        if self.predict is None and is_plain(model):
            check_layers(model)  # as the forward pass does
        if isinstance(self.graphs, PackedGraphs):
            self.graphs.forget_written()
        with evaluating(model, alone=self._is_ours(model)):
            fast = self._by_one_kernel(model, return_predictions)
            if fast is not None and not fast[0].isnan().any():
                return fast
            scores, counts, pred = self._by_batches(model, self.positions, return_predictions)
        if check:
            check_numbers(scores, self.positions, self.graphs, own=self.score is not None)
        return scores, counts, pred

    def _by_batches(
        self, model: Model, positions: Tensor | None, return_predictions: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        total = len(self.graphs if positions is None else positions)
        device = device_of(model)
        # Only of a model of ours is it known that its outputs are nobody else's.
        unshared = self.predict is None and self.score is None and not return_predictions
        mine = model if unshared and is_plain(model) else None
        # A hook may keep what it was shown, or give something of its own.
        ours = mine is not None and not any(map(is_hooked, mine.modules()))
        scores, outputs = _Scores(total, self.task, self.residual, ours), []
        counts = None
        if self._takes_kernels(mine) and fused.tail_fits(mine, self.graphs, self.task):
            from ..kernels.select import empty_counts

            counts = empty_counts(self.graphs.device)
        size = self.batch_size
        if size is None and not self._is_ours(model):
            size = self._usual  # what a pass of another model takes is for its user to know
        for chunk in scoring_runs(self.graphs, positions, size):
            where = chunk if positions is None else positions[chunk]
            batch = gather(self.graphs, where, self.collate)
            if device is not None and hasattr(batch, "to"):
                batch = batch.to(device)
            if mine is not None and counts is not None:
                scores.keep(fused.tail(mine, batch, self.task, self.residual, counts))
                continue
            if mine is not None and scores.add_in_one_pass(mine, batch):
                continue
            if self.score is not None:
                scores.keep(_one_each(self.score(model, batch), chunk.stop - chunk.start))
                continue
            pred = _called(model, batch) if self.predict is None else self.predict(model, batch)
            if not ours and isinstance(pred, Tensor):
                pred = pred.clone()  # a model may write all its outputs into the same memory
            scores.add(pred, batch, chunk.stop - chunk.start)
            if return_predictions:
                outputs.append(pred)
        return scores.finished(), counts, torch.cat(outputs) if return_predictions else None

    def _is_ours(self, model: Model | None) -> TypeGuard[FlexGCN]:
        """Whether a `FlexGCN` alone scores packed graphs."""
        functions = (self.predict, self.collate, self.score)
        packed = isinstance(self.graphs, PackedGraphs)
        return packed and is_plain(model) and all(given is None for given in functions)

    def _takes_kernels(self, model: Model | None) -> TypeGuard[FlexGCN]:
        """Whether the Triton kernels are to score the graphs where they can."""
        if not self._is_ours(model) or self.graphs.device != device_of(model):
            return False
        return takes_kernels(self.graphs.scale, model.backend)

    def _by_one_kernel(
        self, model: Model, return_predictions: bool
    ) -> tuple[Tensor, Tensor, Tensor | None] | None:
        if not self._takes_kernels(model):
            return None
        batch = self._whole
        if batch is None:
            batch = self.graphs.batch(slice(None) if self.positions is None else self.positions)
        if not fused.fits(model, batch, self.task):
            return None
        by_graph, counts, pred, rest = fused.score(
            model, batch, self.task, self.residual, return_predictions
        )
        scores = take(by_graph, batch.device_positions)
        outputs = None
        if pred is not None:
            rows = batch.nodes if self.task.level == "node" else batch.device_positions
            outputs = take(pred, rows)
        if len(rest):
            positions = batch.positions[rest]
            others, counted, theirs = self._by_batches(model, positions, return_predictions)
            scores[rest.to(scores.device)] = others
            if counted is None:
                from ..kernels.select import count_leading

                count_leading(others.contiguous(), counts)
            else:
                counts += counted
            if outputs is not None and theirs is not None:
                outputs[fused.rows_of(batch, rest, self.task)] = theirs.float()
        return scores, counts, outputs


class _Scores:
    """Scores in the making. Predictions for graphs gather until there are enough to be worth the
    dozen small operations of a residual; predictions for nodes are scored while they are cached.

    Memory: 4 bytes a graph, and what `ENOUGH` graphs' predictions and targets take.
    """

    ENOUGH = 8192

    def __init__(self, total: int, task: Task, residual: ResidualKind, overwrite: bool) -> None:
        self._total, self._task = total, task
        self._residual, self._overwrite = residual, overwrite
        self._result: Tensor | None = None
        self._done = self._waiting = 0
        self._parts: list[tuple[Tensor, Tensor]] = []

    def add_in_one_pass(self, model: FlexGCN, batch: Any) -> bool:
        """Score these graphs without outputs in between, where the compiled kernels can."""
        task = self._task
        if task.kind != "multiclass" or task.level != "node" or self._residual != "gradient":
            return False
        if not isinstance(batch, GraphBatch) or not fused.targets_fit(model, batch.graphs, task):
            return False  # `graph_residuals` says what is wrong
        scores = one_pass.class_scores(model, batch)
        if scores is not None:
            self.keep(scores)
        return scores is not None

    def add(self, pred: Tensor, batch: Any, size: int) -> None:
        """Take the predictions for the next `size` graphs."""
        if not isinstance(pred, Tensor):
            raise InputError(
                f"the model's prediction is a {type(pred).__name__}: give predict=, a function of "
                "(model, batch) that returns the raw outputs as a tensor"
            )
        y = getattr(batch, "y", None)
        if y is None and isinstance(batch, GraphBatch):
            raise InputError(
                "the graphs have no targets to score by: pack them with y, or set y of the "
                "PackedGraphs"
            )
        if y is None:
            raise InputError(
                f"a {type(batch).__name__} carries no targets to score by, as an attribute y: give "
                "the graphs one, or collate=, a function that makes a batch with one (PyG's Batch, "
                "SimpleNamespace)"
            )
        if isinstance(y, Tensor) and not isinstance(batch, GraphBatch):
            # A collate function may write all its batches into the same memory, and what it makes
            # may not know how to move.
            y = y.to(pred.device, copy=True)
        if self._task.level == "node":
            mask = getattr(batch, "train_mask", None)
            if mask is not None and has_labels_outside(mask, y):
                warnings.warn(
                    "the graphs have a train_mask, but the teacher scores them by all their "
                    "labels: set y to NaN (a class number to -100) at all other nodes, or set "
                    "the mask to None",
                    stacklevel=2,
                )
            self.keep(self._of(pred, y, node_ranges(batch, size).to(pred.device)))
            return
        if pred.dim() == 0 or len(pred) != size:
            found = len(pred) if pred.dim() else "no rows of"
            raise InputError(
                f"a batch of {size} graphs gave {found} predictions: a graph-level task needs "
                "one for each graph, so pool the nodes, or set the task's level to 'node'"
            )
        self._parts.append((pred, y))
        self._waiting += size
        if self._waiting >= self.ENOUGH:
            self._score()

    def finished(self) -> Tensor:
        """float32 [total]."""
        if self._parts:
            self._score()
        assert self._result is not None
        return self._result

    def _score(self) -> None:
        preds, ys = zip(*self._parts, strict=True)
        pred, y = (preds[0], ys[0]) if len(preds) == 1 else (torch.cat(preds), torch.cat(ys))
        self.keep(self._of(pred, y, None))
        self._parts, self._waiting = [], 0

    def _of(self, pred: Tensor, y: Tensor, ptr: Tensor | None) -> Tensor:
        if not self._done and self._residual == "gradient" and are_probabilities(pred, self._task):
            warnings.warn(
                "the predictions of classes are probabilities, which the teacher takes for logits "
                "and scores wrongly: return what goes into the softmax",
                stacklevel=2,
            )
        return graph_residuals(pred, y, self._task, ptr, self._residual, overwrite=self._overwrite)

    def keep(self, scores: Tensor) -> None:
        """Take the scores of the next graphs."""
        if self._result is None:
            self._result = scores.new_empty(self._total)
        self._result[self._done : self._done + len(scores)] = scores
        self._done += len(scores)


def _one_each(scores: Any, size: int) -> Tensor:
    """The scores that a user's function gave for a batch, float32 [size]."""
    if not isinstance(scores, Tensor) or scores.shape not in ((size,), (size, 1)):
        found = list(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise InputError(
            f"score gave {found} for a batch of {size} graphs: give a tensor [{size}], a number "
            "for each graph"
        )
    return scores.detach().reshape(size).float()


def _called(model: Model, batch: Any) -> Any:
    """`model(batch)`; InputError where the model does not take a batch alone, as PyG's do not."""
    try:
        return model(batch)
    except TypeError as error:
        if _is_of_the_model(error):
            raise
        raise InputError(
            f"the model does not take a batch alone ({error}): give predict=, a function of the "
            "model and a batch that returns the raw outputs, such as predict=lambda model, "
            "batch: model(batch.x, batch.edge_index, …)"
        ) from error


def _is_of_the_model(error: TypeError) -> bool:
    """Whether code of the model itself raised it, and not the call by PyTorch's or ours."""
    assert error.__traceback__ is not None
    frames = traceback.walk_tb(error.__traceback__.tb_next)
    return any(f.f_globals.get("__name__", "").partition(".")[0] != "torch" for f, _ in frames)


def check_functions(predict: Predict | None, collate: Collate | None, score: Score | None) -> None:
    """Refuse what cannot be called, or would not be (InputError)."""
    if predict is not None and score is not None:
        raise InputError("predict is not called where score is given: give one of them")
    given = {
        "predict": (predict, "(model, batch)"),
        "score": (score, "(model, batch)"),
        "collate": (collate, "a list of graphs"),
    }
    for name, (function, of) in given.items():
        if not (function is None or callable(function)):
            raise InputError(f"{name}={function!r}: give a function of {of}, or None")


def check_numbers(
    scores: Tensor, positions: Tensor | None, graphs: Any, *, own: bool = False
) -> None:
    """Refuse scores that are NaN, and name the first such graph (InputError); `own` are those of a
    user's function."""
    # Once for the whole pass: looking at each batch would make the device wait for each batch.
    wrong = scores.isnan()
    if not wrong.any():
        return
    first = int(wrong.nonzero()[0])
    position = first if positions is None else int(positions[first])
    packed = isinstance(graphs, PackedGraphs)
    name = f"id {int(graphs.ids[position])}" if packed else f"position {position}"
    of_all = f"(so for {int(wrong.sum())} of {len(scores)} graphs)"
    if own:
        raise InputError(f"the score of the graph with {name} is NaN {of_all}: give numbers")
    raise InputError(
        f"the model's prediction for the graph with {name} is NaN or infinite {of_all}: "
        "lower the learning rate, or check the features, the targets and what predict scales by"
    )
