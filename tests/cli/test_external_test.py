"""Predictions for molecules whose labels are known: how good they are."""

import json
import shutil

import pytest

from grant_fast import PackedGraphs
from tests.cli.runs import QUICK, SIZE, lines_of, run, succeeds


@pytest.fixture
def table(molecules):
    """The molecules with a fourth target, in words."""
    header, *rows = molecules.read_text().splitlines()
    kinds = ("low", "middle", "high")
    lines = [f"{header},kind", *(f"{row},{kinds[i // 2 % 3]}" for i, row in enumerate(rows))]
    molecules.write_text("\n".join(lines) + "\n")
    return molecules


@pytest.mark.parametrize("target", ["size", "toxic", "toxic,sticky", "size,toxic", "kind"])
def test_the_molecules_of_the_test_give_the_metrics_of_the_test(table, tmp_path, target):
    folder, new, out = tmp_path / "run", tmp_path / "new.csv", tmp_path / "out.csv"
    words = ["--target", target, "--split", "random", "--epochs", 3, "--device", "cpu"]
    succeeds("train", table, *words, "-o", folder)
    result = json.loads((folder / "result.json").read_text())
    lines = table.read_text().splitlines()
    tested = [lines[int(row[0]) - 1] for row in lines_of(folder / "test.csv")[1:]]
    new.write_text("\n".join([lines[0], "nonsense" + "," * 4, *tested]) + "\n")

    predicted = succeeds("predict", folder, new, "-o", out)
    metrics = {result["metric"]: None, **result["test_metrics"]}
    said = ", ".join(f"{k} {v:.4g}" for k, v in metrics.items() if v is not None)
    lines = predicted.stdout.splitlines()
    assert lines[0] == f"{said} (on {len(tested)} molecules of new.csv with a label)"
    each = result["test_metrics_each"].values()
    known = [values for values in each if values[result["metric"]] is not None]
    assert lines[-1] == f"predictions: {out}"
    if "," in target:
        assert lines[1].endswith(f"is the mean of {len(known)} of 2 targets:")
        assert len(lines) == 3 + len(known)
    elif target == "kind":
        assert lines[1] == "roc_auc and ap are means over the classes, each against the others"
    else:
        assert len(lines) == 2


def test_a_packed_file_of_the_same_task_is_compared_as_its_table(table, tmp_path):
    words = ["--target", "kind", "--split", "random"]
    quick, out = ["--epochs", 1, "--device", "cpu"], tmp_path / "out.csv"
    runs = [tmp_path / "first", tmp_path / "second"]
    for seed, folder in enumerate(runs):
        succeeds("train", table, *words, *quick, "--seed", seed, "-o", folder)
    packed, other = tmp_path / "kind.gfast", tmp_path / "size.gfast"
    succeeds("pack", table, *words, "-o", packed)
    succeeds("pack", table, "--target", "size", "--split", "random", "-o", other)
    of_table = run("predict", *runs, table, "-o", out).stdout
    assert "accuracy" in of_table and "30 molecules of molecules.csv with a label" in of_table
    of_packed = run("predict", *runs, packed, "-o", out).stdout
    assert of_packed == of_table.replace("molecules of molecules.csv", "graphs of kind.gfast")
    table.write_text(table.read_text().replace(",kind\n", ",species\n"))  # of the same classes
    same = ["--target", "species", "--split", "random", "-o", tmp_path / "species.gfast"]
    succeeds("pack", table, *same)
    for unlike in (other, tmp_path / "species.gfast"):
        result = run("predict", *runs, unlike, "-o", out)
        assert result.stdout == f"predictions: {out}\n"
        assert f"{unlike} was packed with other targets or classes than the run's" in result.stderr
    (graphs := PackedGraphs.load(packed)).meta.clear()
    graphs.save(bare := tmp_path / "bare.gfast")
    assert "does not say what its labels are" in run("predict", *runs, bare, "-o", out).stderr


def test_labels_that_are_none_stop_no_prediction(of_molecules, tmp_path):
    new, out = tmp_path / "new.csv", tmp_path / "out.csv"
    new.write_text("smiles,size\nC,3\nCC,tbd\n")
    result = run("predict", of_molecules, new, "-o", out)
    assert result.exit_code == 0 and result.stdout == f"predictions: {out}\n"
    assert f"not compared: {new} row 3, column 'size': 'tbd' is not a number; cor" in result.stderr
    assert all(row[-1] for row in lines_of(out))
    new.write_text("smiles,size\nC,\nCC,\n")
    result = run("predict", of_molecules, new, "-o", out)
    assert (result.stdout, "compared" in result.stderr) == (f"predictions: {out}\n", False)
    new.write_text("smiles,size\nC,3\nCC,\n")  # of one label there is no R²
    said = run("predict", of_molecules, new, "-o", out).stdout.splitlines()[0]
    assert said.startswith("mae ") and said.endswith(" (on 1 molecule of new.csv with a label)")
    assert "r2" not in said


