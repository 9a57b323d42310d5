"""Graphs that a kernel may stumble over, and how far off it may be."""

from typing import Literal

import torch
from torch import Tensor

from grant_fast import PackedGraphs

#: Nodes of the graphs: empty ones, single nodes, and both sides of every boundary of a tile.
SIZES = (0, 1, 2, 15, 16, 17, 0, 31, 32, 33, 63, 64, 65, 128, 150, 192, 200, 256, 260, 0)
#: ‖error‖ / ‖answer‖ that a dtype is allowed: float32's own (TF32 alone would give 3e-4), and one
#: rounding of what was summed in float32.
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 6e-3, torch.float16: 1e-3}


def awkward_graphs(
    symmetric: bool = True,
    weighted: bool = False,
    repeated: bool = False,
    x: Tensor | None = None,
    y: Tensor | None = None,
) -> PackedGraphs:
    """A tenth of all pairs an edge, self loops among them; every graph's last node is isolated.

    Args:
        symmetric: undirected graphs; else directed.
        weighted: random edge weights.
        repeated: some edges twice, which bits cannot hold.
        x: a row a node; zeros if None.
        y: a row a graph or a node, NaN or -100 where nothing was measured.
    """
    generator = torch.Generator().manual_seed(0)
    edges, start = [torch.empty(2, 0, dtype=torch.long)], 0
    for size in SIZES:
        a = torch.rand(size, size, generator=generator) < 0.1
        a = a | a.T if symmetric else a
        if size > 2:
            a[-1], a[:, -1] = False, False
        edges.append(a.nonzero().T + start)
        start += size
    index = torch.cat(edges, 1)
    if repeated:
        index = torch.cat([index, index[:, ::7], index[:, ::7].flip(0)], 1)
    batch = torch.repeat_interleave(torch.arange(len(SIZES)), torch.tensor(SIZES))
    weight = torch.rand(index.shape[1], generator=generator) if weighted else None
    x = torch.zeros(start, 1) if x is None else x
    level: Literal["graph", "node"] | None = None
    if y is not None:
        level = "graph" if len(y) == len(SIZES) else "node"
    return PackedGraphs.from_arrays(
        x, index, batch, y, weight, len(SIZES), y_level=level, missing_labels=True
    )
