"""The command line, end to end and small: what it writes, and what it says when it cannot."""

import csv
import gzip
import json
import re
import sys
from functools import cache

import numpy as np
import pytest
import torch

from grant_fast import PackedGraphs
from grant_fast.cli import messages, runs
from grant_fast.data.load import load_dataset
from grant_fast.training.checkpoints import load_checkpoint, save_checkpoint
from grant_fast.training.config import RunConfig
from grant_fast.training.predict import load_predictor
from tests.cli.runs import QUICK, SIZE, SMALL, SMILES, fails, lines_of, run, succeeds


def test_train_leaves_a_whole_run_folder(trained):
    names = {path.name for path in trained.iterdir()}
    files = {"config.json", "metrics.csv", "last.pt", "best.pt", "result.json", "split.csv"}
    files |= {"run.png"}
    assert names == files  # no test.csv, which targets of nodes would make huge
    assert json.loads((trained / "config.json").read_text())["epochs"] == 2


def test_a_run_whose_data_have_moved_goes_on_where_they_are_named(tmp_path, molecules):
    out, moved = tmp_path / "run", tmp_path / "moved.csv"
    succeeds("train", molecules, *SIZE, "-o", out)
    molecules.rename(moved)
    line = fails("train", "--resume", "-o", out)
    assert "there is no file" in line and f"is the source in {out / 'config.json'}" in line
    assert "give a SOURCE with --resume" in line
    succeeds("train", moved, "--resume", "-o", out)
    config = (out / "config.json").read_text()  # as where that is ended before its first epoch
    (out / "config.json").write_text(config.replace(moved.name, "elsewhere.csv"))
    succeeds("predict", out, moved, "-o", tmp_path / "out.csv")
    (out / "config.json").write_text(config)
    succeeds("train", "--resume", "-o", out)  # it remembers
    succeeds("predict", out, moved, "-o", tmp_path / "out.csv")
    other = tmp_path / "other.csv"
    other.write_text(moved.read_text().replace("CCO,", "CCN,"))
    line = fails("train", other, "--resume", "-o", out)
    assert (
        f"the run was made on other data, or on another split of them, than {other} gives now"
        in line
    )


def test_a_run_begins_with_what_is_learned_from_what(molecules, tmp_path):
    few = ["--epochs", 1, "--device", "cpu", "--overwrite"]

    @cache
    def said(command, *words):
        result = succeeds(command, *words, *few, "-o", tmp_path / command)
        return result.stderr

    words = ["train", molecules, "--split", "random", "--target"]
    line = "molecules.csv: 24 / 3 / 3 graphs (random split), target size, regression\n"
    assert said(*words, "size").startswith(line) and "classes" not in said(*words, "size")
    found = re.search(r"target toxic, binary, (\d+) positives in training\n", said(*words, "toxic"))
    assert 0 < int(found[1]) < 24
    assert "graphs (random split), targets toxic, sticky, multilabel\n" in said(
        *words, "toxic,sticky"
    )
    assert "(random split), regression\n" in said("compare", *SMALL, "--seeds", 1)
    assert said("compare", *SMALL, "--seeds", 1).count("split") == 1

    grades = tmp_path / "grades.csv"
    rings = ["c1ccccc1", "c1ccncc1", "C1CC1", "C1CCC1", "c1ccoc1", "c1ccsc1"]
    lines = [f"{smiles},{row % 3}" for row, smiles in enumerate(rings * 2)]
    grades.write_text("\n".join(["smiles,grade", *lines]))
    text = said("train", grades)
    assert "graphs (scaffold split), target grade, regression\n" in text
    assert "targets look like classes: for classification, give --task multiclass\n" in text
    text = said("train", grades, "--task", "multiclass")
    assert "split), target grade, multiclass, 3 classes\n" in text and "look" not in text
    assert "targets look like" not in said("train", grades, "--task", "regression")
    hollow = [f"{smiles},{row / 7},{'' if row else 3}" for row, smiles in enumerate(rings * 2)]
    grades.write_text("\n".join(["smiles,grade,rare", *hollow]))  # one label is no class
    text = said("train", grades, "--target", "all")
    assert "targets look like" not in text
    assert "no label in training, so predictions mean nothing: target rare\n" in text


