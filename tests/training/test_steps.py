"""What a step of the trainer does to the weights, and which graphs it is of."""

import copy

import pytest
import torch

from grant_fast.teaching.residuals import graph_losses, loss
from grant_fast.training.checkpoints import copied
from grant_fast.training.optimizer import AdamW
from grant_fast.training.records import read_run
from grant_fast.training.trainer import Trainer
from tests.rings import make_dataset


@pytest.mark.parametrize("step_every", ["batch", "epoch"])
def test_the_gradient_of_a_step_is_that_of_the_mean(tmp_path, config, step_every, monkeypatch):
    """Adam does not heed its size, but a bound on it does."""
    dataset = make_dataset()
    chosen = config(step_every=step_every, arm="full", epochs=1, batch_size=24)
    trainer, twin = (Trainer(dataset, chosen, tmp_path) for _ in range(2))
    parameters, seen = list(trainer.model.parameters()), []
    monkeypatch.setattr(
        trainer._optimizer, "step", lambda: seen.extend(p.grad.clone() for p in parameters)
    )
    trainer.fit()
    batch = twin._graphs.batch(dataset.split["train"])
    loss(twin.model(batch), batch.y, dataset.task).backward()
    for ours, theirs in zip(seen, twin.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs.grad)


def test_a_bound_on_the_gradient_holds(tmp_path, config, monkeypatch):
    trainer = Trainer(make_dataset(), config(clip=1e-3, arm="full", epochs=1), tmp_path)
    parameters, norms = list(trainer.model.parameters()), []
    grads = lambda: torch.cat([p.grad.flatten() for p in parameters])  # noqa: E731
    monkeypatch.setattr(trainer._optimizer, "step", lambda: norms.append(grads().norm()))
    trainer.fit()
    torch.testing.assert_close(torch.stack(norms), torch.full((5,), 1e-3))


def test_weights_decay_apart_from_the_gradient(tmp_path, config):
    settings = {"arm": "full", "epochs": 1, "batch_size": 24, "lr": 0.01}
    plain, decayed = (
        Trainer(make_dataset(), config(weight_decay=decay, **settings), tmp_path / str(decay))
        for decay in (0, 0.5)
    )
    before = [parameter.detach().clone() for parameter in plain.model.parameters()]
    for trainer in (plain, decayed):
        trainer.fit()
    moved = zip(before, plain.model.parameters(), decayed.model.parameters(), strict=True)
    for start, ours, theirs in moved:
        torch.testing.assert_close(theirs, ours - 0.01 * 0.5 * start, rtol=0, atol=1e-6)


@pytest.mark.parametrize("arm", ["full", "random"])
def test_batches_and_epochs_without_labels_teach_nothing(tmp_path, config, arm):
    dataset = make_dataset()
    dataset.graphs.y[dataset.split["train"][2:]] = torch.nan
    settings = {"start_ratio": 0.1, "ratio_schedule": "constant", "interval": 1, "epochs": 8}
    trainer = Trainer(dataset, config(arm=arm, **settings), tmp_path)
    trainer.fit()
    assert all(parameter.isfinite().all() for parameter in trainer.model.parameters())
    assert (0 in [record.loss for record in trainer.history]) is (arm == "random")


