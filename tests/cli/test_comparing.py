"""`grant-fast compare`: what it writes, and how it is taken up again."""

import json
import re
import shlex

import pytest

from grant_fast.cli.messages import described_stay
from grant_fast.training.config import RunConfig
from grant_fast.training.predict import load_predictor
from tests.cli.runs import SIZE, SMALL, fails, run, succeeds


def test_compare_writes_table_numbers_and_picture(tmp_path):
    out = tmp_path / "all"
    words = ["compare", *SMALL, "--epochs", 3, "--seeds", 2, "-o", out]
    result = succeeds(*words)
    assert f"picture: {out / 'curves.png'}" in result.stdout
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    table = json.loads((out / "results.json").read_text())
    arms = ["full", "full-equal-budget", "random", "grant-b", "grant-s", "grant-global"]
    assert [arm["arm"] for arm in table["arms"]] == arms
    assert all(arm in result.stdout for arm in arms)
    stays = "The share of graphs stays at 0.05 in all 3 epochs, too few for it to grow: "
    assert stays in " ".join(result.stderr.split()) and stays in " ".join(result.stdout.split())
    assert table["verdict"][-1].startswith(stays)
    assert f"- {stays}" in (out / "results.md").read_text()
    seen = {arm["arm"]: arm["graphs_seen"]["mean"] for arm in table["arms"]}
    assert seen["full-equal-budget"] == seen["random"] == seen["grant-s"] == seen["grant-global"]
    assert (out / "results.md").read_text().count("\n| ") >= len(arms)
    begun = (out / "grant-s" / "seed-1" / "result.json").stat().st_mtime_ns
    (out / "random" / "seed-0" / "result.json").unlink()
    succeeds(*words, "--resume")
    assert (out / "grant-s" / "seed-1" / "result.json").stat().st_mtime_ns == begun
    assert (out / "random" / "seed-0" / "result.json").exists()
    line = fails(*words, "--resume", "--lr", 0.5)
    assert "the run was made with lr=0.005, not 0.5" in line
    fewer = run(*words, "--resume", "--arm", "grant-b")
    assert "not name them: full, grant-s, grant-global." in fewer.stdout
    fewer = run(*words, "--resume", "--seeds", 1)
    assert "Not shown, as these seeds were not asked for: 1." in fewer.stdout


@pytest.mark.parametrize(
    "settings",
    [{"epochs": 500}, {"interval": 1}, {"ratio_schedule": "constant"}, {"start_ratio": 1.0}],
)
def test_a_share_that_grows_or_is_meant_to_stay_is_not_remarked_on(settings):
    config = RunConfig(**{"epochs": 4, **settings})
    assert described_stay(config, ["grant-b"]) == []
    assert described_stay(RunConfig(epochs=4), ["full", "full-equal-budget"]) == []
    assert described_stay(RunConfig(epochs=4), ["full", "random"])


def test_compare_says_which_arms_it_runs():
    words = " ".join(re.sub("[│╭╮╰╯─]", " ", run("compare", "--help").stdout).split())
    assert "else full, grant-b, grant-s, grant-global; the controls, random" in words
    assert "and full-equal-budget, always run. Extra: grant-proportional, infobatch." in words


def test_a_comparison_is_taken_up_by_its_folder_alone(tmp_path):
    out, few = tmp_path / "x", ["--arm", "grant-b", "--seeds", 2]
    words = [*SMALL, "--epochs", 1, "--lr", 0.5, "--seed", 3, *few, "-o", out]
    succeeds("compare", *words)
    (out / "random" / "seed-4" / "result.json").unlink()
    result = succeeds("compare", "--resume", "-o", out)
    assert "Not shown" not in result.stdout
    assert (out / "random" / "seed-4" / "result.json").exists()
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == sorted(
        ["grant-b", "random", "full-equal-budget"]
    )
    result = run("compare", "--resume", "--arm", "full", "--seeds", 1, "-o", out)
    assert "Not shown, as --arm does not name them: grant-b." in result.stdout
    assert "Not shown, as these seeds were not asked for: 4." in result.stdout
    line = fails("compare", "--resume", *few, "-o", out, "--lr", 0.1)
    assert "the run was made with lr=0.5, not 0.1" in line


def comparison_in(out):
    """The command that a comparison's page and numbers name, as words, and its settings."""
    found = json.loads((out / "results.json").read_text())
    assert f"\n\n    {found['command']}\n\n" in (out / "results.md").read_text()
    return shlex.split(found["command"]), found["config"]


