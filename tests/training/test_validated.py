"""What validation decides: the best weights, the rate; and what is not measured."""

import math

import torch

from grant_fast.training.checkpoints import load_checkpoint
from grant_fast.training.records import read_run
from grant_fast.training.trainer import Trainer
from tests.rings import make_dataset
from tests.training.runs import same, validated


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


def test_what_cannot_be_measured_is_not_the_best(tmp_path, config, monkeypatch):
    run = Trainer(make_dataset(), config(arm="full", epochs=3), tmp_path)
    found = [(1.0, metric) for metric in (1.0, math.nan, 2.0)]
    assert validated(run, monkeypatch, found).fit().best_epoch == 1


def test_the_end_of_a_budget_of_visits_is_validated(tmp_path, config):
    run = Trainer(make_dataset(), config(arm="full", eval_every=4, visits=2 * 24), tmp_path)
    result = run.fit()
    assert [record.valid_metric is None for record in run.history] == [True, False]
    assert result.best_epoch == 2


def test_the_plateau_is_the_metrics_and_not_the_losses(tmp_path, config, monkeypatch):
    chosen = config(arm="full", epochs=12, lr_schedule="plateau", lr=0.01)
    run = Trainer(make_dataset(), chosen, tmp_path)
    validated(run, monkeypatch, [(1 / epoch, 1.0) for epoch in range(1, 13)]).fit()
    assert run._optimizer.param_groups[0]["lr"] < 0.01
