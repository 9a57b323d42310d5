"""How good predictions are, where the new graphs have labels."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..data.dataset import default_metric
from ..tasks import Kind, Level, Task, measured
from .evaluation import details
from .predict import Predictor, answers_of
from .records import all_known


class Judgement(NamedTuple):
    """What labels say of predictions.

    Args:
        labelled: how many rows have a label.
        kind, level: of the task; whether a row is a graph or a node.
        metric: the run's own.
        metrics: it first, then the others that fit the task; None where not measurable.
        each: where there are several targets, all that fit of each, the run's own first.
    """

    labelled: int
    kind: Kind
    level: Level
    metric: str
    metrics: dict[str, float | None]
    each: dict[str, dict[str, float | None]]


def judge(each: Sequence[Tensor], y: Tensor | None, predictor: Predictor) -> Judgement | None:
    """Compare with labels what a run predicts, or the mean of what several do.

    Args:
        each: the `Predictor.outputs` of every run, [rows, columns].
        y: targets of the same rows as the run's `Task` describes them; None where there are none.
        predictor: of a run.

    Returns:
        None where there is no label.
    """
    task = predictor.spec.task
    if y is None or not (there := measured(y, task)).any():
        return None
    metric = predictor.metric or predictor.config.metric_of(default_metric(task))
    metrics, by_target = details(_mean(each, task), y, task, metric)
    order = sorted(metrics, key=lambda name: name != metric)
    return Judgement(
        labelled=int(there.view(len(y), -1).any(1).sum()),
        kind=task.kind,
        level=task.level,
        metric=metric,
        metrics=all_known({name: metrics[name] for name in order}),
        each={target: all_known(values) for target, values in by_target.items()},
    )


def _mean(each: Sequence[Tensor], task: Task) -> Tensor:
    """Outputs that would give the mean of the runs' answers; of a single run its own, since
    probabilities round away how sure it is."""
    if len(each) == 1:
        return each[0]
    mean = torch.stack([answers_of(outputs.double(), task) for outputs in each]).mean(0)
    if task.kind == "regression":
        return mean
    return mean.log() if task.kind == "multiclass" else mean.logit()
