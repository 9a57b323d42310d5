"""The kernels compile for every target, without a GPU, within registers and shared memory."""

import json
import os
import subprocess
import sys

import pytest

# The interpreter is set in this process, so the compiler runs in one where it is not.
PROGRAM = """
import dataclasses, json, sys
from grant_fast.kernels.inspect import compile_table
layers, targets, dtypes = json.loads(sys.argv[1])
rows = compile_table([tuple(layer) for layer in layers], targets, dtypes)
print(json.dumps([dataclasses.asdict(row) | {"fits": row.fits} for row in rows]))
"""


def table(layers, targets, dtypes=("fp32",)):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    arguments = [sys.executable, "-c", PROGRAM, json.dumps([layers, targets, dtypes])]
    out = subprocess.run(arguments, capture_output=True, text=True, check=False, env=environment)
    assert out.returncode == 0, out.stderr
    return json.loads(out.stdout)


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx90a", "gfx942"])
def test_every_kernel_fits_every_target(target):
    rows = table([(3, 27, 18)], [target])
    assert len(rows) == 6
    assert not [row for row in rows if not row["fits"]]
    assert all(row["registers"] > 0 for row in rows)


def test_the_widest_and_deepest_layers_fit():
    rows = table([(5, 64, 64)], ["sm_90", "gfx90a"])
    assert not [row for row in rows if not row["fits"]]


def test_half_precision_fits():
    rows = table([(2, 9, 16)], ["sm_90", "gfx942"], ["bf16"])
    assert not [row for row in rows if not row["fits"]]
