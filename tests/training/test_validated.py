"""What validation decides, also of runs that are broken off: the best weights, the rate."""

import math

import pytest

from grant_fast.training import trainer
from grant_fast.training.checkpoints import load_checkpoint
from grant_fast.training.observers import Observer
from grant_fast.training.trainer import Trainer
from tests.rings import make_dataset
from tests.training.test_trainer import InterruptAt, same


def validated(run: Trainer, monkeypatch: pytest.MonkeyPatch, found: list[tuple[float, float]]):
    """The run, whose validation finds these losses and metrics, an epoch each."""
    values, evaluate = iter(found[run.epoch :]), run._evaluate
    monkeypatch.setattr(
        run, "_evaluate", lambda part: next(values) if part == "valid" else evaluate(part)
    )
    return run


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


def test_what_cannot_be_measured_is_not_the_best(tmp_path, config, monkeypatch):
    run = Trainer(make_dataset(), config(arm="full", epochs=3), tmp_path)
    found = [(1.0, metric) for metric in (1.0, math.nan, 2.0)]
    assert validated(run, monkeypatch, found).fit().best_epoch == 1


def test_a_run_that_is_killed_goes_on_from_what_it_had_saved(tmp_path, config, monkeypatch):
    class Kill(Observer):
        def epoch_done(self, record):
            if record.epoch == 3:
                raise RuntimeError  # which nothing is saved at

    monkeypatch.setattr(trainer, "SAVE_EVERY_SECONDS", 0.0)
    with pytest.raises(RuntimeError):
        Trainer(make_dataset(), config(), tmp_path).fit(Kill())
    assert Trainer(make_dataset(), config(), tmp_path, resume=True).epoch == 2


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
