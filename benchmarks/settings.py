"""A recipe's network on a data set, ours and in PyG's own parts, with the same weights."""

import copy
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from grant_fast import FlexGCN, PackedGraphs, Task
from grant_fast.data.dataset import Dataset
from grant_fast.ops.dispatch import ENVIRONMENT
from grant_fast.studies.recipe import load_recipe
from grant_fast.training.config import RunConfig
from grant_fast.training.model import ModelSpec, build_model, predictions, stretched

from .data import Store

PYG, PAPER = "PyG", "paper's formulation"  # peers of a whole network
#: What makes a network of molecules one of widths 64.
WIDE: dict[str, Any] = {"hidden_channels": (64, 64, 64), "embedding": 64, "head": None}


@dataclass(frozen=True)
class Setting:
    """A recipe's network on a data set; `ids` are the training graphs, the first of the set."""

    config: RunConfig
    dataset: Dataset
    model: FlexGCN
    backends: tuple[str, ...]

    @classmethod
    def of(cls, recipe: str, store: Store, **changes: Any) -> "Setting":
        """The recipe's own network, or with some settings changed."""
        config, dataset = replace(load_recipe(recipe).config, **changes), store.dataset(recipe)
        spec = ModelSpec(dataset.graphs.num_features, dataset.encoder, dataset.task, None)
        model = build_model(config, spec).to(dataset.graphs.device)
        return cls(config, dataset, model, store.backends)

    @property
    def graphs(self) -> PackedGraphs:
        return self.dataset.graphs

    @property
    def task(self) -> Task:
        return self.dataset.task

    @property
    def ids(self) -> Tensor:
        return self.dataset.split["train"].cpu()

    @property
    def facts(self) -> dict[str, Any]:
        """The training graphs, which come first."""
        graphs, count = self.graphs, len(self.ids)
        nodes, edges = int(graphs.host_ptr[count]), int(graphs.host_edge_ptr[count])
        return {"data": self.dataset.name, "graphs": count, "nodes": nodes, "edges": edges}

    @property
    def batch_size(self) -> int:
        """Graphs of a batch."""
        return min(self.config.batch_size, len(self.ids))

    @property
    def checked(self) -> Tensor:
        """A batch of `ids` as those that are timed, drawn at random, the same every time."""
        return self._drawn[: self.batch_size]

    @property
    def recordable(self) -> Tensor:
        """Another, where the graphs can be kept as bits: of those that are, as a recording asks."""
        drawn, bits = self._drawn, self.graphs.bits
        return (drawn if bits is None else drawn[bits.fits[drawn]])[: self.batch_size]

    @property
    def _drawn(self) -> Tensor:
        order = torch.randperm(len(self.ids), generator=torch.Generator().manual_seed(0))
        return self.ids[order]

    def exact(self) -> list[Tensor]:
        """Predictions for the checked graphs, in float64."""
        graphs = self.graphs.subset(self.checked).to(dtype=torch.float64)
        with backend("torch"):
            return [predictions(self.double(), [graphs.batch(slice(None))])]

    def answer(self) -> list[Tensor]:
        """The same, as they come."""
        return [predictions(self.model, [self.graphs.batch(self.checked)])]

    def double(self) -> FlexGCN:
        """The network in float64, a copy."""
        return copy.deepcopy(self.model).double()


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Have every layer computed by "torch", by "triton", or by whom "auto" chooses."""
    before = os.environ.get(ENVIRONMENT)
    os.environ[ENVIRONMENT] = name
    try:
        yield
    finally:
        os.environ.pop(ENVIRONMENT)
        if before is not None:
            os.environ[ENVIRONMENT] = before


def through(name: str, run: Callable[[], Any]) -> Callable[[], Any]:
    """`run` with every layer computed by the backend `name`."""

    def chosen() -> Any:
        with backend(name):
            return run()

    return chosen


def peers(device: torch.device) -> list[str]:
    """Those that can run here; the paper's formulation needs torch_sparse, which is at home on
    the CPU."""
    if find_spec("torch_geometric") is None:
        return []
    paper = device.type == "cpu" and find_spec("torch_sparse") is not None
    return [PYG, PAPER] if paper else [PYG]


@dataclass
class PlainBatch:
    """What a PyG network reads of a batch, made beforehand."""

    x: Tensor
    edge_index: Tensor
    batch: Tensor
    y: Tensor
    num_graphs: int
    num_nodes: int

    @classmethod
    def of(cls, batch: Any) -> "PlainBatch":
        x = batch.x if batch.x.is_floating_point() else batch.x.long()
        rest = (batch.y, batch.num_graphs, batch.num_nodes)
        return cls(x, batch.edge_index, batch.batch, *rest)


def peer(setting: Setting, kind: str = PYG) -> nn.Module:
    """The network in PyG's own parts or by the paper's formulation, with the same weights."""
    from .peers import pyg

    network = pyg.TAGNet
    if kind == PAPER:
        from .peers.authors import PaperNet

        network = PaperNet

    config, gaps = setting.config, len(setting.config.orders) - 1
    outputs = setting.task.num_outputs
    head = config.head is not None
    atoms = setting.dataset.encoder is not None

    peer = network(
        config.embedding if atoms else setting.graphs.num_features,
        stretched(config.hidden_channels, gaps),
        config.head or outputs,
        config.orders,
        config.norm == "batch_norm",
        stretched(config.dropout, gaps),
        setting.task.level == "graph",
        atoms,
        outputs if head else None,
    ).to(setting.graphs.device)
    pyg.take_weights(peer, setting.model)
    return peer


def peer_answer(peer: nn.Module, setting: Setting) -> list[Tensor]:
    """Its predictions for the graphs that `Setting.exact` is of."""
    peer.eval()
    with torch.no_grad():
        return [peer(PlainBatch.of(setting.graphs.batch(setting.checked)))]


def data_list(setting: Setting, ids: Tensor) -> list[Any]:
    """The graphs at `ids` as PyG's `Data`, on the CPU."""
    from .peers import pyg

    return pyg.data_list(setting.graphs.subset(ids).to("cpu"))
