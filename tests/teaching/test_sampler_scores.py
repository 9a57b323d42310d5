"""Where the scores come from that a sampler picks by: a network, `predict`, or `score`."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from grant_fast.errors import InputError
from grant_fast.graphs import PackedGraphs
from grant_fast.nn import FlexGCN
from grant_fast.tasks import Task
from grant_fast.teaching.picking import SCORED
from grant_fast.teaching.sampler import GraNTSampler
from grant_fast.teaching.scoring import score_graphs
from tests.rings import make_dataset

REGRESSION = Task("regression")


@pytest.mark.parametrize("name", ["GIN", "GAT"])
def test_any_pyg_model_is_taught_through_predict(make_graphs, name) -> None:
    from torch_geometric.data import Batch
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import GAT, GIN, global_mean_pool

    torch.manual_seed(0)
    backbone = {"GIN": GIN, "GAT": GAT}[name]
    model = backbone(3, 8, num_layers=2, out_channels=1, dropout=0.5)

    def predict(model: nn.Module, batch: Any) -> Tensor:
        return global_mean_pool(model(batch.x, batch.edge_index), batch.batch)

    graphs = make_graphs(40)
    for graph in graphs:
        graph.y = torch.randn(1)
    sampler = GraNTSampler(
        graphs, REGRESSION, 6, epochs=1, mode="global", start_ratio=0.25, predict=predict
    )
    sampler.select(model, 0)
    model.eval()
    alone = [Batch.from_data_list([graph]) for graph in graphs]
    errors = torch.stack([(predict(model, b).squeeze() - b.y.squeeze()).abs() for b in alone])
    torch.testing.assert_close(sampler.scores, errors.detach(), rtol=1e-4, atol=1e-5)
    assert sampler.selected.tolist() == errors.topk(10).indices.sort().values.tolist()

    packed = PackedGraphs.from_data_list(graphs)
    settings: Any = {"epochs": 1, "mode": "global", "start_ratio": 0.25, "predict": predict}
    of_packed = GraNTSampler(packed, REGRESSION, 6, **settings)
    of_packed.select(model, 0)
    assert torch.equal(of_packed.selected, sampler.selected)
    for batch, ids in zip(map(packed.batch, of_packed), of_packed, strict=True):
        torch.testing.assert_close(
            predict(model, batch), torch.cat([predict(model, alone[i]) for i in ids])
        )

    # and it learns from what it is given
    optimizer = torch.optim.Adam(model.parameters())
    model.train()
    before = [p.detach().clone() for p in model.parameters()]
    for batch in DataLoader(graphs, batch_sampler=sampler):
        optimizer.zero_grad()
        (predict(model, batch).squeeze(1) - batch.y).square().mean().backward()
        optimizer.step()
    assert any(not p.equal(b) for p, b in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("mode", SCORED)
def test_scores_of_ones_own_take_the_place_of_residuals(make_graphs, mode) -> None:
    """In every mode: two samplers pick the same, by |f - y| or by a function that returns it."""
    graphs = make_graphs(40)
    y = torch.cat([graph.y for graph in graphs])
    unlabelled = [copy.copy(graph) for graph in graphs]
    for graph in unlabelled:
        graph.y = None
    settings = {"epochs": 1, "mode": mode, "start_ratio": 0.3}
    usual = GraNTSampler(graphs, REGRESSION, 8, predict=lambda _, batch: 0 * batch.y, **settings)
    own = GraNTSampler(
        unlabelled, REGRESSION, 8, score=lambda _, batch: y.abs()[batch.uid], **settings
    )
    usual.select(nn.Identity(), 0)
    own.select(nn.Identity(), 0)
    assert torch.equal(own.scores, usual.scores)
    assert torch.equal(own.selected, usual.selected)


def test_scores_of_ones_own_are_asked_of_the_network_as_it_evaluates() -> None:
    """Though the kernels could score it, and whatever the scores' sign, shape and dtype."""
    no_edges = torch.zeros(2, 0, dtype=torch.int64)
    graphs = PackedGraphs.from_arrays(torch.randn(30, 3), no_edges, torch.arange(30))
    model = FlexGCN(3, 4, 1, [2, 2], dropout=0.5)

    def score(model: nn.Module, batch: Any) -> Tensor:
        assert not model.training
        return model(batch).double() - 100  # [num_graphs, 1]

    sampler = GraNTSampler(graphs, REGRESSION, 8, epochs=1, mode="global", score=score)
    sampler.select(model, 0)
    expected = model.eval()(graphs.batch(slice(None)))[:, 0].detach().double().sub(100).float()
    assert torch.equal(sampler.scores, expected)
    assert sampler.selected.tolist() == expected.topk(3).indices.sort().values.tolist()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            torch.zeros(3),
            r"score gave \[3\] for a batch of 8 graphs: give a tensor \[8\], a number",
        ),
        (0.5, "score gave float for a batch of 8 graphs"),
        (torch.full((8,), math.nan), "score of the graph with position 0 is NaN .so for 8 of 8"),
    ],
)
def test_scores_of_ones_own_that_are_none_are_refused(make_graphs, given, says) -> None:
    sampler = GraNTSampler(
        make_graphs(8), REGRESSION, 8, epochs=1, mode="global", score=lambda model, batch: given
    )
    with pytest.raises(InputError, match=says):
        sampler.select(nn.Identity(), 0)


def test_one_function_scores(make_graphs, zero) -> None:
    with pytest.raises(InputError, match="predict is not called where score is given"):
        GraNTSampler(make_graphs(8), REGRESSION, 8, epochs=1, predict=zero, score=zero)
    with pytest.raises(InputError, match="score=3: give a function of"):
        GraNTSampler(make_graphs(8), REGRESSION, 8, epochs=1, score=3)


def test_graphs_are_scored_by_the_gradient_and_by_batches_that_are_known_to_fit(
    make_graphs,
) -> None:
    graphs, sizes = make_graphs(10), []
    for graph in graphs:
        graph.y = (graph.y > 5).float()

    def collate(graphs: list) -> Any:
        sizes.append(len(graphs))
        return Batch.from_data_list(graphs)

    from torch_geometric.data import Batch

    predict = lambda model, batch: batch.y.new_full((batch.num_graphs, 1), 3.0)  # noqa: E731
    sampler = GraNTSampler(graphs, Task("binary"), 4, epochs=1, predict=predict, collate=collate)
    sampler.select(nn.Identity(), 0)
    y = torch.cat([graph.y for graph in graphs])
    torch.testing.assert_close(sampler.scores, (torch.sigmoid(torch.tensor(3.0)) - y).abs())
    assert sizes == [4, 4, 2]


def test_the_residual_that_was_chosen_is_what_scores() -> None:
    dataset, model = make_dataset("binary"), FlexGCN(3, 4, 1, [2, 2])
    sampler = GraNTSampler(
        dataset.graphs, dataset.task, 5, epochs=10, mode="global", residual="raw"
    )
    sampler.select(model, 0)
    raw = score_graphs(model, dataset.graphs, dataset.task, residual="raw")
    assert torch.equal(sampler.scores, raw)
    assert not torch.equal(raw, score_graphs(model, dataset.graphs, dataset.task))
