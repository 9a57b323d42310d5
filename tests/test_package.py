"""What a user installs: the wheel, complete, in an otherwise empty place."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    # A copy, so that building leaves nothing in the checkout.
    source = out / "source"
    source.mkdir()
    for name in ("grant_fast", "kernels", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        subprocess.run(["cp", "-r", str(ROOT / name), str(source)], check=True)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    # Its compiled parts, which need no more than a compiler, are those of tests/native.
    environment = os.environ | {"CC": "false"}
    subprocess.run([*command, "--quiet", "-w", str(out), str(source)], check=True, env=environment)
    return next(out.glob("grant_fast-*.whl"))


def test_the_wheel_carries_every_module_and_no_other_package(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder, prefix in (("grant_fast", "grant_fast"), ("kernels", "grant_fast/kernels")):
        for file in [*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("*.json")]:
            assert f"{prefix}/{file.relative_to(ROOT / folder).as_posix()}" in names
    assert "grant_fast/py.typed" in names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"grant_fast"}


def test_the_wheel_works_where_nothing_of_the_checkout_is(wheel, tmp_path):
    target = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--quiet", "--target"]
    subprocess.run([*command, str(target), str(wheel)], check=True)
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import grant_fast, grant_fast.kernels, torch\n"
        "from grant_fast import FlexGCN, PackedGraphs\n"
        "assert grant_fast.__file__.startswith(sys.argv[1]), grant_fast.__file__\n"
        "assert grant_fast.kernels.__file__.startswith(sys.argv[1]), grant_fast.kernels.__file__\n"
        "g = PackedGraphs.from_arrays(torch.ones(2, 1), [[0], [1]], torch.zeros(2).long())\n"
        "print(tuple(FlexGCN(1, 4, 3, orders=[2, 2])(g[0]).shape))\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", program, str(target)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert out.stdout.strip() == "(1, 3)", out.stderr
