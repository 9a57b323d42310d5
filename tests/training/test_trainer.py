"""The trainer: fair starts, true gradients, honest records, and runs that survive interruption."""

import copy
import csv
import itertools
import json
from dataclasses import replace

import pytest
import torch

from grant_fast.errors import InputError
from grant_fast.teaching.sampler import GraNTSampler
from grant_fast.training.checkpoints import load_checkpoint, save_checkpoint
from grant_fast.training.config import ARMS, ON_REQUEST
from grant_fast.training.observers import Observer
from grant_fast.training.records import read_run
from grant_fast.training.trainer import Trainer
from tests.rings import make_dataset

TIMES = {"train_seconds", "selection_seconds", "valid_seconds"}
KINDS = ["regression", "binary", "multilabel", "multiclass"]


def untimed(history):
    return [{k: v for k, v in vars(record).items() if k not in TIMES} for record in history]


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


class InterruptAt(Observer):
    """Presses Ctrl-C after an epoch."""

    def __init__(self, epoch):
        self.epoch = epoch

    def epoch_done(self, record):
        if record.epoch == self.epoch:
            raise KeyboardInterrupt


@pytest.mark.parametrize("level", ["graph", "node"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_task_is_learned_beyond_the_constant_guess(tmp_path, config, kind, level):
    settings = {"epochs": 40, "lr": 0.03, "hidden_channels": (16,), "pool": "sum", "arm": "full"}
    result = Trainer(make_dataset(kind, level), config(**settings), tmp_path).fit()
    history = read_run(tmp_path).history
    assert min(record.valid_loss for record in history) < 0.8 * result.constant_loss
    assert result.test_metric is not None and result.test_metric_last is not None


@pytest.mark.parametrize("arm", [*ARMS, *ON_REQUEST])
@pytest.mark.parametrize(
    "steps",
    [
        {"step_every": "batch"},
        {"step_every": "epoch"},
        {"step_every": "epoch", "pass_size": 8},
        {"step_every": "epoch", "norm": "none"},
    ],
    ids=["batch", "epoch", "passes", "no norm"],
)
def test_a_resumed_run_equals_an_unbroken_one_bit_for_bit(tmp_path, config, arm, steps):
    chosen = config(**{"arm": arm, "dropout": (0.3,), "norm": "batch_norm", "interval": 4} | steps)
    whole = Trainer(make_dataset(), chosen, tmp_path / "whole")
    expected = whole.fit()

    for epoch in (1, 3):  # the second lies between two selections
        broken = Trainer(make_dataset(), chosen, tmp_path / "broken", resume=True)
        with pytest.raises(KeyboardInterrupt):
            broken.fit(InterruptAt(epoch))
    resumed = Trainer(make_dataset(), chosen, tmp_path / "broken", resume=True)
    assert resumed.epoch == 3
    result = resumed.fit()

    assert same(whole.model.state_dict(), resumed.model.state_dict())
    assert untimed(whole.history) == untimed(resumed.history)
    assert result.test_metric == expected.test_metric
    assert result.best_epoch == expected.best_epoch
    seconds = [record.train_seconds for record in resumed.history]
    assert seconds == sorted(seconds)


def test_an_interrupt_within_an_epoch_leaves_the_state_before_it(tmp_path, config, monkeypatch):
    chosen = config(arm="full")
    whole = Trainer(make_dataset(), chosen, tmp_path / "whole")
    whole.fit()
    broken = Trainer(make_dataset(), chosen, tmp_path / "broken")
    steps = 0
    step = broken._optimizer.step

    def stop_in_the_third_epoch():
        nonlocal steps
        steps += 1
        if steps == 2 * 5 + 3:
            raise KeyboardInterrupt
        step()

    monkeypatch.setattr(broken._optimizer, "step", stop_in_the_third_epoch)
    with pytest.raises(KeyboardInterrupt):
        broken.fit()
    resumed = Trainer(make_dataset(), chosen, tmp_path / "broken", resume=True)
    assert resumed.epoch == 2
    resumed.fit()
    assert same(whole.model.state_dict(), resumed.model.state_dict())


@pytest.mark.parametrize("began", ["cpu", "cuda"])
def test_a_run_goes_on_where_there_is_a_gpu_whoever_began_it(tmp_path, config, monkeypatch, began):
    with pytest.raises(KeyboardInterrupt):
        Trainer(make_dataset(), config(), tmp_path).fit(InterruptAt(1))
    resumed = Trainer(make_dataset(), config(), tmp_path, resume=True)
    state, given, fork = torch.get_rng_state(), [], torch.random.fork_rng
    resumed._device, generators = torch.device("cuda:1"), [torch.Generator() for _ in range(2)]
    numbers = [g.get_state() for g in generators]
    monkeypatch.setattr(torch.cuda, "default_generators", generators)
    resumed._rng |= {"cuda": state} if began == "cuda" else {}
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: fork(devices=[]))
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda *state: given.append(state))
    with resumed._random_stream():
        assert given == ([(state, resumed._device)] if began == "cuda" else [])
    assert torch.equal(generators[0].get_state(), numbers[0])  # another GPU's, not the run's
    assert generators[1].initial_seed() == resumed.config.seed


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


