"""Of what `pytest --emulate` runs, a part for `make test`: every kernel, compiled for one GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.interpreted

ROOT = Path(__file__).parents[2]
PART = (
    "tests/emulator",
    "tests/benchmarks/test_checks.py::test_the_checks_run_every_kernel_and_find_it_right",
    "tests/kernels/test_layer.py::test_a_sum_over_many_tiles_is_as_exact_as_any",
    "tests/kernels/test_weights.py",
)


def test_what_the_compiler_makes_of_the_kernels_computes_the_same():
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "pytest", "--emulate", "sm_90", "-p", "no:xdist", *PART]
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT
    )
    assert result.returncode == 0, result.stdout[-4000:]
