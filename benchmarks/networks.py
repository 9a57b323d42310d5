"""A recipe's whole network: training steps, scoring passes, and epochs in the paper's mode."""

import copy
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from grant_fast import FlexGCN, GraNTSampler, PackedGraphs, Task
from grant_fast.data.load import Dataset
from grant_fast.dispatch import ENVIRONMENT
from grant_fast.teaching import loss
from grant_fast.training.config import RunConfig
from grant_fast.training.model import ModelSpec, build_model, predictions
from grant_fast.training.recipe import load_recipe
from grant_fast.training.targets import measured

from .data import Store
from .work import Side, Work

_CHECKED = 64  # graphs whose predictions are compared before a network is timed
_LOADED = 20  # batches' worth of graphs that PyG's loader draws its batches from
_CHUNK_NODES = {"cpu": 20_000, "cuda": 20_000_000}  # of an epoch, held at once


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
        return {"data": self.dataset.name, "graphs": len(self.ids)}

    def exact(self) -> list[Tensor]:
        """Predictions for the first graphs, in float64."""
        graphs = self.graphs.subset(slice(0, _CHECKED)).to(dtype=torch.float64)
        with backend("torch"):
            return [predictions(self._double(), graphs, torch.arange(len(graphs)), _CHECKED)]

    def answer(self) -> list[Tensor]:
        """The same, as they come."""
        ids = torch.arange(min(_CHECKED, len(self.graphs)))
        return [predictions(self.model, self.graphs, ids, _CHECKED)]

    def _double(self) -> FlexGCN:
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
            return Side(_through(name, run), _through(name, setting.answer))

        return make

    def pyg() -> Side:
        from torch_geometric.loader import DataLoader

        peer, data = _peer(setting), _data_list(setting, setting.ids[: _LOADED * size])
        loader = DataLoader(data, batch_size=size, shuffle=True, drop_last=True)
        batches = (batch.to(graphs.device) for batch in _forever(loader))
        return Side(kind(peer, batches), lambda: _peer_answer(peer, setting))

    sides = {name: ours(name) for name in setting.backends}
    if _has_pyg():
        sides["PyG, DataLoader"] = pyg
    facts = setting.facts | {"batch size": size}
    return Work("auto", sides, setting.exact, facts=facts)


def score_work(setting: Setting) -> Work:
    """Scoring all training graphs and choosing a tenth of them, beside inference alone.

    The ratio of "inference" is below 1: its inverse is what a look of the teacher costs, in
    inference passes of the same graphs by the same model.
    """
    graphs, ids = setting.graphs, setting.ids
    size = _graphs_a_chunk(graphs)

    sampler = GraNTSampler(
        graphs, setting.task, size, epochs=1, mode="global", start_ratio=0.1, ids=ids
    )

    def infer() -> None:
        predictions(setting.model, graphs, ids, size)

    def make(run: Callable[[], Any]) -> Callable[[], Side]:
        return lambda: Side(run, setting.answer)

    sides = {
        "score and select": make(lambda: sampler.select(setting.model, 0)),
        "inference": make(infer),
    }
    return Work("score and select", sides, setting.exact, facts=setting.facts)


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
            size, last = _graphs_a_chunk(graphs), len(setting.ids)
            kept = [graphs.batch(slice(a, min(a + size, last))) for a in range(0, last, size)]
            run = _through(name, _epoch(setting.model, lambda: iter(kept), setting))
            return Side(_recorded(run) if recorded else run, _through(name, setting.answer))

        return make

    def collated() -> Side:
        peer = _peer(setting)
        batch = graphs.batch(slice(0, len(setting.ids)))
        whole = PlainBatch.of(batch)
        return Side(
            _epoch(peer, lambda: iter([whole]), setting), lambda: _peer_answer(peer, setting)
        )

    def loaded() -> Side:
        from torch_geometric.loader import DataLoader

        peer, data = _peer(setting), _data_list(setting, setting.ids)
        loader = DataLoader(data, batch_size=setting.config.batch_size, shuffle=True)
        return Side(_epoch(peer, lambda: (batch.to(device) for batch in loader), setting))

    sides = {name: ours(name) for name in setting.backends}
    if "triton" in setting.backends:
        for name in ("torch", "triton"):
            sides[f"{name}, CUDA graph"] = ours(name, recorded=True)
    if _has_pyg():
        sides["PyG, one batch collated beforehand"] = collated
        if loader:
            sides["PyG, DataLoader"] = loaded
    return Work("auto", sides, setting.exact, facts=setting.facts)


@dataclass
class PlainBatch:
    """What a PyG network reads of a batch, made beforehand."""

    x: Tensor
    edge_index: Tensor
    batch: Tensor
    y: Tensor
    num_graphs: int

    @classmethod
    def of(cls, batch: Any) -> "PlainBatch":
        x = batch.x if batch.x.is_floating_point() else batch.x.long()
        return cls(x, batch.edge_index, batch.batch, batch.y, batch.num_graphs)


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


def _shuffled(graphs: PackedGraphs, ids: Tensor, size: int) -> Iterator[Any]:
    while True:
        order = ids[torch.randperm(len(ids))]
        for part in order[: len(order) // size * size].split(size):
            yield graphs.batch(part)


def _forever(loader: Any) -> Iterator[Any]:
    return itertools.chain.from_iterable(itertools.repeat(loader))


def _graphs_a_chunk(graphs: PackedGraphs) -> int:
    nodes = _CHUNK_NODES.get(graphs.device.type, _CHUNK_NODES["cpu"])
    return max(1, nodes * len(graphs) // max(1, graphs.num_nodes))


def _through(name: str, run: Callable[[], Any]) -> Callable[[], Any]:
    def chosen() -> Any:
        with backend(name):
            return run()

    return chosen


def _has_pyg() -> bool:
    return find_spec("torch_geometric") is not None


def _peer(setting: Setting) -> nn.Module:
    """The network in PyG's own parts, with the same weights."""
    from .peers import pyg

    config, gaps = setting.config, len(setting.config.orders) - 1
    outputs = setting.task.num_outputs
    head = config.head is not None
    atoms = setting.dataset.encoder is not None

    def stretched(values: Sequence[Any]) -> list[Any]:
        return list(values) * gaps if len(values) == 1 else list(values)

    peer = pyg.TAGNet(
        config.embedding if atoms else setting.graphs.num_features,
        stretched(config.hidden_channels),
        config.head or outputs,
        config.orders,
        config.norm == "batch_norm",
        stretched(config.dropout),
        setting.task.level == "graph",
        atoms,
        outputs if head else None,
    ).to(setting.graphs.device)
    pyg.take_weights(peer, setting.model)
    return peer


def _peer_answer(peer: nn.Module, setting: Setting) -> list[Tensor]:
    count = min(_CHECKED, len(setting.graphs))
    peer.eval()
    with torch.no_grad():
        return [peer(PlainBatch.of(setting.graphs.batch(slice(0, count))))]


def _data_list(setting: Setting, ids: Tensor) -> list[Any]:
    from .peers import pyg

    return pyg.data_list(setting.graphs.subset(ids).to("cpu"))
