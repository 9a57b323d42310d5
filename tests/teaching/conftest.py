"""Small graphs whose scores are known: y is the residual of a model that always answers 0."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

MakeGraphs = Callable[..., list[Any]]


@pytest.fixture
def make_graphs() -> MakeGraphs:
    """Random PyG graphs of 1 to 9 nodes; `uid` is the identity of each, whatever its position."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what PyG's own imports say about torch is not our matter
        pytest.importorskip("torch_geometric.nn")
    from torch_geometric.data import Data

    def make(count: int, seed: int = 0) -> list[Any]:
        generator = torch.Generator().manual_seed(seed)
        errors = torch.randperm(count, generator=generator).float() + 1
        graphs = []
        for uid in range(count):
            nodes = int(torch.randint(1, 10, (1,), generator=generator))
            graphs.append(
                Data(
                    x=torch.randn(nodes, 3, generator=generator),
                    edge_index=torch.randint(nodes, (2, 2 * nodes), generator=generator),
                    y=errors[uid : uid + 1],
                    uid=torch.tensor([uid]),
                )
            )
        return graphs

    return make


@pytest.fixture
def zero() -> Callable[[Any, Any], Tensor]:
    """A `predict` that answers 0 for each graph, so that a graph's score is its |y|."""
    return lambda model, batch: torch.zeros(batch.num_graphs, 1)


class Noisy(nn.Module):
    """A model of a node at a time with every state that scoring must leave alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(8, 1)

    def forward(self, batch: Any) -> Tensor:
        torch.rand(1)  # some models draw random numbers in evaluation mode too
        nodes = self.last(self.drop(self.norm(self.first(batch.x)).relu()))
        return nodes.new_zeros(batch.num_graphs, 1).index_add(0, batch.batch, nodes)


@pytest.fixture
def model() -> Noisy:
    torch.manual_seed(0)
    return Noisy()
