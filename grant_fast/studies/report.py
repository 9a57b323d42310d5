"""The summary of a comparison: numbers over seeds, and sentences that claim no more than those."""

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich import box
from rich.markup import escape
from rich.table import Table

from ..data.dataset import Dataset
from ..training.config import INFOBATCH, RunConfig
from ..training.records import Run, RunResult
from .compare import CONTROLS
from .markdown import bullets, counted, markdown, write_results

FULL = "full"
_ENOUGH_SEEDS = 3
#: How seldom chance alone sets two means so far apart that they are called different.
_SELDOM = 0.05
_EQUAL_SHARE = 0.1  # by which numbers of graphs may differ and still be called equal


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds; the latter is None for a single seed."""

    mean: float
    std: float | None
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float | None]) -> "Spread":
        """Over the values; one that could not be measured makes both NaN."""
        numbers = [value for value in values if value is not None and math.isfinite(value)]
        if len(numbers) < len(values):
            return cls(math.nan, math.nan, len(values))
        std = statistics.stdev(numbers) if len(numbers) > 1 else None
        return cls(statistics.fmean(numbers), std, len(values))

    def __str__(self) -> str:
        """Three significant digits of the mean, and the spread to the same place, or to its first
        digit."""
        if math.isnan(self.mean):
            return "–"
        size = 0 if self.mean == 0 else math.floor(math.log10(abs(self.mean)))
        form = f",.{max(0, 2 - size)}f" if -4 <= size < 9 else ".2e"
        text = f"{self.mean:{form}}"
        if self.std is None:
            return text
        if self.std and not float(f"{self.std:{form}}".replace(",", "")):
            first = -math.floor(math.log10(self.std))
            form = f".{first}f" if first < 9 else ".0e"
        return f"{text} ± {self.std:{form}}"


@dataclass(frozen=True)
class ArmSummary:
    """One arm over all seeds.

    Args:
        arm: its name.
        seconds: training time, selection included, validation not.
        selection_seconds, valid_seconds: selecting alone; validation.
        graphs_seen: graph visits.
        loss: validation loss after the last epoch.
        test_metric: of the weights that were best by validation.
        test_metric_last: of the last weights.
        saving: share of full's training time that the arm saved; None for full, or without it.
    """

    arm: str
    seconds: Spread
    selection_seconds: Spread
    valid_seconds: Spread
    graphs_seen: Spread
    loss: Spread
    test_metric: Spread
    test_metric_last: Spread
    saving: float | None


def summarize(runs: Sequence[Run]) -> list[ArmSummary]:
    """One summary for each arm, in the order in which the arms first come."""
    arms = list(dict.fromkeys(run.result.arm for run in runs))
    by_arm = {arm: [run for run in runs if run.result.arm == arm] for arm in arms}
    seconds = {
        arm: Spread.of([run.result.train_seconds for run in members])
        for arm, members in by_arm.items()
    }
    full = seconds.get(FULL)
    return [
        ArmSummary(
            arm=arm,
            seconds=seconds[arm],
            selection_seconds=Spread.of([run.result.selection_seconds for run in members]),
            valid_seconds=Spread.of([run.result.valid_seconds for run in members]),
            graphs_seen=Spread.of([run.result.graphs_seen for run in members]),
            loss=Spread.of([run.history[-1].valid_loss for run in members]),
            test_metric=Spread.of([run.result.test_metric for run in members]),
            test_metric_last=Spread.of([run.result.test_metric_last for run in members]),
            saving=None if full is None or arm == FULL else 1 - seconds[arm].mean / full.mean,
        )
        for arm, members in by_arm.items()
    ]


def verdict(summaries: Sequence[ArmSummary], metric: str, higher_is_better: bool) -> list[str]:
    """What the numbers say, in plain sentences.

    A difference of two means counts only where `chance` is below 5%; anything else is "no clear
    difference". Fewer than three seeds tell nothing about the spread, and so decide nothing.
    """
    measured = [arm for arm in summaries if not math.isnan(arm.test_metric.mean)]
    if not measured:
        return [f"{metric} could not be measured on the test split."]
    sign = 1 if higher_is_better else -1
    best = max(measured, key=lambda arm: sign * arm.test_metric.mean)
    lead = f"{best.arm} has the best mean test {metric}, {best.test_metric}"
    if best.test_metric.seeds < _ENOUGH_SEEDS:
        few = "one seed" if best.test_metric.seeds == 1 else "two seeds"
        return [f"{lead}; with {few}, that may be mere chance."]
    tied = [arm.arm for arm in measured if arm is not best and not _order(best, arm, sign)]
    if tied:
        lead = f"{lead}, with no clear difference from {_joined(tied)}"
    elif len(measured) > 1:
        others = "the other arm" if len(measured) == 2 else "each other arm"
        lead = f"{lead}, clearly better than {others} (Welch's t-test, p < {_SELDOM})"
    return [f"{lead}.", *_against_controls(measured, sign)]


def unequal(summaries: Sequence[ArmSummary]) -> list[str]:
    """Which arms saw clearly more or fewer graphs than their controls, who were to see as many."""
    by_name = {arm.arm: arm for arm in summaries}
    controls = [by_name[name] for name in CONTROLS if name in by_name]
    sentences = []
    for arm in summaries:
        seen = arm.graphs_seen.mean
        off = [c for c in controls if abs(c.graphs_seen.mean - seen) > _EQUAL_SHARE * seen]
        if arm.arm.startswith("grant-") and off:
            others = ", ".join(f"{c.arm} {c.graphs_seen.mean:,.0f}" for c in off)
            sentences.append(
                f"{arm.arm} saw {seen:,.0f} graphs, {others}: the numbers differ because batches "
                "are kept whole; a smaller batch size brings them closer."
            )
        elif arm.arm == INFOBATCH and off:
            sentences.append(
                f"{arm.arm} saw {seen:,.0f} graphs: its rule ends by training on all of them."
            )
    return sentences


def unsaved(summaries: Sequence[ArmSummary]) -> list[str]:
    """That nobody knows what time the arms saved, as they were not compared with all graphs."""
    if any(summary.arm == FULL for summary in summaries):
        return []
    return ["What time the arms save is not known without plain training: add the arm full."]


def unlearned(summaries: Sequence[ArmSummary], result: RunResult) -> list[str]:
    """Which arms are no better than a prediction that ignores the graph, in a sentence, if any."""
    means = {arm.arm: arm.test_metric.mean for arm in summaries}
    arms = [
        arm for arm, mean in means.items() if not (math.isnan(mean) or result.beats_constant(mean))
    ]
    if not arms:
        return []
    return [
        f"No better than the same answer everywhere (test {result.metric} "
        f"{result.constant_metric:.4g}): {_joined(arms)}. How such networks differ says nothing."
    ]


def _against_controls(arms: Sequence[ArmSummary], sign: int) -> list[str]:
    by_name = {arm.arm: arm for arm in arms}
    sentences = []
    for arm in arms:
        if not arm.arm.startswith("grant-"):
            continue
        parts = []
        for other in (*CONTROLS, FULL):
            if other in by_name:
                order = _order(arm, by_name[other], sign)
                words = {1: "better than", 0: "no clear difference from", -1: "worse than"}[order]
                parts.append(f"{words} {other}")
        if arm.saving is not None:
            word = "less" if arm.saving >= 0 else "more"
            parts.append(f"{abs(arm.saving):.0%} {word} training time than {FULL}")
        sentences.append(f"{arm.arm}: {', '.join(parts)}.")
    return sentences


def _order(one: ArmSummary, other: ArmSummary, sign: int) -> int:
    """1 where `one` is clearly better, -1 where clearly worse, else 0."""
    if chance(one.test_metric, other.test_metric) >= _SELDOM:
        return 0
    return 1 if sign * (one.test_metric.mean - other.test_metric.mean) > 0 else -1


def chance(one: Spread, other: Spread) -> float:
    """How often seeds alone would set two equal means at least so far apart: the two-sided p of
    Welch's t-test (B. L. Welch, *Biometrika* 34, 1947), whose spreads may differ.

    Args:
        one, other: of two seeds or more each.
    """
    gap, parts = abs(one.mean - other.mean), []
    for spread in (one, other):
        assert spread.std is not None
        parts.append((spread.std**2 / spread.seeds, spread.seeds - 1))
    squared = sum(part for part, _ in parts)  # of the standard error of the gap
    if squared == 0:
        return float(gap == 0)
    freedom = squared**2 / sum(part**2 / degrees for part, degrees in parts)
    # Student's density beyond t, integrated over the angle whose tangent is √freedom/t; its points
    # lie closest at 0, where few degrees of freedom leave it no derivative.
    angles = (
        math.atan2(math.sqrt(squared * freedom), gap) * torch.linspace(0, 1, 10_001).double() ** 2
    )
    beyond = float(torch.trapezoid(angles.sin() ** (freedom - 1), angles))
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2))
    return min(1.0, 2 * scale / math.sqrt(math.pi) * beyond)  # rounding may reach above it


def _joined(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def rows(summaries: Sequence[ArmSummary], metric: str) -> tuple[list[str], list[list[str]]]:
    """The whole table, headings and cells, as text; `BRIEF` of its columns fit a terminal."""
    headings = [
        "arm",
        "train s",
        "saved",
        "graphs seen",
        "valid loss, last weights",
        f"test {metric}",
        f"test {metric}, last weights",
        "selecting",
        "validation s",
    ]
    cells = [
        [
            arm.arm,
            str(arm.seconds),
            "–" if arm.saving is None else f"{arm.saving:.0%}",
            f"{arm.graphs_seen.mean:,.0f}",
            str(arm.loss),
            str(arm.test_metric),
            str(arm.test_metric_last),
            f"{arm.selection_seconds.mean / max(arm.seconds.mean, 1e-9):.0%}",
            f"{arm.valid_seconds.mean:.3g}",
        ]
        for arm in summaries
    ]
    return headings, cells


BRIEF = 6


def terminal_table(
    summaries: Sequence[ArmSummary], metric: str, higher_is_better: bool, title: str
) -> Table:
    """The first columns of the summary as a rich table, the best test metric in bold."""
    headings, cells = rows(summaries, metric)
    table = Table(title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.collapse_padding = True  # a terminal of 80 columns has room for most comparisons then
    table.add_column(headings[0], no_wrap=True)
    for heading in headings[1:BRIEF]:
        narrow = heading.replace("s seen", "s\nseen").replace(", last weights", "\nat the end")
        table.add_column(narrow, justify="right")
    sign = 1 if higher_is_better else -1
    scores = [sign * arm.test_metric.mean for arm in summaries]
    best = max((score for score in scores if not math.isnan(score)), default=None)
    for score, row in zip(scores, cells, strict=True):
        table.add_row(*row[:BRIEF], style="bold" if score == best else None)
    return table


def write_report(
    out: Path,
    runs: Sequence[Run],
    summaries: Sequence[ArmSummary],
    title: str,
    command: str,
    config: RunConfig,
    notes: Sequence[str] = (),
) -> list[str]:
    """Write results.json and results.md into `out`; return their sentences: the verdict, what the
    comparison lacks, then `notes`, which are of the settings."""
    result = runs[0].result
    sentences = [
        *verdict(summaries, result.metric, result.higher_is_better),
        *unequal(summaries),
        *unlearned(summaries, result),
        *unsaved(summaries),
        *notes,
    ]
    found = {
        "metric": result.metric,
        "higher_is_better": result.higher_is_better,
        "verdict": sentences,
        "arms": [dataclasses.asdict(summary) for summary in summaries],
        "runs": [dataclasses.asdict(run.result) for run in runs],
    }
    table = markdown(*rows(summaries, result.metric))
    write_results(out, title, command, config, found, f"{table}\n\n{bullets(sentences)}")
    return sentences


def title_of(dataset: Dataset) -> str:
    """What a report is about, in one line."""
    return f"{dataset.name}, {counted(dataset.sizes)} graphs to train, validate and test"