def test_a_metric_that_cannot_be_measured_is_named(table, tmp_path):
    succeeds("train", table, "--target", "toxic", *QUICK, "-o", tmp_path / "run")
    (tmp_path / "new.csv").write_text("smiles,Toxic\nC,1\nCC,1\nnonsense,0\n")
    said = run("predict", tmp_path / "run", tmp_path / "new.csv", "-o", tmp_path / "out.csv").stdout
    assert said.startswith("roc_auc not measurable, accuracy ") and "(on 2 molecules of new" in said


def test_a_run_is_judged_by_the_metric_that_chose_its_weights(tmp_path):
    """Which its data set may have named, as those that are generated do."""
    packed, folder, out = tmp_path / "d.gfast", tmp_path / "run", tmp_path / "out.csv"
    succeeds("pack", "gen-cls", "--graphs", 30, "-o", packed)
    succeeds("train", packed, "--epochs", 1, "--device", "cpu", "-o", folder)
    said = run("predict", folder, packed, "-o", out).stdout
    assert said.startswith("roc_auc ") and " nodes of d.gfast with a label)" in said


def test_of_many_targets_only_the_mean_is_told(molecules, tmp_path):
    header, *rows = molecules.read_text().splitlines()
    more = [f"y{n}" for n in range(30)]
    lines = [f"{row},{','.join(str((i * n) % 7) for n in range(30))}" for i, row in enumerate(rows)]
    molecules.write_text("\n".join([",".join([header, *more]), *lines]))
    succeeds("train", molecules, "--target", ",".join(more), *QUICK, "-o", tmp_path / "run")
    said = run("predict", tmp_path / "run", molecules, "-o", tmp_path / "out.csv").stdout
    assert (
        said.splitlines()[1] == "this r2 is the mean of 25 of 30 targets"
    )  # every seventh is constant


def test_predictions_are_never_taken_for_labels(of_molecules, tmp_path):
    new, once, twice = (tmp_path / f"{name}.csv" for name in ("new", "once", "twice"))
    new.write_text("smiles\nC\nCC\n")
    succeeds("predict", of_molecules, new, "-o", once)
    result = run("predict", of_molecules, once, "-o", twice)
    assert result.stdout == f"predictions: {twice}\n"
    stays = "has size_predicted already, which stays: the new one is size_predicted_predicted"
    assert f"{once} {stays}\n" in result.stderr.replace("\n  ", " ")
    assert lines_of(twice)[0] == ["smiles", "size_predicted", "size_predicted_predicted"]


def test_what_makes_a_comparison_doubtful_is_said(molecules, of_molecules, tmp_path):
    out = tmp_path / "out.csv"
    own = run("predict", of_molecules, molecules, "-o", out).stderr
    assert "of 30 molecules with a label look like one in training" in own
    new = tmp_path / "new.csv"
    new.write_text("smiles,size\nC,1\nCC,2\nCCC,1\nCCCC,-999\n")
    assert "1 label of target size is -999" in run("predict", of_molecules, new, "-o", out).stderr
    assert "learned from" not in run("predict", of_molecules, new, "-o", out).stderr


def test_other_graphs_are_known_by_their_file(trained, tmp_path):
    numbers, out = tmp_path / "numbers.gfast", tmp_path / "out.csv"
    succeeds("pack", "gen-reg", "--graphs", 20, "-o", numbers)
    says = "is what the run learned from: the metrics are of training, too"
    assert says not in run("predict", trained, numbers, "-o", out).stderr
    quick = ["--epochs", 1, "--batch-size", 4, "--device", "cpu"]
    succeeds("train", numbers, *quick, "-o", tmp_path / "own")
    assert f"{numbers} {says}" in run("predict", tmp_path / "own", numbers, "-o", out).stderr


