"""gen-reg and gen-cls: random graphs drawn from a graphon, labelled by a random GCN.

The recipe is the paper's, in full that of its code. A graphon w: [0, 1]² → [0, 1] is tabulated on a
grid of r×r points; a graph has ⌊100(½ + U)⌋ nodes (50 to 149) at uniform grid positions, and each
ordered pair of nodes, self pairs included, is an edge source→target with probability
w(source, target). Nodes carry 40 uniform features. A fixed random network writes the label of every
node:

    H₁ = ReLU(Â X W₁),  H₂ = ReLU(Â H₁ W₂),  f = H₂ W₃ + b        widths 40 → 20 → 10 → 1 or 10

Â = D^-½(A + missing self loops)D^-½ with in-degrees, as in PyG's `GCNConv`. gen-reg divides f by
its L2 norm in each graph; gen-cls takes the largest of its ten entries, which is mostly the
same one: how often depends on the seed (0.98 of the nodes for seed 0, 0.64 to 0.9999 for the first
eight). Judge it by ranking metrics, not by accuracy.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..devices import one_thread, usual_tensors
from ..errors import InputError, whole_number
from ..graphs.arrays import GraphArrays, batch_vector, concatenate
from ..progress import track
from ..workers import share_out
from .stream import Part, pack_part

NAMES = ("gen-reg", "gen-cls")
NUM_GRAPHS = 50_000  # the paper's
NUM_FEATURES = 40
NUM_CLASSES = 10
HIDDEN = (20, 10)
# Each chunk has a random stream of its own, so a graph never depends on how many come after it.
CHUNK = 256


@dataclass(frozen=True)
class Family:
    """A graphon w(u, v), and whether its axes run from 1 down instead of up to 1."""

    formula: Callable[[np.ndarray, np.ndarray], np.ndarray]
    reversed: bool = False

    def tabulated(self, resolution: int) -> np.ndarray:
        """w on the grid i/r, i = 1…r: float64 `[r, r]`, rows u, columns v."""
        axis = np.arange(1, resolution + 1) / resolution
        if self.reversed:
            axis = axis[::-1]
        return self.formula(axis[:, None], axis[None, :])


def _same_half(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return (u <= 0.5) == (v <= 0.5)


# After Xu et al., "Learning Graphons via Structured Gromov-Wasserstein Barycenters"; the paper's
# data sets use the first.
FAMILIES: tuple[Family, ...] = (
    Family(lambda u, v: u * v, reversed=True),
    Family(lambda u, v: np.exp(-(u**0.7 + v**0.7))),
    Family(lambda u, v: (u**2 + v**2 + np.sqrt(u) + np.sqrt(v)) / 4, reversed=True),
    Family(lambda u, v: (u + v) / 2, reversed=True),
    Family(lambda u, v: 1 / (1 + np.exp(-2 * (u**2 + v**2))), reversed=True),
    Family(
        lambda u, v: 1 / (1 + np.exp(-(np.maximum(u, v) ** 2 + np.minimum(u, v) ** 4))),
        reversed=True,
    ),
    Family(lambda u, v: np.exp(-(np.maximum(u, v) ** 0.75))),
    Family(lambda u, v: np.exp(-(np.minimum(u, v) + np.sqrt(u) + np.sqrt(v)) / 2)),
    Family(lambda u, v: np.log(1 + np.maximum(u, v) / 2), reversed=True),
    Family(lambda u, v: np.abs(u - v)),
    Family(lambda u, v: 1 - np.abs(u - v)),
    Family(lambda u, v: np.where(_same_half(u, v), 0.8, 0.0)),
    Family(lambda u, v: np.where(_same_half(u, v), 0.0, 0.8)),
)


@dataclass(frozen=True)
class LabelNetwork:
    """The random network that writes the labels; weights are `[in, out]` float32.

    Matrices are drawn from N(0, 1), the convolutions have zero bias, and the last bias is uniform
    within ±1/√10 (PyTorch's default for a Linear with ten inputs).
    """

    weight1: Tensor
    weight2: Tensor
    weight3: Tensor
    bias3: Tensor

    @classmethod
    def draw(cls, rng: np.random.Generator, out_channels: int) -> "LabelNetwork":
        def normal(rows: int, columns: int) -> Tensor:
            return torch.from_numpy(rng.standard_normal((rows, columns), dtype=np.float32))

        bound = HIDDEN[1] ** -0.5
        return cls(
            normal(NUM_FEATURES, HIDDEN[0]),
            normal(HIDDEN[0], HIDDEN[1]),
            normal(HIDDEN[1], out_channels),
            torch.from_numpy(rng.uniform(-bound, bound, out_channels).astype(np.float32)),
        )

    def __call__(self, graphs: GraphArrays) -> Tensor:
        """Label every node of graphs without duplicate edges: float32 `[N, out]`.

        Works on dense, padded adjacency matrices: with a quarter of all pairs connected that is
        the quickest form, and writing ones on the diagonal adds just the missing self loops.
        """
        sizes = torch.bincount(graphs.batch, minlength=graphs.num_graphs)
        place = torch.arange(len(graphs.x)) - (sizes.cumsum(0) - sizes)[graphs.batch]
        width = int(sizes.max())
        source, target = graphs.edge_index
        adjacency = torch.zeros(graphs.num_graphs, width, width)
        adjacency[graphs.batch[target], place[target], place[source]] = 1.0
        adjacency.diagonal(dim1=1, dim2=2).fill_(1.0)
        scale = adjacency.sum(2).rsqrt_()
        adjacency.mul_(scale[:, :, None]).mul_(scale[:, None, :])

        hidden = torch.zeros(graphs.num_graphs, width, HIDDEN[0])
        hidden[graphs.batch, place] = graphs.x @ self.weight1
        hidden = (adjacency @ hidden).relu_()
        hidden = (adjacency @ (hidden @ self.weight2)).relu_()
        return torch.addmm(self.bias3, hidden[graphs.batch, place], self.weight3)


def _draw_graphs(rng: np.random.Generator, table: np.ndarray, num_graphs: int) -> GraphArrays:
    """Sample `num_graphs` unlabelled graphs; `table[v, u]` is the probability of an edge u→v."""
    sizes = (100 * (0.5 + rng.random(num_graphs))).astype(np.int64)
    positions = rng.integers(0, len(table), int(sizes.sum()))
    # One graph at a time: its 150×150 pairs stay in cache, which made this plain loop a third
    # faster than index arithmetic over all pairs of the chunk at once.
    sources, targets = [], []
    start = 0
    for size in sizes:
        place = positions[start : start + size]
        draws = rng.random((size, size), dtype=np.float32)
        target, source = np.nonzero(draws < table[place][:, place])
        sources.append(source + start)
        targets.append(target + start)
        start += size
    edge_index = np.stack((np.concatenate(sources), np.concatenate(targets)))
    x = rng.random((start, NUM_FEATURES), dtype=np.float32)
    return GraphArrays(
        x=torch.from_numpy(x),
        edge_index=torch.from_numpy(edge_index),
        batch=batch_vector(sizes),
        num_graphs=num_graphs,
        y_level="node",
    )


def _unit_per_graph(values: Tensor, graphs: GraphArrays) -> Tensor:
    squares = torch.zeros(graphs.num_graphs, values.size(1))
    norms = squares.index_add_(0, graphs.batch, values.square()).sqrt_()
    return values / (norms[graphs.batch] + 1e-6)


class Chunk(NamedTuple):
    """At most 256 graphs that are drawn together, by a stream of random numbers of their own."""

    name: str
    number: int
    num_graphs: int
    seed: int
    family: int
    resolution: int

    def draw(self) -> GraphArrays:
        """The labelled graphs: always the same, in any process, whatever else is drawn."""
        table = _table(FAMILIES[self.family], self.resolution)
        classify = self.name == "gen-cls"
        network = LabelNetwork.draw(_stream(self.seed, "labels"), NUM_CLASSES if classify else 1)
        graphs = _draw_graphs(_stream(self.seed, "graphs", self.number), table, CHUNK)
        # All of the chunk, on one thread: other products may round otherwise.
        with one_thread():
            values = network(graphs)
        y = values.argmax(1) if classify else _unit_per_graph(values, graphs)
        return replace(graphs, y=y).first(self.num_graphs)


@lru_cache(maxsize=1)
def _table(family: Family, resolution: int) -> np.ndarray:
    # Transposed, so that edges come out sorted by target: whoever needs CSR need not sort.
    return np.ascontiguousarray(family.tabulated(resolution).T, dtype=np.float32)


def chunks_of(
    name: str,
    num_graphs: int,
    *,
    seed: int = 0,
    family: int = 0,
    resolution: int = 1000,
) -> list[Chunk]:
    """The chunks that make up a data set, still to be drawn; arguments as in `generate`."""
    if name not in NAMES:
        raise InputError(f"unknown generated data set {name!r}: choose {' or '.join(NAMES)}")
    whole_number("num_graphs", num_graphs)
    whole_number("seed", seed, least=0)
    if not 0 <= family < len(FAMILIES):
        raise InputError(f"unknown graphon family {family}: choose 0 to {len(FAMILIES) - 1}")
    whole_number("resolution", resolution)
    starts = range(0, num_graphs, CHUNK)
    return [
        Chunk(name, number, min(CHUNK, num_graphs - start), seed, family, resolution)
        for number, start in enumerate(starts)
    ]


def generate_parts(
    name: str,
    num_graphs: int,
    *,
    seed: int = 0,
    workers: int | None = None,
    progress: bool = False,
) -> Iterable[Part]:
    """The data set in packed parts, in order, drawn by `workers` processes (see `share_out`)."""
    chunks = chunks_of(name, num_graphs, seed=seed)
    parts = share_out(min(workers or 1, len(chunks)), _draw_part, chunks)
    return track(parts, f"generating {name}", len(chunks), progress)


def _draw_part(chunk: Chunk) -> Part:
    return pack_part(chunk.draw())


def _stream(seed: int, use: Literal["labels", "graphs"], chunk: int = 0) -> np.random.Generator:
    key = (0,) if use == "labels" else (1, chunk)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))


@usual_tensors
def generate(
    name: str,
    num_graphs: int = NUM_GRAPHS,
    *,
    seed: int = 0,
    family: int = 0,
    resolution: int = 1000,
    progress: bool = False,
) -> GraphArrays:
    """Generate the paper's gen-reg or gen-cls, seeded.

    The first graphs are the same however many are asked for. The paper's 50,000 have about
    5 million nodes and 134 million edges (2 GB of int64): `generate_parts` yields them in parts.

    Args:
        name: "gen-reg" or "gen-cls".
        num_graphs: how many graphs.
        seed: of the graphs and of the network that labels them.
        family: the graphon, 0 to 12; the paper's data are 0, w(u, v) = uv from 1 downwards.
        resolution: grid points along an axis of the graphon.
        progress: show a progress bar.

    Returns:
        x float32 `[N, 40]`; y on nodes: float32 `[N, 1]` (gen-reg) or int64 `[N]` in 0…9 (gen-cls).

    Raises:
        InputError: an unknown name or family, or a number out of range.
    """
    chunks = chunks_of(name, num_graphs, seed=seed, family=family, resolution=resolution)
    drawn = (chunk.draw() for chunk in chunks)
    return concatenate(track(drawn, f"generating {name}", len(chunks), progress))
