"""What the tests of the command line share."""

import csv
import shutil

import pytest

from tests.cli.runs import SIZE, SMALL, SMILES, succeeds


@pytest.fixture(scope="module", autouse=True)
def unthreaded(one_thread):
    """Every test here has one thread."""


@pytest.fixture
def molecules(tmp_path):
    """A CSV of 30 molecules (the smallest, three times over) with three targets."""
    pytest.importorskip("rdkit")
    path = tmp_path / "molecules.csv"
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["smiles", "size", "toxic", "sticky"])
        for row, smiles in enumerate(SMILES * 3):
            writer.writerow(
                [smiles, len(smiles) + row / 7, row % 2, "" if row % 5 else row % 3 % 2]
            )
    return path


@pytest.fixture(scope="session")
def short_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("short") / "run"
    succeeds("train", *SMALL, "--epochs", 2, "-o", folder)
    return folder


@pytest.fixture
def trained(short_run, tmp_path):
    """The folder of a short run, a copy for the test alone."""
    return shutil.copytree(short_run, tmp_path / "run")


@pytest.fixture
def of_molecules(molecules, tmp_path):
    """The folder of a short run on molecules."""
    succeeds("train", molecules, *SIZE, "-o", tmp_path / "run")
    return tmp_path / "run"
