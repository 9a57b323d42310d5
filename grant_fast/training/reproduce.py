"""A benchmark of the paper, run here, in the paper's row layout beside the published figures."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich import box
from rich.table import Table

from ..data.dataset import Dataset
from ..data.twin import PREFIX as TWIN
from ..files import atomic_write_text
from ..teaching.residuals import loss
from .compare import compare, run_folder
from .config import INFOBATCH, RunConfig
from .conventions import CONVENTIONS, published_metric, true_from_published
from .metrics import evaluate
from .model import predictions
from .observers import Observer
from .predict import load_predictor
from .recipe import Figures, Recipe
from .records import Run
from .report import FULL, Spread, without_nan
from .targets import targets_of

# Of the paper's tables, what can be run cheaply in the same harness: network and arm.
BASELINES = {
    "gcn": ("gcn", FULL),
    "gcn-virtual-node": ("gcn-virtual-node", FULL),
    "infobatch": ("flex", INFOBATCH),
}
ARMS = (FULL, "random", "grant-b", "grant-s")
_SYMBOLS = {
    FULL: "✗",
    "random": "random",
    "grant-b": "B",
    "grant-s": "S",
    "gcn": "GCN, σ((Â+I)^(κ−1) X W)",
    "gcn-virtual-node": "GCN + virtual node",
    "infobatch": "InfoBatch",
}


@dataclass(frozen=True)
class Row:
    """One arm over its seeds; test figures are of the last weights, as in the paper.

    Args:
        arm: who picked the graphs, or a name in `BASELINES`.
        seconds: training, selection and validation together, as the published times count.
        train_seconds: without validation.
        saving: share of full's `seconds` that the arm saved; None for full.
        loss: mean test loss.
        published_metric: the test metric in the published convention.
        true_metric: the test metric over the whole split.
        best_true_metric: the same, of the weights that were best by validation.
    """

    arm: str
    seconds: Spread
    train_seconds: Spread
    saving: float | None
    loss: Spread
    published_metric: Spread
    true_metric: Spread
    best_true_metric: Spread


def reproduce(
    recipe: Recipe,
    dataset: Dataset,
    config: RunConfig,
    out: Path,
    *,
    baselines: bool = False,
    seeds: int = 3,
    resume: bool = False,
    observer: Observer | None = None,
) -> tuple[list[Run], list[Row]]:
    """Run a recipe's four arms, and measure them both ways, the published and the true.

    Args:
        recipe: gives the convention of the published metric.
        dataset: what to run it on.
        config: the recipe's, with what the user changed.
        out: a folder; runs go to `out/ARM/seed-S`, a baseline's to a folder like `out` in it.
        baselines: run `BASELINES`, too.
        seeds: how many, from `config.seed` upwards.
        resume: keep finished runs and go on with begun ones.

    Returns:
        The arms' runs, and one row for each of `ARMS` and of the baselines.

    Raises:
        InputError: as `compare`.
    """
    plan = [Plan("", config, out, ARMS)]
    if baselines:
        plan += [
            Plan(name, replace(config, network=network), out / name, (arm,))
            for name, (network, arm) in BASELINES.items()
        ]
    runs: list[Run] = []
    rows: list[Row] = []
    for part in plan:
        found = compare(
            dataset,
            part.config,
            part.out,
            arms=part.arms,
            controls=(),
            equal_budget=False,
            seeds=seeds,
            resume=resume,
            observer=observer,
        )
        for arm in part.arms:
            members = [run for run in found if run.result.arm == arm]
            folders = [run_folder(part.out, arm, run.result.seed) for run in members]
            tested = [_test(recipe, dataset, folder, config.device) for folder in folders]
            full = rows[0].seconds.mean if rows else None
            rows.append(_row(part.name or arm, members, tested, full))
        runs += found if part.out == out else []
    return runs, rows


@dataclass(frozen=True)
class Plan:
    """Some arms of one network, and where they go; `name` is a baseline's, else empty."""

    name: str
    config: RunConfig
    out: Path
    arms: tuple[str, ...]


def _row(
    name: str,
    runs: Sequence[Run],
    tested: Sequence[tuple[float, float, float]],
    full_seconds: float | None,
) -> Row:
    seconds = Spread.of([run.result.train_seconds + run.result.valid_seconds for run in runs])
    return Row(
        arm=name,
        seconds=seconds,
        train_seconds=Spread.of([run.result.train_seconds for run in runs]),
        saving=None if full_seconds is None else 1 - seconds.mean / full_seconds,
        loss=Spread.of([value for value, _, _ in tested]),
        published_metric=Spread.of([value for _, value, _ in tested]),
        true_metric=Spread.of([value for _, _, value in tested]),
        best_true_metric=Spread.of([run.result.test_metric for run in runs]),
    )