def test_what_cannot_be_measured_says_why_and_chooses_no_weights(tmp_path):
    pytest.importorskip("rdkit")
    table, packed, out = tmp_path / "y.csv", tmp_path / "y.gfast", tmp_path / "run"
    lines = [f"{smiles},{row % 2}" for row, smiles in enumerate(SMILES * 2)]
    table.write_text("\n".join(["smiles,y", *lines]))
    dataset = load_dataset(table, split="random", progress=False)
    for labels, why in ((1, "labels of only one class"), (torch.nan, "no labels")):
        dataset.graphs.y[dataset.split["valid"]] = labels
        dataset.graphs.y[dataset.split["test"]] = labels
        dataset.save(packed)
        few = ["--epochs", 3, "--device", "cpu", "-o", out, "--overwrite"]
        assert run("train", packed, *few).stdout.splitlines()[0] == (
            f"test roc_auc: not measurable, because the test split has {why} "
            f"(weights of epoch 3, the last, because the valid split has {why})"
        )


def test_a_test_metric_stands_beside_that_of_a_guess(tmp_path):
    few = ["--graphs", 60, "--device", "cpu", "--arm", "full", "-o", tmp_path, "--overwrite"]
    taught, untaught = (
        run("train", "gen-reg", *few, *settings).stdout.splitlines()
        for settings in (["--epochs", 30], ["--epochs", 1, "--lr", 1e-9])
    )
    result = json.loads((tmp_path / "result.json").read_text())
    guess = result["constant_metrics"]
    assert result["constant_metric"] == guess["mae"]
    assert taught[1] == (
        f"the same answer everywhere would have test mae {guess['mae']:.4g}, "
        f"rmse {guess['rmse']:.4g}, r2 {guess['r2']:.4g}"
    )
    assert untaught[1].startswith(f"{taught[1]}: this network is no better (try a lower --lr or ")
    longer = "the last epoch was the best by valid: more may do better, "
    added = f"{longer}added by --resume -o FOLDER --epochs N"
    assert (added in taught) == (" of epoch 30, " in taught[0])
    assert longer not in "".join(untaught)
    again = run("train", "--resume", "-o", tmp_path, "--epochs", 2)
    assert " of epoch 2, best by valid" in again.stdout, again.output
    taught = run("train", "gen-reg", *few, "--epochs", 1, "--arm", "random").stdout
    assert longer not in taught  # of one epoch


def test_targets_that_never_vary_are_named(tmp_path):
    pytest.importorskip("rdkit")
    table = tmp_path / "flat.csv"
    lines = [f"{smiles},{row / 7},3.5,0,{row % 2}" for row, smiles in enumerate(SMILES * 2)]
    table.write_text("\n".join(["smiles,y,flat,never,label", *lines]))
    few = ["--epochs", 1, "--device", "cpu", "-o", tmp_path / "run", "--overwrite"]
    tail = "in training, so there is nothing to learn: target"
    result = run("train", table, "--target", "y,flat", *few)
    assert f"one value {tail} flat\n" in result.stderr
    assert (
        f"one class {tail} never\n" in run("train", table, "--target", "never,label", *few).stderr
    )
    assert tail not in run("train", table, "--target", "y", *few).stderr
    result = run("train", table, "--target", "flat", "--metric", "r2", *few)
    assert "not measurable, because the test split has labels of only one value (" in result.stdout


def test_tiny_and_huge_values_keep_their_digits(tmp_path):
    pytest.importorskip("rdkit")
    table = tmp_path / "tiny.csv"
    lines = [f"{smiles},{row}e-30" for row, smiles in enumerate(SMILES * 2)]
    table.write_text("\n".join(["smiles,y", *lines]))
    said = run("train", table, *QUICK, "-o", tmp_path / "run").stdout
    assert re.search(r"test mae: \d\.\d+e-\d\d, rmse \d\.\d+e-\d\d, r2 ", said)


