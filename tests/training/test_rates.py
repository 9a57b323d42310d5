"""The learning rate over a run."""

import math

import pytest
import torch

from grant_fast.training.observers import Observer
from grant_fast.training.rates import FACTOR, PATIENCE, LearningRate
from grant_fast.training.trainer import Trainer
from tests.rings import make_dataset


def make(config, metric="roc_auc", lr=0.1, **settings):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    chosen = config(lr_schedule="plateau", **settings)
    return optimizer.param_groups[0], LearningRate(optimizer, chosen, metric)


@pytest.mark.parametrize(("metric", "sign"), [("roc_auc", 1), ("mae", -1)])
def test_a_metric_that_stands_still_lowers_the_rate_after_its_patience(config, metric, sign):
    group, rate = make(config, metric)
    for step in range(5):
        rate.step(sign * (1.0 + step))
    assert group["lr"] == 0.1
    for _ in range(PATIENCE):
        rate.step(sign * 2.0)
    assert group["lr"] == 0.1
    rate.step(math.nan)
    assert group["lr"] == 0.1
    rate.step(sign * 2.0)
    assert group["lr"] == pytest.approx(0.1 * FACTOR)


@pytest.mark.parametrize("start", [-0.5, 0.0, 0.5])
def test_r2_that_creeps_downwards_lowers_the_rate_wherever_it_is(config, start):
    group, rate = make(config, "r2")
    for step in range(PATIENCE + 2):
        rate.step(start - 1e-6 * step)
    assert group["lr"] == pytest.approx(0.1 * FACTOR)


def test_a_restart_lifts_a_low_rate_and_leaves_a_high_one(config):
    group, rate = make(config, lr_restart=0.005)
    rate.restart()
    assert group["lr"] == 0.1
    group["lr"] = 0.001
    rate.restart()
    assert group["lr"] == 0.005
    group, rate = make(config, lr=0.001)
    rate.restart()
    assert group["lr"] == 0.001


class RateOf(Observer):
    """Notes the rate after every epoch, and keeps the metric from improving."""

    def __init__(self, trainer):
        self.rates, self.group = [], trainer._optimizer.param_groups[0]
        trainer._evaluate = lambda part: (1.0, 1.0)

    def epoch_done(self, record):
        self.rates.append(self.group["lr"])


@pytest.mark.parametrize("arm", ["random", "full"])
def test_a_run_lowers_its_rate_and_lifts_it_at_selections_only(tmp_path, config, arm):
    settings = {"lr": 0.01, "interval": 20, "epochs": 21, "lr_schedule": "plateau"}
    trainer = Trainer(make_dataset(), config(arm=arm, lr_restart=0.01, **settings), tmp_path)
    noted = RateOf(trainer)
    trainer.fit(noted)
    assert noted.rates[PATIENCE] == 0.01
    assert noted.rates[-2] == pytest.approx(0.01 * FACTOR**2)
    assert noted.rates[-1] == (0.01 if arm == "random" else noted.rates[-2])


def test_a_resumed_run_keeps_its_patience(config):
    group, rate = make(config)
    for _ in range(PATIENCE):
        rate.step(1.0)
    other_group, other = make(config)
    other.load_state_dict(rate.state_dict())
    other.step(1.0)
    rate.step(1.0)
    assert other_group["lr"] == group["lr"] == 0.1
    other.step(1.0)
    assert other_group["lr"] == pytest.approx(0.1 * FACTOR)


def test_the_plateau_is_that_of_the_papers_code(config):
    group, rate = make(config, lr=2e-5)
    rates = []
    for _ in range(200):
        rate.step(1.0)
        rates.append(group["lr"])
    assert rates[:8] == [2e-5] * 8  # the first validation, and 7 that are no better
    assert rates[8] == pytest.approx(0.95 * 2e-5)
    assert rates[-1] == 1e-5


def test_a_run_goes_on_with_its_patience(tmp_path, config):
    chosen = config(arm="full", epochs=3, lr_schedule="plateau")
    trainer = Trainer(make_dataset(), chosen, tmp_path)
    RateOf(trainer)
    trainer.fit()
    resumed = Trainer(make_dataset(), chosen, tmp_path, resume=True)
    assert resumed._rate.state_dict() == trainer._rate.state_dict()
    assert resumed._rate.state_dict()["num_bad_epochs"] == 2
