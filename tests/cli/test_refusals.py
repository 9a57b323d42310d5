"""What the command line refuses, in one line that names the culprit and the remedy."""

import subprocess
import sys
from pathlib import Path

import pytest

from grant_fast.cli.messages import report_skipped
from grant_fast.training.config import RunConfig
from grant_fast.training.records import read_run
from tests.cli.runs import ENVIRONMENT, SIZE, SMALL, SMILES, fails, run, succeeds

NONSENSE = [
    (["--epochs", "1.5"], "epochs=1.5 cannot be used: give a whole number of at least 1"),
    (["--lr", "fast"], "lr=fast cannot be used: give a number above 0"),
    (["--orders", ""], "orders= cannot be used: give one order for each layer"),
    (["--epochs", "-3"], "epochs=-3 cannot be used: give a whole number of at least 1"),
    (["--batch-size", "0"], "batch_size=0 cannot be used"),
    (["--start-ratio", "1.5"], "start_ratio=1.5 cannot be used: give above 0 and at most 1"),
    (["--ratio-schedule", "jumpy"], "ratio_schedule=jumpy cannot be used: give one of step"),
    (["--interval", "often"], "interval=often cannot be used"),
    (["--orders", "4,3,2", "--hidden-channels", "5,5,5"], "have 2 gaps"),
    (["--orders", "4,3", "--dropout", "0.1,0.1"], "2 layers (orders=4,3) have one gap: give one"),
    (["--orders", "3", "--hidden-channels", "16,16"], "single layer (orders=3) has no gap: leave"),
    (["--orders", "three"], "orders=three cannot be used"),
    (["--act", "sine"], "act=sine cannot be used: give one of relu, elu"),
    (["--device", "abacus"], "device=abacus cannot be used here"),
    (["--device", "meta"], "device=meta cannot be used here"),
    (["--task", "ranking"], "task=ranking cannot be used"),
    (["--metric", "f1"], "metric=f1 cannot be used: give one of auto, mae, rmse"),
    (["--metric", "ap"], "metric 'ap' does not fit a regression task: choose one of mae, rmse"),
]


@pytest.mark.parametrize(("words", "message"), NONSENSE, ids=lambda v: str(v)[:30])
def test_nonsense_settings_are_one_line_and_leave_nothing(tmp_path, words, message):
    assert message in fails("train", *SMALL, *words, "-o", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_this_machine_cannot_do_is_said_before_data_are_read(tmp_path):
    absent, file = tmp_path / "none.csv", tmp_path / "file"
    file.write_text("")
    assert "device=abacus cannot be used here" in fails("train", absent, "--device", "abacus")
    assert f"{file} is a file: give a folder" in fails("train", absent, "-o", file / "run")


def test_unknown_arms_and_no_seeds_are_refused(tmp_path):
    assert "arm=grant-x cannot be used" in fails("train", *SMALL, "--arm", "grant-x")
    assert "arm=grant-x cannot be used" in fails("compare", *SMALL, "--arm", "full, grant-x")
    for seeds in (0, 99_999_999_999):  # said before the data are read
        line = fails("compare", "gen-reg", "--seeds", seeds, "-o", tmp_path / "x")
        assert f"seeds={seeds} cannot be used" in line


def test_a_reproduction_refuses_nonsense_before_data_are_read(tmp_path):
    out = ["-o", tmp_path / "out"]
    assert "seeds=0 cannot be used" in fails("reproduce", "gen-reg", "--seeds", 0, *out)
    assert "pass_size=0 cannot be used" in fails("reproduce", "gen-reg", "--pass-size", 0, *out)
    table = tmp_path / "two.csv"
    table.write_text("text,a,b\nC,1,0\n")
    words = ["reproduce", "ogbg-molhiv", "--data", table, *out]
    assert "choose one with --smiles-column" in fails(*words)
    assert "choose with --target" in fails(*words, "--smiles-column", "text")
    assert "1 graph cannot be split" in fails(*words, "--smiles-column", "text", "--target", "a")
    rings = ["C1" + "C" * n + "C1" for n in range(1, 31)]
    table.write_text("smiles,y\n" + "".join(f"{ring},{n}.5\n" for n, ring in enumerate(rings)))
    assert (
        "two.csv is a regression task, which has no such metric: give other --data or --target"
    ) in fails(*words)


def test_a_name_that_is_no_text_is_refused():
    assert "rename the file" in fails("train", "l\udcf6s.csv")


def test_unknown_data_sets_and_missing_sources_are_refused(tmp_path):
    assert "unknown data set 'gen-rag': give gen-reg" in fails("train", "gen-rag")
    assert "nothing to train on" in fails("train")
    line = fails("train", "gen-reg", "--start-ratio", 0.3, "-o", tmp_path / "none")
    assert "start_ratio=0.3 cannot be used: arm=full takes all graphs" in line
    assert "nothing to compare: give a SOURCE, or --resume with" in fails("compare")
    line = fails("compare", "--resume", "-o", tmp_path / "none")
    assert "none holds no comparison to continue: give a SOURCE" in line
    for words, out in ((["pack"], "out.gfast"), (["predict", tmp_path], "out.csv")):
        line = fails(*words, "http://x.y/z.csv", "-o", tmp_path / out)
        assert "http://x.y/z.csv is an address, not a file: download it" in line


def test_a_bad_table_is_one_line(tmp_path):
    table = tmp_path / "bad.csv"
    table.write_text("smiles,y\nC,1\nCC,heavy\nO,1\n")
    line = fails("train", table, "--target", "y", "-o", tmp_path / "run")
    assert "row 3, column 'y': 'heavy' is not a number" in line
    assert not (tmp_path / "run").exists()


def test_unparsable_smiles_are_counted_or_fatal(molecules, tmp_path):
    with open(molecules, "a") as file:
        file.write("C(,1,1,1\n")
    result = succeeds("train", molecules, *SIZE, "-o", tmp_path / "run")
    assert "1 unparsable SMILES skipped: row 32 'C('" in result.stderr
    with open(molecules, "a") as file:
        file.write("C),1,1,1\n")
    line = fails("train", molecules, *SIZE, "--strict")
    assert "row 32: 'C(' is not a valid SMILES (2 such in the file)" in line


def test_a_molecule_that_is_not_there_is_said_to_be_none(molecules, tmp_path):
    with open(molecules, "a") as file:
        file.write(" ,1,1,1\nC(,1,1,1\n")
    result = run("pack", molecules, "--target", "size", "-o", tmp_path / "x.gfast")
    assert "2 unparsable SMILES skipped: row 32 (empty), row 33 'C('\n" in result.stderr


def test_a_structure_without_a_title_may_have_atoms(capsys):
    report_skipped([(3, ""), (4, "water")], "x.sdf", "skipped")
    assert "structures skipped: row 3, row 4 'water'\n" in capsys.readouterr().err


def test_truncated_and_foreign_packed_files_are_named(tmp_path):
    packed = tmp_path / "d.gfast"
    succeeds("pack", "gen-reg", "--graphs", 5, "-o", packed)
    content = packed.read_bytes()
    packed.write_bytes(content[: len(content) // 2])
    assert "d.gfast" in fails("train", packed, "-o", tmp_path / "run")
    packed.write_text("no graphs here")
    assert "d.gfast" in fails("train", packed, "-o", tmp_path / "run")


def test_checkpoints_that_do_not_fit_are_named(trained, tmp_path):
    out = tmp_path / "out.csv"
    config = trained / "config.json"
    text = config.read_text()
    config.write_text(text.replace('"orders": [\n    3,', '"orders": [\n    4,'))
    line = fails("predict", trained, "x.gfast", "-o", out)
    assert (
        "best.pt belongs to another run than the config.json beside it, with orders=(3, 2), not ("
        in line
    )
    config.write_text(text.replace('"seed": 0', '"seed": 1'))  # the weights would fit
    line = fails("predict", trained, "x.gfast", "-o", out)
    assert "with seed=0, not 1: put the run's own files back, or train again" in line
    config.write_text(text.replace('"lr"', '"rate"'))
    assert "config.json: unknown key rate" in fails("predict", trained, "x.gfast", "-o", out)
    config.write_text(text)
    result = trained / "result.json"
    told = result.read_text()
    result.write_text(told.replace('"checksum": ', '"checksum": 1'))  # as of a run on other data
    line = fails("predict", trained, "x.gfast", "-o", out)
    assert "best.pt belongs to another run than the result.json beside it, with other data" in line
    result.write_text(told)
    best = trained / "best.pt"
    best.write_bytes(best.read_bytes()[:500])
    assert "best.pt: truncated" in fails("predict", trained, "x.gfast", "-o", out)
    assert "is not a run folder" in fails("predict", tmp_path, "x.gfast", "-o", out)
    assert not out.exists()


def test_a_link_to_itself_is_no_folder_and_no_file(trained, tmp_path):
    loop = tmp_path / "loop.csv"
    loop.symlink_to(loop)
    assert "loop.csv is not a run folder" in fails(
        "predict", loop, "x.gfast", "-o", tmp_path / "y.csv"
    )
    assert "there is no packed file" in fails("predict", trained, "x.gfast", "-o", loop)


def test_predictions_never_replace_a_file_of_the_run(trained, tmp_path):
    (tmp_path / "link.csv").symlink_to(trained / "last.pt")
    before = {path: path.read_bytes() for path in trained.iterdir()}
    for out in (*before, tmp_path / "link.csv"):
        assert "it is the run's own" in fails("predict", trained, "x.gfast", "-o", out)
    assert {path: path.read_bytes() for path in trained.iterdir()} == before


@pytest.mark.parametrize("name", ["out.xlsx", "out", "-", "out.gz"])
def test_predictions_get_a_name_by_which_others_read_them(trained, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    line = fails("predict", trained, "x.gfast", "-o", name)
    assert f"as {name}: give a name that ends in .csv or .tsv (or has .gz after that)" in line
    assert not (tmp_path / name).exists()


def test_a_column_without_any_molecule_is_named(of_molecules, tmp_path):
    new, out = tmp_path / "new.csv", tmp_path / "out.csv"
    new.write_text("id,smiles\n" + "".join(f"no. {i},C\n" for i in range(4)))
    for more in ([], ["--strict"]):
        line = fails("predict", of_molecules, new, "--smiles-column", "id", *more, "-o", out)
        assert "new.csv column 'id' holds no valid SMILES ('no. 0', 'no. 1', 'no. 2', …)" in line
        assert "name another one with --smiles-column" in line
    lines = tmp_path / "new.smi"
    lines.write_text("smiles\n")
    line = fails("predict", of_molecules, lines, "-o", out)
    assert "new.smi holds no valid SMILES ('smiles'): begin each line with one" in line
    line = fails("predict", of_molecules, lines, "--smiles-column", "id", "-o", out)
    assert "new.smi has no columns: leave out --smiles-column" in line
    assert not out.exists()


def test_a_packed_file_has_no_smiles_to_name_or_to_be_strict_with(trained, tmp_path):
    packed = tmp_path / "d.gfast"
    succeeds("pack", "gen-reg", "--graphs", 5, "-o", packed)
    for words in (["--strict"], ["--smiles-column", "smiles"]):
        line = fails("predict", trained, packed, *words, "-o", tmp_path / "out.csv")
        assert "d.gfast holds no SMILES: leave out --smiles-column and --strict" in line


def test_nothing_is_written_over_its_own_source(trained, molecules, tmp_path):
    packed, link = tmp_path / "d.gfast", tmp_path / "link.gfast"
    succeeds("pack", "gen-reg", "--graphs", 5, "-o", packed)
    link.symlink_to(packed)
    before = {path: path.read_bytes() for path in (packed, molecules)}
    for out in (packed, link, trained / ".." / "d.gfast"):
        assert "it is the source itself; give another" in fails("pack", packed, "-o", out)
        assert "it is the source itself" in fails("predict", trained, packed, "-o", out)
    # said before the run is read
    line = fails("predict", tmp_path / "no-run", molecules, "-o", molecules)
    assert f"cannot write {molecules}: it is the source itself" in line
    assert {path: path.read_bytes() for path in before} == before


def test_a_run_on_other_graphs_refuses_molecules(trained, molecules, tmp_path):
    line = fails("predict", trained, molecules, "-o", tmp_path / "out.csv")
    assert "not trained on molecules" in line


def test_nothing_is_written_over_unasked(trained):
    words = ["train", *SMALL, "--epochs", 1]
    before = (trained / "result.json").read_bytes()
    assert "is not empty: resume or overwrite what is there with --resume or --overwrite" in fails(
        *words, "-o", trained
    )
    assert "exclude each other" in fails(*words, "-o", trained, "--resume", "--overwrite")
    assert (trained / "result.json").read_bytes() == before
    succeeds(*words, "-o", trained, "--overwrite")
    assert read_run(trained).result.epochs == 1
    assert "is a file" in fails(*words, "-o", trained / "result.json")


@pytest.mark.parametrize("flag", ["--resume", "--overwrite"])
def test_a_run_and_a_comparison_share_no_folder(trained, tmp_path, flag):
    words, many = [*SMALL, "--epochs", 1, flag], tmp_path / "many"
    before = {path: path.read_bytes() for path in trained.iterdir()}
    line = fails("compare", *words, "-o", trained)
    assert "holds a run, not a comparison: give another folder with -o" in line
    assert {path: path.read_bytes() for path in trained.iterdir()} == before
    (many / "full" / "seed-0").mkdir(parents=True)
    (many / "full" / "seed-0" / "config.json").write_text("{}")
    assert "holds a comparison, not a run" in fails("train", *words, "-o", many)
    line = fails("predict", many / "ful", "new.csv", "-o", tmp_path / "out.csv")
    assert f"many has {Path('full') / 'seed-0'}" in line


def test_what_is_not_a_runs_is_not_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("test.csv", "results.json", "config.json", "thesis.txt"):
        Path(name).write_text("mine")
    words = [*SMALL, "--epochs", 1, "-o", ".", "--overwrite"]
    line = fails("train", *words)
    assert ". is no folder of a run, and its test.csv, config.json would be lost: give ano" in line
    assert "and its results.json would be lost" in fails("compare", *words, "--seeds", 1)
    assert all(path.read_text() == "mine" for path in tmp_path.iterdir())
    for name in ("test.csv", "config.json"):
        Path(name).unlink()
    succeeds("train", *words)
    assert Path("thesis.txt").read_text() == Path("results.json").read_text() == "mine"


def test_a_run_is_not_replaced_by_one_that_learns_from_its_files(of_molecules):
    table = of_molecules / "test.csv"
    before = table.read_bytes()
    line = fails("train", table, "--epochs", 1, "-o", of_molecules, "--overwrite")
    assert "test.csv, the source of the data, would be lost: give another folder with -o" in line
    assert table.read_bytes() == before


def test_a_table_that_only_has_such_a_name_is_learned_from(molecules, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = Path("data/test.csv")
    table.parent.mkdir()
    table.write_bytes(molecules.read_bytes())
    for more in ("--overwrite", "--resume"):
        succeeds("train", table, *SIZE, "-o", "data/..", more)
    assert table.read_bytes() == molecules.read_bytes()


def test_among_other_files_there_is_nothing_to_continue(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    line = fails("train", *SMALL, "--resume", "-o", tmp_path)
    assert "holds other files, and not a run to continue: give another folder" in line
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An own current folder, with a table and the folder of a run begun."""
    monkeypatch.chdir(tmp_path)
    Path("molecules.csv").write_text("smiles,y\nC,1\nCC,2\n")
    Path("hiv-run").mkdir()
    Path("hiv-run/config.json").write_text(RunConfig().to_json())
    return tmp_path


MISSING_FILES = [
    ("molecule.csv", "there is no file molecule.csv: did you mean molecules.csv?"),
    ("hiv.csv", "there is no file hiv.csv: the current folder has molecules.csv; check the path"),
    (
        "data/hiv.csv",
        "there is no file data/hiv.csv: the folder data does not exist; check the path",
    ),
    ("a.smi", "there is no file a.smi: the current folder has no *.smi at all; check the path"),
    ("a.gfast", "there is no packed file a.gfast, such as `grant-fast pack` makes: the current"),
    ("molecules", "; did you mean molecules.csv?"),
    ("molhiv", "; did you mean ogbg-molhiv?"),
    ("qm9", "; did you mean QM9?"),
    ("hiv-run", "; this is a folder, give a file in it"),
    ("", "; it is empty"),
    pytest.param(
        "/dev/stdin",
        "; its name does not tell what it holds: save that as a *.csv, say",
        marks=pytest.mark.skipif(not Path("/dev/stdin").exists(), reason="no such device here"),
    ),
    ("molecules.csv.gz", "there is no file molecules.csv.gz: the current folder has no *.gz"),
    ("molecules.csv.bz2", "; it is compressed: unpack it"),
]


@pytest.mark.parametrize(("source", "message"), MISSING_FILES, ids=lambda v: v[:20])
def test_a_source_that_is_not_there_is_named_with_a_likely_one(here, source, message):
    assert message in fails("train", source)
    assert message in fails("pack", source, "-o", "out.gfast")
    assert not Path("runs").exists() and not Path("out.gfast").exists()


def test_a_folder_has_no_columns(here):
    assert "hiv-run is a folder: give a file in it" in fails("train", "hiv-run", "--target", "y")


OTHER_KINDS = [
    ("notes.txt", "the kind of a file is told by its extension: rename it"),
    ("molecules", "the kind of a file is told by its extension: rename it"),
    ("a.xlsx", "save the sheet as CSV (UTF-8)"),
    ("old.XLS", "save the sheet as CSV (UTF-8)"),
    ("a.mol2", "convert it to an SDF or to a CSV with a column of SMILES, with RDKit or Open"),
    *((f"a.{kind}", "write it as a CSV") for kind in ("json", "parquet", "feather", "pkl")),
    ("a.csv.zip", "it is compressed: unpack it"),
]


@pytest.mark.parametrize(("source", "remedy"), OTHER_KINDS, ids=lambda v: v[:20])
def test_a_file_of_another_kind_is_refused_alike_by_all_commands(here, source, remedy):
    Path(source).write_text("smiles,y\nC,1\n")
    message = f"{source} is not a *.csv, *.tsv, *.sdf, *.smi or *.gfast: {remedy}"
    for words in ([], ["--target", "y"], ["--split", "scaffold"]):
        assert message in fails("train", source, *words)
    assert message in fails("pack", source, "-o", "out.gfast")
    assert message in fails("predict", "hiv-run", source, "-o", "out.csv")


NO_RUNS = [
    ("hiv_run", "there is no such folder; did you mean hiv-run?"),
    ("zinc", "there is no such folder; the current folder has hiv-run"),
    ("a/b", "the folder a does not exist; check the path"),
    ("hiv-run/config.json", "it is a file; give its folder, hiv-run"),
    ("all", "it has no config.json; give a run in it, as all/full/seed-0"),
    ("empty", "it has no config.json; give one of grant-fast train"),
]


@pytest.mark.parametrize(("folder", "message"), NO_RUNS)
def test_a_run_that_is_not_there_is_named_with_a_likely_one(here, folder, message):
    Path("empty").mkdir()
    Path("all/full/seed-0").mkdir(parents=True)
    Path("all/full/seed-0/config.json").write_text(RunConfig().to_json())
    expected = f"{folder} is not a run folder: {message}"
    assert expected in fails("predict", folder, "molecules.csv", "-o", "out.csv")
    assert expected in fails("train", "--resume", "-o", folder)


def test_new_graphs_that_cannot_be_read_are_named(trained, monkeypatch):
    monkeypatch.chdir(trained.parent)
    line = fails("predict", "run", "gen-reg", "-o", "out.csv")
    assert "there is no file gen-reg" in line and "grant-fast pack gen-reg -o gen-reg.gfast" in line
    assert "no table is read from standard input" in fails("predict", "run", "-", "-o", "out.csv")
    assert "there is no packed file b.gfast" in fails("predict", "run", "b.gfast", "-o", "out.csv")
    line = fails("predict", "run", "gen-reg", "-o", "nowhere/out.csv")
    assert "nowhere does not exist: make it first, or give another one" in line
    line = fails("predict", "molecules.csv", "run", "-o", "out.csv")
    assert "run is a folder: give run folders first, the new graphs last" in line


def test_a_column_of_words_asks_for_numbers(here):
    rows = "".join(f"{smiles},{'>1' if i % 2 else '2 nM'}\n" for i, smiles in enumerate(SMILES))
    Path("words.csv").write_text("smiles,IC50\n" + rows)
    line = fails("train", "words.csv")
    assert "column 'IC50' holds words that begin like numbers ('2 nM', '>1'): write plain" in line


def test_recipes_that_are_not_there_are_named(here):
    assert "did you mean ogbg-molhiv?" in fails("reproduce", "molhiv")
    assert "there is no file mine.json: the current" in fails("reproduce", "mine.json")


def test_a_missing_extra_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    line = fails("train", *SMALL, "--epochs", 1, "--tensorboard", "-o", tmp_path / "run")
    assert 'pip install "grant_fast[tensorboard]"' in line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--colour", "red"], "No such option: --colour"),
        (["tran"], "No such command"),
        (["predict", "run", "-o", "x.csv"], "Missing argument 'runs'. Usage: "),
    ],
)
def test_usage_errors_are_one_line(words, message):
    program = [sys.executable, "-m", "grant_fast", *words]
    said = subprocess.run(program, env=ENVIRONMENT, capture_output=True, text=True)
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr.startswith(f"error: {message}") and said.stderr.count("\n") == 1


def test_what_load_dataset_refuses_is_said_in_a_commands_words(tmp_path):
    words = ["--epochs", 1, "-o", tmp_path / "run"]
    line = fails("train", "gen-reg", "--graphs", 1, *words)
    assert "--graphs=1: give a whole number of at least 3" in line
    line = fails("train", "gen-reg", "--split", "scaffold", *words)
    assert "--split scaffold needs SMILES" in line and "or use --split random" in line
