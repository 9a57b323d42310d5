"""A recipe's network in batches: training steps, scoring passes, and the teacher's look."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from grant_fast import GraNTSampler, PackedGraphs, Task
from grant_fast.teaching import loss
from grant_fast.training.model import predictions

from .settings import Setting, data_list, graphs_a_chunk, peer, peer_answer, peers, through
from .work import Side, Work

_LOADED = 20  # batches' worth of graphs that PyG's loader draws its batches from


def step_work(setting: Setting) -> Work:
    """A training step, of shuffled batches put together within the timing: forward, backward and
    an Adam step."""
    return _beside_pyg(setting, lambda model, batches: _step(model, batches, setting.task))


def infer_work(setting: Setting) -> Work:
    """A scoring pass over shuffled batches put together within the timing: inference alone."""
    return _beside_pyg(setting, lambda model, batches: _inference(model, batches))


_Run = Callable[[nn.Module, Iterator[Any]], Callable[[], None]]


def _beside_pyg(setting: Setting, kind: _Run) -> Work:
    graphs, size = setting.graphs, min(setting.config.batch_size, len(setting.ids))

    def ours(name: str) -> Callable[[], Side]:
        def make() -> Side:
            run = kind(setting.model, _shuffled(graphs, setting.ids, size))
            return Side(through(name, run), through(name, setting.answer))

        return make

    def loaded(who: str) -> Side:
        from torch_geometric.loader import DataLoader

        other, data = peer(setting, who), data_list(setting, setting.ids[: _LOADED * size])
        loader = DataLoader(data, batch_size=size, shuffle=True, drop_last=True)
        batches = (batch.to(graphs.device) for batch in _forever(loader))
        return Side(kind(other, batches), lambda: peer_answer(other, setting))

    sides = {name: ours(name) for name in setting.backends}
    for who in peers(graphs.device):
        sides[f"{who}, DataLoader"] = partial(loaded, who)
    facts = setting.facts | {"batch size": size}
    return Work("auto", sides, setting.exact, facts=facts)


def score_work(setting: Setting) -> Work:
    """Scoring all training graphs and choosing a tenth of them, beside inference alone.

    The ratio of "inference" is below 1: its inverse is what a look of the teacher costs, in
    inference passes of the same graphs by the same model.
    """
    graphs, ids = setting.graphs, setting.ids
    size = graphs_a_chunk(graphs)

    sampler = GraNTSampler(
        graphs, setting.task, size, epochs=1, mode="global", start_ratio=0.1, ids=ids
    )

    def infer() -> None:
        predictions(setting.model, graphs.batches(size, ids))

    def make(run: Callable[[], Any]) -> Callable[[], Side]:
        return lambda: Side(run, setting.answer)

    sides = {
        "score and select": make(lambda: sampler.select(setting.model, 0)),
        "inference": make(infer),
    }
    return Work("score and select", sides, setting.exact, facts=setting.facts)


def _step(model: nn.Module, batches: Iterator[Any], task: Task) -> Callable[[], None]:
    optimizer = torch.optim.Adam(model.parameters(), fused=True)

    def run() -> None:
        model.train()
        batch = next(batches)
        value = loss(model(batch), batch.y, task)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()

    return run


def _inference(model: nn.Module, batches: Iterator[Any]) -> Callable[[], None]:
    def run() -> None:
        model.eval()
        with torch.no_grad():
            model(next(batches))

    return run


def _shuffled(graphs: PackedGraphs, ids: Tensor, size: int) -> Iterator[Any]:
    while True:
        order = ids[torch.randperm(len(ids))]
        for part in order[: len(order) // size * size].split(size):
            yield graphs.batch(part)


def _forever(loader: Any) -> Iterator[Any]:
    return itertools.chain.from_iterable(itertools.repeat(loader))
