"""The examples run, shortened, and say what their pages quote."""

import runpy
from pathlib import Path

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
