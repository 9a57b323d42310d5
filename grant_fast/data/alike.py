"""Graphs that look alike to a network, such as a molecule that a table holds twice."""

import numpy as np
from torch import Tensor

from ..graphs import PackedGraphs

#: How far apart two nodes may be whose surroundings tell graphs apart.
_ROUNDS = 4
#: Nodes and edges at a time: little memory, and most of it cached.
_BLOCK = 1 << 18
#: OGB's column of chirality. In OGB's own sets, a molecule written in two ways may have either tag.
CHIRALITY = 1


def seen_in_training(marks: np.ndarray, split: dict[str, Tensor]) -> int:
    """How many test graphs have a graph in train that looks like them, by `fingerprints`."""
    test, train = (marks[split[part].cpu().numpy()] for part in ("test", "train"))
    return int(np.isin(test, train).sum())


def repeated(marks: np.ndarray) -> np.ndarray:
    """The positions of the graphs that look like another one, ascending."""
    _, group, sizes = np.unique(marks, return_inverse=True, return_counts=True)
    return np.flatnonzero(sizes[group] > 1)


def contradictions(marks: np.ndarray, y: np.ndarray, apart: np.ndarray) -> np.ndarray:
    """The graphs that look like another one and contradict it, by the largest difference first.

    Args:
        marks: `fingerprints`, [G].
        y: labels [G, T], NaN where not measured.
        apart: [T], how far apart two labels of a target may be; above that they contradict.

    Returns:
        Positions [P, 2] of the lowest and the highest label of graphs that look alike, a row for
        each group of them.
    """
    twice = repeated(marks)
    marks, y, best = marks[twice], y[twice], np.zeros((0, 3))
    for target, limit in zip(y.T, apart, strict=True):
        known = np.flatnonzero(~np.isnan(target))
        order = known[np.lexsort((target[known], marks[known]))]  # by mark, then by label
        first = np.flatnonzero(np.diff(marks[order], prepend=~marks[order[:1]]))
        last = np.append(first, len(order))[1:] - 1
        gap = target[order[last]] - target[order[first]]
        found = np.stack([gap / (limit or 1), order[first], order[last]], axis=1)[gap > limit]
        best = np.concatenate([best, found])
    best = best[np.argsort(-best[:, 0], kind="stable")]
    one_each = np.unique(marks[best[:, 1].astype(int)], return_index=True)[1]
    return twice[best[np.sort(one_each), 1:].astype(int)]


def fingerprints(graphs: PackedGraphs, but: int | None = None) -> np.ndarray:
    """A number for each graph of integer features, uint64 [G], whatever the order of its nodes.

    One column of the features may be passed over, such as `CHIRALITY`.

    Equal for graphs that the Weisfeiler-Lehman test cannot tell apart in a few rounds (Shervashidze
    et al., *Weisfeiler-Lehman graph kernels*, JMLR 2011), and so for isomers that differ in nothing
    that the features say. Weights of edges are not looked at.
    """
    rowptr, col, x = (t.cpu().numpy() for t in (*graphs.adj[:2], graphs.x))
    ptr = graphs.host_ptr.numpy()
    marks = [
        _marks(rowptr, col, x, ptr[run.start : run.stop + 1], but) for run in graphs.cut(_BLOCK)
    ]
    return np.concatenate(marks)


def _marks(
    rowptr: np.ndarray, col: np.ndarray, x: np.ndarray, ptr: np.ndarray, but: int | None
) -> np.ndarray:
    """`fingerprints` of neighbouring graphs, whose nodes begin at `ptr`."""
    nodes = slice(ptr[0], ptr[-1])
    ptr, rowptr = ptr - ptr[0], rowptr[nodes.start : nodes.stop + 1]
    col, rowptr = col[rowptr[0] : rowptr[-1]], rowptr - rowptr[0]
    source = col + np.repeat(ptr[:-1], np.diff(rowptr[ptr]))
    node = np.zeros(len(rowptr) - 1, np.uint64)
    for number, column in enumerate(x[nodes].T):
        if number != but:
            node = _mixed(node + column.astype(np.uint64))
    for _ in range(_ROUNDS):
        node = _mixed(node + _sums(_mixed(node)[source], rowptr))
    return _sums(_mixed(node), ptr)


def _sums(values: np.ndarray, ptr: np.ndarray) -> np.ndarray:
    """The sum of each range of values, modulo 2^64."""
    before = np.zeros(len(values) + 1, np.uint64)
    np.cumsum(values, out=before[1:])
    return before[ptr[1:]] - before[ptr[:-1]]


def _mixed(values: np.ndarray) -> np.ndarray:
    """Well spread numbers, one for each: the finaliser of SplitMix64 (Steele et al., *Fast
    splittable pseudorandom number generators*, OOPSLA 2014)."""
    out = values + np.uint64(0x9E3779B97F4A7C15)
    out = (out ^ (out >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    out = (out ^ (out >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return out ^ (out >> np.uint64(31))
