"""From graphs to batches: packing a data set, and putting a shuffled batch together."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch

from grant_fast import PackedGraphs

from .work import Side, Work


def collate_work(graphs: PackedGraphs, size: int) -> Work:
    """A shuffled batch with everything that a layer reads: X, Y and the normalised adjacency."""

    def ours() -> Side:
        def run() -> None:
            batch = graphs.batch(torch.randperm(len(graphs))[:size])
            batch.x, batch.y, batch.batch  # noqa: B018
            batch.adjacency(True).csr  # noqa: B018

        return Side(run)

    def pyg() -> Side:
        from torch_geometric.data import Batch

        from .peers.pyg import data_list

        data = data_list(graphs.to("cpu"))

        def run() -> None:
            order = torch.randperm(len(data))[:size].tolist()
            Batch.from_data_list([data[i] for i in order]).to(graphs.device)

        return Side(run)

    return _work("grant_fast", ours, pyg, {"graphs": len(graphs), "batch size": size})


def pack_work(graphs: PackedGraphs) -> Work:
    """A list of PyG's `Data` made into one data set: packed, or as PyG's own collated storage."""
    host = graphs.to("cpu")
    data: list[Any] = []

    def listed() -> list[Any]:
        from .peers.pyg import data_list

        if not data:
            data.extend(data_list(host))
        return data

    def ours() -> Side:
        values = listed()
        return Side(lambda: PackedGraphs.from_data_list(values, missing_labels=True))

    def pyg() -> Side:
        from torch_geometric.data import InMemoryDataset

        values = listed()
        return Side(lambda: InMemoryDataset.collate(values))

    return _work("grant_fast", ours, pyg, {"graphs": len(graphs)})


def _work(
    name: str, ours: Callable[[], Side], pyg: Callable[[], Side], facts: dict[str, Any]
) -> Work:
    sides = {name: ours}
    if find_spec("torch_geometric") is not None:
        sides["PyG"] = pyg
    return Work(name, sides, facts=facts)
