"""The CPU kernels are there wherever they can be: else the other tests here skip themselves."""

import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import pytest

from grant_fast import native
from tests.native.conftest import RUNS_HERE

COMPILER = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]


@pytest.mark.skipif(shutil.which(COMPILER) is None, reason="there is no C compiler")
def test_a_compiler_has_made_every_build_that_runs_here():
    missing = [name for name in RUNS_HERE if find_spec(f"grant_fast.native.{name}") is None]
    assert not missing, "pip skips a build that fails: see `pip install -v -e .`"
    assert native.build() == RUNS_HERE[0]


@pytest.mark.skipif(os.name != "posix", reason="the compiler is a shell script")
def test_builds_made_at_the_same_time_do_not_write_into_one_another(tmp_path):
    """One that links what another has compiled ends in illegal instructions, or in half a file."""
    compiler, log = tmp_path / "cc", tmp_path / "log"
    # Makes whatever file it is asked for, and notes the name.
    compiler.write_text(
        '#!/bin/sh\nwhile [ $# -gt 0 ]; do\n  [ "$1" = -o ] && touch "$2" && '
        f'echo "$2" >> "{log}"\n  shift\ndone\n'
    )
    compiler.chmod(0o755)
    command = [sys.executable, "setup.py", "-q", "build_ext"]
    folders = [f"--build-{kind}={tmp_path / kind}" for kind in ("lib", "temp")]
    subprocess.run(
        [*command, *folders],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"CC": str(compiler)},
        capture_output=True,
        check=True,
    )
    made = log.read_text().split()
    assert len(made) == len(set(made)) == 6, made  # three objects and three libraries
