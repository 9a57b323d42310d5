"""The README's examples run as they stand."""

import csv
import re
import shlex
import warnings
from pathlib import Path

import pytest

from tests.cli.runs import SMILES, run

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


TRAIN = re.search(r"^grant-fast (train +hiv\.csv .*)$", README, re.MULTILINE)


@pytest.fixture
def hiv(tmp_path, monkeypatch):
    """A working folder with a hiv.csv of a few molecules, and the README's run on it."""
    pytest.importorskip("rdkit")
    monkeypatch.chdir(tmp_path)
    with open("hiv.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["smiles", "activity", "HIV_active"])
        writer.writerows([smiles, "CI", row % 2] for row, smiles in enumerate(SMILES * 3))
    assert TRAIN is not None
    done = run(*shlex.split(TRAIN[1]), "--epochs", 2)
    assert done.exit_code == 0, done.output


def test_there_are_examples():
    assert len(EXAMPLES) >= 3


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: text.split("\n")[0])
def test_an_example_runs_word_for_word(example, request):
    pytest.importorskip("ogb")
    if "runs/hiv" in example:
        request.getfixturevalue("hiv")
    with warnings.catch_warnings():  # PyG's own, at its import
        warnings.simplefilter("ignore")
        pytest.importorskip("torch_geometric")
        names: dict = {}
        exec(compile(example, "README.md", "exec"), names)
    assert "sampler" in names
