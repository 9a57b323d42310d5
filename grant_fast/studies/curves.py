"""The picture of a comparison: loss and metric against time and against graphs seen."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..training import drawing
from ..training.drawing import dress, frame, new_figure, save_figure
from ..training.records import EpochRecord, Run


class _Look(NamedTuple):
    color: str
    line: str
    width: float


# Controls are broken lines.
_LOOKS = {
    "full": _Look(drawing.BLACK, "-", 1.8),
    "full-equal-budget": _Look(drawing.GREY, (0, (1, 1.2)), 3.2),  # type: ignore[arg-type]
    "random": _Look(drawing.ORANGE, "--", 2.2),
    "grant-b": _Look(drawing.BLUE, "-", 1.8),
    "grant-s": _Look(drawing.GREEN, "-", 1.8),
    "grant-global": _Look(drawing.RED, "-", 1.8),
    "grant-proportional": _Look(drawing.PINK, "-", 1.8),
    "infobatch": _Look(drawing.SKY, "-", 1.8),
}


def draw_curves(path: Path, runs: Sequence[Run], title: str) -> None:
    """Draw the validation curves of all arms, the mean over seeds with a band of one deviation.

    The loss is that of the validation split: training losses of arms that choose their own graphs
    cannot be compared. A dot marks where an arm ended.

    Raises:
        InputError: `path` cannot be written.
    """
    result = runs[0].result
    arms = list(dict.fromkeys(run.result.arm for run in runs))
    figure = new_figure(11, 7.6)
    axes = figure.subplots(2, 2, sharex="col", sharey="row")
    better = "higher is better" if result.higher_is_better else "lower is better"
    columns = {
        "train_seconds": "training time, selection included (s)",
        "graphs_seen": "graphs seen",
    }
    lines = {
        "valid_loss": "validation loss",
        "valid_metric": f"validation {result.metric} ({better})",
    }
    for row, (y_name, y_label) in zip(axes, lines.items(), strict=True):
        for axis, x_name in zip(row, columns, strict=True):
            for arm in arms:
                histories = [run.history for run in runs if run.result.arm == arm]
                _draw_arm(axis, arm, histories, x_name, y_name)
            _dress(axis, counted=x_name == "graphs_seen")
        row[0].set_ylabel(y_label)
        frame(row[0], [getattr(record, y_name) for run in runs for record in run.history])
    for axis, x_label in zip(axes[1], columns.values(), strict=True):
        axis.set_xlabel(x_label)
    constant = [value for run in runs if (value := run.result.constant_loss) is not None]
    if constant:
        for axis in axes[0]:
            drawing.draw_constant(axis, float(np.mean(constant)))
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    seeds = len({run.result.seed for run in runs})
    spread = f"mean ± one standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    save_figure(figure, path, f"{title} ({spread})")


def _draw_arm(
    axis: Any, arm: str, histories: Sequence[Sequence[EpochRecord]], x_name: str, y_name: str
) -> None:
    # Seeds are averaged epoch by epoch, in x as in y. grant-b, which rounds to whole batches, may
    # spend its budget an epoch sooner with one seed than with another: that one stays where it is.
    longest = max(map(len, histories))
    epochs = zip(*([*h, *[h[-1]] * (longest - len(h))] for h in histories), strict=True)
    kept = [records for records in epochs if all(getattr(r, y_name) is not None for r in records)]
    if not kept:
        return
    x = np.array([[getattr(r, x_name) for r in records] for records in kept]).mean(1)
    y = np.array([[getattr(r, y_name) for r in records] for records in kept])
    mean, look = y.mean(1), _LOOKS[arm]
    axis.plot(x, mean, color=look.color, linestyle=look.line, linewidth=look.width, label=arm)
    axis.plot(x[-1:], mean[-1:], "o", color=look.color, markersize=6, zorder=3)
    if len(histories) > 1:
        std = y.std(1, ddof=1)
        axis.fill_between(x, mean - std, mean + std, color=look.color, alpha=0.12, linewidth=0)


def _dress(axis: Any, counted: bool) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    dress(axis)
    axis.set_xlim(left=0)
    axis.xaxis.set_major_locator(MaxNLocator(8))
    if counted:  # seconds stay plain: 50m is no time
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))  # 200k, 1.2M
