"""Graphs that are hard to get right, for every test to share."""

import torch
from torch import Tensor

from grant_fast import PackedGraphs
from grant_fast.batches.tiles import PLANES

#: Nodes of each graph: empty ones first, within and last; single nodes; word and tile boundaries.
AWKWARD_SIZES = (0, 1, 2, 15, 0, 16, 17, 1, 63, 64, 65, 0)


def random_edges(sizes: tuple[int, ...], generator: torch.Generator, symmetric: bool) -> Tensor:
    """Edges within each graph, about three a node, with self loops and duplicates among them.

    The last node of every graph of more than two nodes stays isolated.
    """
    blocks, start = [torch.empty(2, 0, dtype=torch.long)], 0
    for size in sizes:
        reach = size - 1 if size > 2 else size
        if reach:
            blocks.append(torch.randint(reach, (2, 3 * size), generator=generator) + start)
            blocks.append(blocks[-1][:, :2])  # duplicates
            blocks.append(torch.tensor([[start], [start]]))  # a self loop
        start += size
    edges = torch.cat(blocks, 1)
    return torch.cat([edges, edges.flip(0)], 1) if symmetric else edges


def dense_graphs(
    sizes: tuple[int, ...], num_features: int, symmetric: bool = False, seed: int = 0
) -> PackedGraphs:
    """Random graphs without repeated edges, self loops among them: a fifth of all pairs, and about
    four a node where bits cannot hold the graph."""
    generator = torch.Generator().manual_seed(seed)
    edges, start = [torch.empty(2, 0, dtype=torch.long)], 0
    for size in sizes:
        a = torch.rand(size, size, generator=generator) < (0.2 if size <= PLANES[-1] else 4 / size)
        edges.append((a | a.T if symmetric else a).nonzero().T + start)
        start += size
    batch = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    x = torch.randn(start, num_features, generator=generator)
    return PackedGraphs.from_arrays(x, torch.cat(edges, 1), batch, num_graphs=len(sizes))


class Case:
    """One random dataset in plain arrays, and its packed form in float64."""

    def __init__(
        self,
        sizes: tuple[int, ...] = AWKWARD_SIZES,
        num_features: int = 5,
        symmetric: bool = False,
        weighted: bool = True,
        seed: int = 0,
        y_level: str = "graph",
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.sizes, self.num_graphs = sizes, len(sizes)
        self.batch = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        self.num_nodes = self.batch.numel()
        self.x = torch.randn(self.num_nodes, num_features, generator=generator)
        self.edge_index = random_edges(sizes, generator, symmetric)
        num_edges = self.edge_index.shape[1]
        self.edge_weight = None
        if weighted:
            weight = torch.rand(num_edges // 2 if symmetric else num_edges, generator=generator)
            self.edge_weight = torch.cat([weight, weight]) if symmetric else weight
        rows = self.num_nodes if y_level == "node" else self.num_graphs
        self.y = torch.randn(rows, 2, generator=generator)
        self.graphs = PackedGraphs.from_arrays(
            self.x,
            self.edge_index,
            self.batch,
            self.y,
            self.edge_weight,
            self.num_graphs,
            y_level=y_level,
        )

    def double(self) -> PackedGraphs:
        return self.graphs.to(dtype=torch.float64)

    def dense(self, normalize: bool) -> Tensor:
        """A, or Â = D^{-1/2} A D^{-1/2}, [N, N] float64, from the definition."""
        weight = self.edge_weight
        if weight is None:
            weight = torch.ones(self.edge_index.shape[1])
        source, target = self.edge_index
        a = torch.zeros(self.num_nodes, self.num_nodes, dtype=torch.float64)
        a.index_put_((target, source), weight.double(), accumulate=True)
        if not normalize:
            return a
        degree = a.sum(1)
        scale = torch.where(degree > 0, degree, torch.inf).rsqrt()
        return scale[:, None] * a * scale


def check_equal(found: PackedGraphs, whole: PackedGraphs) -> None:
    """They hold the same, to the bit and in the same dtypes."""
    for field in ("x", "y", "ptr", "ids", "adj", "adj_t"):
        ours, theirs = getattr(found, field), getattr(whole, field)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, msg=lambda m, f=field: f"{f}: {m}")
    assert found.is_symmetric == whole.is_symmetric
    assert found.y_level == whole.y_level and found.meta == whole.meta


def to_dense(rowptr: Tensor, col: Tensor, value: Tensor, num_cols: int) -> Tensor:
    """A CSR matrix, [rows, num_cols]; duplicate entries add up."""
    rows = rowptr.numel() - 1
    row = torch.arange(rows).repeat_interleave(rowptr.diff())
    out = torch.zeros(rows, num_cols, dtype=value.dtype)
    return out.index_put_((row, col.long()), value, accumulate=True)
