"""How good a model is on a split: mean loss, and the true metric in the targets' own units."""

import math
from collections.abc import Iterable, Mapping

from torch import Tensor, nn

from ..batches import GraphBatch
from ..errors import InputError
from ..graphs import PackedGraphs
from ..nn.evaluating import evaluating
from ..tasks import Task, measured
from ..teaching.residuals import loss
from .metrics import evaluate, evaluate_each, metrics_for
from .model import ModelSpec, fitting, outputs
from .recording import Recorder
from .targets import constant_prediction, names_of

#: From here on the area under each class's curve may take longer than the training.
_MANY_CLASSES = 1000


def details(
    pred: Tensor, y: Tensor, task: Task, metric: str
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """All metrics that fit the task, by name (of several regressions its own and R², as a mean of
    others mixes units; of very many classes no curve that is not asked for); and, where there are
    several targets, all that fit of each, its own metric first. NaN without labels.

    Args:
        pred, y, task: as for `evaluate`.
        metric: the task's own.
    """
    metrics = {name: evaluate(name, pred, y, task) for name in _telling(task, metric)}
    if task.kind == "multiclass" or task.num_outputs == 1:
        return metrics, {}
    names = sorted(metrics_for(task), key=lambda name: name != metric)
    columns = [evaluate_each(name, pred, y, task) for name in names]
    each = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    return metrics, dict(zip(names_of(task, y.shape[1]), each, strict=True))


def _telling(task: Task, metric: str) -> list[str]:
    """The metrics that say something of a task, at little cost."""
    if task.kind == "regression" and task.num_outputs > 1:
        return sorted({metric, "r2"})
    names = metrics_for(task)
    if task.num_outputs > _MANY_CLASSES:
        names = [name for name in names if name in (metric, "accuracy")]
    return names


class Evaluator:
    """Evaluates models on the splits of one dataset.

    Args:
        graphs: the whole dataset, on the models' device.
        split: positions of the "train", "valid" and "test" graphs.
        y: their targets, in their own units.
        metric: name of the metric.
        spec: how a model's outputs relate to the targets.
        recorder: what evaluates a split again and again; None records nothing.
    """

    def __init__(
        self,
        graphs: PackedGraphs,
        split: Mapping[str, Tensor],
        y: Mapping[str, Tensor],
        metric: str,
        spec: ModelSpec,
        recorder: Recorder[Tensor] | None = None,
    ) -> None:
        self._graphs, self._split, self._y = graphs, split, y
        self._metric, self._spec = metric, spec
        self._whole: dict[str, list[GraphBatch]] = {}
        self._recorder = recorder or Recorder(None)

    def __call__(self, model: nn.Module, part: str) -> tuple[float, float]:
        """Loss (on the training scale) and metric of `model` over a split; NaN without labels.

        Raises:
            InputError: a prediction is not finite: the training has diverged.
        """
        y, task = self._y[part], self._spec.task
        if not measured(y, task).any():
            return math.nan, math.nan
        pred = self._outputs(model, part)
        return self._loss(pred, y), evaluate(self._metric, self._spec.decode(pred), y, task)

    def details(
        self, model: nn.Module, part: str
    ) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
        """The function `details` of `model` over a split.

        Raises:
            InputError: as of a call.
        """
        pred = self._spec.decode(self._outputs(model, part))
        return details(pred, self._y[part], self._spec.task, self._metric)

    def _outputs(self, model: nn.Module, part: str) -> Tensor:
        batches = self._batches(model, part)
        with evaluating(model, alone=True):
            pred = self._recorder(lambda: outputs(model, batches), model, batches)
        if not pred.isfinite().all():
            raise InputError(f"a prediction for the {part} split is not finite")
        return pred

    def _batches(self, model: nn.Module, part: str) -> Iterable[GraphBatch]:
        """The split's graphs; as one batch, if they fit into one, which is kept."""
        if part not in self._whole:
            parts = fitting(self._graphs, self._split[part], model)
            if len(parts) > 1:
                return map(self._graphs.batch, parts)
            self._whole[part] = [self._graphs.batch(parts[0])]
        return self._whole[part]

    def constant_loss(self, part: str) -> float:
        """The loss of the best prediction that ignores the graph; NaN without labels."""
        y, task = self._y[part], self._spec.task
        if not measured(y, task).any():
            return math.nan
        guess = constant_prediction(self._spec.encode(self._y["train"]), task)
        return self._loss(guess.expand(len(y), -1), y)

    def constant_metrics(self, part: str) -> dict[str, float]:
        """The metrics of `details` of the best such prediction for each, NaN where unmeasurable."""
        y, task = self._y["train"], self._spec.task
        y, other = y.cpu(), self._y[part].cpu()  # no GPU is sure to find the same median
        mean = constant_prediction(y, task).expand(len(other), -1)
        names = _telling(task, self._metric)
        median = mean
        if "mae" in names:  # of a target without labels 0, as the mean
            median = y.nanmedian(0).values.nan_to_num().expand(len(other), -1)
        each = {name: median if name == "mae" else mean for name in names}
        return {name: evaluate(name, pred, other, task) for name, pred in each.items()}

    def _loss(self, pred: Tensor, y: Tensor) -> float:
        return float(loss(pred, self._spec.encode(y), self._spec.task))