@pytest.mark.parametrize(
    ("targets", "columns", "kind"),
    [
        (["size"], ["size"], "regression"),
        (["toxic"], ["toxic"], "binary"),
        (["toxic,sticky"], ["toxic", "sticky"], "multilabel"),
        (["all"], ["size", "toxic", "sticky"], "regression"),
    ],
)
def test_train_and_predict_on_a_csv_row_by_row(molecules, tmp_path, targets, columns, kind):
    folder, out = tmp_path / "run", tmp_path / "out.csv"
    words = [word for name in targets for word in ("--target", name)]
    words += ["--split", "random", "--epochs", 2, "--device", "cpu", "-o", folder]
    trained = succeeds("train", molecules, *words)
    assert load_checkpoint(folder / "best.pt")["spec"]["task"]["kind"] == kind

    new = tmp_path / "new.csv"
    new.write_text("name,smiles\na,CCO\nb,nonsense\nc,c1ccccc1\n")
    result = succeeds("predict", folder, new, "-o", out)
    assert "1 unparsable SMILES left empty: row 3 'nonsense'" in result.stderr
    rows = rows_of(out)
    columns_predicted = [f"{name}_predicted" for name in columns]
    assert list(rows[0]) == ["name", "smiles", *columns_predicted]
    assert [row["name"] for row in rows] == ["a", "b", "c"]
    assert [row["smiles"] for row in rows] == ["CCO", "nonsense", "c1ccccc1"]
    assert all(rows[1][name] == "" for name in columns_predicted)
    values = [float(rows[row][name]) for row in (0, 2) for name in columns_predicted]
    assert kind == "regression" or all(0 <= value <= 1 for value in values)
    answers = load_predictor(folder, device="cpu")(PackedGraphs.from_smiles(["CCO", "c1ccccc1"]))
    assert answers.flatten().tolist() == np.float32(values).tolist()  # digits of a whole float32

    found = json.loads((folder / "result.json").read_text())
    each = found["test_metrics_each"]
    assert list(each) == (columns if len(columns) > 1 else [])
    known = [own for values in each.values() if (own := values[found["metric"]]) is not None]
    said = f"is the mean of {len(known)} of {len(each)} targets:\n"
    assert (said in trained.stdout) == (len(columns) > 1)
    if known:
        assert sum(known) / len(known) == pytest.approx(found["test_metric"])
    for name, values in each.items():
        line = ", ".join(f"{metric} {v:.4g}" for metric, v in values.items() if v is not None)
        assert (f"  {name}: {line}\n" in trained.stdout) == (values[found["metric"]] is not None)

    line = fails("predict", folder, new, "-o", tmp_path / "strict.csv", "--strict")
    assert "row 3: 'nonsense' is not a valid SMILES" in line
    assert not (tmp_path / "strict.csv").exists()


def test_all_targets_name_once_which_columns_of_words_they_leave_out(molecules, tmp_path):
    header, *rows = molecules.read_text().splitlines()
    words = [f"{header},id,who", *(f"{row},T{i},me" for i, row in enumerate(rows))]
    molecules.write_text("\n".join(words))
    result = succeeds("pack", molecules, "--target", "all", "-o", tmp_path / "m.gfast")
    assert "not a number" not in result.stderr
    said = "left out of the targets, as some cells are no numbers, or all are empty: 'id', 'who'"
    assert result.stderr.count(said) == 1
    assert load_dataset(tmp_path / "m.gfast").task.names == ("size", "toxic", "sticky")


def test_a_target_that_one_cell_leaves_out_is_said_with_that_cell(molecules, tmp_path):
    header, first, *rows = molecules.read_text().splitlines()
    other = [f"{header},other", f"{first},>5", *(f"{row},{i}" for i, row in enumerate(rows))]
    molecules.write_text("\n".join(other))
    result = succeeds("pack", molecules, "--target", "all", "-o", tmp_path / "m.gfast")
    assert "row 2, column 'other': '>5' is not a number; correct the cell" in result.stderr