def test_molecules_that_the_run_learned_from_are_counted(molecules, of_molecules, tmp_path):
    split, new, out = of_molecules / "split.csv", tmp_path / "new.csv", tmp_path / "out.csv"
    header, *rows = lines_of(split)
    words = [of_molecules, new, "-o", out]
    smiles, known = [row[0] for row in lines_of(molecules)], "look like one in training"
    assert header == ["graph", "part", "fingerprint"]
    assert "CCO" in {smiles[int(graph) - 1] for graph, part, _ in rows if part == "train"}
    new.write_text("smiles,size\nOCC,3\nCCO,\nCCCCCCCC,8\n")
    said = run("predict", *words).stderr
    assert f"1 of 2 molecules with a label {known}" in said
    all_of_them, unseen, _ = run("predict", *words).stdout.splitlines()
    assert all_of_them.endswith("(on 2 molecules of new.csv with a label)")
    octane = float(lines_of(out)[3][-1])
    alone = f"mae {abs(8 - octane):.4g}, rmse {abs(8 - octane):.4g} "
    assert unseen == f"{alone}(on 1 molecule of new.csv unlike any in training)"
    new.write_text("smiles,size\nOCC,\nCCCCCCCC,8\n")
    result = run("predict", *words)
    assert known not in result.stderr and "unlike any" not in result.stdout
    new.write_text(molecules.read_text())
    assert f"of 30 molecules with a label {known}" in run("predict", *words).stderr
    (ethanol,) = {look for graph, _, look in rows if smiles[int(graph) - 1] == "CCO"}
    graph, _, tested = next(row for row in rows if row[2] != ethanol)
    second = shutil.copytree(of_molecules, tmp_path / "second")
    for folder, parts in ((of_molecules, ("train", "test")), (second, ("valid", "train"))):
        lines = [f"1,{parts[0]},{ethanol}", f"2,{parts[1]},{tested}"]
        (folder / "split.csv").write_text("\n".join([",".join(header), *lines]))
    new.write_text(f"smiles,size\nCCO,1\n{smiles[int(graph) - 1]},1\nCCCCCCCC,8\n")
    assert f"1 of 3 molecules with a label {known}" in run("predict", *words).stderr
    said = run("predict", of_molecules, second, new, "-o", out).stderr
    assert f"2 of 3 molecules with a label {known}" in said
    silent = f"{of_molecules} does not say which molecules it learned from"
    for column in ("", ",1.2E+15"):  # of an older run, or edited by a spreadsheet
        split.write_text(",".join(header) + "".join(f"\n{i},train{column}" for i in range(9)))
        result = run("predict", *words)
        assert result.exit_code == 0 and known not in result.stderr
        assert (silent in result.stderr) == (column == "")
        if column == "":  # others may be known to the run that does not say
            result = run("predict", of_molecules, second, new, "-o", out)
            assert known in result.stderr and "unlike any" not in result.stdout
    split.unlink()
    assert silent in run("predict", *words).stderr
    succeeds("train", "--resume", "-o", of_molecules)
    assert known in run("predict", *words).stderr


def test_a_column_that_cannot_be_read_leaves_the_others(molecules, tmp_path):
    succeeds("train", molecules, "--target", "size,toxic", *QUICK, "-o", tmp_path / "run")
    new, out = tmp_path / "new.csv", tmp_path / "out.csv"
    new.write_text("smiles,size,toxic\nC,1,?\nCC,2,?\nCCC,4,1\n")
    result = run("predict", tmp_path / "run", new, "-o", out)
    assert f"not compared: {new} row 2, column 'toxic': '?' is not a number" in result.stderr
    assert "is the mean of 1 of 2 targets:\n  size: r2 " in result.stdout
    assert "(on 3 molecules of new.csv with a label)" in result.stdout
    new.write_text("smiles,size,toxic\nC,1,0\nCC,?,1\nCCC,4,1\n")
    result = run("predict", tmp_path / "run", new, "-o", out)
    assert f"1 label is left out: {new} row 3, column 'size': '?' is not a nu" in result.stderr
    assert "is the mean of 2 of 2 targets:\n  size: r2 " in result.stdout


def test_metrics_on_next_to_nothing_say_so(table, tmp_path):
    folder, new, out = tmp_path / "run", tmp_path / "new.csv", tmp_path / "out.csv"
    succeeds("train", table, "--target", "toxic", *QUICK, "-o", folder)

    def said(rows):
        new.write_text("\n".join(["smiles,toxic", *rows]) + "\n")
        result = succeeds("predict", folder, new, "-o", out)
        return [line for line in result.stderr.splitlines() if "says little" in line]

    unlike = [f"{'C' * n}[Si]CCO" for n in range(1, 31)]
    assert said([f"{smiles},{i % 2}" for i, smiles in enumerate(unlike)]) == []
    few = f"{new} has only 2 graphs, so its roc_auc says little"
    assert said([f"{smiles},{i % 2}" for i, smiles in enumerate(unlike[:2])]) == [few]
    one = f"{new} has only 1 positive, so its roc_auc says little"
    assert said([f"{smiles},{int(i == 3)}" for i, smiles in enumerate(unlike)]) == [one]
    trained = [row for row in lines_of(folder / "split.csv")[1:] if row[1] == "train"]
    known = lines_of(table)[int(trained[0][0]) - 1][0]
    rows = [f"{smiles},0" for smiles in unlike] + [f"{unlike[4]},1"] + [f"{known},1"] * 12
    assert said(rows) == [f"what is unlike any in training{one.removeprefix(str(new))}"]


def test_what_a_run_learned_from_is_not_written_over(table, tmp_path):
    folder, new = tmp_path / "run", tmp_path / "new.csv"
    succeeds("train", table, *SIZE, "-o", folder)
    new.write_text("smiles\nCCO\n")
    before = table.read_bytes()
    result = run("predict", folder, new, "-o", table)
    assert result.exit_code == 1 and table.read_bytes() == before
    assert f"cannot write {table}: it is what a run learned from; give another" in result.stderr
