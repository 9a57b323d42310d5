"""Small data sets for the trainer, one of each kind of task."""

import torch

from grant_fast.data.dataset import Dataset
from grant_fast.graphs import PackedGraphs
from grant_fast.tasks import Task

NUM_GRAPHS = 40


def make_dataset(kind="regression", level="graph", num_graphs=NUM_GRAPHS) -> Dataset:
    """Random graphs of 1 to 7 nodes whose targets a network can learn; some are not measured."""
    draw = torch.Generator().manual_seed(7)
    sizes = torch.randint(1, 8, (num_graphs,), generator=draw)
    batch = torch.repeat_interleave(torch.arange(num_graphs), sizes)
    starts = sizes.cumsum(0) - sizes
    source = torch.arange(len(batch))
    target = starts[batch] + (source - starts[batch] + 1) % sizes[batch]  # a ring in each graph
    x = torch.randn(len(batch), 3, generator=draw)
    rows = x if level == "node" else torch.zeros(num_graphs, 3).index_add_(0, batch, x)
    y, metric, outputs = rows[:, :2] * 50 + 300, "mae", 2
    if kind == "binary":
        y, metric, outputs = (rows[:, :1] > 0).float(), "roc_auc", 1
    elif kind == "multilabel":
        y, metric = (rows[:, :2] > 0).float(), "ap"
    elif kind == "multiclass":
        y, metric, outputs = rows.argmax(1), "accuracy", 3
    y[0] = -100 if kind == "multiclass" else torch.nan
    graphs = PackedGraphs.from_arrays(
        x,
        torch.stack([source, target]),
        batch,
        y,
        num_graphs=num_graphs,
        y_level=level,
        missing_labels=True,
    )
    order = torch.arange(num_graphs)
    bounds = [num_graphs * 3 // 5, num_graphs // 5, num_graphs // 5]
    split = dict(zip(("train", "valid", "test"), order.split(bounds), strict=True))
    return Dataset("rings", graphs, Task(kind, level, outputs), split, metric)
