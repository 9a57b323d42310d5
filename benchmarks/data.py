"""The graphs that are measured on: the paper's six sets, and three kinds of batch for one layer.

A set is written once, as a packed file, and every process that measures maps that file. What the
machine cannot have (no network, no molecules) is a shape twin: random graphs with the sizes and
degrees of the real set, whose metric says nothing and whose time says nearly all.

`python -m benchmarks.data NAME SCALE FILE` writes one.
"""

import dataclasses
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch

from grant_fast import PackedGraphs
from grant_fast.data.dataset import Dataset
from grant_fast.data.graphon import NUM_GRAPHS, generate_parts
from grant_fast.data.load import GENERATED_FRACTIONS, load_dataset, twin_dataset
from grant_fast.data.splits import random_split
from grant_fast.data.stream import joined
from grant_fast.data.twin import SHAPES, Shape, generate_twin
from grant_fast.graphs.arrays import GraphArrays

#: MoleculeNet's HIV, where it lies beside the checkout.
HIV = Path(__file__).parents[2] / "shared" / "data" / "hiv.csv"
SCALES = ("tiny", "cpu", "gpu")
RECIPES = ("ogbg-molhiv", "ogbg-molpcba", "QM9", "ZINC", "gen-reg", "gen-cls")
LAYER_SETS = ("molecules", "graphon", "big")

#: Graphs of each set at each scale; None is the set's true size.
GRAPHS: dict[str, dict[str, int | None]] = {
    "tiny": {
        **dict.fromkeys(RECIPES, 60),
        **{"gen-reg": 15, "gen-cls": 15, "molecules": 12, "graphon": 2},
    },
    "cpu": {
        "ogbg-molhiv": 4000,
        "ogbg-molpcba": 2000,
        "QM9": 2000,
        "ZINC": 2000,
        "gen-reg": 500,
        "gen-cls": 500,
        "molecules": 400,
        "graphon": 64,
    },
    "gpu": dict.fromkeys(RECIPES) | {"molecules": 32_901, "graphon": 4000},
}
#: Nodes and edges of the big graph at each scale.
BIG = {"tiny": (60, 400), "cpu": (10_000, 200_000), "gpu": (2_000_000, 60_000_000)}

#: ogbg-molhiv's molecules are MoleculeNet's HIV, after which molpcba's shape was drawn.
MOLHIV = dataclasses.replace(
    SHAPES["ogbg-molpcba"],
    splits=(32_901, 4113, 4113),
    kind="binary",
    num_targets=1,
    labelled=1.0,
    positive=0.035,
)


def prepare(name: str, scale: str, file: Path, hiv: Path | None = None) -> None:
    """Write one set as a packed file, its training graphs first.

    Args:
        name: one of `RECIPES` or `LAYER_SETS`.
        scale: one of `SCALES`.
        file: where to; it ends in .gfast.
        hiv: hiv.csv or a packed file of it, to take for ogbg-molhiv instead of its twin.
    """
    count = GRAPHS[scale].get(name)
    if name == "big":
        big_graph(*BIG[scale]).save(file)
    elif name == "molecules":
        arrays = simple_twin(SHAPES["ogbg-molpcba"], count)
        PackedGraphs.from_graph_arrays(arrays, missing_labels=True).save(file)
    elif name == "graphon":
        assert count is not None
        joined(generate_parts("gen-cls", count, seed=0)).save(file)
    elif name == "ogbg-molhiv" and hiv is not None:
        load_dataset(hiv, num_graphs=count, progress=False).grouped().save(file)
    else:
        make_dataset(name, count).grouped().save(file)


def make_dataset(name: str, count: int | None) -> Dataset:
    """One of `RECIPES`, generated: so many graphs, or as many as it has."""
    if name.startswith("gen-"):
        return _generated(name, count or NUM_GRAPHS)
    shape = MOLHIV if name == "ogbg-molhiv" else SHAPES[name]
    return twin_dataset(name, shape, simple_twin(shape, count))


def simple_twin(shape: Shape, count: int | None) -> GraphArrays:
    """A twin whose self loops and double edges, an accident of drawing them, are dropped.

    A graph with a double edge would be kept from the kernels that hold edges as bits.
    """
    arrays = generate_twin(shape, count)
    source, target = arrays.edge_index
    key = (source * arrays.x.shape[0] + target)[source != target].unique()
    edges = torch.stack([key // arrays.x.shape[0], key % arrays.x.shape[0]])
    return dataclasses.replace(arrays, edge_index=edges)


def _generated(name: str, count: int) -> Dataset:
    """The set as `load_dataset` generates it, without a copy in the user's cache folder."""
    small = load_dataset(name, num_graphs=3, progress=False)
    graphs = joined(generate_parts(name, count, seed=0))
    return dataclasses.replace(
        small, graphs=graphs, split=random_split(count, GENERATED_FRACTIONS, 0)
    )


def big_graph(num_nodes: int, num_edges: int) -> PackedGraphs:
    """One undirected graph whose edges join random nodes: no locality for a cache to find."""
    generator = torch.Generator().manual_seed(0)
    ends = torch.randint(num_nodes, (2, num_edges // 2), generator=generator)
    edges = torch.cat([ends, ends.flip(0)], 1)
    batch = torch.zeros(num_nodes, dtype=torch.long)
    return PackedGraphs.from_arrays(torch.zeros(num_nodes, 1), edges, batch)


@dataclass
class Store:
    """The sets of one process: read from `folder` (or made there) when first asked for.

    Args:
        folder: of packed files.
        scale: one of `SCALES`.
        device: where the graphs go.
        hiv: see `prepare`.
        kernels: whether the Triton kernels are measured where they can run.
    """

    folder: Path
    scale: str
    device: torch.device
    hiv: Path | None = None
    kernels: bool = True
    _kept: dict[str, Dataset | PackedGraphs] = field(default_factory=dict)

    @property
    def backends(self) -> tuple[str, ...]:
        """Who may compute a layer here; "auto", what a user gets, is one of the others."""
        gpu = self.device.type == "cuda"
        return ("auto", "torch", "triton") if gpu and self.kernels else ("auto", "torch")

    def graphs(self, name: str) -> PackedGraphs:
        """One of `LAYER_SETS`, on the device."""
        if name not in self._kept:
            self._kept[name] = PackedGraphs.load(self._file(name)).to(self.device)
        out = self._kept[name]
        assert isinstance(out, PackedGraphs)
        return out

    def dataset(self, name: str) -> Dataset:
        """One of `RECIPES`, on the device, its training graphs first."""
        if name not in self._kept:
            loaded = load_dataset(self._file(name))
            self._kept[name] = dataclasses.replace(loaded, graphs=loaded.graphs.to(self.device))
        out = self._kept[name]
        assert isinstance(out, Dataset)
        return out

    def _file(self, name: str) -> Path:
        file = self.folder / f"{name}.gfast"
        if not file.exists():
            prepare(name, self.scale, file, self.hiv)
        return file


if __name__ == "__main__":
    name, scale, file, *hiv = sys.argv[1:]
    prepare(name, scale, Path(file), Path(hiv[0]) if hiv else None)
