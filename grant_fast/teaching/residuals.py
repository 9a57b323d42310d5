"""How wrong the learner is: the loss, its derivative ∂L/∂f, and one score for each graph.

The teacher prefers graphs whose |∂L/∂f| is large (the paper, section 4.3, and Algorithm 1). A
missing label (NaN, or class -100) is neither an error nor counted, anywhere in this module.
"""

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import native
from ..errors import InputError
from ..ops.dispatch import takes_native
from ..tasks import NOT_MEASURED, Task, check_task, measured
from .aligned import aligned, checked_ptr, may_look_at

ResidualKind = Literal["gradient", "raw"]
Reduction = Literal["mean", "sum"]
# Evaluated here because older torch.compile cannot trace `get_args`.
RESIDUAL_KINDS, REDUCTIONS = get_args(ResidualKind), get_args(Reduction)
#: From so many on they fill the processor's vectors; fewer are as fast by PyTorch's operators.
_MANY_TARGETS = 8


def loss(pred: Tensor, y: Tensor | None, task: Task, reduction: Reduction = "mean") -> Tensor:
    """What the learner minimises, over the measured entries only.

    Regression (f − y)², binary and multilabel cross entropy of σ(f), multiclass cross entropy of
    softmax(f). Where nothing is measured the loss is 0 and so is its gradient. Nothing here waits
    for the device, so it can stand inside a captured or compiled step.

    Args:
        pred: network outputs f, `[rows, task.num_outputs]`, or `[rows]` for a single output.
        y: targets as `Task` says; a single column may be `[rows]` or `[rows, 1]`, and binary or
            multilabel targets may be integers, -100 where not measured.
        task: what is learned.
        reduction: "mean" over the measured entries, or their "sum".

    Returns:
        A scalar, float32 (float64 for float64 predictions).

    Raises:
        InputError: the shapes or dtypes do not fit the task, the reduction is unknown, or (on the
            CPU) a label or class is none of its.
    """
    if reduction not in REDUCTIONS:
        each = "; graph_losses gives one for each graph" if reduction == "none" else ""
        raise InputError(f"unknown reduction {reduction!r}: choose 'mean' or 'sum'{each}")
    pred, y = aligned(pred, y, task)
    known = measured(y, task)
    if may_look_at(known) and known.numel() and bool(known.all()):
        return _entry_loss(pred, y, task, reduction)
    if task.kind == "multiclass" and pred.device.type == "cpu":
        total = _entry_loss(pred, y, task, "sum")
    else:  # (a GPU would sum the rows' cross entropies, and their gradients, in a single block)
        total = _entries(pred, y, task, known).sum()
    return total if reduction == "sum" else total / known.sum().clamp(min=1)


def summed_loss(
    pred: Tensor, y: Tensor | None, task: Task, *, complete: bool
) -> tuple[Tensor, Tensor | int]:
    """`loss` as a sum, and how many entries that is of: a number where `complete`, else [] int64.

    Args:
        complete: all entries are measured, which spares a GPU most of the launches.
    """
    if not complete:
        total = loss(pred, y, task, reduction="sum")
        assert y is not None
        return total, measured(y, task).sum()
    pred, y = aligned(pred, y, task)
    if task.kind == "multiclass" and pred.device.type != "cpu":  # see `loss`
        return _entry_loss(pred, y, task, "none").sum(), y.numel()
    return _entry_loss(pred, y, task, "sum"), y.numel()


def backward_of_mean(total: Tensor, count: Tensor | int) -> None:
    """The backward pass of the mean of `count` losses, from their sum."""
    count = at_least_one(count)
    if isinstance(count, int):
        total.backward(torch.full_like(total, 1 / count))
    else:
        total.backward(count.to(total.dtype).reciprocal())


def at_least_one(count: Tensor | int) -> Tensor | int:
    """What to divide a sum by, which is 0 where there is none."""
    return max(count, 1) if isinstance(count, int) else count.clamp(min=1)


def _entry_loss(pred: Tensor, y: Tensor, task: Task, reduction: str) -> Tensor:
    """PyTorch's own of this task; missing classes are left out."""
    if task.kind == "multiclass":
        if pred.device.type == "cpu":
            # As one sample with many positions, classes first: the CPU then runs along the rows,
            # seven times faster than along ten classes. (A GPU would sum in no certain order.)
            pred, y = pred.T.unsqueeze(0), y.unsqueeze(0)
        return F.cross_entropy(pred, y, ignore_index=NOT_MEASURED, reduction=reduction)
    if task.kind == "regression":
        return F.mse_loss(pred, y, reduction=reduction)
    return F.binary_cross_entropy_with_logits(pred, y, reduction=reduction)


