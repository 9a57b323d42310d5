"""What cannot be scored is named, with the remedy."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from grant_fast.errors import InputError
from grant_fast.graphs import PackedGraphs
from grant_fast.tasks import Task
from grant_fast.teaching.sampler import GraNTSampler
from grant_fast.teaching.scoring import score_graphs

REGRESSION = Task("regression")


def test_wrong_input_is_named(make_graphs, model) -> None:
    graphs = make_graphs(4)
    with pytest.raises(InputError, match="batch_size=0"):
        score_graphs(model, graphs, REGRESSION, batch_size=0)
    for residual in ("logit", None):
        with pytest.raises(InputError, match=f"unknown residual {residual!r}"):
            score_graphs(model, graphs, REGRESSION, residual=residual)
    for ids, says in (
        ([0, 4], "no graph 4: this dataset holds 4"),
        ([0.5], "give a flat list of integers"),
        ([True, False], "give one bool for each of the 4 graphs"),
    ):
        with pytest.raises(InputError, match=says):
            score_graphs(model, graphs, REGRESSION, ids=ids)
    with pytest.raises(InputError, match="the model is a NoneType: give a module or a callable"):
        score_graphs(None, graphs, REGRESSION)  # type: ignore[type-var]
    with pytest.raises(InputError, match="task is 'regression': give a Task"):
        score_graphs(model, graphs, "regression")  # type: ignore[call-overload]
    with pytest.raises(
        InputError, match=r"predict is the model: .*leave it out if the model takes"
    ):
        score_graphs(model, graphs, REGRESSION, predict=model)
    with pytest.raises(InputError, match="predict='x': give a function of"):
        score_graphs(model, graphs, REGRESSION, predict="x")  # type: ignore[call-overload]
    with pytest.raises(InputError, match="collate='x': give a function of a list of graphs"):
        score_graphs(model, graphs, REGRESSION, collate="x")  # type: ignore[call-overload]
    with pytest.raises(InputError, match="no graphs to score"):
        score_graphs(model, graphs, REGRESSION, ids=[])
    with pytest.raises(
        InputError, match=r"a batch of 4 graphs gave 18 predictions: .* pool the nodes"
    ):
        score_graphs(lambda batch: batch.x[:, :1], graphs, REGRESSION)
    with pytest.raises(InputError, match=r"prediction is a tuple: give predict="):
        score_graphs(lambda batch: (batch.y, None), graphs, REGRESSION)
    with pytest.raises(InputError, match="a DataLoader has no positions: give a data set"):
        score_graphs(model, DataLoader(graphs), REGRESSION)
    with pytest.raises(InputError, match=r"the graphs are of type tuple.*: give collate="):
        score_graphs(model, [(graph, 1.0) for graph in graphs], REGRESSION)
    with pytest.raises(
        InputError, match=r"a tuple carries no targets .* an attribute y: give the graphs one"
    ):
        score_graphs(
            lambda batch: batch[1],
            graphs,
            REGRESSION,
            collate=lambda graphs: (graphs, torch.ones(4)),
        )
    with pytest.raises(InputError, match="batches with ptr or batch: check collate"):
        score_graphs(
            lambda batch: batch.y[:, None],
            graphs,
            Task("regression", "node"),
            collate=lambda graphs: SimpleNamespace(y=torch.cat([graph.y for graph in graphs])),
        )
    for graph in graphs:
        graph.z = graph.y
        del graph.y
    with pytest.raises(InputError, match="no targets"):
        score_graphs(model, graphs, REGRESSION)
    for graph in graphs:
        graph.y = graph.x[:, 0]
    with pytest.raises(InputError, match=r"4 graphs gave \d+ predictions.*level to 'node'"):
        score_graphs(lambda batch: batch.x[:, :1], graphs, REGRESSION)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_pyg_model_without_predict_is_told_of_it(make_graphs, compiled) -> None:
    from torch_geometric.nn import GIN

    model = GIN(3, 4, 2, out_channels=1)
    model = torch.compile(model, backend="eager") if compiled else model
    says = (
        r"missing 1 required .*'edge_index'\): give predict=.*lambda model, batch: model\(batch\.x"
    )
    with pytest.raises(InputError, match=says) as caught:
        score_graphs(model, make_graphs(5), REGRESSION)
    assert isinstance(caught.value.__cause__, TypeError)
    packed = PackedGraphs.from_data_list(make_graphs(5))
    with pytest.raises(InputError, match=says):
        GraNTSampler(packed, REGRESSION, 2, epochs=1).select(model, 0)


@pytest.mark.parametrize("model", [nn.Sequential(nn.Linear(3, 1)), lambda x, edge_index: x])
def test_a_model_of_tensors_without_predict_is_told_of_it(make_graphs, model) -> None:
    with pytest.raises(InputError, match="does not take a batch alone"):
        score_graphs(model, make_graphs(5), REGRESSION)


def test_a_mistake_within_a_model_stays_what_it_is(make_graphs) -> None:
    class Mistaken(nn.Module):
        def forward(self, batch: Any) -> Tensor:
            return nn.Linear(3, 1)(batch.x, batch.edge_index)

    with pytest.raises(TypeError, match="takes 2 positional arguments but 3 were given"):
        score_graphs(Mistaken(), make_graphs(5), REGRESSION)


def test_packed_graphs_without_targets_are_named(make_graphs) -> None:
    graphs = PackedGraphs.from_data_list(make_graphs(4))
    graphs.y = None
    with pytest.raises(InputError, match="no targets to score by: pack them with y, or set y of"):
        score_graphs(lambda batch: torch.ones(4, 1), graphs, REGRESSION)
