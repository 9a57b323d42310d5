"""Runs that are broken off and gone on with, to the same end, and only as they were."""

from dataclasses import replace

import pytest
import torch

from grant_fast.errors import InputError
from grant_fast.training import trainer
from grant_fast.training.checkpoints import load_checkpoint, save_checkpoint
from grant_fast.training.config import ARMS, ON_REQUEST
from grant_fast.training.observers import Observer
from grant_fast.training.trainer import Trainer
from tests.rings import make_dataset
from tests.training.runs import InterruptAt, same, untimed, validated


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
        InputError, match=r"last\.pt: the run was made on other data, .* of them, than gen-reg"
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


def test_the_best_weights_are_known_after_an_interruption(tmp_path, config, monkeypatch):
    def fit(name: str, stop: int = 0):
        run = Trainer(make_dataset(), config(arm="full"), tmp_path / name, resume=True)
        found = [(1.0, metric) for metric in (1.0, 3.0, 2.5, 2.0, 2.0, 2.0)]
        return validated(run, monkeypatch, found).fit(InterruptAt(stop))

    whole = fit("whole")
    with pytest.raises(KeyboardInterrupt):
        fit("broken", 3)
    resumed = fit("broken")
    assert whole.best_epoch == resumed.best_epoch == 1
    assert resumed.valid_metric == 1.0 and resumed.test_metric == whole.test_metric
    best = [load_checkpoint(tmp_path / name / "best.pt")["model"] for name in ("whole", "broken")]
    assert same(*best)


def test_a_run_that_is_killed_goes_on_from_what_it_had_saved(tmp_path, config, monkeypatch):
    class Kill(Observer):
        def epoch_done(self, record):
            if record.epoch == 3:
                until.setattr(trainer, "save_state", lambda *_: None)
                raise RuntimeError

    monkeypatch.setattr(trainer, "SAVE_EVERY_SECONDS", 0.0)
    with monkeypatch.context() as until, pytest.raises(RuntimeError):
        Trainer(make_dataset(), config(), tmp_path).fit(Kill())
    assert Trainer(make_dataset(), config(), tmp_path, resume=True).epoch == 2


def test_a_run_that_its_observer_ends_loses_no_finished_epoch(tmp_path, config):
    class Prune(Observer):
        def epoch_done(self, record):
            if record.epoch == 3:
                raise StopIteration

    whole = Trainer(make_dataset(), config(), tmp_path / "whole").fit()
    with pytest.raises(StopIteration):
        Trainer(make_dataset(), config(), tmp_path / "ended").fit(Prune())
    resumed = Trainer(make_dataset(), config(), tmp_path / "ended", resume=True)
    assert resumed.epoch == 3
    assert resumed.fit().test_metric == whole.test_metric


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("config"),
        lambda state: state.pop("rng"),
        lambda state: state.update(best=5),
        lambda state: state["rng"].update(cpu=torch.zeros(3, dtype=torch.uint8)),
        lambda state: state["sampler"].update(picked=None, picked_at=1),
        lambda state: state["history"].append([1]),
        lambda state: state["totals"].update(train_seconds="1"),
        lambda state: state["optimizer"]["state"][0].update(exp_avg=torch.zeros(1)),
        lambda state: state["optimizer"]["state"][0].pop("exp_avg_sq"),
        lambda state: state["optimizer"]["state"][0].update(step=torch.zeros(0)),
    ],
)
def test_a_state_of_other_parts_is_refused_before_it_is_written_into(tmp_path, config, change):
    with pytest.raises(KeyboardInterrupt):
        Trainer(make_dataset(), config(), tmp_path).fit(InterruptAt(2))
    state = load_checkpoint(tmp_path / "last.pt")
    change(state)
    save_checkpoint(tmp_path / "last.pt", state)
    with pytest.raises(InputError, match=r"last\.pt: not what grant-fast writes .*; restore it"):
        Trainer(make_dataset(), config(), tmp_path, resume=True)
