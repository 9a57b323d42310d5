"""What the loss of a graph counts, where graphs are drawn in proportion to their scores."""

import pytest
import torch

from grant_fast.errors import InputError
from grant_fast.tasks import Task
from grant_fast.teaching.picking import MODES
from grant_fast.teaching.sampler import GraNTSampler

REGRESSION = Task("regression")


def test_a_proportional_draw_prefers_large_scores_and_weights_undo_the_preference(
    make_graphs, zero
) -> None:
    graphs = make_graphs(40)
    y = torch.cat([graph.y for graph in graphs])
    counts, total, drawn = torch.zeros(40), 0.0, set()
    for seed in range(100):
        sampler = GraNTSampler(
            graphs,
            REGRESSION,
            8,
            epochs=1,
            mode="proportional",
            start_ratio=0.25,
            predict=zero,
            seed=seed,
        )
        sampler.select(zero, 0)
        assert sampler.num_selected == 10 and [len(batch) for batch in sampler] == [8, 2]
        weights = sampler.weights(sampler.selected)
        counts[sampler.selected] += 1
        total += float((weights * y[sampler.selected]).sum()) / 100
        drawn.add(tuple(sampler.selected.tolist()))
    assert len(drawn) > 90
    worst, best = y.sort(descending=True).indices.split(20)
    assert counts[worst].sum() > 1.3 * counts[best].sum()
    assert counts.min() > 0  # the uniform share
    # one draw has a standard deviation of 224, and so the mean of 100 one of 23
    assert total == pytest.approx(float(y.sum()), abs=4 * 23)


@pytest.mark.parametrize("mode", ["global", "proportional"])
def test_a_step_asks_for_its_weights_alone(make_graphs, zero, mode, monkeypatch) -> None:
    sampler = GraNTSampler(make_graphs(30), REGRESSION, 3, epochs=1, mode=mode, predict=zero)
    sampler.select(zero, 0)
    ids = sampler.selected[:2]
    monkeypatch.setattr(GraNTSampler, "selected", None)  # as long as the dataset, for each batch
    assert len(sampler.weights(ids)) == 2


def test_the_weights_are_those_of_the_graphs_that_are_asked_for(make_graphs, zero) -> None:
    settings = {"epochs": 1, "start_ratio": 0.4, "predict": zero, "ids": range(5, 25)}
    sampler = GraNTSampler(make_graphs(30), REGRESSION, 3, mode="proportional", **settings)
    with pytest.raises(InputError, match="was not made"):
        sampler.weights([5])
    sampler.select(zero, 0)
    all_weights = sampler.weights(sampler.selected)
    assert len(all_weights.unique()) > 1
    by_id = dict(zip(sampler.selected.tolist(), all_weights.tolist(), strict=True))
    for batch in sampler:
        assert sampler.weights(batch).tolist() == [by_id[i] for i in batch]
    unselected = next(i for i in range(5, 25) if i not in by_id)
    with pytest.raises(InputError, match=r"positions are torch\.float32 .* list of integers"):
        sampler.weights(sampler.selected.float())
    assert sampler.weights([]).tolist() == []
    for strange in (0, unselected, 29):
        with pytest.raises(InputError, match=f"position {strange} is not selected"):
            sampler.weights([int(sampler.selected[0]), strange])
    with pytest.raises(InputError, match="takes positions, not a mask"):
        sampler.weights(torch.ones(30, dtype=torch.bool))


@pytest.mark.parametrize("mode", MODES)
def test_each_selected_graph_counts_one_where_nothing_weights_them(make_graphs, zero, mode) -> None:
    share = 1.0 if mode == "proportional" else 0.3
    sampler = GraNTSampler(
        make_graphs(10), REGRESSION, 4, epochs=1, mode=mode, start_ratio=share, predict=zero
    )
    sampler.select(zero, 0)
    for ids in (*sampler, sampler.selected):
        weights = sampler.weights(ids)
        assert weights.dtype == torch.float32 and weights.tolist() == [1.0] * len(ids)
    with pytest.raises(InputError, match="position 10 is not selected"):
        sampler.weights([10])
