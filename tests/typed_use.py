"""What a type checker knows of a user's script; mypy reads this, and nothing runs it."""

import torch
from torch import Tensor
from typing_extensions import assert_type

from grant_fast import FlexConv, FlexGCN, GraNTSampler, PackedGraphs, load_dataset, score_graphs
from grant_fast.batches import GraphBatch
from grant_fast.teaching import graph_losses, loss, residual

dataset = load_dataset("molecules.csv")
graphs, task = dataset.graphs, dataset.task
assert_type(graphs[0], GraphBatch)
assert_type(graphs[dataset.split["train"]], PackedGraphs)
assert_type(graphs[1:3], PackedGraphs)
assert_type(graphs[[0, 2]].batch([0]), GraphBatch)

model, conv = FlexGCN(9, 8, 1, orders=[2, 2]), FlexConv(3, 4)
assert_type(conv(torch.ones(2, 3), torch.zeros(2, 0, dtype=torch.int64)), Tensor)
sampler = GraNTSampler(graphs, task, 10, epochs=5)
for epoch in range(5):
    sampler.select(model, epoch)
    for batch in map(graphs.batch, sampler):
        assert_type(model(batch), Tensor)
        assert_type(loss(model(batch), batch.y, task), Tensor)
        assert_type(graph_losses(model(batch), batch.y, task), tuple[Tensor, Tensor])
        assert_type(residual(model(batch), batch.y, task), Tensor)
assert_type(score_graphs(model, graphs, task), Tensor)
