"""Epochs in the paper's mode: the gradient over all training graphs, then one step."""

import copy
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from grant_fast.training.model import fitting
from grant_fast.training.recording import record

from .gradients import TOLERANCE as GRADIENT_TOLERANCE
from .gradients import (
    accumulate,
    exactly_in_evaluation,
    exactly_in_training,
    in_evaluation,
    in_training,
)
from .settings import PYG, PlainBatch, Setting, data_list, peer, peers, through
from .work import TOLERANCE, Side, Work

_Batches = Callable[[], Iterable[Any]]


def epoch_work(setting: Setting, loader: bool) -> Work:
    """One epoch in the paper's mode: the gradient over all training graphs, then one step.

    A selection stays for 5 to 50 epochs, so our batches are kept from epoch to epoch, and so is
    PyG's one. On a GPU the whole epoch is recorded as a CUDA graph besides, and replayed.

    What is checked is the gradient over all graphs, each side's in its own batches and so in
    evaluation mode; and one in training mode, of a batch that all sides share.

    Args:
        loader: have PyG go through its `DataLoader` with the recipe's batches, too. That is how it
            is used, and takes a thousand times longer than an epoch should.
    """
    graphs, device, task = setting.graphs, setting.graphs.device, setting.task
    parts = fitting(graphs, torch.arange(len(setting.ids)), setting.model)
    # A quarter of a kept batch, as in float64 each number takes twice as much, and more are kept.
    shared = parts[0][: max(1, len(parts[0]) // 4)]

    def answer(model: nn.Module, batches: Iterable[Any]) -> list[Tensor]:
        batch = graphs.batch(slice(0, len(shared)))  # a slice, as those that ours keeps
        one = batch if model is setting.model else PlainBatch.of(batch)
        return in_evaluation(model, batches, task) + in_training(model, one, task)

    def exact() -> list[Tensor]:
        return exactly_in_evaluation(setting) + exactly_in_training(setting, shared)

    def peer_side(model: nn.Module, batches: _Batches) -> Side:
        return Side(_epoch(model, batches, setting), lambda: answer(model, batches()))

    def ours(name: str, recorded: bool = False) -> Callable[[], Side]:
        def make() -> Side:
            kept = [graphs.batch(slice(int(part[0]), int(part[-1]) + 1)) for part in parts]
            # Recording takes steps, and the other sides start from the same weights.
            model = copy.deepcopy(setting.model) if recorded else setting.model
            run = through(name, _epoch(model, lambda: kept, setting))
            run = _recorded(run, device) if recorded else run
            right = through(name, lambda: answer(setting.model, kept))
            return Side(run, right, recorded=recorded)

        return make

    def collated() -> Side:
        other = peer(setting)
        whole = [PlainBatch.of(graphs.batch(slice(0, len(setting.ids))))]
        return peer_side(other, lambda: whole)

    def loaded(who: str) -> Side:
        from torch_geometric.loader import DataLoader

        other, data = peer(setting, who), data_list(setting, setting.ids)
        loader = DataLoader(data, batch_size=setting.config.batch_size, shuffle=True)
        return peer_side(other, lambda: (batch.to(device) for batch in loader))

    sides = {name: ours(name) for name in setting.backends}
    if "triton" in setting.backends:
        for name in ("torch", "triton"):
            sides[f"{name}, CUDA graph"] = ours(name, recorded=True)
    for who in peers(device):
        if who == PYG:
            sides["PyG, one batch collated beforehand"] = collated
        if loader:
            sides[f"{who}, DataLoader"] = partial(loaded, who)
    tolerances = [TOLERANCE for _ in setting.model.parameters()] + [GRADIENT_TOLERANCE]
    return Work("auto", sides, exact, facts=setting.facts, tolerances=tolerances)


def _epoch(model: nn.Module, batches: _Batches, setting: Setting) -> Callable[[], None]:
    """Gradients summed over the batches, divided by the number of labels, clipped; one step."""
    config = setting.config
    gpu = setting.graphs.device.type == "cuda"
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=config.lr,
        weight_decay=config.weight_decay,
        fused=True,
        capturable=gpu,
    )

    def run() -> None:
        model.train()
        accumulate(model, batches(), setting.task)
        if config.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()

    return run


def _recorded(run: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """The same work as a CUDA graph, recorded once."""
    for _ in range(3):  # whatever is made at first must not be recorded
        run()
    graph, _ = record(run, device)
    return partial(_replay, graph, run)


def _replay(graph: Any, of: Callable[[], None]) -> None:
    """Replay what was recorded `of` a step, which is kept: the graph writes to its weights."""
    graph.replay()