def test_a_run_leaves_the_global_random_state_alone(tmp_path, config):
    before = torch.get_rng_state()
    Trainer(make_dataset(), config(dropout=(0.5,), epochs=2), tmp_path).fit()
    assert torch.equal(torch.get_rng_state(), before)


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


def test_the_best_weights_by_validation_are_kept_and_tested(tmp_path, config):
    trainer = Trainer(make_dataset(), config(epochs=30, lr=0.5, arm="full"), tmp_path)
    result = trainer.fit()
    metrics = [record.valid_metric for record in trainer.history]
    assert result.valid_metric == min(metrics)
    assert result.best_epoch == metrics.index(min(metrics)) + 1
    assert load_checkpoint(tmp_path / "best.pt")["epoch"] == result.best_epoch
    trainer.model.load_state_dict(load_checkpoint(tmp_path / "best.pt")["model"])
    assert trainer._evaluator(trainer.model, "test")[1] == result.test_metric
    assert trainer._evaluator(trainer.model, "valid")[1] == result.valid_metric
    assert trainer._evaluate("test")[0] == result.test_loss


def test_the_last_weights_stand_once_the_best_were_tested(tmp_path, config):
    trainer = Trainer(make_dataset(), config(epochs=8, lr=0.5, arm="full"), tmp_path)
    assert trainer.fit().best_epoch < 8
    assert same(trainer.model.state_dict(), load_checkpoint(tmp_path / "last.pt")["model"])


def test_the_first_of_equal_weights_is_the_best(tmp_path, config, monkeypatch):
    """Equal but for the order in which the classes' areas were added up: 1/3, 1/2 and 1/2."""
    areas = iter([1 / 3, 4 / 9, 0.44444444444444450, 4 / 9, 0.4])
    trainer = Trainer(make_dataset("binary"), config(epochs=4), tmp_path / "equal")
    monkeypatch.setattr(trainer, "_evaluate", lambda part: (1.0, next(areas, 0.5)))
    assert trainer.fit().best_epoch == 2
    better = iter([0.4, 0.40001, 0.3])  # by little, but truly
    trainer = Trainer(make_dataset("binary"), config(epochs=3), tmp_path / "better")
    monkeypatch.setattr(trainer, "_evaluate", lambda part: (1.0, next(better, 0.5)))
    assert trainer.fit().best_epoch == 2


def test_splits_without_labels_are_nan_and_not_an_end(tmp_path, config):
    dataset = make_dataset("binary")
    dataset.graphs.y[dataset.split["valid"]] = torch.nan
    result = Trainer(dataset, config(arm="full"), tmp_path).fit()
    assert result.valid_metric is None and result.constant_loss is None
    assert [record.valid_loss for record in read_run(tmp_path).history] == [None] * 6
    assert result.best_epoch == 6  # nothing to choose by: the last
    assert result.test_metric == result.test_metric_last is not None


def test_data_that_cannot_teach_are_refused(tmp_path, config):
    dataset = make_dataset()
    dataset.graphs.y.fill_(torch.nan)
    with pytest.raises(InputError, match="rings has no labels in its training split"):
        Trainer(dataset, config(), tmp_path)
    dataset.graphs.y = None
    with pytest.raises(InputError, match="rings has no targets to learn"):
        Trainer(dataset, config(), tmp_path)


@pytest.mark.parametrize("kind", ["binary", "multilabel", "multiclass"])
def test_a_single_class_in_training_is_refused(tmp_path, config, kind):
    dataset = make_dataset(kind)
    y, train = dataset.graphs.y, dataset.split["train"]
    y[train] = torch.where(y[train] >= 0, 1, y[train])  # what is not measured stays that
    with pytest.raises(InputError, match="labels of only one class in its training split, 1, so"):
        Trainer(dataset, config(), tmp_path)
    if kind == "multiclass":
        names = tuple("abcdefgh"[: dataset.task.num_outputs])
        named = replace(dataset, task=replace(dataset.task, names=names))
        with pytest.raises(InputError, match="training split, b, so"):
            Trainer(named, config(), tmp_path)


