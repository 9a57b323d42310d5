"""What a run's files say, whatever the table looks like and however the run came to its end."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from grant_fast.data.load import load_dataset
from grant_fast.files import alone_in
from grant_fast.training.records import read_run
from grant_fast.training.run import train
from tests.cli.runs import SMALL, fails, lines_of, run, succeeds
from tests.rings import make_dataset


@pytest.fixture
def classes(molecules):
    """A CSV of molecules of three classes."""
    rows = molecules.read_text().splitlines()[1:]
    words = (f"{row.split(',')[0]},{i % 3}" for i, row in enumerate(rows))
    molecules.write_text("\n".join(["smiles,colour", *words]))
    return molecules


def test_classes_are_called_after_their_target(classes, tmp_path):
    words = ["--task", "multiclass", "--split", "random"]
    packed, folder = tmp_path / "m.gfast", tmp_path / "run"
    succeeds("pack", classes, *words, "-o", packed)
    assert load_dataset(packed).task.names == ("colour",)
    numbers = run("train", packed, "--task", "regression", "--epochs", 1, "-o", tmp_path / "other")
    assert "target colour, regression" in numbers.stderr
    answers = ["colour_predicted", *(f"colour_class_{i}" for i in range(3))]
    for source, settings in ((classes, words), (packed, [])):
        more = ["--epochs", 1, "--device", "cpu", "-o", folder, "--overwrite"]
        result = succeeds("train", source, *settings, *more)
        assert "target colour, multiclass, 3 classes" in result.stderr
        names = ["smiles", "colour"] if source == classes else ["colour"]
        assert lines_of(folder / "test.csv")[0] == ["graph", *names, *answers]
        assert json.loads((folder / "result.json").read_text())["test_metrics_each"] == {}
        for new, own in ((classes, ["smiles", "colour"]), (packed, ["graph"])):
            succeeds("predict", folder, new, "-o", tmp_path / "out.csv")
            assert lines_of(tmp_path / "out.csv")[0] == [*own, *answers]


def test_the_names_of_classes_are_no_targets(classes, tmp_path):
    data = load_dataset(classes, task="multiclass", split="random", progress=False)
    data.task = replace(data.task, names=("low", "mid", "high"))
    data.save(tmp_path / "named.gfast")
    words = ["--epochs", 1, "--device", "cpu", "-o", tmp_path / "run"]
    result = run("train", tmp_path / "named.gfast", *words)
    assert "split), target colour, multiclass, 3 classes (low: " in result.stderr
    assert lines_of(tmp_path / "run" / "test.csv")[0][-4:] == [
        *("colour_predicted", "low", "mid", "high")
    ]


def test_a_run_that_was_stopped_before_it_had_weights_is_to_be_gone_on_with(trained, tmp_path):
    run("pack", *SMALL[:3], "-o", tmp_path / "new.gfast")
    words = ["predict", trained, tmp_path / "new.gfast", "-o", tmp_path / "out.csv"]
    (trained / "best.pt").unlink()
    (trained / "result.json").unlink()  # written at the end
    for name, last in (("best.pt", []), ("last.pt", ["--last"])):
        (trained / name).unlink(missing_ok=True)
        line = fails(*words, *last)
        assert f"has no {name} yet" in line
        assert f"grant-fast train --resume -o {trained} continues it" in line
    succeeds("train", "--resume", "-o", trained)
    succeeds(*words)


def test_a_finished_run_that_misses_weights_is_not_said_to_go_on(trained, tmp_path):
    run("pack", *SMALL[:3], "-o", tmp_path / "new.gfast")
    words = ["predict", trained, tmp_path / "new.gfast", "-o", tmp_path / "out.csv"]
    (trained / "last.pt").unlink()
    before = sorted(trained.iterdir())
    assert "last.pt is missing: restore it, or remove" in fails(*words, "--last")
    assert "without its last.pt: restore that" in fails("train", "--resume", "-o", trained)
    assert sorted(trained.iterdir()) == before
    succeeds(*words)


def test_the_best_weights_are_written_anew_by_going_on_with_a_finished_run(trained, tmp_path):
    run("pack", *SMALL[:3], "-o", tmp_path / "new.gfast")
    best, out = trained / "best.pt", tmp_path / "out.csv"
    words = ["predict", trained, tmp_path / "new.gfast", "-o", out]
    assert run(*words).exit_code == 0
    whole, predictions = best.read_bytes(), out.read_bytes()
    for left in (None, whole[:500], b"PK"):
        best.unlink() if left is None else best.write_bytes(left)
        out.unlink()
        assert f"grant-fast train --resume -o {trained} writes it anew" in fails(*words)
        assert run("train", "--resume", "-o", trained).exit_code == 0
        assert run(*words).exit_code == 0
        assert out.read_bytes() == predictions


def test_a_run_in_its_usual_folder_is_gone_on_with_by_its_own_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    succeeds("train", *SMALL, "--epochs", 2)
    (Path("runs") / "gen-reg-full" / "result.json").unlink()
    succeeds("train", "gen-reg", "--resume")
    assert read_run(Path("runs") / "gen-reg-full").result.epochs == 2


def test_a_run_of_data_in_memory_goes_on_in_python_alone(tmp_path):
    settings = {"epochs": 1, "hidden_channels": 4, "orders": [2, 2], "device": "cpu"}
    train(make_dataset(), tmp_path, **settings)
    line = fails("train", "--resume", "-o", tmp_path)
    assert "train(…, resume=True) goes on" in line and "if the data have moved" not in line


@pytest.mark.skipif(sys.platform == "win32", reason="folders cannot be locked there")
def test_what_another_process_is_writing_stays_as_it_is(trained, tmp_path):
    words = [
        "compare",
        *SMALL,
        "--epochs",
        1,
        "--arm",
        "full",
        "--seeds",
        1,
        "-o",
        tmp_path / "all",
    ]
    succeeds(*words)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with alone_in(trained), alone_in(tmp_path / "all"):
        line = fails("train", *SMALL, "--epochs", 1, "-o", trained, "--overwrite")
        assert f"another process is writing to {trained}: wait until it ends" in line
        assert f"another process is writing to {tmp_path / 'all'}" in fails(*words, "--overwrite")
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_run_that_lost_patience_says_when(tmp_path):
    out = tmp_path / "run"
    words = [*SMALL, "--arm", "full", "--epochs", 90, "--lr", 0.5, "--patience", 2, "-o", out]
    said = run("train", *words).stderr
    done = json.loads((out / "result.json").read_text())["epochs"]
    assert done < 90
    assert f"stopped after epoch {done}: no better for 2 validations\n" in said
    words = ["--arm", "random", "--patience", 2, "-o", tmp_path / "other"]
    assert "patience=2 cannot be used: give arm=full, as" in fails("train", "gen-reg", *words)
