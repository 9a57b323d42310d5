"""How the tests of the command line call it."""

import csv
import os
from pathlib import Path

from typer.testing import CliRunner

import grant_fast
from grant_fast.cli import app

SMALL = ["gen-reg", "--graphs", "20", "--batch-size", "4", "--device", "cpu"]
QUICK = ["--split", "random", "--epochs", 1, "--device", "cpu"]
#: To learn the size of the `molecules` fixture's, for an epoch.
SIZE = ["--target", "size", *QUICK]
SMILES = ["C", "CC", "CCO", "c1ccccc1", "CC(=O)O", "CCN", "c1ccncc1", "CCCl", "O", "CC#N"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(grant_fast.__file__).parents[1])}


def lines_of(path):
    """The rows of a CSV file, its header among them."""
    with open(path, newline="") as file:
        return list(csv.reader(file))


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def succeeds(*words):
    """The result of a command that ends well."""
    result = run(*words)
    assert result.exit_code == 0, result.output
    return result


def fails(*words, code=1):
    """The one line that a failing command says."""
    result = run(*words)
    assert result.exit_code == code, result.output
    lines = result.stderr.strip().splitlines()
    # What a run says of itself first.
    began = (" split), ", "--arm full takes all", "look like one in training")
    lines = [line for line in lines if not any(words in line for words in began)]
    assert len(lines) == 1 and lines[0].startswith("error: "), result.stderr
    assert "Traceback" not in result.output
    return lines[0]
