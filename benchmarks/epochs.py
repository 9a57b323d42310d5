"""Epochs in the paper's mode: the gradient over all training graphs, then one step."""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from grant_fast.teaching import loss
from grant_fast.training.targets import measured

from .settings import (
    PYG,
    PlainBatch,
    Setting,
    data_list,
    graphs_a_chunk,
    peer,
    peer_answer,
    peers,
    through,
)
from .work import Side, Work


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
            size, last = graphs_a_chunk(graphs), len(setting.ids)
            kept = [graphs.batch(slice(a, min(a + size, last))) for a in range(0, last, size)]
            # Recording takes steps, and the other sides start from the same weights.
            model = copy.deepcopy(setting.model) if recorded else setting.model
            run = through(name, _epoch(model, lambda: iter(kept), setting))
            return Side(_recorded(run) if recorded else run, through(name, setting.answer))

        return make

    def collated() -> Side:
        other = peer(setting)
        batch = graphs.batch(slice(0, len(setting.ids)))
        whole = PlainBatch.of(batch)
        return Side(
            _epoch(other, lambda: iter([whole]), setting), lambda: peer_answer(other, setting)
        )

    def loaded(who: str) -> Side:
        from torch_geometric.loader import DataLoader

        other, data = peer(setting, who), data_list(setting, setting.ids)
        loader = DataLoader(data, batch_size=setting.config.batch_size, shuffle=True)
        return Side(_epoch(other, lambda: (batch.to(device) for batch in loader), setting))

    sides = {name: ours(name) for name in setting.backends}
    if "triton" in setting.backends:
        for name in ("torch", "triton"):
            sides[f"{name}, CUDA graph"] = ours(name, recorded=True)
    for who in peers(device):
        if who == PYG:
            sides["PyG, one batch collated beforehand"] = collated
        if loader:
            sides[f"{who}, DataLoader"] = partial(loaded, who)
    return Work("auto", sides, setting.exact, facts=setting.facts)


def _epoch(
    model: nn.Module, batches: Callable[[], Iterator[Any]], setting: Setting
) -> Callable[[], None]:
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
        optimizer.zero_grad()
        labels = torch.zeros((), device=setting.graphs.device)
        for batch in batches():
            loss(model(batch), batch.y, setting.task, reduction="sum").backward()
            labels += measured(batch.y, setting.task).sum()
        torch._foreach_div_([p.grad for p in model.parameters() if p.grad is not None], labels)
        if config.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()

    return run


def _recorded(run: Callable[[], None]) -> Callable[[], None]:
    """The same work as a CUDA graph, recorded once."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):  # whatever is made at first must not be recorded
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay
