"""Files of molecules, from the command line: SDFs, and targets in words."""

import statistics
from dataclasses import replace

import pytest
import torch

from grant_fast import PackedGraphs, load_dataset, train
from tests.cli.runs import QUICK, SIZE, SMILES, fails, lines_of, run, succeeds


@pytest.fixture
def of_words(tmp_path):
    """A CSV of 30 molecules, their classes in words, two of them not measured."""
    pytest.importorskip("rdkit")
    kinds = [*["active", "in between", "inactive"] * 9, "inactive", "", ""]
    path = tmp_path / "words.csv"
    rows = [f"{smiles},{kind}" for smiles, kind in zip(SMILES * 3, kinds, strict=True)]
    path.write_text("smiles,effect\n" + "\n".join(rows) + "\n")
    return path


def test_elements_that_were_not_learned_are_named(of_molecules, tmp_path):
    new, packed, out = tmp_path / "new.csv", tmp_path / "new.gfast", tmp_path / "out.csv"
    new.write_text("smiles,size\nCCO,1\nnonsense,1\nC[Se]C,1\nCO,1\n" + "CC,1\n" * 3)
    told = "1 molecule has an element that no molecule in training had (Se in {} 4), so"
    result = run("predict", of_molecules, new, "-o", out)
    assert told.format("row") in result.stderr and lines_of(out)[3][-1]
    succeeds("pack", new, "--split", "random", "-o", packed)
    assert told.format("graph") in run("predict", of_molecules, packed, "-o", out).stderr
    new.write_text("smiles\nCCO\n")
    assert "element" not in run("predict", of_molecules, new, "-o", out).stderr


def test_classes_in_words_are_learned_and_predicted_by_name(of_words, tmp_path):
    folder, out = tmp_path / "run", tmp_path / "out.csv"
    result = succeeds("train", of_words, *QUICK, "-o", folder)
    assert "skipped 2 rows without any label" in result.stderr
    assert "target effect, multiclass, 3 classes (active: " in result.stderr
    assert "roc_auc and ap are means over the classes, each against the others" in result.stdout
    header, *rows = lines_of(folder / "test.csv")
    classes = ["active", "in between", "inactive"]
    assert header == ["graph", "smiles", "effect", "effect_predicted", *classes]
    source = dict(enumerate(lines_of(of_words)[1:], 2))
    assert [row[1:3] for row in rows] == [source[int(row[0])] for row in rows]

    succeeds("predict", folder, of_words, "-o", out)
    header, *rows = lines_of(out)
    assert header == ["smiles", "effect", "effect_predicted", *classes]
    for row in rows:
        shares = dict(zip(map(float, row[3:]), classes, strict=True))
        assert sum(shares) == pytest.approx(1, abs=1e-5) and row[2] == shares[max(shares)]

    succeeds("train", of_words, *QUICK, "--seed", 1, "-o", tmp_path / "other")
    succeeds("predict", folder, tmp_path / "other", of_words, "-o", out)
    header, *rows = lines_of(out)
    assert header[2:] == ["effect_predicted", *classes, *(f"{name}_std" for name in classes)]
    for row in rows:
        shares = dict(zip(map(float, row[3:6]), classes, strict=True))
        assert row[2] == shares[max(shares)]


def test_classes_keep_their_names_where_they_are_packed_and_compared(of_words, tmp_path):
    packed, folder = tmp_path / "words.gfast", tmp_path / "runs"
    succeeds("pack", of_words, "-o", packed)
    words = ["compare", packed, "--arm", "full", "--seeds", 1, *QUICK, "-o", folder]
    result = succeeds(*words)
    assert "multiclass, 3 classes (active: " in result.stderr
    out = tmp_path / "out.csv"
    succeeds("predict", folder / "full" / "seed-0", packed, "-o", out)
    assert lines_of(out)[0] == ["graph", "effect_predicted", "active", "in between", "inactive"]
    succeeds("train", packed, "--epochs", 1, "--device", "cpu", "-o", tmp_path / "run")
    assert lines_of(tmp_path / "run" / "test.csv")[0][1:4] == [
        "effect",
        "effect_predicted",
        "active",
    ]


def test_a_missing_class_among_named_ones_is_an_empty_cell(of_words, tmp_path):
    # A packed file may hold graphs without a label, which a table's reading leaves out.
    data = load_dataset(of_words, split="random", progress=False)
    missing = int(data.split["test"][0])
    data.graphs.y[missing] = -100
    data.save(packed := tmp_path / "words.gfast")
    succeeds("train", packed, "--epochs", 1, "--device", "cpu", "-o", tmp_path / "run")
    _, first, *rest = lines_of(tmp_path / "run" / "test.csv")
    assert first[:2] == [str(int(data.graphs.ids[missing])), ""]
    assert all(row[1] for row in rest)


def test_classes_may_be_any_whole_numbers(molecules, tmp_path):
    rows = molecules.read_text().splitlines()[1:]
    lines = [f"{row.split(',')[0]},{(-1, 2, 3, 3)[i % 4]}" for i, row in enumerate(rows)]
    molecules.write_text("smiles,grade\n" + "\n".join(lines))
    result = succeeds("train", molecules, "--task", "multiclass", *QUICK, "-o", tmp_path / "run")
    assert "target grade, multiclass, 3 classes (-1: " in result.stderr
    header, *rows = lines_of(tmp_path / "run" / "test.csv")
    assert header == ["graph", "smiles", "grade", "grade_predicted", "-1", "2", "3"]
    assert {row[3] for row in rows} <= {"-1", "2", "3"}
    assert [row[1:3] for row in rows] == [lines[int(row[0]) - 2].split(",") for row in rows]


def test_graphs_that_were_numbered_anew_get_no_other_graphs_smiles(molecules, tmp_path):
    data = load_dataset(molecules, target="size", split="random", progress=False)
    assert data.smiles[4] == SMILES[2]
    parts = zip(data.split, torch.arange(30).split([24, 3, 3]), strict=True)
    data = replace(data, split=dict(parts))  # 0 and 1, which are no rows, are in train
    for name, graphs in (
        ("same", data.graphs),
        ("anew", PackedGraphs.concat([data.graphs[:]] * 2)),
    ):
        some = replace(data, graphs=graphs.subset(torch.arange(len(data.graphs))))
        train(some, tmp_path / name, epochs=1, device="cpu")
        assert ("smiles" in lines_of(tmp_path / name / "test.csv")[0]) == (name == "same")


def test_all_targets_are_no_words(of_words):
    line = fails("train", of_words, "--target", "all")
    assert "no column of numbers beside 'smiles': choose one of 'effect' as --target" in line


def test_words_are_no_task_but_classes(of_words):
    line = fails("train", of_words, "--task", "regression")
    assert "classes with names ('active', 'in between', 'inactive') are a multiclass task" in line


@pytest.fixture
def sdf(molecules, tmp_path):
    """The table of molecules as an SDF, and behind them one that cannot be read."""
    chem = pytest.importorskip("rdkit.Chem")
    path = tmp_path / "molecules.sdf"
    with chem.SDWriter(str(path)) as writer:
        names, *rows = lines_of(molecules)
        for smiles, *values in rows:
            molecule = chem.MolFromSmiles(smiles)
            molecule.SetProp("_Name", f"of {smiles}")
            for name, value in zip(names[1:], values, strict=True):
                molecule.SetProp(name, value)
            writer.write(molecule)
    with open(path, "a") as file:
        file.write("broken\n\n\nno structure\n> <size> (31)\n4\n\n$$$$\n")
    return path


def test_an_sdf_is_learned_as_the_table_of_its_molecules(molecules, sdf, tmp_path):
    table = run("train", molecules, *SIZE, "-o", tmp_path / "of-table")
    result = succeeds("train", sdf, *SIZE, "-o", tmp_path / "of-sdf")
    assert "1 unparsable structure skipped: row 31 'broken'" in result.stderr
    assert result.stdout.splitlines()[0] == table.stdout.splitlines()[0]
    assert lines_of(tmp_path / "of-sdf" / "skipped.csv") == [["row", "text"], ["31", "broken"]]
    both = (lines_of(tmp_path / folder / "test.csv") for folder in ("of-sdf", "of-table"))
    assert [row[1] for row in next(both)] == [row[1] for row in next(both)]  # of SMILES
    line = fails("train", sdf, *SIZE, "--strict", "-o", tmp_path / "strict")
    assert "molecules.sdf row 31: 'broken' is not a valid structure (1 such in the file)" in line
    line = fails("train", sdf, *SIZE, "--smiles-column", "smiles", "-o", tmp_path / "none")
    assert "leave out --smiles-column" in line


def test_an_sdf_is_predicted_with_its_fields_whatever_the_run_learned_from(
    molecules, sdf, tmp_path
):
    text = molecules.read_text().replace("smiles,", "SMILES (canonical),", 1)
    molecules.write_text(text)
    words = ["--smiles-column", "SMILES (canonical)", *SIZE]
    succeeds("train", molecules, *words, "-o", tmp_path / "run")
    result = succeeds("predict", tmp_path / "run", sdf, "-o", tmp_path / "out.csv")
    assert "1 unparsable structure left empty: row 31 'broken'" in result.stderr
    header, *rows = lines_of(tmp_path / "out.csv")
    assert header == ["smiles", "name", "size", "toxic", "sticky", "size_predicted"]
    assert rows[2][:2] == ["CCO", "of CCO"] and rows[-1] == ["", "broken", "4", "", "", ""]
    run("predict", tmp_path / "run", molecules, "-o", tmp_path / "of-table.csv")
    answers = [float(row[-1]) for row in lines_of(tmp_path / "of-table.csv")[1:]]
    assert [float(row[-1]) for row in rows[:-1]] == pytest.approx(answers, rel=1e-4)


@pytest.mark.parametrize(
    ("lowest", "advised"), [(0.1, True), (0.6, True), (0.7, False), (0, False), (-1, False)]
)
def test_logarithms_are_advised_where_there_are_some(molecules, tmp_path, lowest, advised):
    rows = [f"{smiles},{lowest + row % 7}" for row, smiles in enumerate(SMILES * 3)]
    molecules.write_text("smiles,size\n" + "\n".join(rows) + "\n")
    result = run("train", molecules, *SIZE, "--lr", 1e-9, "-o", tmp_path / "run")
    assert "this network is no better" in result.stdout
    assert ("the logarithms of the targets" in result.stdout) == advised


def test_nothing_is_advised_where_there_is_nothing_to_learn(molecules, tmp_path):
    rows = [f"{smiles},3" for smiles in SMILES * 3]
    molecules.write_text("smiles,size\n" + "\n".join(rows) + "\n")
    result = run("train", molecules, *SIZE, "-o", tmp_path / "run")
    assert "so there is nothing to learn" in result.stderr and "(try a lower" not in result.stdout


@pytest.mark.parametrize(
    ("words", "said"), [("train TEST", True), ("train test x", False), ("train val", False)]
)
def test_a_column_of_parts_that_nobody_named_is_pointed_to(molecules, tmp_path, words, said):
    parts = [*["Train"] * len(SMILES), *words.split()]
    rows = [
        f"{s},{i / 7},{part}" for i, (s, part) in enumerate(zip(SMILES * 2, parts, strict=False))
    ]
    molecules.write_text("smiles,size,my set\n" + "\n".join(rows) + "\n")
    words = ["train", molecules, *SIZE, "--epochs", 1, "--overwrite", "-o", tmp_path / "run"]
    line = "column 'my set' says train and test, and is not used: --split-column 'my set' would"
    assert (line in run(*words).stderr) == said
    if said:
        assert "says train" not in run(*words, "--split-column", "my set").stderr


def test_an_sdf_without_a_structure_is_refused(of_molecules, tmp_path):
    (bad := tmp_path / "bad.sdf").write_text("smiles,y\nCCO,1\n")
    line = fails("predict", of_molecules, bad, "-o", tmp_path / "out.csv")
    assert "bad.sdf holds no valid structure ('smiles,y'): give an SDF RDKit can read" in line


def test_several_runs_predict_their_mean_and_how_far_they_disagree(molecules, tmp_path):
    runs = [tmp_path / f"run-{seed}" for seed in range(3)]
    for seed, folder in enumerate(runs):
        succeeds("train", molecules, *SIZE, "--seed", seed, "-o", folder)
    new, out = tmp_path / "new.smi", tmp_path / "out.csv"
    new.write_text("CCO\nnonsense\nc1ccccc1\n")
    single = []
    for folder in runs:
        succeeds("predict", folder, new, "-o", out)
        single.append([float(row[1]) for row in lines_of(out)[1:] if row[1]])
    succeeds("predict", *runs, new, "-o", out)
    header, *rows = lines_of(out)
    assert header == ["smiles", "size_predicted", "size_std"] and rows[1] == ["nonsense", "", ""]
    for column, of in ((1, statistics.mean), (2, statistics.stdev)):
        expected = [of(values) for values in zip(*single, strict=True)]
        assert [float(row[column]) for row in (rows[0], rows[2])] == pytest.approx(
            expected, rel=1e-4
        )
    assert "is given twice" in fails("predict", runs[0], f"{runs[0]}/", new, "-o", out)


def test_runs_of_other_targets_have_no_mean(of_words, tmp_path):
    both = [line.split(",") for line in of_words.read_text().splitlines()]
    text = "\n".join(f"{smiles},{a},{a}" for smiles, a in both).replace("effect,effect", "one,two")
    of_words.write_text(text + "\n")
    for target in ("one", "two"):
        words = ["--target", target, *QUICK, "-o", tmp_path / target]
        succeeds("train", of_words, *words)
    line = fails(
        "predict", tmp_path / "one", tmp_path / "two", of_words, "-o", tmp_path / "out.csv"
    )
    assert "two was trained on other targets than" in line
