"""True metrics: over a whole split, on the tensors' device, each target by itself.

Never a mean of batch means: the two differ for ROC-AUC and average precision, and hide errors for
the rest. Several targets are averaged over those that can be measured, unmeasured entries left
out, as OGB's `Evaluator` does. What cannot be measured at all (no labels; one class only) is NaN,
so that an odd split never ends a run.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from ..tasks import NOT_MEASURED, Kind, Task
from ..teaching.aligned import aligned


def higher_is_better(name: str) -> bool:
    """Whether a larger value of the metric is the better one.

    Raises:
        InputError: the metric is unknown.
    """
    if name not in _METRICS:
        raise InputError(f"unknown metric {name!r}: choose one of {', '.join(_METRICS)}")
    return _METRICS[name].higher_is_better


def metrics_for(task: Task) -> list[str]:
    """The names of all metrics that fit the kind of task."""
    return [name for name, metric in _METRICS.items() if task.kind in metric.kinds]


def check_metric(name: str, task: Task) -> None:
    """Refuse a metric that is unknown or does not fit the kind of task (InputError)."""
    higher_is_better(name)
    if task.kind not in _METRICS[name].kinds:
        fitting = ", ".join(metrics_for(task))
        raise InputError(
            f"metric {name!r} does not fit a {task.kind} task: choose one of {fitting}"
        )


def evaluate(name: str, pred: Tensor, y: Tensor, task: Task) -> float:
    """The named metric of raw network outputs (logits, not probabilities) against targets.

    For a multiclass task, "roc_auc" and "ap" are means over the classes, each against the rest; of
    several targets, any metric is a mean over those of which it can be measured.

    Args:
        name: "mae", "rmse", "r2", "roc_auc", "ap" or "accuracy".
        pred: [rows, task.num_outputs] floats, in the targets' units for regression.
        y: targets as `Task` describes them, NaN or -100 where not measured; as in `loss`.
        task: gives the kind, against which the metric is checked.

    Returns:
        NaN where it cannot be measured, as the ROC-AUC of a single class.

    Raises:
        InputError: the metric is unknown or does not fit the kind of task, or shapes do not.
    """
    check_metric(name, task)
    return float(_METRICS[name].compute(*aligned(pred, y, task)))


def evaluate_each(name: str, pred: Tensor, y: Tensor, task: Task) -> list[float]:
    """`evaluate` of every target by itself; its arguments, for regression or labels."""
    single = replace(task, num_outputs=1, names=())
    pairs = zip(pred.split(1, dim=1), y.split(1, dim=1), strict=True)
    return [evaluate(name, *pair, single) for pair in pairs]


def mae(pred: Tensor, y: Tensor) -> Tensor:
    """Mean absolute error: pred, y [rows, T] -> 0-d float64, the mean of the targets' own MAEs."""
    return _mean_over_targets(_per_target((pred.double() - y.double()).abs(), y), pred, y)


def rmse(pred: Tensor, y: Tensor) -> Tensor:
    """Root mean squared error: pred, y [rows, T] -> 0-d float64, the mean of the targets' RMSEs."""
    squares = _per_target((pred.double() - y.double()).square(), y)
    return _mean_over_targets(squares.sqrt(), pred, y)


def r2(pred: Tensor, y: Tensor) -> Tensor:
    """Coefficient of determination, 1 − Σ(y − pred)² / Σ(y − ȳ)²: pred, y [rows, T] -> 0-d float64.

    The mean of the targets' own, which no unit weighs; NaN of a target whose values are all one.
    """
    y = y.double()
    mean = _per_target(y, y)
    spread = _per_target((y - mean).square(), y)
    spread = spread.masked_fill(spread <= 1e-26 * mean.square(), torch.nan)  # but for rounding, 0
    return _mean_over_targets(1 - _per_target((pred.double() - y).square(), y) / spread, pred, y)


def accuracy(pred: Tensor, y: Tensor) -> Tensor:
    """Share of right answers, 0-d float64.

    Integer `y` [rows] takes the largest of `pred` [rows, C]; float `y` [rows, T] of 0, 1 or NaN
    takes the sign of the logits `pred` [rows, T].
    """
    if y.is_floating_point():
        right = ((pred > 0) == (y > 0.5)).double()
        return _mean_over_targets(_per_target(right, y), pred, y)
    measured = y != NOT_MEASURED
    right = (pred.argmax(dim=1) == y).double().masked_fill(~measured, torch.nan)
    return _mean_over_targets(right.nanmean().reshape(1), pred, y)


