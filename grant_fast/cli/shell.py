"""What the commands say of their data and runs, and the config that a run is taken up with."""

import dataclasses
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ..errors import InputError, few, short
from ..training.config import EQUAL_BUDGET, INFOBATCH, RunConfig
from .terminal import say

if TYPE_CHECKING:
    from rich.table import Table

    from ..training.judging import Judgement
    from ..training.records import RunResult

_NARROW, _FEW_THREADS = 32, 4
_FEW_NAMES = 3
_FEW_TARGETS = 20
_OVER_CLASSES = "roc_auc and ap are means over the classes, each against the others"


def use_fitting_threads(config: RunConfig) -> None:
    """Half of the cores, and few, for narrow networks, unless the user chose by OMP_NUM_THREADS.

    Their kernels take a fraction of a millisecond each: where a thread has to share its core with
    something else, all the others wait for it. On two cores two threads take less time than one if
    both are idle, and several times more if one is busy.
    """
    import torch

    widest = max(*config.hidden_channels, config.embedding, config.head or 0)
    if widest <= _NARROW and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, min(torch.get_num_threads() // 2, _FEW_THREADS)))


def load(config: RunConfig, saved_in: Path | None = None) -> Any:
    """The data set that a config names; what was left out of it is said.

    An error mentions where the config was saved, if the source was not given anew.
    """
    from ..training.config import MEMORY
    from ..training.model import resolve_device
    from ..training.source import dataset_of
    from ..workers import cores

    resolve_device(config.device)  # what cannot be used is refused before data are read
    try:
        dataset = dataset_of(config, workers=cores(), progress=True)
    except InputError as error:
        if saved_in is None or config.source.startswith(MEMORY):
            raise
        raise InputError(
            f"{error} ({config.source} is the source in {saved_in}: if the data have moved, give a "
            "SOURCE with --resume)"
        ) from error
    report_skipped(dataset.skipped, config.source, "skipped")
    if dataset.unlabelled:
        several = "s" * (dataset.unlabelled != 1)
        say(f"skipped {dataset.unlabelled} row{several} without any label")
    if dataset.left_out:
        names = few([repr(name) for name in dataset.left_out])
        say(f"left out of the targets, because not all of their cells are numbers: {names}")
    return dataset


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
        words.append(named if len(names) <= _FEW_NAMES else f"{len(names)} targets")
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


def described_test(result: "RunResult", dataset: Any) -> list[str]:
    """What a run's test gave, and of which weights, in a line; in another, each of its targets."""
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
    if result.test_metric is not None and result.test_metric_each:
        lines.append(_described_each(result.metric, result.test_metric_each))
    if result.test_metric is not None and result.constant_metric is not None:
        lines.append(_described_constant(result, dataset))
    has_learned = result.valid_metric is not None and result.beats_constant(result.test_metric)
    if has_learned and result.best_epoch == result.epochs > 1:
        lines.append("the last epoch was the best by valid: more --epochs may do better")
    return lines


def described_judgement(judged: "Judgement", source: str) -> list[str]:
    """How good the predictions for a source are by its own labels, in a line; in another, each of
    several targets."""
    from ..data.table import table_kind

    value = judged.metrics[judged.metric]
    found = "not measurable" if value is None else f"{value:.4g}"
    found = f"{judged.metric} {found}{_others(judged.metric, judged.metrics)}"
    thing = "molecule" if table_kind(source) else judged.level
    where = f"{judged.labelled:,} {thing}{'s' * (judged.labelled != 1)} of {Path(source).name}"
    lines = [f"{found} (on {where} with a label)"]
    if judged.kind == "multiclass" and {"roc_auc", "ap"} & {*judged.metrics}:
        lines.append(_OVER_CLASSES)
    if value is not None and judged.each:
        lines.append(_described_each(judged.metric, judged.each, rest=""))
    return lines


def _listed(value: float, name: str, metrics: dict[str, float | None]) -> str:
    """The value of the metric of this name, and behind it the others with their names."""
    return f"{value:.4g}{_others(name, metrics)}"


def _others(name: str, metrics: dict[str, float | None]) -> str:
    """The values of the metrics but that of this name, with their names, each behind a comma."""
    known = {k: v for k, v in metrics.items() if k != name and v is not None}
    return "".join(f", {k} {v:.4g}" for k, v in known.items())


def _described_constant(result: "RunResult", dataset: Any) -> str:
    """The metric of a prediction that ignores the graph, and whether the run's is better."""
    from ..training.targets import targets_of

    assert result.constant_metric is not None
    metrics = _listed(result.constant_metric, result.metric, result.constant_metrics)
    line = f"the same answer everywhere would have test {result.metric} {metrics}"
    if result.beats_constant(result.test_metric):
        return line
    y = targets_of(dataset.graphs, dataset.split["train"])
    has_logs = dataset.task.kind == "regression" and not (y <= 0).any()
    logs = ", or the logarithms of the targets" if has_logs else ""
    return f"{line}: this network is no better (try a lower --lr or more --epochs{logs})"


def _described_each(
    metric: str, metrics: dict[str, float | None], rest: str = "; each is in result.json"
) -> str:
    """The metric of each of several targets, of which the mean was said; `rest` where they are too
    many."""
    known = {name: value for name, value in metrics.items() if value is not None}
    words = f"this {metric} is the mean of {len(known)} of {len(metrics)} targets"
    if len(metrics) > _FEW_TARGETS:
        return f"{words}{rest}"
    return f"{words}: {', '.join(f'{name} {value:.4g}' for name, value in known.items())}"


def show_results(out: Path, table: "Table", sentences: Sequence[str], width: int = 100) -> None:
    """Print what a comparison gave, and its files; `width` columns wide unless to a terminal, whose
    lines wrap where it is too narrow for the figures."""
    console = Console(width=None if sys.stdout.isatty() else width)
    least = console.measure(table, options=console.options.update(width=1000)).minimum
    console.width = max(console.width, least + len(table.columns))  # and what stands between
    console.print(table)
    for sentence in sentences:
        print(sentence)
    print(f"\nnumbers: {out / 'results.json'}, {out / 'results.md'}\npicture: {out / 'curves.png'}")


def command() -> str:
    """This command, as one would give it in an empty folder."""
    words = [word for word in sys.argv[1:] if word not in ("--overwrite", "--resume")]
    return shlex.join(["grant-fast", *words])


def again() -> str:
    """The command that goes on with this one, were it interrupted."""
    return f"{command()} --resume"


def interrupted(can_go_on: bool, command: str) -> KeyboardInterrupt:
    """What to say at Ctrl-C: how to go on, if there is something to go on with."""
    return KeyboardInterrupt(f"interrupted; continue with: {command}" if can_go_on else "")


def holds_run(out: Path, config: RunConfig) -> bool:
    """Whether this very run, not an earlier one, has begun in a folder."""
    from ..training.folder import read_config

    try:
        return read_config(out) == config
    except InputError:
        return False


def holds_comparison(out: Path, config: RunConfig) -> bool:
    """Whether this very comparison, not an earlier one, has begun in a folder."""
    from ..studies.compare import begun_config

    try:
        found = begun_config(out)
    except InputError:
        return False
    return found is not None and dataclasses.replace(found, arm=config.arm) == config


def saved_config(out: Path, source: str | None, changes: dict[str, Any]) -> RunConfig | None:
    """The config to resume the run in a folder with; None where none has begun there.

    Raises:
        InputError: the changes are more than another place of the data; or there is neither a run
            nor a source to begin one with.
    """
    from ..training.folder import CONFIG_FILE, check_same, read_config

    if source is not None and not (out / CONFIG_FILE).exists():
        return None
    saved = read_config(out)
    asked = dataclasses.replace(saved, **changes)
    check_same(saved, asked, out)
    return asked


def report_skipped(failures: Sequence[tuple[int, str]], source: str, fate: str) -> None:
    """Say how many molecules of a source could not be read, and name a few."""
    from ..data.table import molecules_in

    if failures:
        shown = few([f"row {row}{_quoted(text)}" for row, text in failures])
        what = molecules_in(source)
        several = "s" * (len(failures) > 1 and what != "SMILES")
        say(f"{len(failures)} unparsable {what}{several} {fate}: {shown}")


def _quoted(text: str) -> str:
    """The beginning of a text in quotes, behind a space; nothing of none."""
    return f" {text[:30]!r}{'…' * (len(text) > 30)}" if text else ""
