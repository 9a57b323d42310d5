"""Which graphs go through the network together, and that a gradient does not depend on it."""

from types import SimpleNamespace

import pytest
import torch

from benchmarks.memory import held_for_backward
from grant_fast import FlexGCN, GraNTSampler
from grant_fast.errors import InputError
from grant_fast.teaching.residuals import loss
from grant_fast.training.model import BYTES_AN_EDGE, bytes_a_node, fitting
from grant_fast.training.passes import Passes
from grant_fast.training.trainer import Trainer
from tests.rings import NUM_GRAPHS, make_dataset

ONE_STEP = {"step_every": "epoch", "arm": "full", "epochs": 1, "lr": 1e-3}


def passes(config, mode="batch", **settings):
    """The passes over a dataset of 24 training graphs, and their sampler."""
    dataset = make_dataset()
    chosen = config(step_every="epoch", **settings)
    sampler = GraNTSampler(
        dataset.graphs,
        dataset.task,
        chosen.batch_size,
        epochs=6,
        mode=mode,
        start_ratio=0.5,
        interval=2,
        ids=dataset.split["train"],
    )
    norm = [torch.nn.BatchNorm1d(2)] if chosen.norm == "batch_norm" else []
    return Passes(dataset.graphs, sampler, torch.nn.Sequential(*norm), chosen), sampler


def stepped(config, folder, cut):
    """A network's weights after one step, and those of a twin that `cut` says how to train."""
    dataset = make_dataset()
    trainer, twin = (Trainer(dataset, config, folder) for _ in range(2))
    trainer.fit()
    twin.model.train()
    total = 0
    for ids in cut(twin):
        batch = twin._graphs.batch(ids)
        loss(twin.model(batch), batch.y, dataset.task, reduction="sum").backward()
        total += int((~batch.y.isnan()).sum())
    for parameter in twin.model.parameters():
        parameter.grad /= total
    twin._optimizer.step()
    return trainer.model.state_dict(), twin.model.state_dict()


@pytest.mark.parametrize("pass_size", [None, 1, 7, 24])
def test_without_batch_norm_any_cut_gives_the_same_step(tmp_path, config, pass_size):
    chosen = config(**ONE_STEP, pass_size=pass_size, norm="layer_norm")
    ours, theirs = stepped(chosen, tmp_path, lambda twin: [twin._train_ids])
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("pass_size", "cut"),
    [
        (None, lambda twin: list(twin._sampler)),
        (9, lambda twin: torch.cat([torch.tensor(b) for b in twin._sampler]).split(9)),
        (100, lambda twin: [twin._train_ids]),
    ],
    ids=["a batch", "nine graphs", "all"],
)
def test_batch_norm_takes_a_pass_together(tmp_path, config, pass_size, cut):
    chosen = config(**ONE_STEP, pass_size=pass_size, norm="batch_norm")
    ours, theirs = stepped(chosen, tmp_path, cut)
    assert any("running_mean" in name for name in ours)
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("norm", ["none", "batch_norm"])
def test_an_epoch_of_one_pass_is_kept_until_the_teacher_picks_anew(config, norm):
    cut, sampler = passes(config, mode="random", norm=norm, pass_size=50)
    seen = []
    for epoch in range(6):
        sampler.select(None, epoch)
        ((ids, batch),) = cut(None)
        assert torch.equal(ids, sampler.selected)
        assert torch.equal(batch.ids, cut._graphs.ids[ids])
        seen.append(batch)
    assert seen[0] is seen[1] and seen[2] is seen[3]
    assert seen[1] is not seen[2]


@pytest.mark.parametrize("visits", [1, 11, 12, 13, None])
@pytest.mark.parametrize("settings", [{}, {"pass_size": 5}, {"norm": "batch_norm"}])
def test_every_selected_graph_comes_once_as_far_as_the_visits_reach(config, settings, visits):
    cut, sampler = passes(config, mode="random", **settings)
    sampler.select(None, 0)
    parts = [ids for ids, _ in cut(visits)]
    assert all(map(len, parts))  # a step by no graph would move the weights, too
    served = torch.cat(parts)
    assert len(served.unique()) == len(served) == min(visits or 12, 12)
    assert torch.isin(served, sampler.selected).all()
    if visits == 11:  # the first of the epoch, not the first of the dataset
        assert set(served.tolist()) == set([i for ids in sampler for i in ids][:11])


