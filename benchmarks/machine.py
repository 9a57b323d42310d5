"""What the machine is, as far as figures depend on it, and what its own tools say."""

import os
import platform
import shutil
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch

from grant_fast import native
from grant_fast.errors import installed

PACKAGES = ("torch", "triton", "numpy", "torch-geometric", "torch_sparse", "pytest-benchmark")


def describe(device: torch.device) -> dict[str, Any]:
    """Name, size and settings of the device, and the versions of what runs on it."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    versions |= {package: installed(package) for package in PACKAGES}
    count = torch.get_num_threads()
    threads = f"{count} thread{'s' * (count > 1)}"
    out: dict[str, Any] = {"name": f"{cpu_name()}, {threads}", "versions": versions}
    out["cpu cores"] = os.cpu_count()
    out["cpu kernels"] = native.build()
    if native.build() is None:
        out["name"] += ", without the compiled kernels"
    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        out |= {
            "name": found.name,
            "memory bytes": found.total_memory,
            "multiprocessors": found.multi_processor_count,
            "capability": found.gcnArchName
            if torch.version.hip
            else f"{found.major}.{found.minor}",
            "runtime": torch.version.cuda or torch.version.hip,
            "nvidia-smi": _smi(),
        }
    return out


def warn_without_kernels() -> None:
    """Say so where our own sides lack the compiled CPU kernels."""
    if native.build() is None:
        print(f"warning: ours runs without the CPU kernels: {native.NOT_COMPILED}", file=sys.stderr)


def cpu_name() -> str:
    """The processor's model, as the system calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


@cache
def _smi() -> str | None:
    """Driver, clocks and limits, read and never set."""
    query = "driver_version,clocks.max.sm,clocks.max.mem,power.limit,mig.mode.current"
    code, text = output(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], 20)
    return text.strip() if code == 0 else None


def sanitizer() -> str | None:
    """Where compute-sanitizer is, if the machine has it."""
    name = "compute-sanitizer"
    return shutil.which(name) or shutil.which(f"/usr/local/cuda/bin/{name}")


def sanitize(limit: float) -> dict[str, Any]:
    """Run a few checks under compute-sanitizer's memcheck, where the machine has it.

    Returns:
        "found": whether the tool is there; then "exit code" (None: out of time) and its last words.
    """
    tool = sanitizer()
    if tool is None:
        return {"found": False}
    command = [tool, "--tool", "memcheck", "--error-exitcode", "9", sys.executable]
    # Without PyTorch's cache of memory every tensor has bounds that the tool knows.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    code, text = output([*command, "-m", "benchmarks.checks", "cuda"], limit, environment)
    return {"found": True, "exit code": code, "output": text.strip()[-1500:]}


def end(process: subprocess.Popen[bytes]) -> int:
    """End a process that leads a group of its own, with all that it started; its exit code."""
    if process.poll() is None:
        if sys.platform == "win32":  # which has no such groups
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def output(
    command: list[str], limit: float, environment: dict[str, str] | None = None
) -> tuple[int | None, str]:
    """(exit code, None if it took longer than `limit` seconds; what it printed)."""
    try:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=Path(__file__).parents[1],
            start_new_session=True,  # with whatever it starts, so that all of it can be ended
        )
    except OSError as error:
        return 127, str(error)
    code = None
    try:
        text, _ = process.communicate(timeout=limit)
        code = process.returncode
    except BaseException as error:  # out of time, or an interrupt, which does not reach it
        end(process)
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        text, _ = process.communicate()
    return code, text.decode(errors="replace")
