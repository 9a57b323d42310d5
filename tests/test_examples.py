"""The examples run, shortened, and say what their pages quote."""

import json
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_the_tangent_kernel_example_draws_its_picture(tmp_path, capsys):
    program = runpy.run_path(str(ROOT / "examples" / "tangent_kernel.py"))
    out = tmp_path / "kernel.svg"
    program["main"](["-o", str(out), "--graphs", "30", "--probe", "5", "--epochs", "20"])
    said = capsys.readouterr().out
    for mode in ("full", "random", "GraNT"):
        assert f"{mode}: loss " in said
    assert "half the first-order fall at 20" in said
    assert out.read_text().startswith("<?xml")


def test_the_page_quotes_what_the_example_prints():
    page = (ROOT / "docs" / "tangent-kernel.md").read_text()
    assert "python examples/tangent_kernel.py -o docs/tangent-kernel.svg" in page
    assert "half the first-order fall at 40" in page


@pytest.fixture
def selection():
    return runpy.run_path(str(ROOT / "examples" / "selection.py"))


def test_the_selection_example_runs_every_arm_and_keeps_what_it_ran(selection, tmp_path, capsys):
    pytest.importorskip("rdkit")
    # 25 rings, each a scaffold, with one of two tails
    rows = [f"C1{'C' * (1 + i // 2)}C1{'ON'[i % 2]},{i % 3 % 2}" for i in range(50)]
    (tmp_path / "esol.csv").write_text("smiles,active\n" + "\n".join(rows) + "\n")
    study, results = selection["Study"], tmp_path / "results.json"
    selection["STUDIES"].clear()
    selection["STUDIES"] |= {
        "tiny": study("esol.csv", 3, noisy=True),
        "graphons": study("gen-cls", 2, num_graphs=20),
    }
    arguments = ["--data", str(tmp_path), "--results", str(results)]
    selection["main"]([*arguments, "--sets", "tiny", "--seeds", "1"])
    first = json.loads(results.read_text())["runs"]
    selection["main"]([*arguments, "--seeds", "2", "-o", str(tmp_path / "picture.png")])
    runs = json.loads(results.read_text())["runs"]
    assert runs[: len(first)] == first  # nothing finished is run again
    arms = set(selection["ARMS"])
    assert {(run["set"], run["arm"], run["seed"]) for run in runs} == {
        (name, arm, seed) for name in ("tiny", "graphons") for arm in arms for seed in (0, 1)
    }
    for run in runs:
        shares = [probe["share"] for probe in run["probes"]]
        assert run["visits"] == round(sum(shares) * run["train_graphs"])
        assert all(0 <= probe["overlap"] <= 1 for probe in run["probes"])
        assert all(share == 1 for share in shares) or run["arm"] != "full"
    early = {
        run["arm"]: run["probes"][0] for run in runs if run["set"] == "tiny" and run["seed"] == 0
    }
    assert early["grant-global"]["overlap"] == 1  # right after the teacher's turn
    assert {"positive", "noisy"} <= early["random"].keys()
    said = capsys.readouterr().out
    assert "**tiny** (2 seeds, 40 training graphs)" in said and "noisy among them" in said
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_the_selection_page_holds_the_tables_of_its_results(selection):
    page = (ROOT / "docs" / "selection.md").read_text(encoding="utf-8")
    runs = json.loads(selection["RESULTS"].read_text())["runs"]
    tables = selection["tables"](runs)
    prose, found = page.split("## Tables\n\n")
    assert found.strip() == tables.strip()
    said = re.findall(r"\d\.\d{3}|\d+\.\d%", prose.split("## What it says")[1])
    assert len(said) > 9
    assert [number for number in said if number not in tables] == []
    assert f"{len({run['seed'] for run in runs})} seeds" in tables
