"""The averages under which the paper's metrics were published, beside which ours stand as truth."""

import math
from collections.abc import Sequence

from torch import Tensor

from ..errors import InputError
from ..tasks import Task
from ..training.metrics import evaluate

CONVENTIONS = {
    "whole_split": "over the whole split",
    "mean_of_batches": "mean over batches",
    "sum_over_batches_per_graph": "sum of batch means / number of graphs",
}


def published_metric(
    convention: str,
    metric: str,
    pred: Tensor,
    y: Tensor,
    task: Task,
    rows_per_batch: Sequence[int],
    num_graphs: int,
) -> float:
    """A metric, averaged as the paper's code averages it.

    "whole_split" is the true metric. "mean_of_batches" is the mean of the batches' own metrics,
    those that cannot be measured (one class only) left out. "sum_over_batches_per_graph" is their
    sum divided by the number of graphs: for an error, the true one divided by about the batch size.

    Args:
        convention: one of `CONVENTIONS`.
        metric, pred, y, task: as in `metrics.evaluate`.
        rows_per_batch: rows of `pred` in each batch, in order.
        num_graphs: graphs in the split.

    Returns:
        NaN where no batch can be measured.

    Raises:
        InputError: an unknown convention, or as `metrics.evaluate`.
    """
    if convention not in CONVENTIONS:
        raise InputError(
            f"unknown convention {convention!r}: choose one of {', '.join(CONVENTIONS)}"
        )
    if convention == "whole_split":
        return evaluate(metric, pred, y, task)
    sizes = list(rows_per_batch)
    batches = zip(pred.split(sizes), y.split(sizes), strict=True)
    found = [evaluate(metric, part, target, task) for part, target in batches]
    found = [value for value in found if not math.isnan(value)]
    if not found:
        return math.nan
    return sum(found) / (len(found) if convention == "mean_of_batches" else num_graphs)


def true_from_published(
    convention: str, value: float, num_graphs: int, batch_size: int
) -> float | None:
    """About what a published metric is in truth; None where the convention does not say.

    A sum of batch means over N graphs is the mean of batch means times (batches / N).
    """
    if convention == "whole_split":
        return value
    if convention == "sum_over_batches_per_graph":
        return value * num_graphs / math.ceil(num_graphs / batch_size)
    return None
