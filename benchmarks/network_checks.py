"""The recipes' networks, whole, against float64.

What they are raced with is compiled here, where checks run side by side.
"""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grant_fast import FlexGCN, GraphBatch, PackedGraphs, score_graphs
from grant_fast.nn.evaluating import evaluating
from grant_fast.nn.modules import MANY_ROWS
from grant_fast.studies.recipe import load_recipe
from grant_fast.training.model import ModelSpec, build_model
from grant_fast.training.recording import room_for

from . import awkward
from .awkward import awkward_graphs
from .data import RECIPES, make_dataset
from .gradients import in_training
from .scoring_checks import Prepared, with_statistics
from .settings import WIDE

SAMPLE = 30  # graphs that features and targets are drawn from


def of(backend: str) -> Iterator["Network"]:
    """Every recipe's, and the one at widths 64."""
    for recipe in RECIPES:
        yield Network(backend, recipe)
    yield Network(backend, RECIPES[0], wide=True)


@dataclass(frozen=True)
class Network:
    """A recipe's network without its dropout: gradients in training, outputs and scores.

    The gradients are those of a batch, and of one with room (`batches/padded.py`) where the network
    takes such. On a GPU the batch repeats its graphs until it has the rows that the norm's kernels
    ask for: a ReLU that rounding turns over it does so in all copies, which decides the tolerance.
    """

    backend: str
    recipe: str
    wide: bool = False
    tolerance: float = 1e-3

    @property
    def name(self) -> str:
        return f"{self.backend} network {self.recipe}" + ", widths 64" * self.wide

    def prepare(self, device: torch.device) -> Prepared:
        torch.manual_seed(1)
        sample = make_dataset(self.recipe, SAMPLE)
        graphs, task = _alike(sample.graphs), sample.task
        config = replace(load_recipe(self.recipe).config, **(WIDE if self.wide else {}))
        spec = ModelSpec(graphs.num_features, sample.encoder, task, None)
        model = build_model(replace(config, dropout=(0.0,)), spec)
        with_statistics(model)
        double = copy.deepcopy(model).double()
        double.backend, model.backend = "torch", self.backend
        whole = torch.arange(len(graphs))
        rows = MANY_ROWS if device.type == "cuda" else 1
        many = whole.repeat(math.ceil(rows / graphs.num_nodes))

        def results(model: FlexGCN, graphs: PackedGraphs, room: GraphBatch | None) -> list[Tensor]:
            with evaluating(model):
                out = [model(graphs.batch(whole)), score_graphs(model, graphs, task)]
            out += in_training(model, graphs.batch(many), task)
            return out if room is None else out + in_training(model, room, task)

        exactly = graphs.to(dtype=torch.float64)
        model, graphs = model.to(device), graphs.to(device)
        # Asked there: not every GPU keeps graphs as bits that are as large as a CPU's.
        fitting = whole if graphs.bits is None else whole[graphs.bits.fits]
        room = room_for(model, graphs, fitting, len(fitting)) if self.backend == "triton" else None
        if room is not None:
            assert room.fill(fitting)
        exact = results(double, exactly, None if room is None else exactly.batch(fitting))
        names = ("outputs", "scores", "gradient", "gradient with room")
        return lambda: results(model, graphs, room), dict(zip(names, exact, strict=False))


def _alike(graphs: PackedGraphs) -> PackedGraphs:
    """Awkward graphs with features and targets drawn from these, of few kinds of atoms."""
    assert graphs.y is not None
    rows = graphs.num_nodes if graphs.x.is_floating_point() else 10
    nodes = torch.randint(rows, (sum(awkward.SIZES),))
    of_nodes = graphs.y_level == "node"
    y = nodes if of_nodes else torch.randint(len(graphs), (len(awkward.SIZES),))
    return awkward_graphs(graphs.is_symmetric, x=graphs.x[nodes], y=graphs.y[y])
