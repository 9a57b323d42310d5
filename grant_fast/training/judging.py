"""How good answers are, where the new graphs have labels."""

from typing import NamedTuple

from torch import Tensor

from ..data.dataset import default_metric
from ..tasks import Level, measured
from .evaluation import details
from .predict import Predictor
from .records import known


class Judgement(NamedTuple):
    """What labels say of answers.

    Args:
        labelled: how many rows have a label.
        level: whether a row is a graph or a node.
        metric: the run's own.
        metrics: it first, then the others that fit the task; None where not measurable.
        each: where there are several targets, the run's own of each.
    """

    labelled: int
    level: Level
    metric: str
    metrics: dict[str, float | None]
    each: dict[str, float | None]


def judge(answers: Tensor, y: Tensor | None, predictor: Predictor) -> Judgement | None:
    """Compare answers with labels.

    Args:
        answers: as a predictor of the run gives them, or the mean of several.
        y: targets as the run's `Task` describes them, for the same rows; None where there are none.
        predictor: of the run.

    Returns:
        None where there is no label.
    """
    task = predictor.spec.task
    if y is None or not (there := measured(y, task)).any():
        return None
    metric = predictor.config.metric_of(default_metric(task))
    metrics, each = details(_outputs(answers, task.kind), y, task, metric)
    order = sorted(metrics, key=lambda name: name != metric)
    return Judgement(
        labelled=int(there.view(len(y), -1).any(1).sum()),
        level=task.level,
        metric=metric,
        metrics={name: known(metrics[name]) for name in order},
        each={name: known(value) for name, value in each.items()},
    )


def _outputs(answers: Tensor, kind: str) -> Tensor:
    """Outputs of a network that would give these answers."""
    if kind == "regression":
        return answers
    return answers.log() if kind == "multiclass" else answers.logit()
