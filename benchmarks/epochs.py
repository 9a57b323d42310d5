"""Epochs in the paper's mode: the gradient over all training graphs, then one step."""

import copy
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn

from grant_fast.training.model import fitting
from grant_fast.training.recording import record

from .gradients import accumulate, gradients
from .gradients import exact as gradients_exactly
from .settings import PYG, PlainBatch, Setting, data_list, peer, peers, through
from .work import Side, Work

_Batches = Callable[[], Iterable[Any]]


def epoch_work(setting: Setting, loader: bool) -> Work:
    """One epoch in the paper's mode: the gradient over all training graphs, then one step.

    A selection stays for 5 to 50 epochs, so our batches are kept from epoch to epoch, and so is
    PyG's one. On a GPU the whole epoch is recorded as a CUDA graph besides, and replayed.

    Args:
        loader: have PyG go through its `DataLoader` with the recipe's batches, too. That is how it
            is used, and takes a thousand times longer than an epoch should.
    """
    graphs, device = setting.graphs, setting.graphs.device

    def ours(name: str, recorded: bool = False) -> Callable[[], Side]:
        def make() -> Side:
            parts = fitting(graphs, torch.arange(len(setting.ids)), setting.model)
            kept = [graphs.batch(slice(int(part[0]), int(part[-1]) + 1)) for part in parts]
            # Recording takes steps, and the other sides start from the same weights.
            model = copy.deepcopy(setting.model) if recorded else setting.model
            run = through(name, _epoch(model, lambda: kept, setting))
            run = _recorded(run, device) if recorded else run
            return Side(run, through(name, lambda: gradients(setting.model, kept, setting)))

        return make

    def collated() -> Side:
        other = peer(setting)
        whole = [PlainBatch.of(graphs.batch(slice(0, len(setting.ids))))]
        return _peer_side(other, lambda: whole, setting)

    def loaded(who: str) -> Side:
        from torch_geometric.loader import DataLoader

        other, data = peer(setting, who), data_list(setting, setting.ids)
        loader = DataLoader(data, batch_size=setting.config.batch_size, shuffle=True)
        return _peer_side(other, lambda: (batch.to(device) for batch in loader), setting)

    sides = {name: ours(name) for name in setting.backends}
    if "triton" in setting.backends:
        for name in ("torch", "triton"):
            sides[f"{name}, CUDA graph"] = ours(name, recorded=True)
    for who in peers(device):
        if who == PYG:
            sides["PyG, one batch collated beforehand"] = collated
        if loader:
            sides[f"{who}, DataLoader"] = partial(loaded, who)
    exact = partial(gradients_exactly, setting, len(setting.ids))
    return Work("auto", sides, exact, facts=setting.facts)


def _peer_side(model: nn.Module, batches: _Batches, setting: Setting) -> Side:
    return Side(_epoch(model, batches, setting), lambda: gradients(model, batches(), setting))


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
        accumulate(model, batches(), setting)
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
