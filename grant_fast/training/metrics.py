"""True metrics: over a whole split, on the tensors' device, all targets at once.

Never a mean of batch means: the two differ for ROC-AUC and average precision, and hide errors for
the rest. Several targets are averaged over those that can be measured, unmeasured entries left
out, as OGB's `Evaluator` does. What cannot be measured at all (no labels; one class only) is NaN,
so that an odd split never ends a run.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ..errors import InputError
from ..tasks import NOT_MEASURED, Task

_HIGHER_IS_BETTER = {"mae": False, "rmse": False, "roc_auc": True, "ap": True, "accuracy": True}
_KINDS = {
    "mae": ("regression",),
    "rmse": ("regression",),
    "roc_auc": ("binary", "multilabel", "multiclass"),
    "ap": ("binary", "multilabel", "multiclass"),
    "accuracy": ("binary", "multilabel", "multiclass"),
}


def higher_is_better(name: str) -> bool:
    """Whether a larger value of the metric is the better one.

    Raises:
        InputError: the metric is unknown.
    """
    if name not in _HIGHER_IS_BETTER:
        raise InputError(f"unknown metric {name!r}: choose one of {', '.join(_HIGHER_IS_BETTER)}")
    return _HIGHER_IS_BETTER[name]


def check_metric(name: str, task: Task) -> None:
    """Refuse a metric that is unknown or does not fit the kind of task (InputError)."""
    higher_is_better(name)
    if task.kind not in _KINDS[name]:
        fitting = ", ".join(metric for metric, kinds in _KINDS.items() if task.kind in kinds)
        raise InputError(
            f"metric {name!r} does not fit a {task.kind} task: choose one of {fitting}"
        )


def evaluate(name: str, pred: Tensor, y: Tensor, task: Task) -> float:
    """The named metric of raw network outputs (logits, not probabilities) against targets.

    For a multiclass task, "roc_auc" and "ap" are means over the classes, each against the rest.

    Args:
        name: "mae", "rmse", "roc_auc", "ap" or "accuracy".
        pred: [rows, task.num_outputs] floats, in the targets' units for regression.
        y: targets as `Task` describes them, NaN or -100 where not measured.
        task: gives the kind, against which the metric is checked.

    Raises:
        InputError: the metric is unknown or does not fit the kind of task.
    """
    check_metric(name, task)
    if task.kind == "multiclass" and name != "accuracy":
        pred, y = pred.double().log_softmax(dim=1), _one_against_rest(y, task.num_outputs)
    return float(_METRICS[name](pred, y))


def mae(pred: Tensor, y: Tensor) -> Tensor:
    """Mean absolute error: pred, y [rows, T] -> 0-d float64, the mean of the targets' own MAEs."""
    return _mean_over_targets(_per_target((pred.double() - y.double()).abs(), y), pred, y)


def rmse(pred: Tensor, y: Tensor) -> Tensor:
    """Root mean squared error: pred, y [rows, T] -> 0-d float64, the mean of the targets' RMSEs."""
    squares = _per_target((pred.double() - y.double()).square(), y)
    return _mean_over_targets(squares.sqrt(), pred, y)


def accuracy(pred: Tensor, y: Tensor) -> Tensor:
    """Share of right answers, 0-d float64.

    Integer `y` [rows] takes the largest of `pred` [rows, C]; float `y` [rows, T] of 0, 1 or NaN
    takes the sign of the logits `pred` [rows, T].
    """
    if y.is_floating_point():
        right = ((pred > 0) == (y > 0.5)).double()
        return _mean_over_targets(_per_target(right, y), pred, y)
    right = (pred.argmax(dim=1) == y).double()
    return right.masked_fill(y == NOT_MEASURED, torch.nan).nanmean()