def test_a_diverging_run_stops_and_says_what_to_change(tmp_path, config):
    chosen = config(lr=1e30, standardize=False, arm="full", epochs=20)
    with pytest.raises(InputError, match=r"after \d+ of 20 epochs: .* lower lr \(now 1e\+30\)"):
        Trainer(make_dataset(), chosen, tmp_path).fit()
    with pytest.raises(
        InputError, match=r"\(and give --overwrite where the folder keeps this run\)$"
    ):
        Trainer(make_dataset(), chosen, tmp_path).fit()
    dataset = make_dataset()
    dataset.graphs.y *= 1e30
    Trainer(dataset, config(epochs=1), tmp_path).fit()
    with pytest.raises(
        InputError, match=r"after 0 of 6 epochs: .*; standardize the targets, lower lr"
    ):
        Trainer(dataset, config(standardize=False), tmp_path).fit()


def test_resuming_with_other_settings_names_the_first_difference(tmp_path, config):
    Trainer(make_dataset(), config(epochs=2), tmp_path).fit()
    with pytest.raises(InputError, match=r"last\.pt: the run was made with epochs=2, not 3"):
        Trainer(make_dataset(), config(epochs=3), tmp_path, resume=True)
    with pytest.raises(InputError, match=r"made with device=cpu, not auto"):
        Trainer(make_dataset(), config(epochs=2, device="auto"), tmp_path, resume=True)


@pytest.mark.parametrize("part", ["x", "y", "ids", "col"])
def test_resuming_on_other_data_is_refused(tmp_path, config, part):
    dataset = make_dataset()
    Trainer(dataset, config(epochs=2), tmp_path).fit()
    Trainer(dataset, config(epochs=2, source="elsewhere.csv"), tmp_path, resume=True)
    owner = dataset.graphs.adj if part == "col" else dataset.graphs
    getattr(owner, part)[-1] += 1
    with pytest.raises(
        InputError,
        match=r"last\.pt: the run was made on other data, .* of them, than gen-reg",
    ):
        Trainer(dataset, config(epochs=2), tmp_path, resume=True)


def test_resuming_with_another_split_of_the_same_graphs_is_refused(tmp_path, config):
    """Though they lie in the same order: a graph went from the end of one part to the next."""
    dataset = make_dataset()
    Trainer(dataset, config(epochs=2), tmp_path).fit()
    train, valid, test = dataset.split.values()
    moved = {"train": train, "valid": valid[:-1], "test": torch.cat([valid[-1:], test])}
    dataset = replace(make_dataset(), split=moved)
    with pytest.raises(InputError, match=r"last\.pt: the run was made on other data"):
        Trainer(dataset, config(epochs=2), tmp_path, resume=True)


def test_a_run_goes_on_by_the_metric_that_judged_it(tmp_path, config):
    Trainer(make_dataset(), config(epochs=2), tmp_path).fit()
    by_r2 = replace(make_dataset(), metric="r2")
    with pytest.raises(
        InputError, match=r"last\.pt: the run was judged by mae, but would continue with"
    ):
        Trainer(by_r2, config(epochs=2), tmp_path, resume=True)
    state = load_checkpoint(tmp_path / "last.pt")
    del state["metric"]
    save_checkpoint(tmp_path / "last.pt", state)
    with pytest.raises(InputError, match="judged by what an older version chose, but would"):
        Trainer(make_dataset(), config(epochs=2), tmp_path, resume=True)


def test_targets_of_another_task_are_refused(tmp_path, config):
    dataset = make_dataset("regression")
    graphs = copy.copy(dataset.graphs)
    graphs.y = torch.arange(len(graphs.y)) % 3
    says = (
        r"y of .* is torch\.int64 .* which is not what Task\(kind='regression'.* load_dataset\(gra"
    )
    with pytest.raises(InputError, match=says):
        Trainer(replace(dataset, graphs=graphs), config(), tmp_path)


def test_unknown_devices_are_refused(tmp_path, config):
    with pytest.raises(InputError, match="device=abacus cannot be used here"):
        Trainer(make_dataset(), config(device="abacus"), tmp_path)


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


@pytest.mark.parametrize(
    ("settings", "culprit"),
    [
        ({"lr": 1e30}, r"lower lr \(now 1e\+30\)"),
        ({"lr_restart": 1e30}, r"lower lr_restart \(now 1e\+30\)"),
        ({"weight_decay": 1e30}, r"lower weight_decay \(now 1e\+30\)"),
    ],
)
def test_what_made_a_run_diverge_is_named(tmp_path, config, settings, culprit):
    with pytest.raises(InputError, match=rf"training diverged after .*{culprit}, or set clip"):
        Trainer(make_dataset(), config(interval=1, arm="random", **settings), tmp_path).fit()


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
