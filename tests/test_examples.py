"""The examples run, small."""

import importlib.util
import json
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tangent_kernel_is_watched(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "kernel.svg"
    sizes = ["--graphs", "12", "--probe", "4", "--epochs", "3"]
    example("tangent_kernel").main([*sizes, "-o", str(picture)])
    assert "GraNT: loss" in capsys.readouterr().out
    assert picture.stat().st_size > 0


def test_a_forest_is_tested_beside_a_network(tmp_path, capsys):
    for package in ("rdkit", "ogb", "sklearn"):
        pytest.importorskip(package)
    table, chains = tmp_path / "chains.csv", ["C1" + "C" * n + "C1" for n in range(1, 41)]
    table.write_text("smiles,y\n" + "".join(f"{chain},{len(chain)}\n" for chain in chains))
    forest = example("forest")
    forest.main([str(table), "--seeds", "2", "-o", str(tmp_path / "forest.json")])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" ± ")[0].rpartition(" ")[0] for line in lines] == [
        f"forest of {name}: test mae" for name in forest.FEATURES
    ]
    seeds = json.loads((tmp_path / "forest.json").read_text())["seeds"]
    assert [len(found) for found in seeds.values()] == [2, 2]


def test_the_study_of_what_was_picked_trains_every_arm(tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    study = example("selection")
    small = study.Study("gen-cls", 2, num_graphs=30)
    monkeypatch.setattr(study, "STUDIES", {"gen-cls": small})
    results, picture = tmp_path / "results.json", tmp_path / "overlap.png"
    study.main(["--seeds", "1", "--results", str(results), "-o", str(picture)])
    arms = [run["arm"] for run in json.loads(results.read_text())["runs"]]
    assert arms == list(study.ARMS)
    shown = capsys.readouterr().out
    assert all(f"| {arm} |" in shown for arm in arms)
    assert picture.stat().st_size > 0
