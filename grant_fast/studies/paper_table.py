"""Our figures beside the published ones, in the paper's row layout, with all that differs."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from rich import box
from rich.markup import escape
from rich.table import Table

from ..data.dataset import Dataset
from ..data.twin import PREFIX as TWIN
from ..training.config import NETWORKS, RunConfig
from ..training.metrics import higher_is_better
from .conventions import CONVENTIONS, true_from_published
from .markdown import bullets, counted, markdown, write_results
from .recipe import Recipe
from .report import FULL
from .reproduce import Row

_SYMBOLS = {
    FULL: "✗",
    "random": "random",
    "grant-b": "B",
    "grant-s": "S",
    "gcn": f"{NETWORKS['gcn']}, σ((Â+I)^(κ−1) X W)",
    "gcn-virtual-node": NETWORKS["gcn-virtual-node"],
    "infobatch": "InfoBatch",
}


def known_differences(
    recipe: Recipe, dataset: Dataset, config: RunConfig, seeds: int, device: torch.device
) -> list[str]:
    """A sentence for everything that is known to part our figures from the published ones."""
    found = []
    if config.epochs != recipe.config.epochs:
        found.append(
            f"{config.epochs} epoch{'s' * (config.epochs != 1)} instead of {recipe.config.epochs}, "
            "the curriculum stretched over those: an unfinished run, not the published one."
        )
    if config.pass_size and config.norm == "batch_norm":
        found.append(
            f"Batch norm normalises up to {config.pass_size:,} graphs together instead of batches "
            f"of {config.batch_size}."
        )
    if dataset.sizes != recipe.splits:
        found.append(f"{counted(dataset.sizes)} graphs instead of {counted(recipe.splits)}.")
    if config.source.startswith(TWIN):
        found.append(
            f"SHAPE TWIN: noise in the shape of {config.source.removeprefix(TWIN)}, for timing "
            "alone; losses and metrics mean nothing."
        )
    elif config.source != recipe.source:
        found.append(f"The data come from {Path(config.source).name}, not from {recipe.source}.")
    if dataset.encoder == "atom" and not recipe.name.startswith("ogbg-mol"):
        found.append("Atoms are embedded from OGB's nine columns, not the paper's features.")
    if config.source.lower().endswith(".smi"):
        found.append("The penalised logP is not normalised, as the published one is.")
    if seeds == 1:
        found.append("One seed: any difference between arms may be chance.")
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "a CPU"
    found.append(f"Our times are from {where}; PyTorch ran {torch.get_num_threads()} thread(s).")
    return [*found, *recipe.differences]


def cells(recipe: Recipe, config: RunConfig, rows: Sequence[Row]) -> list[list[str]]:
    """The table, headings first: the paper's figures and ours in turn, then those only cited."""
    metric = config.metric.upper().replace("_", "-")
    arrow = "↑" if higher_is_better(config.metric) else "↓"
    ours = config.source == recipe.source  # other data may have other units
    unit = f" ({recipe.unit})" if recipe.unit and ours else ""
    lines = [
        [
            "GraNT",
            "whose",
            "Time (s)",
            "Graph visits",
            "Loss ↓",
            f"{metric} as published {arrow}",
            f"true {metric}{unit} {arrow}",
            f"true {metric}, best by valid",
        ]
    ]
    for row in rows:
        if row.arm in recipe.published:
            lines.append([_SYMBOLS[row.arm], "paper", *_published_cells(recipe, row.arm)])
        time = str(row.seconds) + (f" ({-row.saving:+.1%})" if row.saving is not None else "")
        lines.append(
            [
                _SYMBOLS[row.arm],
                "here",
                time,
                f"{row.graphs_seen.mean:,.0f}",
                str(row.loss),
                _precise(row.published_metric.mean, row.published_metric.std),
                _precise(row.true_metric.mean, row.true_metric.std),
                _precise(row.best_true_metric.mean, row.best_true_metric.std),
            ]
        )
    for name, figures in recipe.cited.items():
        time, value = f"{figures.seconds:,.2f}", f"{figures.metric:.4f}"
        lines.append([name, "cited, not run", time, "–", "–", value, "–", "–"])
    return lines


def _published_cells(recipe: Recipe, arm: str) -> list[str]:
    figures, full = recipe.published[arm], recipe.published[FULL]
    saved = "" if arm == FULL else f" ({figures.seconds / full.seconds - 1:+.1%})"
    true = true_from_published(
        recipe.convention, figures.metric, recipe.splits[2], recipe.config.batch_size
    )
    exact = recipe.convention == "whole_split"
    return [
        f"{figures.seconds:,.2f}{saved}",
        "–",
        _precise(figures.loss),
        _precise(figures.metric, figures.spread),
        "–" if true is None else f"{true:.4f}" if exact else f"≈ {true:.2g}",
        "–",
    ]


def _precise(value: float | None, spread: float | None = None) -> str:
    """Four decimals, as the paper prints its metrics."""
    if value is None or math.isnan(value):
        return "–"
    return f"{value:.4f}" + ("" if spread is None else f" ± {spread:.4f}")


def terminal_table(lines: Sequence[Sequence[str]], title: str) -> Table:
    """The cells as a rich table, our rows in bold."""
    table = Table(title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
    for number, heading in enumerate(lines[0]):
        table.add_column(heading, justify="right" if number > 1 else "left")
    for line in lines[1:]:
        table.add_row(*line, style="bold" if line[1] == "here" else None)
    return table


def write_reproduction(
    out: Path,
    recipe: Recipe,
    config: RunConfig,
    rows: Sequence[Row],
    title: str,
    differences: Sequence[str],
    command: str,
) -> None:
    """Write results.json and results.md into `out`."""
    found = {
        "convention": CONVENTIONS[recipe.convention],
        "rows": [dataclasses.asdict(row) for row in rows],
        "published": {arm: vars(figures) for arm, figures in recipe.published.items()},
        "cited": {name: vars(figures) for name, figures in recipe.cited.items()},
        "differences": list(differences),
    }
    head, *body = cells(recipe, config, rows)
    table = markdown(head, body, left=2)
    page = (
        f"{table}\n\nThe published metric is taken {CONVENTIONS[recipe.convention]}. "
        f"What differs:\n\n{bullets(differences)}"
    )
    write_results(out, title, command, config, found, page)
