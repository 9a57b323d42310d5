"""Runs that end early, as they get no better."""

import io

import pytest
from rich.console import Console

from grant_fast.training.console import ConsoleObserver
from grant_fast.training.trainer import Trainer
from tests.rings import make_dataset


@pytest.mark.parametrize("every", [1, 3])
def test_patience_ends_a_run_that_gets_no_better_as_a_whole_run_would_have_gone(
    tmp_path, config, every
):
    settings = {"epochs": 60, "lr": 0.5, "arm": "full", "eval_every": every, "dropout": (0.1,)}
    whole = Trainer(make_dataset(), config(**settings), tmp_path / "whole")
    whole.fit()
    impatient = Trainer(make_dataset(), config(**settings, patience=4), tmp_path / "cut")
    result = impatient.fit()
    assert result.epochs == len(impatient.history) == result.best_epoch + 4 * every < 60
    metrics = [record.valid_metric for record in impatient.history]
    assert metrics == [record.valid_metric for record in whole.history][: result.epochs]
    seen = [metric for metric in metrics if metric is not None]
    assert result.valid_metric == min(seen) < min(seen[-4:])
    since = [n - 1 - seen[:n].index(min(seen[:n])) for n in range(1, len(seen) + 1)]
    assert max(since[:-1]) < since[-1] == 4
    again = Trainer(make_dataset(), impatient.config, tmp_path / "cut", resume=True).fit()
    assert again.epochs == result.epochs


def test_a_run_that_its_visits_end_did_not_lose_patience(tmp_path, config):
    chosen = config(arm="full", epochs=50, patience=40, visits=100)
    text = io.StringIO()
    with ConsoleObserver(Console(file=text)) as shown:
        result = Trainer(make_dataset(), chosen, tmp_path).fit(shown)
    assert result.epochs < 40
    assert "100 graphs seen" in text.getvalue() and "no better" not in text.getvalue()