def roc_auc(pred: Tensor, y: Tensor) -> Tensor:
    """Area under the ROC curve, 0-d float64; NaN where no target has both classes.

    By ranks (Mann and Whitney): the chance that a random positive scores above a random negative,
    ties counting half. From logits in their own precision, since sigmoids saturate into ties.

    Args:
        pred: [rows, T] logits.
        y: [rows, T] of 0, 1 or NaN (not measured); or classes [rows], -100 where not measured, of
            which each is a target against the rest.
    """
    return _by_target(_area_under_roc, pred, y)


def average_precision(pred: Tensor, y: Tensor) -> Tensor:
    """Average precision, Σ (R_i − R_{i−1}) P_i over thresholds, 0-d float64.

    Equal scores share one threshold. NaN where no target has both classes.

    Args:
        pred, y: as for `roc_auc`.
    """
    return _by_target(_precision, pred, y)


def _by_target(area: Callable[[Tensor, Tensor], Tensor], pred: Tensor, y: Tensor) -> Tensor:
    """The mean over targets of the `area` of ascending scores: the positives', the negatives'."""
    pred = pred.detach()
    if y.is_floating_point():
        pred = pred.to(torch.promote_types(pred.dtype, torch.float32))
        sides = ((labels > 0.5, labels <= 0.5) for labels in y.T.contiguous())
    else:
        # Rounded, so that equal probabilities stay equal whatever the order of the logits.
        pred = pred.T.contiguous().double().log_softmax(dim=0).float().T
        known, count = y != NOT_MEASURED, pred.shape[1]
        sides = ((y == number, known & (y != number)) for number in range(count))
    values = []
    for scores, (positive, negative) in zip(pred.T.contiguous(), sides, strict=True):
        values.append(area(_ascending(scores, positive), _ascending(scores, negative)))
    return _mean_over_targets(torch.stack(values), pred, y)


def _area_under_roc(positive: Tensor, negative: Tensor) -> Tensor:
    few, many = sorted((positive, negative), key=len)
    # Twice the scores below each of the few: ties are in one of the two counts.
    below = torch.searchsorted(many, few) + torch.searchsorted(many, few, right=True)
    pairs = 2 * len(positive) * len(negative)
    won = below.sum() if few is positive else pairs - below.sum()
    return won.double() / pairs


def _precision(positive: Tensor, negative: Tensor) -> Tensor:
    hits = len(positive) - torch.searchsorted(positive, positive)
    misses = len(negative) - torch.searchsorted(negative, positive)
    precision = (hits.double() / (hits + misses)).mean()
    return precision if len(negative) else torch.full_like(precision, torch.nan)


def _ascending(scores: Tensor, mask: Tensor) -> Tensor:
    """Those of a mask, sorted; on the CPU by NumPy, which is up to ten times faster at both."""
    if scores.device.type == "cpu":
        chosen = scores.numpy()[np.flatnonzero(mask.numpy())]
        return torch.from_numpy(np.sort(chosen))
    return scores[mask].sort().values


def _per_target(values: Tensor, y: Tensor) -> Tensor:
    """[rows, T] -> [T]: the mean over measured rows; NaN where there are none."""
    measured = ~y.isnan()
    return values.where(measured, 0).sum(dim=0) / measured.sum(dim=0)


def _mean_over_targets(values: Tensor, pred: Tensor, y: Tensor) -> Tensor:
    """[T] -> 0-d: the mean over targets that could be measured; NaN if a prediction is NaN.

    `nanmean` alone would pass over a target whose predictions are broken.
    """
    measured = ~y.isnan() if y.is_floating_point() else (y != NOT_MEASURED)[:, None]
    broken = (pred.isnan() & measured).any()
    return values.nanmean().masked_fill(broken, torch.nan)


class _Metric(NamedTuple):
    compute: Callable[[Tensor, Tensor], Tensor]
    kinds: tuple[Kind, ...]
    higher_is_better: bool


_CLASSES: tuple[Kind, ...] = ("binary", "multilabel", "multiclass")
_METRICS = {
    "mae": _Metric(mae, ("regression",), False),
    "rmse": _Metric(rmse, ("regression",), False),
    "r2": _Metric(r2, ("regression",), True),
    "roc_auc": _Metric(roc_auc, _CLASSES, True),
    "ap": _Metric(average_precision, _CLASSES, True),
    "accuracy": _Metric(accuracy, _CLASSES, True),
}