def test_a_pass_is_for_epochs_of_one_step(config):
    with pytest.raises(InputError, match=r"pass_size=9 cannot be used: give step_every=epoch"):
        config(pass_size=9)


def test_as_many_graphs_go_together_as_their_nodes_allow(monkeypatch):
    graphs, model = make_dataset().graphs, FlexGCN(3, 8, 1)
    ids = torch.arange(len(graphs)).flip(0)
    (whole,) = fitting(graphs, ids, model)
    assert torch.equal(whole, ids)
    monkeypatch.setattr("grant_fast.training.model.CPU_NODES", 20)
    parts = fitting(graphs, ids, model)
    assert torch.equal(torch.cat(parts), ids)
    nodes = [int(graphs.num_nodes_per_graph[part].sum()) for part in parts]
    after = [int(graphs.num_nodes_per_graph[part[0]]) for part in parts[1:]]
    assert max(nodes) <= 20 < min(map(sum, zip(nodes, after)))  # noqa: B905
    assert [len(part) for part in fitting(graphs, ids[:0], model)] == [0]


@pytest.mark.parametrize("width", [64, 300])
@pytest.mark.parametrize("orders", [[4, 3, 2, 2], [5, 5, 5], [2, 2]])
@pytest.mark.parametrize("norm, dropout", [(None, 0.0), ("batch_norm", 0.0), ("layer_norm", 0.3)])
def test_a_step_takes_no_more_than_a_pass_is_sized_for(monkeypatch, width, orders, norm, dropout):
    monkeypatch.setattr("grant_fast.native.loading.library", lambda: None)  # as on a GPU
    graphs = make_dataset(num_graphs=400).graphs
    model = FlexGCN(3, width, 1, orders, norm=norm, dropout=dropout)
    batch = graphs.batch(slice(None))
    model(batch)  # what is derived and kept is there
    held = held_for_backward(lambda: model(batch), [*model.parameters(), batch.x])
    gradients = 2 * 4 * width * graphs.num_nodes
    terms = 4 * width * max(orders) * graphs.num_nodes
    sized = bytes_a_node(model) * graphs.num_nodes + BYTES_AN_EDGE * graphs.num_edges
    assert sized / 8 < held + gradients + terms < sized


def test_a_wider_network_takes_fewer_graphs_at_a_time_on_a_gpu(monkeypatch):
    graphs, ids = make_dataset().graphs, torch.arange(NUM_GRAPHS)
    monkeypatch.setattr(type(graphs), "device", torch.device("cuda", 0))
    seen = SimpleNamespace(total_memory=2**19)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: seen)
    counts = []
    for width in (8, 64, 1000):
        model = FlexGCN(3, width, 1, orders=[2, 2, 2])
        parts = fitting(graphs, ids, model)
        assert torch.equal(torch.cat(parts), ids)
        taken = [graphs.batch(part) for part in parts]
        bytes_of = [b.num_nodes * bytes_a_node(model) + b.num_edges * BYTES_AN_EDGE for b in taken]
        assert max(b for b, part in zip(bytes_of, parts, strict=True) if len(part) > 1) <= 2**18
        counts.append(len(parts))
    assert counts[0] == 1 < counts[1] < counts[2] <= NUM_GRAPHS


@pytest.mark.parametrize("passes", [2, 3])
def test_a_split_is_evaluated_whole_in_however_many_passes(tmp_path, config, monkeypatch, passes):
    trainer, twin = (Trainer(make_dataset(), config(), tmp_path) for _ in range(2))
    whole = trainer._evaluator(trainer.model, "train")
    monkeypatch.setattr(
        "grant_fast.training.evaluation.fitting", lambda graphs, ids, model: ids.chunk(passes)
    )
    assert twin._evaluator(twin.model, "train") == pytest.approx(whole)
