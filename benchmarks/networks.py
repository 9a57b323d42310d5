"""A recipe's network in batches: training steps and scoring passes."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from grant_fast import PackedGraphs, Task
from grant_fast.teaching import loss

from .gradients import exact as exact_gradients
from .gradients import gradients
from .settings import CHECKED, PlainBatch, Setting, data_list, peer, peer_answer, peers, through
from .work import Side, Work

_LOADED = 20  # batches' worth of graphs that PyG's loader draws its batches from


def step_work(setting: Setting) -> Work:
    """A training step, of shuffled batches put together within the timing: forward, backward and
    an Adam step. What is checked is the gradient."""
    first = setting.graphs.batch(slice(0, min(CHECKED, len(setting.ids))))

    def answer(model: nn.Module) -> list[Tensor]:
        batch = first if model is setting.model else PlainBatch.of(first)
        return gradients(model, [batch], setting)

    kind = lambda model, batches: _step(model, batches, setting.task)  # noqa: E731
    return _beside_pyg(setting, kind, answer, partial(exact_gradients, setting))


def infer_work(setting: Setting) -> Work:
    """A scoring pass over shuffled batches put together within the timing: inference alone."""

    def answer(model: nn.Module) -> list[Tensor]:
        return setting.answer() if model is setting.model else peer_answer(model, setting)

    return _beside_pyg(setting, _inference, answer, setting.exact)


_Run = Callable[[nn.Module, Iterator[Any]], Callable[[], None]]
_Answer = Callable[[nn.Module], list[Tensor]]


def _beside_pyg(
    setting: Setting, kind: _Run, answer: _Answer, exact: Callable[[], list[Tensor]]
) -> Work:
    graphs, size = setting.graphs, min(setting.config.batch_size, len(setting.ids))

    def ours(name: str) -> Side:
        run = kind(setting.model, _shuffled(graphs, setting.ids, size))
        return Side(through(name, run), through(name, partial(answer, setting.model)))

    def loaded(who: str) -> Side:
        from torch_geometric.loader import DataLoader

        other, data = peer(setting, who), data_list(setting, setting.ids[: _LOADED * size])
        loader = DataLoader(data, batch_size=size, shuffle=True, drop_last=True)
        batches = (batch.to(graphs.device) for batch in _forever(loader))
        return Side(kind(other, batches), partial(answer, other))

    sides: dict[str, Callable[[], Side]] = {name: partial(ours, name) for name in setting.backends}
    for who in peers(graphs.device):
        sides[f"{who}, DataLoader"] = partial(loaded, who)
    facts = setting.facts | {"batch size": size}
    return Work("auto", sides, exact, facts=facts)


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
