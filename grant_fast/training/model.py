"""From a config and a dataset to a network on a device, and from a network to predictions."""

import dataclasses
import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..batches import GraphBatch
from ..devices import indexed, memory_of
from ..errors import InputError
from ..graphs import PackedGraphs
from ..nn import FlexConv, FlexGCN
from ..nn.evaluating import evaluating
from ..tasks import Task
from .baselines import VirtualNodeGCN, tie_orders
from .config import RunConfig
from .initial import draw_kaiming, factor_last_layer
from .targets import Scaling

#: Nodes in a pass on a CPU: the fastest, as it stays in the cache.
CPU_NODES = 40_000
#: On a GPU: its places and values in both CSRs of a batch, and once more while they are made.
BYTES_AN_EDGE = 32


@dataclass(frozen=True)
class ModelSpec:
    """What a run's config does not say and its network depends on: the shape of the data.

    Args:
        num_features: columns of x.
        encoder: "atom" where the columns are OGB's categorical ones, else None.
        task: what is predicted.
        scaling: from the network's scale to the targets' units; None where they are the same.
        targets: the columns that the targets came from, where they were chosen among columns.
        elements: those of the training molecules, see `elements.py`; empty where not known.
    """

    num_features: int
    encoder: str | None
    task: Task
    scaling: Scaling | None
    targets: tuple[str, ...] = ()
    elements: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a checkpoint."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ModelSpec":
        """What `to_dict` gave."""
        scaling = values["scaling"]
        return cls(
            values["num_features"],
            values["encoder"],
            Task(**values["task"]),
            None if scaling is None else Scaling(**scaling),
            tuple(values["targets"]),
            tuple(values["elements"]),
        )

    def encode(self, y: Tensor) -> Tensor:
        """Targets on the network's scale."""
        return y if self.scaling is None else self.scaling.encode(y)

    def decode(self, pred: Tensor) -> Tensor:
        """Network outputs in the targets' units; logits stay logits."""
        return pred if self.scaling is None else self.scaling.decode(pred)


#: PyTorch's random state is one for all threads: those that set it for a while take turns.
RANDOM = threading.RLock()
if hasattr(os, "register_at_fork"):  # a child has none of the threads that may have it
    os.register_at_fork(after_in_child=getattr(RANDOM, "_at_fork_reinit", lambda: None))


def build_model(config: RunConfig, spec: ModelSpec) -> FlexGCN:
    """A freshly initialised network, on the CPU, that depends on the config's seed only."""
    with RANDOM, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(config.seed)  # not every GPU's, as torch.manual_seed
        return make_model(config, spec)


def make_model(config: RunConfig, spec: ModelSpec) -> FlexGCN:
    """A network whose weights are drawn from PyTorch's random numbers."""
    gaps = len(config.orders) - 1
    kind = VirtualNodeGCN if config.network == "gcn-virtual-node" else FlexGCN
    model = kind(
        config.embedding if spec.encoder else spec.num_features,
        stretched(config.hidden_channels, gaps),
        config.head or spec.task.num_outputs,
        orders=list(config.orders),
        act=config.act,
        norm=None if config.norm == "none" else config.norm,
        dropout=stretched(config.dropout, gaps),
        pool=config.pool if spec.task.level == "graph" else None,
        normalize=config.normalize,
        encoder=spec.encoder,
    )
    if config.network != "flex":
        tie_orders(model)
    if config.head is not None:
        factor_last_layer(model, spec.task.num_outputs)
    if config.init == "kaiming":
        draw_kaiming(model)
    return model


def predictions(model: nn.Module, batches: Iterable[GraphBatch]) -> Tensor:
    """The model's outputs in evaluation mode for all graphs of the batches, in their order.

    Returns:
        [rows, num_outputs] on the graphs' device; rows are graphs, or their nodes.
    """
    with evaluating(model, alone=True):
        return outputs(model, batches)


def outputs(model: nn.Module, batches: Iterable[GraphBatch]) -> Tensor:
    """`predictions` in whatever mode the model is."""
    return torch.cat([model(batch) for batch in batches])


def fitting(graphs: PackedGraphs, ids: Tensor, model: nn.Module) -> list[Tensor]:
    """Positions in parts of as many graphs as go together well, where nothing else asks for a
    number; one empty part where there are none.

    On a GPU as many as can be trained on in half of its memory: of all that it has, not of what is
    free just now, or a resumed run would cut its graphs elsewhere.
    """
    if graphs.device.type == "cuda":
        half = memory_of(graphs.device) // 2
        runs = graphs.cut(half, ids, node=bytes_a_node(model), edge=BYTES_AN_EDGE)
    else:
        runs = graphs.cut(CPU_NODES, ids, edge=0)
    return [ids[run] for run in runs]


def bytes_a_node(model: nn.Module) -> int:
    """Memory that a training step takes for each node, from above.

    Twice the float32 that go into and out of all convolutions, as norm and dropout keep their own,
    and twice the κ terms of the widest.
    """
    convs = [module for module in model.modules() if isinstance(module, FlexConv)]
    kept = sum(conv.in_channels + conv.out_channels for conv in convs)
    terms = max((c.order * max(c.in_channels, c.out_channels) for c in convs), default=1)
    return 4 * 2 * (kept + terms)


def resolve_device(name: str) -> torch.device:
    """The device that a config's "auto", "cpu", "cuda", "cuda:1", … stands for, index included.

    Raises:
        InputError: there is no such device here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = indexed(name)
        if device.type not in ("cpu", "cuda"):
            raise ValueError(f"no training on {device.type}")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, ValueError) as error:
        blind = name.startswith("cuda") and not torch.cuda.is_available()
        why = "PyTorch sees no GPU, so " if blind else ""
        raise InputError(f"device={name} cannot be used here: {why}give cpu, or auto") from error
    return device


def stretched(values: tuple[Any, ...], count: int) -> list[Any]:
    """A setting of each of `count` places between layers, where one value stands for all."""
    return list(values) * count if len(values) == 1 else list(values)
