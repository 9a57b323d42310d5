"""A benchmark of the paper, run here; `paper_table` sets it beside the published figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..data.dataset import Dataset
from ..teaching.residuals import loss
from ..training.config import INFOBATCH, RunConfig
from ..training.folder import COMPARISON, check_free
from ..training.metrics import evaluate
from ..training.model import fitting, predictions
from ..training.observers import Observer
from ..training.predict import load_predictor
from ..training.records import Run
from ..training.targets import targets_of
from .compare import begun, compare, run_folder
from .conventions import published_metric
from .recipe import Recipe
from .report import FULL, Spread

# What can be run cheaply in the same harness, of the paper's tables and beside: network and arm.
BASELINES = {
    "gcn": ("gcn", FULL),
    "gcn-virtual-node": ("gcn-virtual-node", FULL),
    "infobatch": ("flex", INFOBATCH),
}
ARMS = (FULL, "random", "grant-b", "grant-s")


@dataclass(frozen=True)
class Row:
    """One arm over its seeds; test figures are of the last weights, as in the paper.

    Args:
        arm: who picked the graphs, or a name in `BASELINES`.
        seconds: training, selection and validation together, as the published times count.
        train_seconds: without validation.
        graphs_seen: graph visits.
        saving: share of full's `seconds` that the arm saved; None for full.
        loss: mean test loss.
        published_metric: the test metric in the published convention.
        true_metric: the test metric over the whole split.
        best_true_metric: the same, of the weights that were best by validation.
    """

    arm: str
    seconds: Spread
    train_seconds: Spread
    graphs_seen: Spread
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
    overwrite: bool = False,
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
        overwrite: replace the comparison in `out`, and its baselines.
        observer: who is told how they go on.

    Returns:
        The arms' runs, and one row for each of `ARMS` and of the baselines.

    Raises:
        InputError: as `compare`.
    """
    rows: list[Row] = []
    # What has not begun in a folder of ours is begun there, beside whatever else is in it.
    taken_up = {name: resume and bool(begun(out / name)) for name in BASELINES}
    for name in BASELINES if baselines else ():
        check_free(out / name, taken_up[name], not taken_up[name], COMPARISON, config.source)

    def run(
        config: RunConfig,
        out: Path,
        names: Mapping[str, str],
        *,
        resume: bool,
        overwrite: bool,
        parts: Sequence[str] = (),
    ) -> list[Run]:
        """The runs of one network's arms; `names` are what their rows are called."""
        found = compare(
            dataset,
            config,
            out,
            arms=list(names),
            controls=(),
            equal_budget=False,
            seeds=seeds,
            resume=resume,
            overwrite=overwrite,
            observer=observer,
            parts=parts,
        )
        for arm, name in names.items():
            members = [run for run in found if run.result.arm == arm]
            folders = [run_folder(out, arm, run.result.seed) for run in members]
            tested = [_test(recipe, dataset, folder, config.device) for folder in folders]
            full = rows[0].seconds.mean if rows else None
            rows.append(_row(name, members, tested, full))
        return found

    arms, parts = dict(zip(ARMS, ARMS, strict=True)), list(BASELINES)
    runs = run(config, out, arms, resume=resume, overwrite=overwrite, parts=parts)
    for name, (network, arm) in BASELINES.items() if baselines else ():
        own, goes_on = replace(config, network=network), taken_up[name]
        run(own, out / name, {arm: name}, resume=goes_on, overwrite=not goes_on)
    return runs, rows


def _row(
    name: str,
    runs: Sequence[Run],
    tested: Sequence[tuple[float, float, float]],
    full_seconds: float | None,
) -> Row:
    seconds = Spread.of([run.result.train_seconds + run.result.valid_seconds for run in runs])
    losses, published, true = zip(*tested, strict=True)
    return Row(
        arm=name,
        seconds=seconds,
        train_seconds=Spread.of([run.result.train_seconds for run in runs]),
        graphs_seen=Spread.of([run.result.graphs_seen for run in runs]),
        saving=None if full_seconds is None else 1 - seconds.mean / full_seconds,
        loss=Spread.of(losses),
        published_metric=Spread.of(published),
        true_metric=Spread.of(true),
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
    parts = fitting(graphs, ids, predictor.model)
    raw = predictions(predictor.model, map(graphs.batch, parts))
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
