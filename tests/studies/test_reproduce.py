"""A benchmark of the paper, shortened: its table, its files, and what it says about itself."""

import io
import json
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from grant_fast.data.load import load_dataset
from grant_fast.studies.paper_table import cells, known_differences, terminal_table
from grant_fast.studies.recipe import load_recipe
from grant_fast.studies.reproduce import ARMS, BASELINES, _row, reproduce
from grant_fast.training.console import ConsoleObserver
from grant_fast.training.observers import Observers
from grant_fast.training.records import read_run
from tests.cli.runs import fails, run, succeeds
from tests.rings import make_dataset
from tests.studies.runs import make_run

SHORT = ["--graphs", 30, "--epochs", 2, "--device", "cpu"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder and the output of gen-cls, much shortened, with two seeds."""
    out = tmp_path_factory.mktemp("gen-cls") / "out"
    result = succeeds("reproduce", "gen-cls", *SHORT, "--seeds", 2, "-o", out)
    return out, result.stdout


def test_the_table_has_the_papers_rows_and_ours_and_says_what_differs(finished):
    out, shown = finished
    table = (out / "results.md").read_text()
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    rows = [line for line in lines if len(line) == 8][2:]
    assert [tuple(row[:2]) for row in rows] == [
        ("✗", "paper"),
        ("✗", "here"),
        ("random", "here"),
        ("B", "paper"),
        ("B", "here"),
        ("S", "paper"),
        ("S", "here"),
    ]
    assert rows[3][2:6] == ["6,145.72 (-47.3%)", "–", "0.1314", "0.9157 ± 0.0013"]
    assert [rows[k][3] for k in (1, 2, 6)] == ["36", "2", "2"]  # of 18 graphs in two epochs
    for text in (table, shown):
        assert "2 epochs instead of 500" in text
        assert "18 / 6 / 6 graphs instead of 30,000 / 10,000 / 10,000" in text
        assert "at random" in text and "transpose, which matters here" in text
    assert table.startswith("# gen-cls, 18 / 6 / 6 graphs to train")
    assert "true ROC-AUC" in table and (out / "curves.png").exists()


def test_the_true_metric_is_that_of_the_runs_and_times_include_validation(finished):
    document = json.loads((finished[0] / "results.json").read_text())
    assert [row["arm"] for row in document["rows"]] == list(ARMS)
    for row in document["rows"]:
        runs = [read_run(finished[0] / row["arm"] / f"seed-{seed}").result for seed in (0, 1)]
        mean = sum(run.test_metric_last for run in runs) / 2
        assert row["true_metric"]["mean"] == pytest.approx(mean)
        # Six test graphs are one batch of 200: there the two conventions agree.
        assert row["published_metric"] == row["true_metric"]
        seconds = sum(run.train_seconds + run.valid_seconds for run in runs) / 2
        assert row["seconds"]["mean"] == pytest.approx(seconds)
        full = document["rows"][0]["seconds"]["mean"]
        saving = None if row["arm"] == "full" else pytest.approx(1 - seconds / full)
        assert row["saving"] == saving
    assert document["config"]["epochs"] == 2 and document["published"]["full"]["loss"] == 0.1314


def test_it_resumes_and_is_never_written_over_unasked(finished):
    out, shown = finished
    words = ["reproduce", "gen-cls", *SHORT, "--seeds", 2, "-o", out]
    assert "is not empty" in run(*words).stderr
    (out / "random" / "seed-1" / "result.json").unlink()
    result = succeeds(*words, "--resume")
    assert [line for line in result.stdout.splitlines() if " here " in line] != []
    assert "2 epochs instead of 500" in shown


def test_baselines_that_have_begun_are_gone_on_with(tmp_path):
    words = ["reproduce", "gen-reg", "--graphs", 20, "--epochs", 1, "--device", "cpu"]
    words += ["-o", tmp_path / "out"]
    rows = []
    for more in (["--baselines", "--seeds", 1], ["--resume", "--seeds", 2]):
        succeeds(*words, *more)
        found = json.loads((tmp_path / "out" / "results.json").read_text())["rows"]
        rows.append([(row["arm"], row["seconds"]["seeds"]) for row in found])
    assert rows == [[(name, seeds) for name in (*ARMS, *BASELINES)] for seeds in (1, 2)]


def test_what_else_is_in_a_baselines_folder_is_looked_at_before_anything_is_run(tmp_path):
    words = ["reproduce", "gen-reg", "--graphs", 20, "--epochs", 1, "--device", "cpu", "--seeds", 1]
    words += ["-o", tmp_path]
    for more in (["--baselines"], ["--overwrite"], ["--resume"], ["--resume", "--baselines"]):
        succeeds(*words, *more)
        (tmp_path / "gcn" / "notes.txt").write_text("mine")  # keeps the folder, and is in no way
    assert (tmp_path / "gcn" / "full" / "seed-0" / "result.json").exists()
    (tmp_path / "infobatch" / "infobatch" / "seed-0" / "config.json").unlink()
    (tmp_path / "infobatch" / "results.json").write_text("mine")
    first = tmp_path / "full" / "seed-0" / "result.json"
    before = first.stat().st_mtime_ns
    line = fails(*words, "--overwrite", "--baselines")
    assert "infobatch is no folder of a comparison, and its results.json would be lost" in line
    assert first.stat().st_mtime_ns == before


def test_starting_anew_forgets_the_baselines_too(tmp_path, config):
    job = (load_recipe("QM9"), make_dataset())
    reproduce(*job, config(epochs=1, metric="mae"), tmp_path, baselines=True, seeds=1)
    (tmp_path / "gcn" / "results.json").write_text("mine")
    reproduce(*job, config(epochs=2, metric="mae"), tmp_path, seeds=1, overwrite=True)
    assert {path.name for path in tmp_path.iterdir()} == {*ARMS, "gcn"}
    assert [path.name for path in (tmp_path / "gcn").iterdir()] == ["results.json"]


def test_the_folders_seeds_are_gone_on_with(tmp_path):
    words = ["reproduce", "gen-reg", "--graphs", 20, "--epochs", 1, "--device", "cpu"]
    for more in (["--seeds", 1], ["--resume"]):
        succeeds(*words, "-o", tmp_path, *more)
    assert [path.name for path in (tmp_path / "random").iterdir()] == ["seed-0"]


def test_a_title_is_text_whatever_it_holds():
    console = Console(file=io.StringIO(), width=100)
    console.print(terminal_table([["a", "b"]], "mol[new], 3 / 4"))
    assert "mol[new]" in console.file.getvalue()


def test_an_error_is_published_small_and_is_truly_large(tmp_path, config):
    """QM9's convention: the sum of the batches' MAEs over the number of graphs."""
    recipe, dataset = load_recipe("QM9"), make_dataset()
    chosen = config(epochs=1, metric="mae", batch_size=2, standardize=False)
    _, rows = reproduce(recipe, dataset, chosen, tmp_path, seeds=1)
    assert [row.arm for row in rows] == list(ARMS)
    for row in rows:
        ratio = row.true_metric.mean / row.published_metric.mean
        assert ratio == pytest.approx(2, rel=1e-5)  # eight test graphs in batches of two


def test_the_true_metric_is_of_the_last_weights_and_beside_it_of_the_best(tmp_path, config):
    chosen = config(epochs=8, metric="mae", lr=0.5)
    runs, rows = reproduce(load_recipe("QM9"), make_dataset(), chosen, tmp_path, seeds=1)
    results = {run.result.arm: run.result for run in runs}
    assert any(r.test_metric != r.test_metric_last for r in results.values())
    for row in rows:
        assert row.true_metric.mean == pytest.approx(results[row.arm].test_metric_last)
        assert row.best_true_metric.mean == results[row.arm].test_metric


def test_the_cheap_baselines_run_on_the_same_data_and_stand_below(tmp_path, config):
    recipe, dataset = load_recipe("ogbg-molhiv"), make_dataset("binary")
    chosen = config(epochs=2, metric="roc_auc", norm="batch_norm", head=3)
    console = Console(file=io.StringIO(), width=100)
    with ConsoleObserver(console, 7) as observer:
        runs, rows = reproduce(
            recipe, dataset, chosen, tmp_path, baselines=True, seeds=1, observer=observer
        )
    shown = console.file.getvalue()
    assert "1/7 full, seed 0: test" in shown and "5/7 GCN, full, seed 0: test" in shown
    assert "6/7 GCN + virtual node, full, seed 0: test" in shown
    assert [row.arm for row in rows] == [*ARMS, *BASELINES]
    assert {run.result.arm for run in runs} == set(ARMS)
    table = [line[:4] for line in cells(recipe, chosen, rows)]
    seen = {run.result.arm: f"{run.result.graphs_seen:,}" for run in runs}
    assert [line[3] for line in table if line[0] in ("✗", "B") and line[1] == "here"] == [
        seen["full"], seen["grant-b"]
    ]  # fmt: skip
    table = [line[:2] for line in table]
    assert table.index(["GCN + virtual node", "here"]) > table.index(["S", "here"])
    assert ["GCN + virtual node", "cited, not run"] in table
    begun = (tmp_path / "gcn" / "full" / "seed-0" / "result.json").stat().st_mtime_ns
    (tmp_path / "random" / "seed-0" / "result.json").unlink()
    again = dict(baselines=True, seeds=1, resume=True)
    with ConsoleObserver(console, 7) as shown, ConsoleObserver(console, 7) as other:
        reproduce(recipe, dataset, chosen, tmp_path, **again, observer=Observers([shown, other]))
    said = console.file.getvalue().splitlines()[-2:]
    assert [line[:20] for line in said] == ["2/7 random, seed 0: "] * 2  # the others were kept
    assert (tmp_path / "gcn" / "full" / "seed-0" / "result.json").stat().st_mtime_ns == begun


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("gen-reg", "gen-reg"),
        ("gen-cls", "gen-cls"),
        ("QM9", "twin:QM9"),
        ("ogbg-molpcba", "twin:ogbg-molpcba"),
    ],
)
def test_every_arm_and_baseline_runs_its_epochs_and_begins_within_reach(tmp_path, name, source):
    """Node level and graph level, one output and many, with and without norms."""
    recipe = load_recipe(name)
    dataset = load_dataset(source, num_graphs=40, progress=False)
    chosen = replace(recipe.config, source=source, epochs=8, device="cpu", batch_size=8)
    _, rows = reproduce(recipe, dataset, chosen, tmp_path, baselines=True, seeds=1)
    folders = [tmp_path / arm / arm for arm in ("infobatch",)]
    folders += [tmp_path / name / "full" for name in ("gcn", "gcn-virtual-node")]
    folders += [tmp_path / arm for arm in ARMS]
    results = [read_run(folder / "seed-0").result for folder in folders]
    assert {result.epochs for result in results} == {8}
    size = 8 * len(dataset.split["train"])
    seen = {result.arm: result.graphs_seen for result in results}
    assert seen["full"] == size and seen["random"] < 0.7 * size
    assert 0.6 * size < seen["infobatch"] < size  # about a quarter skipped, none in the last eighth
    assert max(row.loss.mean for row in rows) < 100 * rows[0].loss.mean


def test_every_deviation_from_the_recipe_is_said():
    recipe, dataset = load_recipe("ogbg-molhiv"), make_dataset("binary")
    cpu = torch.device("cpu")
    said = known_differences(recipe, dataset, replace(recipe.config, source="a/b.csv"), 1, cpu)
    assert said[0] == "24 / 8 / 8 graphs instead of 32,901 / 4,113 / 4,113."
    assert said[1] == "The data come from b.csv, not from ogbg-molhiv."
    assert said[2].startswith("One seed")
    assert said[-len(recipe.differences) :] == list(recipe.differences)
    own = replace(recipe.config, source="ogbg-molhiv", epochs=7)
    assert known_differences(recipe, dataset, own, 3, cpu)[0].startswith("7 epochs instead of 600")
    own = replace(recipe.config, pass_size=1000)
    together = "Batch norm normalises up to 1,000 graphs together instead of batches of 500."
    assert known_differences(recipe, dataset, own, 3, cpu)[0] == together


def test_other_methods_stand_as_cited_and_not_run():
    recipe = load_recipe("ogbg-molhiv")
    table = cells(recipe, recipe.config, [])
    assert ["GMoE-GIN", "cited, not run", "3,932.06", *"––", "0.7468", *"––"] in table


def test_the_published_unit_is_that_of_the_published_data_alone():
    recipe = load_recipe("QM9")
    for source, heading in (("QM9", "true MAE (D) ↓"), ("mine.csv", "true MAE ↓")):
        config = replace(recipe.config, source=source)
        assert cells(recipe, config, [])[0][6] == heading


def test_data_of_ones_own_take_the_place_of_the_recipes(tmp_path):
    packed = tmp_path / "rings.gfast"
    make_dataset("binary").save(packed)
    out = tmp_path / "out"
    words = ["--data", packed, "--epochs", 1, "--seeds", 1, "--device", "cpu", "-o", out]
    result = succeeds("reproduce", "ogbg-molhiv", *words)
    assert "The data come from rings.gfast" in result.stdout
    assert (out / "results.md").read_text().startswith("# ogbg-molhiv: rings")
    wrong = run("reproduce", "QM9", *words, "--overwrite")
    assert wrong.exit_code == 1
    assert "QM9 is judged by mae" in wrong.stderr and "is a binary task" in wrong.stderr


def test_unknown_recipes_and_numbers_out_of_range_are_one_line(tmp_path):
    for words, message in (
        (["QM8"], "unknown recipe 'QM8'"),
        (["gen-reg", "--epochs", 0], "epochs=0 cannot be used"),
        (["gen-reg", "--graphs", 0], "graphs=0 cannot be used"),
    ):
        result = run("reproduce", *words, "-o", tmp_path / "none")
        assert result.exit_code == 1
        assert message in result.stderr and len(result.stderr.strip().splitlines()) == 1
        assert not (tmp_path / "none").exists()


def test_a_shape_twin_is_called_one_wherever_it_is_shown(tmp_path):
    out = tmp_path / "out"
    words = ["--data", "twin:ogbg-molpcba", "--graphs", 40, "--epochs", 1, "--seeds", 1]
    result = succeeds("reproduce", "ogbg-molpcba", *words, "--device", "cpu", "-o", out)
    for text in (result.stdout, (out / "results.md").read_text()):
        assert "shape twin of ogbg-molpcba (noise, for timing alone)" in " ".join(text.split())
        assert "SHAPE TWIN: noise in the shape of ogbg-molpcba" in text
    document = json.loads((out / "results.json").read_text())
    assert "shape twin" in document["title"] and "SHAPE TWIN" in document["differences"][2]


def test_molecules_in_the_place_of_zincs_features_are_said():
    recipe, dataset = load_recipe("ZINC"), make_dataset()
    dataset.encoder = "atom"
    said = known_differences(recipe, dataset, recipe.config, 3, torch.device("cpu"))
    assert any("OGB's nine columns" in line for line in said)
    chosen = replace(recipe.config, source="a/b.smi")
    said = known_differences(recipe, dataset, chosen, 3, torch.device("cpu"))
    assert any("logP is not normalised" in line for line in said)


def test_time_saved_and_metrics_are_in_their_cells():
    half = make_run("random", 0, 0.5, seconds=4.6)  # and 0.4 of validation
    row = _row("random", [half], [(0.1, 0.2, 0.3)], 10.0)
    assert row.saving == pytest.approx(0.5)
    recipe = load_recipe("QM9")
    line = cells(recipe, recipe.config, [row])[1]
    assert "(-50.0%)" in line[2] and line[6:8] == ["0.3000", "0.5000"]
