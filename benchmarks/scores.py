"""The teacher's look at a recipe's training graphs, beside inference of the same graphs."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from grant_fast import GraNTSampler, GraphBatch, Task, score_graphs
from grant_fast.nn.evaluating import evaluating
from grant_fast.teaching import graph_residuals
from grant_fast.teaching.gathering import scoring_runs
from grant_fast.teaching.schedules import share_size
from grant_fast.training.model import fitting

from .settings import Setting, backend, through
from .work import Side, Work

_SHARE = 0.1  # of the graphs is chosen


def score_work(setting: Setting, who: str) -> Work:
    """Scoring all training graphs and choosing a tenth of them, beside inference alone.

    Both sides take the same graphs in the same batches through the same model by the backend
    `who`. The ratio of "inference" is about 1: its inverse is what a look of the teacher costs,
    in inference passes. What is checked is every score, and the scores of the chosen.

    On a GPU inference is measured in larger batches, too: those of the teacher suit a cache.

    Raises:
        ValueError: the backend is left out on this machine.
    """
    if who not in setting.backends:
        raise ValueError(f"the backend {who} is left out here")
    graphs, ids, task = setting.graphs, setting.ids, setting.task
    parts = [ids[run] for run in scoring_runs(graphs, ids, None)]
    larger = fitting(graphs, ids, setting.model)
    sampler = GraNTSampler(
        graphs,
        task,
        setting.config.batch_size,
        epochs=1,
        mode="global",
        start_ratio=_SHARE,
        ids=ids,
    )

    def infer(parts: list[Tensor]) -> list[Tensor]:
        with evaluating(setting.model):
            return [setting.model(graphs.batch(part)) for part in parts]

    def chosen() -> list[Tensor]:
        sampler.select(setting.model, 0)
        assert sampler.scores is not None
        return [sampler.scores, sampler.scores[sampler.selected.to(graphs.device)].sort().values]

    def inferred(parts: list[Tensor]) -> list[Tensor]:
        found = zip(infer(parts), parts, strict=True)
        return _with_best(torch.cat([_scores(out, graphs.batch(at), task) for out, at in found]))

    def exact() -> list[Tensor]:
        exactly, double = graphs.to(dtype=torch.float64), setting.double()
        with backend("torch"):
            return _with_best(score_graphs(double, exactly, task, ids=ids).double())

    def side(run: Callable[[], Any], answer: Callable[[], list[Tensor]]) -> Callable[[], Side]:
        return lambda: Side(through(who, run), through(who, answer))

    sides = {who: side(lambda: sampler.select(setting.model, 0), chosen)}
    sides["inference"] = side(partial(infer, parts), partial(inferred, parts))
    if len(larger) < len(parts) and graphs.device.type == "cuda":
        sides["inference, larger batches"] = side(partial(infer, larger), partial(inferred, larger))
    facts = setting.facts | {"batch size": max(map(len, parts))}
    return Work(who, sides, exact, facts=facts)


def _scores(out: Tensor, batch: GraphBatch, task: Task) -> Tensor:
    assert batch.y is not None
    return graph_residuals(out, batch.y, task, batch.ptr if task.level == "node" else None)


def _with_best(scores: Tensor) -> list[Tensor]:
    """All of them, and the largest tenth in ascending order."""
    return [scores, scores.topk(share_size(_SHARE, len(scores))).values.flip(0)]