def _test(
    recipe: Recipe, dataset: Dataset, folder: Path, device: str
) -> tuple[float, float, float]:
    """Loss, published metric and true metric of a run's last weights over the test split."""
    predictor = load_predictor(folder, last=True, device=device)
    config, task = predictor.config, dataset.task
    graphs = dataset.graphs.to(next(predictor.model.parameters()).device)
    ids = dataset.split["test"]
    raw = predictions(predictor.model, graphs, ids, config.batch_size)
    y = targets_of(graphs, ids)
    rows = torch.ones_like(ids)
    if task.level == "node":
        rows = dataset.graphs.num_nodes_per_graph.cpu()[ids]
    per_batch = [int(part.sum()) for part in rows.split(config.batch_size)]
    pred = predictor.spec.decode(raw)
    metric = config.metric
    return (
        float(loss(raw, predictor.spec.encode(y), task)),
        published_metric(recipe.convention, metric, pred, y, task, per_batch, len(ids)),
        evaluate(metric, pred, y, task),
    )


def known_differences(
    recipe: Recipe, dataset: Dataset, config: RunConfig, seeds: int, device: torch.device
) -> list[str]:
    """A sentence for everything that is known to part our figures from the published ones."""
    found = []
    if config.epochs != recipe.config.epochs:
        found.append(
            f"{config.epochs} epochs instead of {recipe.config.epochs}, the curriculum stretched "
            "over those: an unfinished run, not the published one."
        )
    sizes = tuple(len(dataset.split[part]) for part in ("train", "valid", "test"))
    if sizes != recipe.splits:
        found.append(f"{_counted(sizes)} graphs instead of {_counted(recipe.splits)}.")
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
        found.append("One seed: nobody can tell a difference between arms from chance.")
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "a CPU"
    found.append(f"Our times are of {where}; PyTorch ran {torch.get_num_threads()} thread(s).")
    return [*found, *recipe.differences]


def _counted(sizes: Sequence[int]) -> str:
    return " / ".join(f"{size:,}" for size in sizes)


def cells(recipe: Recipe, config: RunConfig, rows: Sequence[Row]) -> list[list[str]]:
    """The table, headings first: the paper's figures and ours in turn, then those only cited."""
    metric = config.metric.upper().replace("_", "-")
    arrow = "↓" if config.metric in ("mae", "rmse") else "↑"
    unit = f" ({recipe.unit})" if recipe.unit else ""
    lines = [
        [
            "GraNT",
            "whose",
            "Time (s)",
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
                str(row.loss),
                _precise(row.published_metric),
                _precise(row.true_metric),
                _precise(row.best_true_metric),
            ]
        )
    for name, figures in recipe.cited.items():
        time, value = f"{figures.seconds:,.2f}", f"{figures.metric:.4f}"
        lines.append([name, "cited, not run", time, "–", value, "–", "–"])
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
        _number(figures.loss),
        _with_spread(figures),
        "–" if true is None else f"{true:.4f}" if exact else f"≈ {true:.2g}",
        "–",
    ]


def _with_spread(figures: Figures) -> str:
    spread = "" if figures.spread is None else f" ± {figures.spread:.4f}"
    return f"{figures.metric:.4f}{spread}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _precise(value: Spread) -> str:
    """Four decimals, as the paper prints its metrics."""
    if value.mean != value.mean:
        return "–"
    return f"{value.mean:.4f}" + ("" if value.std is None else f" ± {value.std:.4f}")


def terminal_table(lines: Sequence[Sequence[str]], title: str) -> Table:
    """The cells as a rich table, our rows in bold."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
    for number, heading in enumerate(lines[0]):
        table.add_column(heading, justify="right" if number > 1 else "left")
    for line in lines[1:]:
        table.add_row(*line, style="bold" if line[1] == "here" else None)
    return table


def title_of(recipe: Recipe, dataset: Dataset) -> str:
    """What was run, in one line."""
    sizes = _counted([len(ids) for ids in dataset.split.values()])
    return f"{recipe.name}: {dataset.name}, {sizes} graphs to train, validate and test"


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
    document = {
        "title": title,
        "command": command,
        "torch": torch.__version__,
        "convention": CONVENTIONS[recipe.convention],
        "config": replace(config, arm=FULL).to_dict(),
        "rows": [dataclasses.asdict(row) for row in rows],
        "published": {arm: vars(figures) for arm, figures in recipe.published.items()},
        "cited": {name: vars(figures) for name, figures in recipe.cited.items()},
        "differences": list(differences),
    }
    text = json.dumps(without_nan(document), indent=2, ensure_ascii=False)
    atomic_write_text(out / "results.json", text + "\n")
    head, *body = cells(recipe, config, rows)
    lines = [head, ["---", "---", *["---:"] * (len(head) - 2)], *body]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    listed = "\n".join(f"- {sentence}" for sentence in differences)
    atomic_write_text(
        out / "results.md",
        f"# {title}\n\n    {command}\n\n{table}\n\nThe published metric is taken "
        f"{CONVENTIONS[recipe.convention]}. What differs:\n\n{listed}\n",
    )
