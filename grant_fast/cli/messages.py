"""What the commands say of their data and runs."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ..errors import few, short
from ..training.config import EQUAL_BUDGET, INFOBATCH, RunConfig
from .terminal import say

if TYPE_CHECKING:
    from rich.table import Table

    from ..training.judging import Judgement
    from ..training.records import RunResult

_FEW_NAMES = 3
_FEW_TARGETS = 20
_OVER_CLASSES = "roc_auc and ap are means over the classes, each against the others"


def described(dataset: Any, config: RunConfig) -> list[str]:
    """What will be learned from what, in a line; and doubts, each in another."""
    from ..studies.markdown import counted
    from ..tasks import measured
    from ..training.doubts import doubts
    from ..training.targets import targets_of

    task = dataset.task
    words = [
        f"{Path(config.source).name}: {counted(dataset.sizes)} graphs ({dataset.splitting} split)"
    ]
    names = (not task.class_names and task.names) or dataset.targets
    if names:
        named = f"target{'s' * (len(names) > 1)} {', '.join(names)}"
        several = f"{len(names)} targets ({few(list(names), _FEW_NAMES)})"
        words.append(named if len(names) <= _FEW_NAMES else several)
    words.append(task.kind)
    y = targets_of(dataset.graphs, dataset.split["train"])
    if task.kind == "multiclass":
        classes = f"{task.num_outputs} classes"
        if task.class_names:
            counts = y[measured(y, task)].bincount(minlength=task.num_outputs).tolist()
            each = zip(map(short, task.class_names), counts, strict=True)
            classes += f" ({few([f'{name}: {count:,}' for name, count in each], 5)} in training)"
        words.append(classes)
    if task.kind == "binary":
        positives = int((y == 1).sum())
        words.append(f"{positives:,} positive{'s' * (positives != 1)} in training")
    return [", ".join(words), *doubts(dataset, config)]


def described_share(config: RunConfig, num_train: int) -> list[str]:
    """That a run does not train on all graphs in every epoch, in a line; none where it does."""
    if config.arm in ("full", INFOBATCH):
        return []
    from ..teaching.schedules import share_size

    what, total = "graphs", num_train
    if config.arm == "grant-b":
        what, total = "batches", -(-num_train // config.batch_size)
    if share_size(config.start_ratio, total) == total:
        return []
    of = f"{share_size(config.start_ratio, total):,} of {total:,} {what}"
    share = f"{of} at first, {share_size(_last_ratio(config), total):,} of them at the end"
    remedy = "--arm full takes all, which is slower and often more accurate"
    if _stays(config):
        remedy = f"too few epochs for it to grow: give more, or --interval 1; {remedy}"
    return [f"{config.arm}: {share} ({remedy})"]


def described_stay(config: RunConfig, arms: Sequence[str]) -> list[str]:
    """That the arms of a comparison never widen their share, in a sentence; none where they do."""
    on_schedule = [arm for arm in arms if arm not in ("full", EQUAL_BUDGET, INFOBATCH)]
    if not on_schedule or not _stays(config):
        return []
    return [
        f"The share of graphs stays at {config.start_ratio:.3g} in all {config.epochs} epochs, too "
        "few for it to grow: give more, or --interval 1."
    ]


def _last_ratio(config: RunConfig) -> float:
    """The share in a run's last epoch."""
    from ..teaching.schedules import Curriculum

    schedules: Any = config.ratio_schedule, config.interval
    return Curriculum(config.epochs, config.start_ratio, *schedules).ratio(config.epochs - 1)


def _stays(config: RunConfig) -> bool:
    """Whether the share is meant to grow, and the run is too short for that."""
    grows = config.interval == "curriculum" and config.ratio_schedule != "constant"
    still = _last_ratio(config) == config.start_ratio < 1
    return grows and still and config.epochs > 1


def described_test(result: "RunResult", dataset: Any, can_grow: bool) -> list[str]:
    """What a run's test gave, and of which weights, in a line; in others, each of its targets, and
    what more epochs would take, where the run may get some or (unless it `can_grow`) a new one."""
    from ..training.doubts import why_unmeasured

    if result.test_metric is None:
        metric = f"not measurable, because {why_unmeasured(dataset, result.metric, 'test')}"
    else:
        metric = _listed(result.test_metric, result.metric, result.test_metrics)
    chosen = "best by valid"
    if result.valid_metric is None:
        chosen = f"the last, because {why_unmeasured(dataset, result.metric, 'valid')}"
    lines = [f"test {result.metric}: {metric} (weights of epoch {result.best_epoch}, {chosen})"]
    if dataset.task.kind == "multiclass" and {"roc_auc", "ap"} & {*result.test_metrics}:
        lines.append(_OVER_CLASSES)
    if result.test_metric is not None and result.test_metrics_each:
        lines += _described_each(result.metric, result.test_metrics_each)
    if result.test_metric is not None and result.constant_metric is not None:
        lines.append(_described_constant(result, dataset))
    has_learned = result.valid_metric is not None and result.beats_constant(result.test_metric)
    if has_learned and result.best_epoch == result.epochs > 1:
        how = "added by --resume -o FOLDER --epochs N" if can_grow else "in a new run"
        lines.append(f"the last epoch was the best by valid: more may do better, {how}")
    return lines


