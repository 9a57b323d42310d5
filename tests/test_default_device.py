"""Where PyTorch's default device is another than the CPU, what is of the host stays there."""

import pytest
import torch

from grant_fast import (
    FlexGCN,
    GraNTSampler,
    PackedGraphs,
    Task,
    load_dataset,
    load_predictor,
    score_graphs,
    select_graphs,
    train,
)
from grant_fast.data.graphon import generate
from grant_fast.devices import usual_tensors
from grant_fast.teaching import sample_graphs
from grant_fast.teaching.picking import MODES
from grant_fast.teaching.tangent import tangent_kernel
from tests.cases import Case


@pytest.fixture
def elsewhere():
    """A default device whose tensors hold nothing: to read one fails."""
    with torch.device("meta"):
        yield


@pytest.mark.parametrize("mode", MODES)
def test_a_sampler_picks_and_serves(elsewhere, mode):
    with torch.device("cpu"):
        graphs = Case().graphs
        graphs.y = torch.randn(len(graphs), 1)
        model = FlexGCN(5, 4, 1, orders=[2, 2])
    sampler = GraNTSampler(graphs, Task("regression"), 3, epochs=3, mode=mode, start_ratio=0.5)
    for epoch in range(3):
        sampler.select(model, epoch)
        for ids in sampler:
            assert model(graphs.batch(ids)).isfinite().all()
            assert (sampler.weights(ids) >= 1).all()
    again = GraNTSampler(graphs, Task("regression"), 3, epochs=3, mode=mode, start_ratio=0.5)
    again.load_state_dict(sampler.state_dict())
    assert list(again) == list(sampler)


def test_graphs_are_scored_and_picked(elsewhere):
    with torch.device("cpu"):
        graphs = Case().graphs
        graphs.y = torch.randn(len(graphs), 1)
        model = FlexGCN(5, 4, 1, orders=[2, 2])
        scores = score_graphs(model, graphs, Task("regression"))
    task = Task("regression")
    assert torch.allclose(score_graphs(model, graphs, task, ids=[0, 1, 2]), scores[:3])
    part = torch.utils.data.Subset(graphs, [2, 0])
    assert torch.allclose(score_graphs(model, part, task), scores[part.indices])
    for m in (0, 1, len(graphs)):
        assert select_graphs(scores, m).device.type == "cpu"
        assert len(sample_graphs(scores, m, torch.rand_like(scores))[0]) == m
    kernel = tangent_kernel(model, graphs, [0, 1])
    assert kernel.shape == (2, 2, 1, 1) and kernel.isfinite().all()


def test_weighted_edges_are_packed(elsewhere):
    with torch.device("cpu"):
        x, edges, weight = torch.randn(3, 2), torch.tensor([[0, 0, 1], [1, 1, 2]]), torch.rand(3)
    graphs = PackedGraphs.from_arrays(x, edges, [0, 0, 0], edge_weight=weight)
    assert graphs.adj.weight.sum() == weight[[0, 1]].sort().values.sum() + weight[2]


def test_random_sets_are_drawn(elsewhere):
    assert generate("gen-reg", 2).x.isfinite().all()


def test_data_sets_are_read_and_trained_on(elsewhere, tmp_path):
    dataset = load_dataset("gen-reg", num_graphs=20, progress=False)
    assert all(ids.device.type == "cpu" for fold in dataset.folds(3) for ids in fold.split.values())
    run = train(dataset, tmp_path / "run", epochs=2, device="cpu")
    assert run.test_metric is not None
    predict = load_predictor(tmp_path / "run", device="cpu")
    assert predict.score(dataset.graphs).isfinite().all()
    assert predict(dataset.graphs).isfinite().all()
    assert len(dataset.grouped().graphs) == 20


def test_molecules_are_read(elsewhere):
    pytest.importorskip("rdkit")
    y = torch.tensor([[1.0], [2.0]], device="cpu")
    graphs = PackedGraphs.from_smiles(["CCO", "C"], y)
    assert graphs.device.type == "cpu" and torch.equal(graphs.batch(slice(None)).y, y)


def test_no_call_goes_through_a_context_where_the_default_is_usual():
    @usual_tensors
    def contexts() -> int:
        assert torch.get_default_device().type == "cpu"
        return torch._C._len_torch_function_stack()

    assert contexts() == 0
    with torch.device("meta"):
        assert contexts() == 2


def test_no_gpus_random_state_is_reseeded(tmp_path, monkeypatch):
    def fail(*_):
        raise AssertionError("the caller's random state is reset")

    dataset = load_dataset("gen-reg", num_graphs=20, progress=False)
    monkeypatch.setattr("torch.manual_seed", fail)
    monkeypatch.setattr("torch.random.manual_seed", fail)
    monkeypatch.setattr("torch.cuda.manual_seed_all", fail)
    before = torch.get_rng_state()
    train(dataset, tmp_path / "run", epochs=2, device="cpu")
    load_predictor(tmp_path / "run", device="cpu")
    assert torch.equal(torch.get_rng_state(), before)
