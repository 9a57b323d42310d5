"""How many graphs are scored at a time."""

import pytest
import torch

from grant_fast import FlexGCN, GraNTSampler, GraphBatch, PackedGraphs, Task, score_graphs
from grant_fast.teaching.gathering import scoring_runs


def test_graphs_are_scored_as_many_at_a_time_as_a_cache_holds() -> None:
    def of(sizes: list[int]) -> PackedGraphs:
        batch = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        edges = torch.arange(len(batch)).expand(2, -1)
        return PackedGraphs.from_arrays(torch.ones(len(batch), 1), edges, batch)

    tiny = scoring_runs(of([1] * 40_000), None, None)
    assert [run.stop - run.start for run in tiny] == [16_384, 16_384, 7_232]
    where = torch.arange(20_000) % 3
    runs = scoring_runs(of([1, 1, 300_000]), where[:5], None)  # 600,000 of nodes and edges
    assert runs == [slice(0, 2), slice(2, 3), slice(3, 5)]
    assert scoring_runs(of([1] * 10), None, 4) == [slice(0, 4), slice(4, 8), slice(8, 10)]


@pytest.mark.parametrize(
    ("size", "ends"), [(4, [4, 7, 9]), (8, [7, 9]), (9, [9]), (2, [2, 4, 6, 8, 9])]
)
def test_a_last_graph_is_not_alone_if_another_can_be_spared(size: int, ends: list[int]) -> None:
    runs = scoring_runs([None] * 9, None, size)
    assert [run.stop for run in runs] == ends
    assert [run.start for run in runs] == [0, *ends[:-1]]


def test_graphs_of_others_are_scored_1024_at_a_time() -> None:
    runs = scoring_runs([None] * 2500, None, None)
    assert [run.stop - run.start for run in runs] == [1024, 1024, 452]


def test_packed_graphs_are_scored_by_another_model_as_many_at_a_time_as_it_trains_on() -> None:
    x, seen = torch.randn(2500, 3), []
    nothing = torch.empty(2, 0, dtype=torch.int64)
    y = torch.randn(2500, 1)
    graphs = PackedGraphs.from_arrays(x, nothing, torch.arange(2500), y=y, y_level="graph")
    task, model = Task("regression"), FlexGCN(3, [4], 1, orders=[2, 1])

    def predict(model: FlexGCN, batch: GraphBatch) -> torch.Tensor:
        seen.append(len(batch))
        return model(batch)

    scores = score_graphs(model, graphs, task, predict=predict)
    assert seen == [1024, 1024, 452]
    torch.testing.assert_close(scores, score_graphs(model, graphs, task))
    for given, sizes in ((None, [1000, 1000, 500]), (2500, [2500])):
        seen.clear()
        sampler = GraNTSampler(
            graphs, task, 1000, epochs=2, predict=predict, score_batch_size=given
        )
        sampler.select(model, 0)
        assert seen == sizes
    spied: list[int] = []
    model.register_forward_pre_hook(lambda _, arguments: spied.append(len(arguments[0])))
    GraNTSampler(graphs, task, 1000, epochs=2).select(model, 0)
    assert spied == [1000, 1000, 500]  # what a hook does takes any memory