def test_what_was_taken_up_names_a_command_that_makes_it_anew(molecules, tmp_path, monkeypatch):
    out, moved = tmp_path / "x y", tmp_path / "moved.csv"
    settings = ["--target", "size", "--target", "toxic", "--split", "random", "--epochs", 1]
    settings += ["--orders", "3,2", "--dropout", 0.1, "--no-normalize", "--start-ratio", 0.5]
    settings += ["--interval", 1, "--seed", 4, "--lr", 2e-5, "--device", "cpu"]
    few = ["--arm", "random,grant-b", "--seeds", 1]
    succeeds("compare", molecules, *settings, *few, "-o", out)
    molecules.rename(moved)
    succeeds("compare", moved, "--resume", "-o", out, "--seeds", 2)
    (name, *words), config = comparison_in(out)
    assert name == "grant-fast" and words[:2] == ["compare", str(moved)]
    assert words[-6:] == ["--arm", "grant-b", "--seeds", "2", "-o", str(out)]
    monkeypatch.setattr("sys.argv", [name, *words[:-1], str(tmp_path / "anew")])
    succeeds(*words[:-1], tmp_path / "anew")
    again, same = comparison_in(tmp_path / "anew")
    assert same == config and again == [name, *words[:-1], str(tmp_path / "anew")]
    runs = [{p.relative_to(f) for p in f.glob("*/seed-*")} for f in (out, tmp_path / "anew")]
    assert runs[0] == runs[1] and len(runs[0]) == 6


@pytest.mark.parametrize(
    ("arms", "named"),
    [
        ([], []),
        (["--arm", "infobatch"], ["--arm", "infobatch"]),
        (["--arm", "random"], ["--arm", "random,full-equal-budget"]),
    ],
)
def test_a_comparison_that_was_taken_up_names_its_arms(tmp_path, arms, named):
    words = ["compare", *SMALL, "--epochs", 1, "--seeds", 1, *arms, "-o", tmp_path]
    succeeds(*words)
    succeeds("compare", "--resume", "-o", tmp_path)
    (_, *found), _ = comparison_in(tmp_path)
    device, size = ["--device", "cpu"], ["--batch-size", "4"]
    settings = ["--graphs", "20", "--epochs", "1", *size, *device]
    assert found == ["compare", "gen-reg", *settings, *named, "--seeds", "1", "-o", str(tmp_path)]


def test_a_comparison_is_taken_up_with_data_that_have_moved(molecules, tmp_path):
    out, moved = tmp_path / "x", tmp_path / "moved.csv"
    few = ["--arm", "grant-s", "--seeds", 1]
    succeeds("compare", molecules, *SIZE, "--lr", 0.5, *few, "-o", out)
    molecules.rename(moved)
    line = fails("compare", "--resume", "-o", out)
    assert f"{molecules} is the source in {out}: if the data have moved, give a SOURCE" in line
    line = fails("compare", "--resume")
    assert "nothing to compare: give a SOURCE, or --resume with -o FOLDER" in line
    line = fails("compare", tmp_path / "none.csv", "--resume", "-o", out)
    assert "is the source in" not in line
    line = fails("compare", moved, "--resume", "-o", out, "--lr", 0.25)
    assert "the run was made with lr=0.5, not 0.25" in line
    result = succeeds("compare", moved, "--resume", "-o", out, "--seeds", 2)
    said = "".join(result.stderr.split())
    assert f"continues{out}:full-equal-budget,random,grant-s;2seedseach" in said
    for seed in (0, 1):
        text = (out / "random" / f"seed-{seed}" / "config.json").read_text()
        assert json.loads(text)["source"] == str(moved)
    assert load_predictor(out / "grant-s" / "seed-0").dataset().sizes == (24, 3, 3)


def test_seeds_are_counted_from_the_first(tmp_path):
    out = tmp_path / "x"
    words = ["compare", *SMALL, "--epochs", 1, "--arm", "full", "-o", out]
    for seed in (7, 9):
        succeeds(*words, "--seed", seed, "--seeds", 1, "--resume")
    assert "asked for: 9." in run("compare", "--resume", "-o", out).stdout
    assert not (out / "full" / "seed-8").exists()
    assert "asked for: 7, 9." in run(*words, "--seed", 3, "--seeds", 1, "--resume").stdout
