"""The CPU kernels are there wherever they can be: else the other tests here skip themselves."""

import os
import shutil
import sysconfig
from importlib.util import find_spec

import pytest

from grant_fast import native
from tests.native.conftest import RUNS_HERE

COMPILER = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]


@pytest.mark.skipif(shutil.which(COMPILER) is None, reason="there is no C compiler")
def test_a_compiler_has_made_every_build_that_runs_here():
    missing = [name for name in RUNS_HERE if find_spec(f"grant_fast.native.{name}") is None]
    assert not missing, "pip skips a build that fails: see `pip install -v -e .`"
    assert native.build() == RUNS_HERE[0]
