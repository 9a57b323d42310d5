"""A whole run in one call, and what it leaves."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from grant_fast.errors import InputError
from grant_fast.files import alone_in
from grant_fast.training.answers import write_tables
from grant_fast.training.defaults import check_heeded, config_of, defaults_for, given_of
from grant_fast.training.predict import load_predictor
from grant_fast.training.records import read_run
from grant_fast.training.run import train, train_to_the_end
from grant_fast.training.trainer import Trainer
from tests.rings import make_dataset
from tests.training.runs import TINY


def test_it_leaves_the_folder_that_the_command_leaves(tmp_path):
    data = make_dataset("binary")
    torch.manual_seed(0)
    before = torch.get_rng_state()
    result = train(data, tmp_path / "run", **TINY, arm="full")
    assert torch.equal(torch.get_rng_state(), before)
    assert (result.arm, result.epochs) == ("full", 3)
    files = {path.name for path in (tmp_path / "run").iterdir()}
    wanted = {"best.pt", "last.pt", "config.json", "metrics.csv", "result.json", "split.csv"}
    assert files == wanted | {"test.csv", "run.png"}
    assert json.loads((tmp_path / "run" / "result.json").read_text())["arm"] == "full"
    assert load_predictor(tmp_path / "run")(data.graphs).shape == (len(data.graphs), 1)


def test_a_result_says_what_it_was_learned_from_and_made_on(tmp_path):
    data = replace(make_dataset("binary"), splitting="scaffold", targets=("toxic",))
    result = train(data, tmp_path, **TINY)
    saved = json.loads((tmp_path / "result.json").read_text())
    sizes = dict(zip(("train", "valid", "test"), data.sizes, strict=True))
    assert saved["data"] == sizes | {
        "task": "binary",
        "targets": ["toxic"],
        "split": "scaffold",
        "skipped": 0,
        "unlabelled": 0,
        "checksum": data.grouped().checksum,
    }
    assert saved["made_on"] == {
        "torch": torch.__version__,
        "device": "cpu",
        "threads": torch.get_num_threads(),
    }
    assert read_run(tmp_path).result == result


def test_a_run_is_neither_replaced_nor_gone_on_with_unasked(tmp_path):
    data = make_dataset("binary")
    first = train(data, tmp_path, **TINY)
    with pytest.raises(InputError, match="is not empty"):
        train(data, tmp_path, **TINY)
    assert train(data, tmp_path, **TINY, resume=True).test_metric == first.test_metric
    with pytest.raises(InputError, match="the run was made with epochs=3, not 2"):
        train(data, tmp_path, **{**TINY, "epochs": 2}, resume=True)
    assert train(data, tmp_path, **{**TINY, "epochs": 4}, overwrite=True).epochs == 4


def test_a_setting_that_is_none_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no setting epoch: did you mean epochs\?"):
        train(make_dataset(), tmp_path / "run", epoch=3)
    with pytest.raises(InputError, match=r"no setting hidden: did you mean hidden_channels\?"):
        train(make_dataset(), tmp_path / "run", hidden=3)
    with pytest.raises(InputError, match="target is for reading data: give it to load_dataset"):
        train(make_dataset(), tmp_path / "run", target="y")
    with pytest.raises(
        InputError, match=r"graphs is .* give it to load_dataset as num_graphs inst"
    ):
        train(make_dataset(), tmp_path / "run", graphs=9)
    with pytest.raises(InputError, match=r"num_graphs is .* give it to load_dataset instead"):
        train(make_dataset(), tmp_path / "run", num_graphs=9)
    with pytest.raises(InputError, match="train takes what load_dataset returns, not a str"):
        train("gen-reg", tmp_path / "run")
    with pytest.raises(InputError, match="epochs=0 cannot be used: give a whole number"):
        train(make_dataset(), tmp_path / "run", epochs=0)
    assert not (tmp_path / "run").exists()


def test_a_curriculum_that_nobody_heeds_is_refused(tmp_path):
    curriculum = {"start_ratio": 0.3, "interval": 1, "ratio_schedule": "linear", "lr_restart": 0.5}
    for name, value in curriculum.items():
        given = {name: value}
        with pytest.raises(InputError, match=rf"{name}=.* give another arm with it, such as"):
            train(make_dataset(), tmp_path / name, **TINY, **given)
        assert not (tmp_path / name).exists()
        check_heeded(config_of({"source": "gen-reg", "arm": "random", **given}), given)
    assert train(make_dataset(), tmp_path, **TINY).arm == "full"


def test_runs_in_threads_are_those_of_one_after_the_other(tmp_path):
    data, settings = make_dataset(), {**TINY, "dropout": [0.5]}
    alone = train(data, tmp_path / "alone", **settings)
    before = torch.get_rng_state()
    with ThreadPoolExecutor(4) as threads:
        runs = [threads.submit(train, data, tmp_path / str(i), **settings) for i in range(6)]
    assert {run.result().valid_metric for run in runs} == {alone.valid_metric}
    assert torch.equal(before, torch.get_rng_state())


def test_a_run_is_the_same_whatever_dtype_is_usual(tmp_path, double_is_usual):
    data = make_dataset()
    result = train(data, tmp_path / "double", **TINY)
    torch.set_default_dtype(torch.float32)
    assert train(data, tmp_path / "single", **TINY).valid_metric == result.valid_metric


def test_a_loaded_network_stays_as_it_was_loaded(tmp_path):
    data = make_dataset("binary")
    train(data, tmp_path, **TINY, norm="batch_norm")
    predict = load_predictor(tmp_path)
    before = predict(data.graphs)
    with torch.no_grad():
        assert torch.equal(predict.model(data.graphs.batch(slice(None))).sigmoid(), before)
    assert torch.equal(predict(data.graphs), before)


def test_a_run_of_data_in_memory_says_so(tmp_path):
    data = make_dataset("binary")
    train(data, tmp_path, **{**TINY, "hidden_channels": 4, "batch_size": np.int64(5)})
    with pytest.raises(InputError, match=r"a data set that train\(…\) was given in memory"):
        load_predictor(tmp_path).dataset()
    (tmp_path / "last.pt").unlink()
    with pytest.raises(InputError, match=r"holds the result of a run without its last\.pt"):
        train(data, tmp_path, **TINY, resume=True)


def test_what_suits_data_goes_by_what_they_are_and_not_by_their_name():
    data = replace(make_dataset("regression"), name="gen-reg")
    settings = {"source": "gen-reg.csv"}
    assert config_of(settings, data).norm == "layer_norm"
    assert config_of(settings, replace(data, encoder="atom")).norm == "batch_norm"


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"orders": (5, 3)},
        {"orders": (4, 3, 2), "hidden_channels": (64,)},
        {"orders": (2, 2, 2, 2, 2), "dropout": (0.1,), "embedding": 32, "head": 7, "seed": 2},
        {"norm": "none", "clip": 1.5, "normalize": False, "step_every": "epoch", "pass_size": 3},
    ],
)
def test_what_a_config_was_given_can_be_told(given):
    data = replace(make_dataset("binary"), encoder="atom")
    config = config_of({"source": "x.csv", **given}, data)
    found = given_of(config, data)
    assert config_of({"source": "x.csv", **found}, data) == config
    assert found.keys() <= given.keys() | {"hidden_channels", "dropout"}


def test_small_sets_get_wider_networks_and_smaller_ones_more_epochs():
    def suits(num_graphs):
        settings = defaults_for("molecules", num_graphs)
        return settings["hidden_channels"], settings["batch_size"], settings["epochs"]

    assert suits(None) == suits(20_000) == ((27, 18, 18), 500, 50)
    assert suits(19_999) == suits(2000) == ((64,), 32, 100)
    assert suits(1999) == ((64,), 32, 300)
    assert defaults_for("molecules", 100, layers=2)["dropout"] == (0.27,)
    assert defaults_for("molecules", layers=3)["hidden_channels"] == (27, 18)
    assert defaults_for("molecules", layers=6)["hidden_channels"] == (27, 18, 18, 18, 18)


def test_a_run_that_came_first_is_not_replaced_by_one_that_began_before(tmp_path):
    data = make_dataset("binary")
    settings = {"source": "memory:rings", **TINY, "hidden_channels": (4,), "orders": (2, 2)}
    slow = Trainer(data, config_of({**settings, "arm": "random"}, data), tmp_path)
    train(data, tmp_path, **TINY, arm="full")
    with pytest.raises(InputError, match="is not empty"):
        train_to_the_end(slow, data, None, resume=False, overwrite=False)
    assert json.loads((tmp_path / "result.json").read_text())["arm"] == "full"
    assert train_to_the_end(slow, data, None, resume=False, overwrite=True).arm == "random"


@pytest.mark.skipif(sys.platform == "win32", reason="folders cannot be locked there")
def test_the_folder_is_kept_until_its_last_file_is_there(tmp_path, monkeypatch):
    def write(folder, data):
        with pytest.raises(InputError, match="another process is writing"), alone_in(folder):
            pass
        write_tables(folder, data)

    monkeypatch.setattr("grant_fast.training.run.write_tables", write)
    train(make_dataset("binary"), tmp_path, **TINY)
    assert (tmp_path / "test.csv").exists()


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"train": [0, 1]}, "no int64 tensor of positions as 'train'"),
        ({"test": torch.tensor([], dtype=torch.int64)}, "no graph of .* is in test"),
        ({"test": torch.tensor([0, 10_000])}, "a position in test is not one of the"),
        ({"test": torch.tensor([0])}, "graph 0 of .* is in two parts"),
    ],
)
def test_a_split_that_is_none_is_refused_before_anything_is_trained(tmp_path, split, message):
    data = make_dataset("binary")
    data = replace(data, split={**data.split, "train": torch.tensor([0, 1, 2, 3]), **split})
    with pytest.raises(InputError, match=message):
        train(data, tmp_path / "run", **TINY)
    assert not (tmp_path / "run").exists()
