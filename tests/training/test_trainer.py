"""The trainer: fair starts, true gradients, honest records."""

import csv
import itertools
import json

import pytest
import torch

from grant_fast.teaching.sampler import GraNTSampler
from grant_fast.training.config import ARMS
from grant_fast.training.records import read_run
from grant_fast.training.trainer import Trainer
from tests.rings import make_dataset
from tests.training.runs import same

KINDS = ["regression", "binary", "multilabel", "multiclass"]


@pytest.mark.parametrize("level", ["graph", "node"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_task_is_learned_beyond_the_constant_guess(tmp_path, config, kind, level):
    settings = {"epochs": 40, "lr": 0.03, "hidden_channels": (16,), "pool": "sum", "arm": "full"}
    result = Trainer(make_dataset(kind, level), config(**settings), tmp_path).fit()
    history = read_run(tmp_path).history
    assert min(record.valid_loss for record in history) < 0.8 * result.constant_loss
    assert result.test_metric is not None and result.test_metric_last is not None


def test_weights_and_data_order_depend_on_the_seed_and_not_on_the_arm(tmp_path, config):
    first = {
        arm: Trainer(make_dataset(), config(arm=arm, start_ratio=1.0), tmp_path) for arm in ARMS
    }
    other = Trainer(make_dataset(), config(seed=1), tmp_path)
    reference = first["full"].model.state_dict()
    orders = {}
    for arm, trainer in first.items():
        assert same(trainer.model.state_dict(), reference)
        trainer._sampler.select(trainer.model, 0)
        orders[arm] = list(trainer._sampler)
    assert all(order == orders["full"] for order in orders.values())
    assert not same(other.model.state_dict(), reference)


def test_a_run_drops_out_by_its_own_seed_whatever_was_drawn_before(tmp_path, config):
    runs = [Trainer(make_dataset(), config(dropout=(0.5,)), tmp_path / name) for name in "ab"]
    for run in runs:
        run.fit()
        torch.rand(1)
    assert same(runs[0].model.state_dict(), runs[1].model.state_dict())


def test_the_teacher_sees_a_model_in_evaluation_mode_and_leaves_no_trace(
    tmp_path, config, monkeypatch
):
    looks, picked = [], []
    select = GraNTSampler.select

    def watched(sampler, model, epoch):
        state = torch.get_rng_state()
        modes = [module.training for module in model.modules()]
        hook = model.register_forward_hook(
            lambda module, *_: looks.append((module.training, torch.is_grad_enabled()))
        )
        picked.append(select(sampler, model, epoch))
        hook.remove()
        assert [module.training for module in model.modules()] == modes
        assert torch.equal(torch.get_rng_state(), state)
        return picked[-1]

    monkeypatch.setattr(GraNTSampler, "select", watched)
    chosen = config(arm="grant-global", dropout=(0.5,), norm="batch_norm", interval=2)
    Trainer(make_dataset(), chosen, tmp_path).fit()
    assert picked == [True, False] * 3
    assert looks == [(False, False)] * len(looks) != []


@pytest.mark.parametrize("arm", ["full", "infobatch"])
def test_the_order_of_the_graphs_is_of_the_runs_seed(tmp_path, config, arm):
    orders = []
    for seed in (1, 2):
        sampler = Trainer(make_dataset(), config(arm=arm, seed=seed), tmp_path)._sampler
        sampler.select(None, 0)
        orders.append(list(sampler))
    assert orders[0] != orders[1]


def test_metrics_are_in_the_targets_own_units(tmp_path, config):
    dataset = make_dataset()
    settings = {"epochs": 1, "lr": 1e-9, "arm": "full"}
    scaled = Trainer(dataset, config(**settings), tmp_path / "a").fit()
    plain = Trainer(dataset, config(**settings, standardize=False), tmp_path / "b").fit()
    assert scaled.test_metric < 150  # targets lie around 300 ± 100
    assert plain.test_metric > 200


def test_the_history_says_what_happened(tmp_path, config):
    dataset = make_dataset()
    chosen = config(arm="random", start_ratio=0.25, ratio_schedule="constant", eval_every=2)
    result = Trainer(dataset, chosen, tmp_path).fit()
    with open(tmp_path / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["1", "2", "3", "4", "5", "6"]
    assert [row["graphs_seen"] for row in rows] == ["6", "12", "18", "24", "30", "36"]
    assert {row["share"] for row in rows} == {"0.25"}
    assert [row["valid_metric"] == "" for row in rows] == [True, False] * 3
    last = rows[-1]
    assert 0 < float(last["selection_seconds"]) < float(last["train_seconds"])
    assert result.valid_seconds == float(last["valid_seconds"]) > 0
    assert json.loads((tmp_path / "result.json").read_text())["graphs_seen"] == 36


def test_seconds_are_counted_where_they_are_spent(tmp_path, config, monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr("grant_fast.training.trainer.clock", lambda device: next(ticks))
    result = Trainer(make_dataset(), config(epochs=5, eval_every=2), tmp_path).fit()
    # Each epoch selects for a tick and trains for one; every other one and the last are validated.
    seconds = (result.selection_seconds, result.train_seconds, result.valid_seconds)
    assert seconds == (5, 10, 3)
    validated = [record.epoch for record in read_run(tmp_path).history if record.valid_loss]
    assert validated == [2, 4, 5]


def test_the_loss_of_the_constant_guess_is_that_of_the_training_mean(tmp_path, config):
    dataset = make_dataset()
    trainer = Trainer(dataset, config(epochs=1), tmp_path)
    y = dataset.graphs.y
    train, valid = y[dataset.split["train"]], y[dataset.split["valid"]]
    mean = train.nanmean(0)
    variance = (train - mean).square().nanmean(0)
    expected = ((valid - mean).square() / variance).mean()
    result = trainer.fit()
    assert result.constant_loss == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("metric", ["mae", "rmse"])
def test_the_metric_of_a_constant_is_that_of_the_best_one_in_training(tmp_path, config, metric):
    dataset = make_dataset()
    dataset.graphs.y = (dataset.graphs.y / dataset.graphs.y.nan_to_num().std()).exp()  # skewed
    train, test = (dataset.graphs.y[dataset.split[part]] for part in ("train", "test"))
    errors = []
    for labels, other in zip(train.T, test.T, strict=True):
        known = labels[~labels.isnan()].sort().values
        if metric == "mae":
            errors.append((other - known[(len(known) - 1) // 2]).abs().nanmean())
        else:
            errors.append((other - known.mean()).square().nanmean().sqrt())
    expected = torch.stack(errors).mean()
    result = Trainer(dataset, config(epochs=1, metric=metric), tmp_path).fit()
    assert result.constant_metric == pytest.approx(float(expected), rel=1e-5)


def test_a_target_without_a_label_in_training_is_guessed_to_be_0(tmp_path, config):
    dataset = make_dataset()
    y, train = dataset.graphs.y.clone(), dataset.split["train"]
    y[train, 1] = torch.nan
    dataset.graphs.y = y
    result = Trainer(dataset, config(epochs=1, metric="mae"), tmp_path).fit()
    guess, test = torch.tensor([y[train, 0].nanmedian(), 0.0]), y[dataset.split["test"]]
    assert result.constant_metric == pytest.approx(float((test - guess).abs().mean()), rel=1e-5)


def test_who_guesses_among_two_classes_has_half_of_the_area(tmp_path, config):
    dataset = make_dataset("binary")
    result = Trainer(dataset, config(epochs=1), tmp_path).fit()
    assert (result.metric, result.constant_metric) == ("roc_auc", 0.5)
    train, test = (dataset.graphs.y[dataset.split[part]] for part in ("train", "test"))
    rate = test.nanmean()
    right = rate if train.nanmean() > 0.5 else 1 - rate
    assert result.constant_metrics == pytest.approx(
        {"roc_auc": 0.5, "ap": float(rate), "accuracy": float(right)}
    )


def test_tensorboard_events_are_written(tmp_path, config):
    pytest.importorskip("tensorboard")
    from grant_fast.training.observers import Observers, TensorBoard

    Trainer(make_dataset(), config(epochs=2), tmp_path).fit(Observers([TensorBoard()]))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    written = [event.value for event in events.Scalars("graphs_seen")]
    assert written == [record.graphs_seen for record in read_run(tmp_path).history]
    Trainer(make_dataset(), config(epochs=1), tmp_path).fit()  # another run, which has no events
    assert not (tmp_path / "tensorboard").exists()


def test_what_overflows_is_not_measured_and_no_reason_to_fail(tmp_path, config):
    dataset = make_dataset()
    for part in ("valid", "test"):
        dataset.graphs.y[dataset.split[part][0]] = 1e30
    result = Trainer(dataset, config(epochs=2, metric="rmse"), tmp_path).fit()
    assert (result.test_loss, read_run(tmp_path).history[-1].valid_loss) == (None, None)
    assert result.test_metric > 1e29
    assert "Infinity" not in (tmp_path / "result.json").read_text()


def test_what_is_dropped_out_depends_on_the_seed(tmp_path, config):
    drawn = []
    for seed in (0, 1):
        run = Trainer(make_dataset(), config(seed=seed), tmp_path / str(seed))
        with run._random_stream():
            drawn.append(torch.rand(3))
    assert not torch.equal(*drawn)
