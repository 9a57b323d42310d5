"""A recipe's network in batches: training steps and scoring passes."""

import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from grant_fast import GraphBatch, PackedGraphs, Task, record_steps
from grant_fast.tasks import measured
from grant_fast.teaching import loss
from grant_fast.teaching.residuals import backward_of_mean, summed_loss
from grant_fast.training.recording import room_for
from grant_fast.training.targets import targets_of

from .gradients import TOLERANCE as GRADIENT_TOLERANCE
from .gradients import exactly_in_training, in_training
from .settings import PlainBatch, Setting, data_list, peer, peer_answer, peers, through
from .work import Side, Work

_TRIES = 30  # steps, of which three should be on batches that can be recorded
_LOADED = 20  # batches' worth of graphs that PyG's loader draws its batches from


def step_work(setting: Setting) -> Work:
    """A training step, of shuffled batches put together within the timing: forward, backward and
    an Adam step. What is checked is the gradient of such a batch, in training mode. On a GPU ours
    is recorded besides, by `record_steps`."""
    records = "triton" in setting.backends
    checked = setting.recordable if records else setting.checked

    def answer(model: nn.Module) -> list[Tensor]:
        batch = setting.graphs.batch(checked)
        mine = model is setting.model
        return in_training(model, batch if mine else PlainBatch.of(batch), setting.task)

    kind = partial(training, task=setting.task)
    exact = partial(exactly_in_training, setting, checked)
    work = replace(_beside_pyg(setting, kind, answer, exact), tolerances=[GRADIENT_TOLERANCE])
    if records:
        work.sides["triton, CUDA graph"] = partial(recorded_step, setting)
    return work


def recorded_step(setting: Setting) -> Side:
    """A loop of one's own, whose steps are recorded."""
    graphs, ids, task = setting.graphs, setting.ids, setting.task
    complete = bool(measured(targets_of(graphs, ids), task).all())
    model = copy.deepcopy(setting.model)  # the other sides start from the same weights
    size = setting.batch_size
    checked = room_for(model, graphs, ids, size)
    if checked is None or not checked.fill(setting.recordable):
        raise ValueError("the network is not one for the kernels alone, and so not recorded")
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    batches = shuffled(graphs, ids, size)

    def one(batch: GraphBatch) -> None:
        backward_of_mean(*summed_loss(model(batch), batch.y, task, complete=complete))
        optimizer.step()
        optimizer.zero_grad()

    step = through("triton", lambda: record_steps(model, optimizer, graphs, size, ids=ids)(one))()

    def run() -> None:
        model.train()
        step(next(batches))

    recorded = through("triton", run)
    for _ in range(_TRIES):
        recorded()
        if step.is_replaying:
            break
    else:
        raise RuntimeError(f"the device did not record the step: {step.failure}")
    first = copy.deepcopy(setting.model)
    answer = through("triton", partial(in_training, first, checked, task))
    return Side(recorded, answer, recorded=True)


def infer_work(setting: Setting) -> Work:
    """A scoring pass over shuffled batches put together within the timing: inference alone."""

    def answer(model: nn.Module) -> list[Tensor]:
        return setting.answer() if model is setting.model else peer_answer(model, setting)

    return _beside_pyg(setting, inference, answer, setting.exact)


_Run = Callable[[nn.Module, Iterator[Any]], Callable[[], None]]
_Answer = Callable[[nn.Module], list[Tensor]]


def _beside_pyg(
    setting: Setting, kind: _Run, answer: _Answer, exact: Callable[[], list[Tensor]]
) -> Work:
    graphs, size = setting.graphs, setting.batch_size

    def ours(name: str) -> Side:
        run = kind(setting.model, shuffled(graphs, setting.ids, size))
        return Side(through(name, run), through(name, partial(answer, setting.model)))

    def loaded(who: str) -> Side:
        from torch_geometric.loader import DataLoader

        other, data = peer(setting, who), data_list(setting, setting.ids[: _LOADED * size])
        loader = DataLoader(data, batch_size=size, shuffle=True, drop_last=True)
        batches = (batch.to(graphs.device) for batch in forever(loader))
        return Side(kind(other, batches), partial(answer, other))

    sides: dict[str, Callable[[], Side]] = {name: partial(ours, name) for name in setting.backends}
    for who in peers(graphs.device):
        sides[f"{who}, DataLoader"] = partial(loaded, who)
    facts = setting.facts | {"batch size": size}
    return Work("auto", sides, exact, facts=facts)


def training(model: nn.Module, batches: Iterator[Any], task: Task) -> Callable[[], None]:
    """A function that takes the next batch through a training step."""
    optimizer = torch.optim.Adam(model.parameters(), fused=True)

    def run() -> None:
        model.train()
        batch = next(batches)
        value = loss(model(batch), batch.y, task)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()

    return run


def inference(model: nn.Module, batches: Iterator[Any]) -> Callable[[], None]:
    """A function that takes the next batch through inference."""

    def run() -> None:
        model.eval()
        with torch.no_grad():
            model(next(batches))

    return run


def shuffled(graphs: PackedGraphs, ids: Tensor, size: int) -> Iterator[Any]:
    """Batches of the graphs at `ids`, epoch after epoch, the last short ones left out."""
    while True:
        order = ids[torch.randperm(len(ids))]
        for part in order[: len(order) // size * size].split(size):
            yield graphs.batch(part)


def forever(loader: Any) -> Iterator[Any]:
    """Epoch after epoch of a loader's batches."""
    return itertools.chain.from_iterable(itertools.repeat(loader))