def test_a_proportional_run_weights_each_graphs_loss(tmp_path, config, monkeypatch):
    dataset = make_dataset()
    chosen = config(arm="grant-proportional", step_every="epoch", epochs=1, batch_size=4, lr=1e-3)
    trainer = Trainer(dataset, chosen, tmp_path)
    twin = Trainer(dataset, chosen, tmp_path).model
    parameters, seen, step = list(trainer.model.parameters()), [], trainer._optimizer.step
    monkeypatch.setattr(
        trainer._optimizer,
        "step",
        lambda: (seen.extend(p.grad.clone() for p in parameters), step()),
    )
    trainer.fit()
    ids = trainer._sampler.selected
    weights, batch = trainer._sampler.weights(ids), trainer._graphs.batch(ids)
    assert len(ids) == 3 and len(weights.unique()) > 1
    losses, labels = graph_losses(twin(batch), batch.y, dataset.task)
    ((weights * losses).sum() / (weights * labels).sum()).backward()
    for ours, theirs in zip(seen, twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs.grad)
    torch.optim.AdamW(twin.parameters(), lr=1e-3, weight_decay=0).step()
    for ours, theirs in zip(trainer.model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_infobatch_hears_the_mean_loss_of_a_graphs_labels(tmp_path, config):
    dataset = make_dataset(level="node")
    chosen = config(arm="infobatch", step_every="epoch", epochs=1, batch_size=24)
    trainer, twin = (Trainer(dataset, chosen, tmp_path) for _ in range(2))
    trainer.fit()
    ids = dataset.split["train"]
    batch = twin._graphs.batch(ids)
    losses, labels = graph_losses(twin.model(batch), batch.y, dataset.task, batch.ptr)
    scores = trainer._sampler.state_dict()["scores"]
    torch.testing.assert_close(scores, (losses / labels.clamp(min=1)).detach())


@pytest.mark.parametrize("norm", ["none", "batch_norm"])
@pytest.mark.parametrize("step_every", ["batch", "epoch"])
def test_the_visits_end_the_run_within_an_epoch(tmp_path, config, step_every, norm):
    chosen = config(arm="full", visits=31, step_every=step_every, norm=norm)
    result = Trainer(make_dataset(), chosen, tmp_path).fit()
    assert (result.arm, result.graphs_seen, result.epochs) == ("full-equal-budget", 31, 2)
    assert read_run(tmp_path).history[-1].share == pytest.approx((31 - 24) / 24)


def test_a_lone_last_graph_of_one_node_does_not_end_a_run_with_batch_norm(tmp_path, config):
    dataset = make_dataset()
    single = (dataset.graphs.num_nodes_per_graph == 1).nonzero().flatten()
    assert len(single) > 0
    dataset.split["train"] = torch.cat([single[:1], torch.arange(4, 8)]).unique()
    chosen = config(norm="batch_norm", batch_size=2, arm="full", epochs=12)
    result = Trainer(dataset, chosen, tmp_path).fit()
    assert result.graphs_seen == 5 * 12


@pytest.mark.parametrize("step_every", ["batch", "epoch"])
def test_the_loss_of_an_epoch_is_the_mean_over_its_labels(tmp_path, config, step_every):
    dataset = make_dataset()
    chosen = config(step_every=step_every, arm="full", epochs=1, batch_size=7, lr=1e-9)
    trainer, twin = (Trainer(dataset, chosen, tmp_path) for _ in range(2))
    trainer.fit()
    batch = twin._graphs.batch(dataset.split["train"])
    expected = loss(twin.model(batch), batch.y, dataset.task).item()
    assert trainer.history[0].loss == pytest.approx(expected, rel=1e-5)


def test_the_optimizer_is_torchs_to_the_bit():
    """With parameters that stand still at times or join late, and a state that is loaded."""
    draw = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=draw) for shape in [(3, 4), (4,), (0,), ()]]
    ours, theirs = ([p.clone().requires_grad_() for p in start] for _ in range(2))
    optimizers = (
        AdamW(ours, 0.1, 0.01),
        torch.optim.AdamW(theirs, lr=0.1, weight_decay=0.01, fused=True),
    )
    learning = ["", "012", "012", "02", "012", "0123", "0123", "13", "3", "", "0123", "012"]
    for count, those in enumerate(learning):
        for number in map(int, those):
            ours[number].grad = torch.randn(start[number].shape, generator=draw)
            theirs[number].grad = ours[number].grad.clone()
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + count)
            optimizer.step()
            optimizer.zero_grad()
            if count in (4, 7):
                optimizer.load_state_dict(copied(optimizer.state_dict()))
        assert all(p.grad is None for p in ours)
        states = [optimizer.state_dict() for optimizer in optimizers]
        torch.testing.assert_close(states[0], states[1], rtol=0, atol=0)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_a_copy_of_the_optimizer_goes_on():
    optimizer = AdamW([torch.ones(3, requires_grad=True)], 0.1, 0.0)
    for _ in range(2):
        optimizer = copy.deepcopy(optimizer)
        (weight,) = optimizer.param_groups[0]["params"]
        weight.grad = torch.ones(3)
        optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.full((3,), 0.8))