def test_a_run_says_which_rows_it_tested_and_what_it_predicted_there(molecules, tmp_path):
    lines = molecules.read_text().splitlines()
    lines[3] = "nonsense,1,1,1"  # row 4 of the table
    molecules.write_text("\n".join(lines))
    folder, packed, out = tmp_path / "run", tmp_path / "m.gfast", tmp_path / "out.csv"
    words = ["--target", "toxic,sticky", "--split", "random"]
    few = ["--epochs", 2, "--device", "cpu", "-o", folder]
    succeeds("train", molecules, *words, *few)

    parts = {row["graph"]: row["part"] for row in rows_of(folder / "split.csv")}
    assert list(parts) == [str(row) for row in range(2, 32) if row != 4]
    tested = rows_of(folder / "test.csv")
    assert [row["graph"] for row in tested] == [g for g, part in parts.items() if part == "test"]
    assert rows_of(folder / "skipped.csv") == [{"row": "4", "text": "nonsense"}]
    succeeds("predict", folder, molecules, "-o", out)
    predicted = rows_of(out)
    for row in tested:
        source = predicted[int(row["graph"]) - 2]
        assert row["smiles"] == source["smiles"]
        for name in ("toxic", "sticky"):
            truth = [float(line[name] or "nan") for line in (row, source)]
            assert truth[0] == pytest.approx(truth[1], nan_ok=True)
            said = [float(line[f"{name}_predicted"]) for line in (row, source)]
            assert said[0] == pytest.approx(said[1], abs=1e-6)

    succeeds("pack", molecules, *words, "-o", packed)
    succeeds("predict", folder, packed, "-o", out)
    assert [row["graph"] for row in rows_of(out)] == list(parts)
    succeeds("train", packed, *few, "--overwrite")  # a file without SMILES
    assert "smiles" not in rows_of(folder / "test.csv")[0]
    assert not (folder / "skipped.csv").exists()


def rows_of(path):
    header, *lines = lines_of(path)
    return [dict(zip(header, line, strict=True)) for line in lines]


def test_predictions_stand_behind_the_columns_of_the_source(of_molecules, tmp_path):
    new, out = tmp_path / "new.csv", tmp_path / "out.csv"
    new.write_text('size, smiles,note\r\n 7, CCO,"a, b"\r\n\r\n?,nonsense,\r\n')
    succeeds("predict", of_molecules, new, "-o", out)
    header, known, unknown = lines_of(out)
    assert header == ["size", " smiles", "note", "size_predicted"]
    assert known[:3] == [" 7", " CCO", "a, b"] and float(known[3])
    assert unknown == ["?", "nonsense", "", ""]


