"""The README's examples run as they stand."""

import re
import warnings
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_there_are_examples():
    assert len(EXAMPLES) >= 2


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: text.split("\n")[0])
def test_an_example_runs_word_for_word(example):
    pytest.importorskip("ogb")
    with warnings.catch_warnings():  # PyG's own, at its import
        warnings.simplefilter("ignore")
        pytest.importorskip("torch_geometric")
        names: dict = {}
        exec(compile(example, "README.md", "exec"), names)
    assert "optimizer" in names