def roc_auc(pred: Tensor, y: Tensor) -> Tensor:
    """Area under the ROC curve, 0-d float64; NaN where no target has both classes.

    By ranks (Mann and Whitney): the chance that a random positive scores above a random negative,
    ties counting half. From logits in their own precision, since sigmoids saturate into ties.

    Args:
        pred: [rows, T] logits.
        y: [rows, T] of 0, 1 or NaN (not measured).
    """
    positive, negative, first, last = _sorted_classes(pred, y)
    below = _running_count(negative)
    wins = below.gather(0, first) + below.gather(0, last + 1)  # twice: ties are in one of the two
    pairs = positive.sum(dim=0) * negative.sum(dim=0)
    area = (positive * wins).sum(dim=0).double() / (2 * pairs)
    return _mean_over_targets(area, pred, y)


def average_precision(pred: Tensor, y: Tensor) -> Tensor:
    """Average precision, Σ (R_i − R_{i−1}) P_i over thresholds, 0-d float64.

    Equal scores share one threshold. NaN where no target has both classes.

    Args:
        pred: [rows, T] logits.
        y: [rows, T] of 0, 1 or NaN (not measured).
    """
    positive, negative, first, _ = _sorted_classes(pred, y)
    hits = positive.sum(dim=0) - _running_count(positive).gather(0, first)
    misses = negative.sum(dim=0) - _running_count(negative).gather(0, first)
    precision = hits.double() / (hits + misses).clamp(min=1)
    area = (positive * precision).sum(dim=0) / positive.sum(dim=0)
    area = area.masked_fill(negative.sum(dim=0) == 0, torch.nan)
    return _mean_over_targets(area, pred, y)


def _one_against_rest(y: Tensor, num_classes: int) -> Tensor:
    """Classes [rows] int64 -> [rows, C] of 0 and 1, a row of NaN where not measured."""
    labels = (y.unsqueeze(1) == torch.arange(num_classes, device=y.device)).float()
    return labels.masked_fill((y == NOT_MEASURED).unsqueeze(1), torch.nan)


def _per_target(values: Tensor, y: Tensor) -> Tensor:
    """[rows, T] -> [T]: the mean over measured rows; NaN where there are none."""
    measured = ~y.isnan()
    return values.where(measured, 0).sum(dim=0) / measured.sum(dim=0)


def _mean_over_targets(values: Tensor, pred: Tensor, y: Tensor) -> Tensor:
    """[T] -> 0-d: the mean over targets that could be measured; NaN if a prediction is NaN.

    `nanmean` alone would pass over a target whose predictions are broken.
    """
    broken = (pred.isnan() & ~y.isnan()).any()
    return values.nanmean().masked_fill(broken, torch.nan)


def _running_count(flags: Tensor) -> Tensor:
    """[rows, T] 0/1 -> [rows + 1, T]: how many ones stand before each row, and in all."""
    return torch.cat([flags.new_zeros(1, flags.size(1)), flags.cumsum(dim=0)])


def _sorted_classes(pred: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sort each target's rows by score, ascending.

    Returns:
        positive, negative: [rows, T] int64 0/1 in sorted order (both 0 where not measured).
        first, last: [rows, T] int64, the first and the last row of each row's run of equal scores.
    """
    scores, order = pred.sort(dim=0)
    labels = y.gather(0, order)
    rows = torch.arange(len(scores), device=pred.device).unsqueeze(1).expand_as(order)
    change = scores[1:] != scores[:-1]
    edge = change.new_ones(min(len(scores), 1), scores.size(1))
    first = rows.where(torch.cat([edge, change]), 0).cummax(dim=0).values
    last = rows.where(torch.cat([change, edge]), len(scores) - 1)
    last = last.flip(0).cummin(dim=0).values.flip(0)
    return (labels > 0.5).long(), (labels <= 0.5).long(), first, last


_METRICS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mae": mae,
    "rmse": rmse,
    "roc_auc": roc_auc,
    "ap": average_precision,
    "accuracy": accuracy,
}
