"""The kernels compile for every target, without a GPU, within registers and shared memory."""

import dataclasses
import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from grant_fast.cli import app
from grant_fast.kernels import inspect
from grant_fast.kernels.inspect import KERNELS, TARGETS, Compiled, Job, jobs
from tests.kernels import spills

pytestmark = pytest.mark.interpreted

# The interpreter is set in this process, so the compiler runs in one where it is not.
PROGRAM = """
import dataclasses, json, sys
from grant_fast.kernels.inspect import Job, compile_all
rows = compile_all([Job(*job) for job in json.loads(sys.argv[1])])
print(json.dumps([dataclasses.asdict(row) for row in rows]))
"""


def compiled(work: list[Job]) -> list[Compiled]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", PROGRAM, json.dumps(work)]
    out = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert out.returncode == 0, out.stderr
    return [Compiled(**row) for row in json.loads(out.stdout)]


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx90a", "gfx942"])
def test_every_kernel_fits_every_target(target):
    work = jobs([target], representative=True)
    assert {job.kernel for job in work} == set(KERNELS)
    rows = compiled(work)
    assert [(row.kernel, row.target) for row in rows] == [(job.kernel, target) for job in work]
    assert not [row for row in rows if row.verdict != "pass"]
    assert all(row.registers > 0 for row in rows)


@pytest.mark.parametrize("kernel", spills.KERNELS)
def test_layers_drawn_at_random_are_configurations_of_their_kernel(kernel):
    rows = spills.drawn(kernel, 40, seed=0)
    assert rows == spills.drawn(kernel, 40, seed=0) != spills.drawn(kernel, 40, seed=1)
    own = {frozenset(row.constants) for row in KERNELS[kernel].configurations}
    assert {frozenset(row.constants) for row in rows} == own
    assert {row.tf32 for row in rows} == {True, False}


def words_of(job: Job) -> str:
    return KERNELS[job.kernel].configurations[job.configuration].words


def test_the_table_holds_every_kernel_on_every_target_once():
    work = jobs()
    assert len(set(work)) == len(work)
    assert {(job.kernel, job.target) for job in work} == {(k, t) for k in KERNELS for t in TARGETS}
    named = [(job.target, job.kernel, words_of(job)) for job in work]
    assert len(set(named)) == len(named)


def test_float32_is_in_the_table_with_and_without_tf32():
    for kernel in KERNELS.values():
        float32 = [c for c in kernel.configurations if c.dtype == "fp32"]
        ways = {inspect._precision(kernel, configuration, "cuda") for configuration in float32}
        if "PRECISION" in kernel.jit.arg_names:
            assert ways == ({"tf32x3"} if kernel.accurate else {"tf32x3", "tf32"}), kernel.name


def test_a_kernel_that_does_not_compile_is_a_row_that_says_so(monkeypatch):
    job = jobs()[0]
    kernel = KERNELS[job.kernel]
    broken = dataclasses.replace(kernel, jit=None)
    monkeypatch.setitem(KERNELS, job.kernel, broken)
    monkeypatch.setattr(type(broken), "name", job.kernel)
    monkeypatch.delenv("TRITON_INTERPRET")
    (row,) = inspect.compile_all([job])
    assert row.verdict.startswith("AttributeError: ")


@pytest.mark.parametrize(
    ("code", "spills"),
    [("IADD3 R1, R1, -0x8, RZ ;", 0), ("STL [R1], R2 ;", 8), ("LDL.64 R2, [R1+0x8] ;", 8)],
    ids=["untouched", "store", "load"],
)
def test_a_stack_that_nothing_touches_is_no_spill(code, spills, monkeypatch):
    printed = {"-res-usage": "REG:90 STACK:8 SHARED:0 LOCAL:0", "-sass": f"/*0030*/ {code}"}
    monkeypatch.setattr(inspect, "_output", lambda command: printed[command[1]])
    assert inspect._read_nvidia({"cubin": b""}) == (90, spills)


def test_the_interpreter_is_no_compiler():
    result = CliRunner().invoke(app, ["doctor", "--compile"])
    assert result.exit_code == 1
    assert "error: TRITON_INTERPRET is 1, so nothing is compiled: unset it" in result.stderr


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        ({}, "pass"),
        ({"shared": 65_537}, "too much shared memory"),
        ({"spills": 4}, "spills"),
        ({"error": "no such target"}, "no such target"),
    ],
    ids=["pass", "shared", "spills", "error"],
)
def test_the_doctor_prints_the_table_and_fails_where_a_kernel_does(row, verdict, monkeypatch):
    monkeypatch.setattr("grant_fast.cli.doctor.examine", list)
    rows = [
        Compiled(
            "flex_conv_tiles", "Y", "gfx90a", **{"registers": 9, "spills": 0, "shared": 8} | row
        )
    ]
    monkeypatch.setattr(inspect, "jobs", lambda: jobs()[:1])
    monkeypatch.setattr(inspect, "compile_all", lambda work, workers: iter(rows))
    result = CliRunner().invoke(app, ["doctor", "--compile"])
    fails = verdict not in ("pass", "spills")
    assert result.exit_code == fails
    assert f"65536  {verdict}\n" in result.stdout
    summary = "1 of them fail" if fails else "all of them pass"
    summary += "; 1 spill registers" * (verdict == "spills")
    assert f"1 configurations compiled: {summary}" in result.stdout


def test_the_doctor_says_where_triton_is_missing(monkeypatch):
    monkeypatch.setattr("grant_fast.cli.doctor.examine", list)
    monkeypatch.setattr("grant_fast.cli.doctor.find_spec", lambda name: None)
    result = CliRunner().invoke(app, ["doctor", "--compile"])
    assert result.exit_code == 1
    assert "error: triton is not installed" in result.stderr
    assert "`pip install triton`" in result.stderr
