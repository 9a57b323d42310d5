"""What is said of a data set that may not be as its user thinks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from grant_fast.data.load import load_dataset
from grant_fast.training.config import RunConfig
from grant_fast.training.doubts import doubts

CHAINS = ["C" * n + "O" for n in range(1, 31)]


def said(folder: Path, rows: list[tuple[str, object]], target: str = "y") -> list[str]:
    """The doubts about a table of molecules and labels."""
    pytest.importorskip("rdkit")
    pytest.importorskip("ogb")
    table = folder / "table.csv"
    table.write_text(f"smiles,{target}\n" + "\n".join(f"{s},{y}" for s, y in rows))
    dataset = load_dataset(table, split="random", progress=False)
    return doubts(dataset, RunConfig(source=str(table)))


def spread(values: list[object]) -> list[tuple[str, object]]:
    """Chains with labels 0, 0.1, 0.2, …, the first of which are replaced."""
    return list(zip(CHAINS, values + [n / 10 for n in range(len(values), 30)], strict=True))


def test_an_ordinary_table_raises_none(tmp_path: Path) -> None:
    assert said(tmp_path, spread([])) == []


@pytest.mark.parametrize("mark", ["-999", "-9999.0", "99999"])
def test_labels_that_may_mean_not_measured(tmp_path: Path, mark: str) -> None:
    assert said(tmp_path, spread([mark, mark])) == [
        f"2 labels of target y are {float(mark):g}, far from all others: empty these cells if that "
        'means "not measured"'
    ]


@pytest.mark.parametrize("label", ["-999.5", "-1000", "", "3.5"])
def test_other_labels_that_stand_out_are_the_users_own(tmp_path: Path, label: str) -> None:
    assert said(tmp_path, spread([label])) == []


def test_nines_among_others_are_labels(tmp_path: Path) -> None:
    rows = [(smiles, 90 + n / 2) for n, smiles in enumerate(CHAINS)]
    assert said(tmp_path, rows) == []


def test_molecules_whose_labels_contradict(tmp_path: Path) -> None:
    rows = [*spread([]), ("OCC", 2.9), ("OCCC", 0.3)]  # CCO is in row 3 with 0.1, CCCO with 0.2
    lines = [line for line in said(tmp_path, rows) if "in training" not in line]
    assert lines == [
        "1 molecule looks like one whose label differs by more than a standard deviation, as rows "
        "3 and 32"
    ]
    classes = [(smiles, n % 2) for n, smiles in enumerate(CHAINS)] + [("OC", 1), ("OCC", 1)]
    lines = [line for line in said(tmp_path, classes) if "in training" not in line]
    assert lines == ["1 molecule looks like one whose label differs, as rows 2 and 32"]


def test_labels_of_atoms_are_not_compared(tmp_path: Path) -> None:
    pytest.importorskip("rdkit")
    pytest.importorskip("ogb")
    table = tmp_path / "table.csv"
    table.write_text("smiles,y\n" + "\n".join(f"{s},{y}" for s, y in spread([])))
    dataset = load_dataset(table, split="random", progress=False)
    dataset.graphs.y = torch.arange(len(dataset.graphs.x), dtype=torch.float32)[:, None]
    dataset = replace(dataset, task=replace(dataset.task, level="node"))
    assert doubts(dataset, RunConfig(source=str(table))) == []