def test_zipped_tables_are_read_and_written(molecules, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    zipped = tmp_path / "zipped.csv.gz"
    zipped.write_bytes(gzip.compress(molecules.read_bytes()))
    succeeds("train", zipped, *SIZE, "--arm", "full")
    for name, unpack in (("a.csv", bytes), ("a.tsv", bytes), ("a.tsv.gz", gzip.decompress)):
        succeeds("predict", "runs/zipped-full", zipped, "-o", name)
        lines = csv.reader(
            unpack((tmp_path / name).read_bytes()).decode().splitlines(),
            delimiter="\t" if ".tsv" in name else ",",
        )
        assert next(lines)[-1] == "size_predicted"
        assert len(list(lines)) == len(molecules.read_text().splitlines()) - 1


@pytest.mark.parametrize("how", ["weights", "overflow"])
def test_predictions_that_are_no_numbers_are_refused(of_molecules, molecules, tmp_path, how):
    state = load_checkpoint(of_molecules / "best.pt")
    name, value = ("convs.0.weight", torch.nan) if how == "weights" else ("convs.1.bias", 3e38)
    state["model"][name].fill_(value)
    save_checkpoint(of_molecules / "best.pt", state)
    line = fails("predict", of_molecules, molecules, "-o", tmp_path / "out.csv")
    cause = "its weights are not finite" if how == "weights" else "they overflow"
    assert f"predictions of the run are NaN or infinite, because {cause}: train it again" in line
    assert not (tmp_path / "out.csv").exists()


def test_the_command_that_goes_on_replaces_nothing(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["grant-fast", "compare", "a b.csv", "--overwrite"])
    assert runs.again() == "grant-fast compare 'a b.csv' --resume"


def test_a_run_that_has_nothing_to_go_on_from_says_that_it_begins_anew(tmp_path):
    words = ["train", *SMALL, "--epochs", 1, "-o", tmp_path / "run"]
    succeeds(*words)
    for name in ("last.pt", "result.json"):
        (tmp_path / "run" / name).unlink()
    again = succeeds("train", "--resume", "-o", tmp_path / "run")
    assert "run has no finished epoch to continue from: the run starts at epoch 1" in again.stderr
    assert "epoch 1" not in run("train", "--resume", "-o", tmp_path / "run").stderr


def test_molecules_in_test_and_in_training_are_counted(tmp_path):
    lines = [f"{'C' * (n % 15 + 1)}O,{n}" for n in range(30)]  # each molecule twice
    (tmp_path / "twice.csv").write_text("smiles,y\n" + "\n".join(lines))
    words = ["train", tmp_path / "twice.csv", "--epochs", 1, "--split", "random"]
    text = run(*words, "-o", tmp_path / "run").stderr
    found = re.search(r"(\d) of 3 test molecules look like one in training \(--split scaff", text)
    assert found is not None and int(found[1]) >= 1


def test_predict_takes_a_smi_file_as_train_does(of_molecules, tmp_path):
    new, out = tmp_path / "new.smi", tmp_path / "out.csv"
    new.write_text("CCO ethyl alcohol\nnonsense\nC\n")
    result = succeeds("predict", of_molecules, new, "-o", out)
    assert "1 unparsable SMILES left empty: row 2 'nonsense'" in result.stderr
    header, *rows = lines_of(out)
    assert header == ["smiles", "name", "size_predicted"]
    assert [row[:2] for row in rows] == [["CCO", "ethyl alcohol"], ["nonsense", ""], ["C", ""]]
    assert [bool(row[2]) for row in rows] == [True, False, True]


def test_pack_train_and_predict_on_a_packed_file(tmp_path):
    packed, folder, out = tmp_path / "d.gfast", tmp_path / "run", tmp_path / "out.csv"
    succeeds("pack", "gen-cls", "--graphs", 12, "-o", packed)
    succeeds("train", packed, "--epochs", 1, "--device", "cpu", "-o", folder)
    succeeds("predict", folder, packed, "-o", out)
    rows = rows_of(out)
    assert list(rows[0])[:4] == ["graph", "node", "class_predicted", "class_0"]
    for row in rows:
        _, _, likely, *shares = row.values()
        shares = list(map(float, shares))
        assert sum(shares) == pytest.approx(1, abs=1e-5)
        assert shares[int(likely)] == max(shares)


def test_orders_alone_bring_values_that_fit_them(molecules, tmp_path):
    for orders, rates in (("3,2", [0.27]), ("3", []), ("2,2,2", [0.27, 0.0])):
        out = tmp_path / orders
        succeeds("train", molecules, *SIZE, "--orders", orders, "--norm", "none", "-o", out)
        config = json.loads((out / "config.json").read_text())
        assert (config["hidden_channels"], config["dropout"]) == ([64], rates)
        assert config["norm"] == "none"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"arm": "grant-b", "start_ratio": 0.05, "epochs": 50},
            "grant-b: 2 of 21 batches at first, 19 of them at the end (",
        ),
        (
            {"arm": "random", "start_ratio": 0.1, "epochs": 5},
            "random: 1,001 of 10,001 graphs at first, 1,001 of them at the end (too few epochs for "
            "it to grow: give more, or --interval 1; ",
        ),
        ({"arm": "grant-s", "start_ratio": 1.0}, ""),
        ({"arm": "grant-b", "start_ratio": 0.05, "batch_size": 10_001}, ""),
        ({"arm": "full"}, ""),
        ({"arm": "infobatch"}, ""),
    ],
)
def test_a_run_on_a_share_of_the_graphs_says_so(settings, said):
    lines = messages.described_share(RunConfig(**settings), 10_001)
    remedy = "--arm full takes all, which is slower and often more accurate"
    assert lines == ([f"{said}{remedy})"] if said else [])