def described_judgement(judged: "Judgement", source: str, which: str) -> list[str]:
    """How good the predictions for `which` graphs of a source are by its own labels, in a line; in
    others, each of several targets."""
    from ..data.table import table_kind

    value = judged.metrics[judged.metric]
    found = f"{judged.metric} {_listed(value, judged.metric, judged.metrics)}"
    thing = "molecule" if table_kind(source) else judged.level
    where = f"{judged.labelled:,} {thing}{'s' * (judged.labelled != 1)} of {Path(source).name}"
    lines = [f"{found} (on {where} {which})"]
    if judged.kind == "multiclass" and {"roc_auc", "ap"} & {*judged.metrics}:
        lines.append(_OVER_CLASSES)
    if value is not None and judged.each:
        lines += _described_each(judged.metric, judged.each, rest="")
    return lines


def _listed(value: float | None, name: str, metrics: dict[str, float | None]) -> str:
    """The value of the metric of this name, and behind it the others with their names."""
    own = "not measurable" if value is None else f"{value:.4g}"
    others = {k: v for k, v in metrics.items() if k != name and v is not None}
    return own + "".join(f", {k} {v:.4g}" for k, v in others.items())


def _described_constant(result: "RunResult", dataset: Any) -> str:
    """The metric of a prediction that ignores the graph, and whether the run's is better."""
    from ..training.targets import has_one_value, targets_of

    assert result.constant_metric is not None
    metrics = _listed(result.constant_metric, result.metric, result.constant_metrics)
    line = f"the same answer everywhere would have test {result.metric} {metrics}"
    if result.beats_constant(result.test_metric):
        return line
    y = targets_of(dataset.graphs, dataset.split["train"])
    if has_one_value(y, dataset.task):
        return f"{line}: this network is no better"
    y = y[~y.isnan()] if dataset.task.kind == "regression" else y[:0]
    is_wide = len(y) > 0 and y.max() > 10 * y.min() > 0
    logs = ", or the logarithms of the targets" if is_wide else ""
    return f"{line}: this network is no better (try a lower --lr or more --epochs{logs})"


def _described_each(
    metric: str, each: dict[str, dict[str, float | None]], rest: str = "; each is in result.json"
) -> list[str]:
    """The metrics of each of several targets, of whose own the mean was said, a line each; `rest`
    where they are too many."""
    measured = {name: values for name, values in each.items() if values[metric] is not None}
    words = f"this {metric} is the mean of {len(measured)} of {len(each)} targets"
    if len(each) > _FEW_TARGETS:
        return [f"{words}{rest}"]
    lines = [
        f"  {name}: {metric} {_listed(values[metric], metric, values)}"
        for name, values in measured.items()
    ]
    return [f"{words}:", *lines]


def show_results(out: Path, table: "Table", sentences: Sequence[str], width: int = 100) -> None:
    """Print what a comparison gave, and its files; `width` columns wide unless to a terminal, whose
    lines wrap where it is too narrow for the figures."""
    from ..training.folder import REPORT_FILES

    console = Console(width=None if sys.stdout.isatty() else width)
    least = console.measure(table, options=console.options.update(width=1000)).minimum
    console.width = max(console.width, least + len(table.columns))  # and what stands between
    console.print(table)
    for sentence in sentences:
        print(sentence)
    numbers, page, picture = (out / name for name in REPORT_FILES)
    print(f"\nnumbers: {numbers}, {page}\npicture: {picture}")


def report_skipped(failures: Sequence[tuple[int, str]], source: str, fate: str) -> None:
    """Say how many molecules of a source could not be read, and name a few."""
    from ..data.table import molecules_in

    if failures:
        what = molecules_in(source)
        none = " (empty)" if what == "SMILES" else ""  # the text of a structure is its title
        shown = few([f"row {row}{_quoted(text) or none}" for row, text in failures])
        several = "s" * (len(failures) > 1 and what != "SMILES")
        say(f"{len(failures)} unparsable {what}{several} {fate}: {shown}")


def _quoted(text: str) -> str:
    """The beginning of a text in quotes, behind a space; nothing of none."""
    return f" {text[:30]!r}{'…' * (len(text) > 30)}" if text else ""
