"""Shape twins: random graphs with the sizes and degrees of a data set, for timing without it.

A twin is *not* the data: its edges are drawn at random, its features and targets are noise. It has
as many graphs, columns and labels as the real set and, as far as the molecules at hand tell, graphs
of its sizes and nodes of its degrees, so that a training step costs what it costs on the real set;
a metric on it says nothing. Whoever shows one says so: its name begins with "shape twin of".
"""

from dataclasses import dataclass

import numpy as np
import torch

from ..errors import InputError
from ..graphs.arrays import GraphArrays, batch_vector
from ..nn import ATOM_CARDINALITIES
from ..tasks import Kind

PREFIX = "twin:"
_PROBABILITIES = (0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1)
_NUM_KINDS = 300  # distinct atoms, as in a data set of molecules


@dataclass(frozen=True)
class Shape:
    """What a twin takes from the real set.

    Args:
        splits: graphs to train, validate and test on.
        sizes: quantiles of the number of nodes, at `_PROBABILITIES`, linear between them.
        degrees: share of the nodes with degree 0, 1, 2, …
        kind, num_targets: of the task.
        labelled, positive: share of the targets that are measured, and of those that are 1.
        num_features: real columns of x; 0 for OGB's nine categorical ones.
    """

    splits: tuple[int, int, int]
    sizes: tuple[float, ...]
    degrees: tuple[float, ...]
    kind: Kind = "regression"
    num_targets: int = 1
    labelled: float = 1.0
    positive: float = 0.0
    num_features: int = 0


# Measured with RDKit on the molecules that were at hand: the 29,445 of ZINC's validation and test
# sets; 30,937 of QM9 with their hydrogens, whose sizes are moved up by 1.3 atoms to the mean of
# all, 18.0; and MoleculeNet's HIV, whose molecules ogbg-molpcba's resemble, moved up by half an
# atom to its mean, 26.0, and with its largest.
SHAPES = {
    "QM9": Shape(
        splits=(110_000, 10_000, 10_831),
        sizes=(3, 11.3, 13.3, 14.3, 15.3, 17.3, 20.3, 22.3, 24.3, 26.3, 28.3, 29),
        degrees=(0.0, 0.5191, 0.1209, 0.2025, 0.1575),
        num_features=11,
    ),
    "ZINC": Shape(
        splits=(220_011, 24_445, 5_000),
        sizes=(6, 13, 16, 17, 20, 23, 26, 29, 31, 34, 36, 38),
        degrees=(0.0, 0.1786, 0.5058, 0.3018, 0.0138),
        num_features=1,
    ),
    "ogbg-molpcba": Shape(
        splits=(350_343, 43_793, 43_793),
        sizes=(2, 9.5, 13.5, 15.5, 18.5, 23.5, 29.5, 38.5, 45.5, 66.5, 115, 332),
        degrees=(0.0022, 0.1973, 0.47, 0.3066, 0.0239),
        kind="multilabel",
        num_targets=128,
        labelled=0.39,
        positive=0.014,
    ),
}


def twin_shape(source: str) -> Shape:
    """The shape that "twin:NAME" stands for.

    Raises:
        InputError: there is no twin of that name.
    """
    name = source.removeprefix(PREFIX)
    if name not in SHAPES:
        known = ", ".join(PREFIX + own for own in SHAPES)
        raise InputError(f"unknown shape twin {source!r}: give one of {known}")
    return SHAPES[name]


def generate_twin(shape: Shape, num_graphs: int | None = None, seed: int = 0) -> GraphArrays:
    """Draw a twin: each node its degree, then all ends of edges paired at random in each graph.

    An end left over in a graph is dropped, so that one node may have one edge too few. Two ends of
    one node, or a pair drawn twice, stay as a self loop or a double edge, which cost as much.

    Args:
        shape: of the real set.
        num_graphs: how many; all of the real set's if None.
        seed: of everything drawn.

    Returns:
        x float32 [N, F], or uint8 [N, 9]; each edge in both directions; y
        float32 [G, T], NaN where not measured.
    """
    count = sum(shape.splits) if num_graphs is None else num_graphs
    rng = np.random.default_rng(seed)
    drawn = np.interp(rng.random(count), _PROBABILITIES, shape.sizes)
    sizes = np.floor(drawn + 0.5).astype(np.int64)
    batch = batch_vector(sizes)
    shares = np.asarray(shape.degrees)
    degrees = rng.choice(len(shares), size=len(batch), p=shares / shares.sum())
    return GraphArrays(
        x=_features(rng, shape, len(batch)),
        edge_index=torch.from_numpy(_pair_ends(rng, batch.numpy(), degrees, count)),
        batch=batch,
        num_graphs=count,
        y=_targets(rng, shape, count),
    )


def _pair_ends(
    rng: np.random.Generator, batch: np.ndarray, degrees: np.ndarray, num_graphs: int
) -> np.ndarray:
    """int64 [2, E]: the ends of each graph's edges, shuffled, joined two by two."""
    ends = np.repeat(np.arange(len(batch)), degrees)
    graph = batch[ends]
    ends = ends[np.lexsort((rng.random(len(ends)), graph))]  # by graph, at random within it
    counts = np.bincount(graph, minlength=num_graphs)
    place = np.arange(len(ends)) - np.repeat(np.cumsum(counts) - counts, counts)
    paired = ends[place < np.repeat(counts - counts % 2, counts)].reshape(-1, 2)
    return np.concatenate([paired, paired[:, ::-1]]).T.copy()


def _features(rng: np.random.Generator, shape: Shape, num_nodes: int) -> torch.Tensor:
    if shape.num_features:
        return torch.from_numpy(rng.random((num_nodes, shape.num_features), dtype=np.float32))
    kinds = np.stack([rng.integers(0, size, _NUM_KINDS) for size in ATOM_CARDINALITIES], axis=1)
    frequency = 1 / np.arange(1, _NUM_KINDS + 1)
    chosen = rng.choice(_NUM_KINDS, size=num_nodes, p=frequency / frequency.sum())
    return torch.from_numpy(kinds.astype(np.uint8)[chosen])


def _targets(rng: np.random.Generator, shape: Shape, num_graphs: int) -> torch.Tensor:
    size = (num_graphs, shape.num_targets)
    if shape.kind == "regression":
        return torch.from_numpy(rng.standard_normal(size, dtype=np.float32))
    y = (rng.random(size) < shape.positive).astype(np.float32)
    y[rng.random(size) >= shape.labelled] = np.nan
    return torch.from_numpy(y)
