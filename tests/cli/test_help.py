"""What the command line says of itself."""

import re
import subprocess
import sys

import grant_fast
from tests.cli.runs import ENVIRONMENT, run


def test_words_beyond_a_terminals_alphabet_are_replaced_and_end_nothing():
    words = [sys.executable, "-m", "grant_fast", "train", "--help"]
    environment = ENVIRONMENT | {"PYTHONIOENCODING": "cp1252"}
    done = subprocess.run(words, env=environment, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"Options" in done.stdout and "κ".encode() not in done.stdout and b"?" in done.stdout


def test_the_help_says_how_data_are_split_and_shortened_by_default():
    words = " ".join(re.sub("[│╭╮╰╯─]", " ", run("train", "--help").stdout).split())
    assert (
        "How to split the data; one of random, scaffold. Default: the published or packed" in words
    )
    assert "Use only the first N graphs (published splits: the first of each part" in words
    assert "The type of task; one of auto" in words and "multilabel. Default: auto." in words


def test_the_help_lists_the_settings_under_headings():
    lines = run("train", "--help").stdout.splitlines()
    heading, under = "", {}
    for line in lines:
        if line.startswith("╭─"):
            heading = line.strip("╭─╮ ")
        if option := re.match(r"│[ *]+--([a-z-]+)", line):
            under[option[1]] = heading
    assert list(dict.fromkeys(under.values())) == [
        *("Options", "Data", "Network", "Training", "Which graphs to train on", "Validation")
    ]
    assert {under["out"], under["seed"], under["device"], under["help"]} == {"Options"}
    assert {under[name] for name in ("smiles-column", "target", "strict")} == {"Data"}
    assert under["init"] == "Network" and under["standardize"] == "Training"
    assert under["interval"] == "Which graphs to train on" and under["patience"] == "Validation"


def test_version_is_that_of_the_package():
    result = run("--version")
    assert result.exit_code == 0 and result.stdout == f"grant-fast {grant_fast.__version__}\n"
