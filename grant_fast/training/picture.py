"""The picture of a run: how loss and metric went, and how the answers for the test graphs are."""

from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ..data.dataset import Dataset
from ..tasks import measured
from .drawing import BLUE, GREY, ORANGE, draw_constant, dress, frame, new_figure, save_figure
from .records import Run
from .targets import targets_of

#: So many points of a scatter are drawn solid; of more, each is fainter.
_SOLID = 300
#: Curves of fewer epochs show each as a point; one alone would be no line.
_FEW = 10


def draw_run(path: Path, run: Run, dataset: Dataset, answers: Tensor | None) -> None:
    """Draw loss and validation metric against epochs, and beside them the test.

    Of one regression target, that is what was predicted against what was measured; of two classes
    the ROC curve. Of all else, and where `answers` [test graphs, columns] is None, there is none.

    Raises:
        InputError: `path` cannot be written.
    """
    from matplotlib.ticker import MaxNLocator

    tested = None if answers is None else _tested(dataset, answers)
    panels = 2 if tested is None else 3
    figure = new_figure(4.6 * panels, 4.2)
    figure.get_layout_engine().set(w_pad=0.12)  # inches; a label would touch the panel before it
    axes = figure.subplots(1, panels)
    _draw_losses(axes[0], run)
    _draw_metric(axes[1], run)
    if tested is not None:
        if dataset.task.kind == "regression":
            _draw_parity(axes[2], *tested, *(dataset.task.names or ("target",)))
        else:
            _draw_roc(axes[2], *tested, *dataset.task.class_names[1:])
        axes[2].set_title(_measures(run, len(tested[0])), fontsize=10)
    for axis in axes[:2]:
        axis.set_xlabel("epoch")
        axis.set_xlim(left=0)
        axis.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    for axis in axes:
        dress(axis)
    save_figure(figure, path, f"{dataset.name}, {run.result.arm}")


def _tested(dataset: Dataset, answers: Tensor) -> tuple[np.ndarray, np.ndarray] | None:
    """Targets and answers for the test graphs that have one, of a task that one panel can show; of
    two classes whether it is the second, and its probability."""
    task = dataset.task
    y = targets_of(dataset.graphs, dataset.split["test"]).cpu().reshape(len(answers), -1)
    of_two = task.kind == "binary" or (task.kind == "multiclass" and task.num_outputs == 2)
    if not of_two and (task.kind != "regression" or task.num_outputs > 1):
        return None
    there = measured(y, task)[:, 0]
    truth, said = y[there, 0].numpy(), answers[there, -1].cpu().numpy()
    return (truth, said) if len(np.unique(truth)) > of_two else None


def _draw_losses(axis: Any, run: Run) -> None:
    records, result = run.history, run.result
    validated = [record for record in records if record.valid_loss is not None]
    of = "" if result.arm.startswith("full") else ", graphs picked"
    losses = [record.loss for record in records]
    _draw_curve(axis, [r.epoch for r in records], losses, color=ORANGE, label=f"training{of}")
    epochs, valid = [r.epoch for r in validated], [r.valid_loss for r in validated]
    _draw_curve(axis, epochs, valid, color=BLUE, label="validation")
    frame(axis, [*losses, *valid])
    if result.constant_loss is not None:
        draw_constant(axis, result.constant_loss)
    axis.set_ylabel("loss")
    # Above, where the other panels have their titles: within, it would cover a curve.
    place = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.2, "ncols": 3}
    spare = {"fontsize": 8, "handlelength": 1.4, "handletextpad": 0.5, "columnspacing": 1}
    axis.legend(frameon=False, **place, **spare)


def _draw_curve(axis: Any, epochs: list[int], values: list[Any], **look: Any) -> None:
    axis.plot(epochs, values, marker="." if len(epochs) < _FEW else None, **look)


def _draw_metric(axis: Any, run: Run) -> None:
    result = run.result
    records = [record for record in run.history if record.valid_metric is not None]
    values = [record.valid_metric for record in records]
    _draw_curve(axis, [r.epoch for r in records], values, color=BLUE)
    if result.valid_metric is not None:
        axis.plot([result.best_epoch], [result.valid_metric], "o", color=BLUE)
        best = f"best: {result.valid_metric:.4g}, at epoch {result.best_epoch}"
        axis.set_title(best, fontsize=10)
    frame(axis, values, best=result.valid_metric)
    better = "higher" if result.higher_is_better else "lower"
    axis.set_ylabel(f"validation {result.metric} ({better} is better)")


def _draw_parity(axis: Any, truth: np.ndarray, said: np.ndarray, name: str) -> None:
    ends = [min(truth.min(), said.min()), max(truth.max(), said.max())]
    axis.plot(ends, ends, color=GREY, linewidth=1, linestyle="--", label="perfect")
    faint = max(0.08, min(0.8, _SOLID / len(truth)))
    axis.plot(truth, said, "o", color=BLUE, markersize=4, markeredgewidth=0, alpha=faint)
    axis.set_aspect("equal", adjustable="datalim")
    axis.set_xlabel(name, parse_math=False)
    axis.set_ylabel(f"{name}, predicted", parse_math=False)
    axis.legend(loc="upper left", frameon=False)


def _draw_roc(axis: Any, truth: np.ndarray, said: np.ndarray, name: str = "1") -> None:
    order = np.argsort(-said, kind="stable")
    last = np.append(np.flatnonzero(np.diff(said[order])), len(said) - 1)  # of each answer
    positive = truth[order] == 1
    for_true, for_false = (np.append(0, np.cumsum(hit)[last]) for hit in (positive, ~positive))
    axis.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle="-.", label="coin toss")
    rates = for_false / for_false[-1], for_true / for_true[-1]
    axis.plot(*rates, color=BLUE, label=f"class {name}")
    axis.set(xlabel="false positive rate", ylabel="true positive rate", aspect="equal")
    for text in axis.legend(frameon=False).get_texts():
        text.set_parse_math(False)


def _measures(run: Run, count: int) -> str:
    """What the test gave, in a line."""
    metrics = run.result.test_metrics.items()
    said = [f"{name} {value:.3g}" for name, value in metrics if value is not None]
    return f"test ({count:,}): {', '.join(said)}"
