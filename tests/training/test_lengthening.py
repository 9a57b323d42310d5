"""Runs of all graphs that are given more epochs or more patience after their end."""

import json

import pytest

from grant_fast.errors import InputError
from grant_fast.studies.compare import compare
from grant_fast.training.config import ARMS
from grant_fast.training.folder import is_of_comparison
from grant_fast.training.predict import load_predictor
from grant_fast.training.run import train
from grant_fast.training.trainer import Trainer
from tests.rings import make_dataset
from tests.training.runs import TINY, InterruptAt, same, untimed

ENDED = ("result.json", "test.csv", "run.png")


def fit(config, folder, **settings):
    run = Trainer(make_dataset(), config(arm="full", **settings), folder, resume=True)
    return run, run.fit()


@pytest.mark.parametrize("steps", ["batch", "epoch"])
def test_a_lengthened_run_equals_one_that_was_so_long_from_the_start(tmp_path, config, steps):
    settings = {
        "dropout": (0.3,),
        "norm": "batch_norm",
        "lr": 0.1,
        "lr_schedule": "plateau",
        "eval_every": 2,
        "step_every": steps,
    }
    whole, expected = fit(config, tmp_path / "whole", epochs=24, **settings)
    for epochs in (6, 8, 24):
        run, result = fit(config, tmp_path / "longer", epochs=epochs, **settings)
        assert result.epochs == len(run.history) == epochs
    assert same(whole.model.state_dict(), run.model.state_dict())
    assert untimed(whole.history) == untimed(run.history)
    assert (result.test_metric, result.best_epoch) == (expected.test_metric, expected.best_epoch)
    assert json.loads((tmp_path / "longer" / "config.json").read_text())["epochs"] == 24


def test_more_patience_lengthens_a_run_that_had_run_out_of_it(tmp_path, config):
    settings = {"epochs": 60, "lr": 0.5}
    whole, _ = fit(config, tmp_path / "whole", **settings)
    ends = []
    for patience in (2, 9, None):
        run, result = fit(config, tmp_path / "run", **settings, patience=patience)
        ends.append(result.epochs)
    assert ends[0] < ends[1] <= ends[2] == 60
    assert same(whole.model.state_dict(), run.model.state_dict())


@pytest.mark.parametrize("arm", ARMS[1:])
def test_what_depends_on_the_number_of_epochs_is_not_lengthened(tmp_path, config, arm):
    Trainer(make_dataset(), config(arm=arm, epochs=2), tmp_path).fit()
    said = f"was made with epochs=2, not 4: a run of {arm} cannot be lengthened, as how many epochs"
    with pytest.raises(InputError, match=said):
        Trainer(make_dataset(), config(arm=arm, epochs=4), tmp_path, resume=True)
    for other in ({"epochs": 1}, {"epochs": 4, "lr": 0.5}):
        with pytest.raises(InputError, match=r"was made with epochs=2, not \d: keep to its own"):
            Trainer(make_dataset(), config(**{"arm": arm, **other}), tmp_path, resume=True)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({"epochs": 4}, {"epochs": 3}),
        ({"patience": 4}, {"patience": 3}),
        ({"patience": None}, {"patience": 3}),
        ({"epochs": 4, "visits": 50}, {"epochs": 5, "visits": 50}),
        ({"epochs": 4, "lr": 0.1}, {"epochs": 5, "lr": 0.2}),
    ],
)
def test_a_run_is_neither_shortened_nor_changed(tmp_path, config, before, now):
    fit(config, tmp_path, **before)
    with pytest.raises(InputError, match=r"last\.pt: the run was made with"):
        fit(config, tmp_path, **now)


def test_the_files_of_the_shorter_run_go_when_it_goes_on(tmp_path):
    data = make_dataset()
    train(data, tmp_path, **TINY)
    kept = {name: (tmp_path / name).stat().st_mtime_ns for name in ENDED}
    train(data, tmp_path, **TINY, resume=True)
    assert kept.keys() <= {path.name for path in tmp_path.iterdir()}
    longer = TINY | {"epochs": 9, "resume": True}
    with pytest.raises(KeyboardInterrupt):
        train(data, tmp_path, **longer, observer=InterruptAt(5))
    assert not kept.keys() & {path.name for path in tmp_path.iterdir()}
    assert load_predictor(tmp_path).config.epochs == 9
    assert train(data, tmp_path, **longer).epochs == 9
    assert kept.keys() <= {path.name for path in tmp_path.iterdir()}


def test_a_run_that_was_killed_before_its_new_length_was_saved_goes_on(tmp_path, config):
    fit(config, tmp_path, epochs=3)
    text = (tmp_path / "config.json").read_text().replace('"epochs": 3', '"epochs": 5')
    (tmp_path / "config.json").write_text(text)
    assert load_predictor(tmp_path).config.epochs == 5
    assert fit(config, tmp_path, epochs=5)[1].epochs == 5


def test_a_run_is_not_shortened(tmp_path, config):
    Trainer(make_dataset(), config(arm="full", epochs=2), tmp_path).fit()
    with pytest.raises(InputError, match="not 1: a run can be lengthened, and not shortened"):
        Trainer(make_dataset(), config(arm="full", epochs=1), tmp_path, resume=True)


def test_a_comparison_of_full_runs_alone_is_lengthened_and_others_are_not(tmp_path, config):
    alone = {"arms": "full", "controls": (), "seeds": 1}
    for epochs in (2, 4):
        (run,) = compare(make_dataset(), config(epochs=epochs), tmp_path, **alone, resume=True)
        assert run.result.epochs == len(run.history) == epochs
    compare(make_dataset(), config(epochs=2), tmp_path / "b", seeds=1)
    before = sorted((path, path.read_bytes()) for path in (tmp_path / "b").rglob("*.*"))
    with pytest.raises(InputError, match="was made with epochs=2, not 4"):
        compare(make_dataset(), config(epochs=4), tmp_path / "b", seeds=1, resume=True)
    assert before == sorted((path, path.read_bytes()) for path in (tmp_path / "b").rglob("*.*"))


def test_one_run_of_a_comparison_is_not_lengthened(tmp_path):
    data, settings = make_dataset(), {**TINY, "arm": "full"}
    for arm in ("full", "random"):
        train(data, tmp_path / arm / "seed-0", **{**settings, "arm": arm})
    run = tmp_path / "full" / "seed-0"
    train(data, run, **settings, resume=True)
    with pytest.raises(InputError, match="is one run of a comparison, which would fit the others"):
        train(data, run, **{**settings, "epochs": 9}, resume=True)
    assert load_predictor(run).config.epochs == TINY["epochs"]
    assert is_of_comparison(run) and not is_of_comparison(tmp_path / "full")