def _entries(pred: Tensor, y: Tensor, task: Task, known: Tensor) -> Tensor:
    """The loss of each entry, of the shape of `y`; 0 where that is not `known`."""
    if task.kind == "multiclass":
        return _entry_loss(pred, y, task, "none").view(-1)
    y = y.nan_to_num(0.0, torch.inf, -torch.inf)  # one launch, where a `where` makes the 0 first
    return torch.where(known, _entry_loss(pred, y, task, "none"), 0.0)


def graph_losses(
    pred: Tensor, y: Tensor | None, task: Task, ptr: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """What each graph adds to `loss`: its summed loss and how many labels that is of.

    Args:
        pred, y, task: as in `loss`.
        ptr: as in `graph_residuals`.

    Returns:
        Losses and labels, both float32 `[num_graphs]` (float64 for float64 predictions); the
        former can be differentiated.

    Raises:
        InputError: as `loss`; or, at node level, as `graph_residuals` about `ptr`.
    """
    pred, y = aligned(pred, y, task)
    known = measured(y, task)
    entries = _entries(pred, y, task, known)
    if task.kind == "multiclass":
        entries, known = entries[:, None], known[:, None]
    rows = torch.stack([entries.sum(1), known.sum(1).to(entries.dtype)], dim=1)
    if task.level == "node":
        rows = torch.segment_reduce(rows, "sum", offsets=checked_ptr(ptr, rows), initial=0)
    return rows[:, 0], rows[:, 1].detach()


def residual(pred: Tensor, y: Tensor | None, task: Task, kind: ResidualKind = "gradient") -> Tensor:
    """The derivative ∂L/∂f at each output, 0 where the label is missing.

    f − y (regression, of L = ½(f − y)²: half the derivative of `loss`), σ(f) − y (binary,
    multilabel), softmax(f) − onehot(y) (multiclass). These are the derivatives of the summed loss;
    averaging would only scale them all alike.

    Args:
        pred, y, task: as in `loss`.
        kind: "gradient", or "raw" for f − y of the raw outputs whatever the task, which is how the
            paper's published code scores classes of graphs; only for runs that repeat it.

    Returns:
        `[rows, task.num_outputs]`, float32 (float64 for float64 predictions).

    Raises:
        InputError: the shapes or dtypes do not fit the task, or `kind` is unknown; on the CPU also
            a label or class that is none of the task's, or an infinite target.
    """
    errors, _ = _errors(pred, y, task, kind)
    return errors


@torch.no_grad()
def graph_residuals(
    pred: Tensor,
    y: Tensor | None,
    task: Task,
    ptr: Tensor | None = None,
    kind: ResidualKind = "gradient",
    *,
    overwrite: bool = False,
) -> Tensor:
    """One score for each graph, the quantity that Algorithm 1 ranks graphs by.

    - Graph level: |∂L/∂f| for a single output; ‖∂L/∂f‖₂ / (number of measured labels) for several
      targets or labels (Algorithm 1 has no such division, its published code's (S) has);
      ‖softmax(f) − onehot(y)‖₂ for multiclass.
    - Node level: ‖∂L/∂f‖_F / n_i over the graph's nodes and outputs, where n_i counts the nodes
      with a label (all of them, in the paper).

    A graph without labels scores 0, and so does one without nodes at node level. Scores rank graphs
    and carry no gradient.

    Args:
        pred, y, task: as in `loss`.
        ptr: `[num_graphs + 1]` int64, where graph i has the rows `ptr[i]` up to `ptr[i + 1]`; only
            node-level tasks need it.
        kind: as in `residual`.
        overwrite: `pred` is not needed any more, and its memory, still cached, may be used.

    Returns:
        float32 `[num_graphs]`.

    Raises:
        InputError: as `residual`; or `ptr` is missing or (on the CPU) does not fit the rows.
    """
    check_task(task)
    if task.kind == "multiclass" and kind == "gradient":
        if task.level == "node" and isinstance(pred, Tensor) and takes_native(pred):
            f, classes = aligned(pred, y, task)
            return native.class_scores(f, classes, checked_ptr(ptr, f))
        squares, labelled = _class_squares(*aligned(pred, y, task), overwrite)
    else:
        scores = _target_scores(pred, y, task, kind)
        if scores is not None:
            return scores
        errors, known = _errors(pred, y, task, kind)
        if task.level == "graph":
            count = known.sum(1).clamp_(min=1)
            return torch.linalg.vector_norm(errors, dim=1).div_(count).float()
        squares = errors.square_().sum(1)
        labelled = known.any(1)
    if task.level == "graph":
        return squares.sqrt_().float()
    # A row reduction over ranges, not a scatter: the same bits in every run, on any device.
    offsets = checked_ptr(ptr, squares)
    sums = torch.segment_reduce(squares, "sum", offsets=offsets, initial=0)
    if labelled is None:
        count = offsets.diff()
    else:
        rows = labelled.to(squares.dtype)
        count = torch.segment_reduce(rows, "sum", offsets=offsets, initial=0)
    return sums.sqrt_().div_(count.clamp_(min=1)).float()


def _target_scores(pred: Tensor, y: Tensor | None, task: Task, kind: ResidualKind) -> Tensor | None:
    """The scores of graphs by the compiled kernel, which reads predictions and targets once; None
    where it does not take them, or where something is wrong with them."""
    if task.level != "graph" or task.kind == "multiclass" or kind not in RESIDUAL_KINDS:
        return None
    if not isinstance(pred, Tensor) or not isinstance(y, Tensor):
        return None
    if pred.dim() != 2 or y.shape != pred.shape:
        return None
    if pred.shape[1] != task.num_outputs or task.num_outputs < _MANY_TARGETS:
        return None
    if not takes_native(pred) or not takes_native(y):
        return None
    labels = task.kind != "regression"
    sigmoid = labels and kind == "gradient"
    scores = native.target_scores(pred, y, sigmoid=sigmoid, labels=labels)
    return None if bool(((scores < 0) | scores.isinf()).any()) else scores


def _class_squares(pred: Tensor, classes: Tensor, overwrite: bool) -> tuple[Tensor, Tensor | None]:
    """‖softmax(f) − onehot(y)‖² of each row [rows], and which are measured; None: all are.

    With e = exp(f − shift), and S and Q the sums of e and of e² over the wrong classes, it is
    (Q + S²) / (S + e_y)²: no softmax is formed, and nothing cancels where the right class wins.
    Any shift gives the same: none where the outputs are moderate, else the row's maximum, which
    costs more than all the rest.
    """
    everywhere = may_look_at(classes) and bool((classes >= 0).all())
    pred = pred.contiguous()
    rows, columns = pred.shape
    place = torch.arange(0, rows * columns, columns, device=pred.device)
    place += classes if everywhere else classes.clamp(min=0)
    ones = pred.new_ones(columns)

    if not (may_look_at(pred) and rows and _is_moderate(pred)):
        pred, overwrite = pred - pred.amax(1, keepdim=True), True
    e = pred.exp_() if overwrite else pred.exp()
    flat = e.view(-1)
    right = flat.index_select(0, place)
    flat.index_fill_(0, place, 0)
    wrong = e @ ones
    total = right.add_(wrong).square_()
    out = (e.square_() @ ones).addcmul_(wrong, wrong).div_(total)
    if everywhere:
        return out, None
    known = classes >= 0
    return torch.where(known, out, 0.0), known


def _is_moderate(pred: Tensor) -> bool:
    """Whether neither exp(f) nor its square comes near overflow or underflow."""
    low, high = torch.aminmax(pred)
    return float(low) > -25 and float(high) < 25


def _errors(
    pred: Tensor, y: Tensor | None, task: Task, kind: ResidualKind
) -> tuple[Tensor, Tensor]:
    """Residuals `[rows, C]`, and what is measured: `[rows, C]`, for multiclass `[rows, 1]`."""
    check_residual(kind)
    pred, y = aligned(pred, y, task)
    if task.kind == "multiclass":
        known = measured(y, task).unsqueeze(1)
        target = (y.unsqueeze(1) == torch.arange(task.num_outputs, device=y.device)).to(pred.dtype)
        output = pred if kind == "raw" else pred.T.contiguous().softmax(dim=0).T
    else:
        known, target = measured(y, task), y
        if may_look_at(y) and bool(y.isinf().any()):
            row = int(y.isinf().any(1).nonzero()[0])
            raise InputError(
                f"the target in row {row} of y is infinite: correct it, and use NaN where a "
                "target was not measured"
            )
        if kind == "gradient" and task.kind != "regression":
            # (1 − y) σ(f) − y σ(−f): σ(f) − 1 would cancel where the right label is certain.
            target = target.nan_to_num(0.0)
            return torch.where(known, pred.sigmoid().lerp(-(-pred).sigmoid(), target), 0.0), known
        output = pred
    return torch.where(known, output - target, 0.0), known


def check_residual(kind: str) -> None:
    """Refuse an unknown kind of residual (InputError)."""
    if kind not in RESIDUAL_KINDS:
        raise InputError(f"unknown residual {kind!r}: choose 'gradient' or 'raw'")
