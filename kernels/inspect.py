"""What the kernels become on each target: registers, spills and shared memory, with no GPU.

Triton compiles for any target that its back ends know; NVIDIA's `cuobjdump`, which comes with
Triton, and AMD's assembly say what the result uses.

`grant-fast doctor --compile` prints the table. A kernel is in it by an entry in
`configurations.KERNELS`.
"""

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ..errors import InputError
from ..workers import share_out
from . import launch
from .configurations import KERNELS
from .kernel import Configuration, Kernel

#: The targets that are held to their limits, and the bytes of shared memory a program may have.
TARGETS: dict[str, tuple[GPUTarget, int]] = {
    "sm_80": (GPUTarget("cuda", 80, 32), 163 << 10),
    "sm_90": (GPUTarget("cuda", 90, 32), 227 << 10),
    "gfx90a": (GPUTarget("hip", "gfx90a", 64), 64 << 10),
    "gfx942": (GPUTarget("hip", "gfx942", 64), 64 << 10),
}


class Job(NamedTuple):
    """One kernel in one configuration for one target, all by name or place: processes share it."""

    kernel: str
    configuration: int
    target: str


@dataclass(frozen=True)
class Compiled:
    """What became of a job; `spills` in bytes a thread, `shared` and its `limit` in bytes."""

    kernel: str
    configuration: str
    target: str
    registers: int
    spills: int
    shared: int
    error: str = ""

    @property
    def limit(self) -> int:
        return TARGETS[self.target][1]

    @property
    def verdict(self) -> str:
        """Either "pass", or why not."""
        if self.error:
            return self.error
        if self.spills:
            return "spills"
        return "pass" if self.shared <= self.limit else "too much shared memory"


def jobs(targets: Iterable[str] = tuple(TARGETS), representative: bool = False) -> list[Job]:
    """Everything to compile, or the part of it that `make test` does."""
    return [
        Job(name, place, target)
        for target in targets
        for name, kernel in KERNELS.items()
        for place, configuration in enumerate(kernel.configurations)
        if configuration.representative or not representative
        if exists_on(target, configuration)
    ]


def exists_on(target: str, configuration: Configuration) -> bool:
    """TF32 is NVIDIA's alone, and what is `hopper` of those targets that are, or are not."""
    if configuration.tf32 and TARGETS[target][0].backend != "cuda":
        return False
    return configuration.hopper in (None, target == "sm_90")


def compile_all(work: Iterable[Job], workers: int = 1) -> Iterator[Compiled]:
    """Compile, in as many processes, and yield what became of each job, in order.

    Raises:
        InputError: Triton's interpreter stands where its compiler should.
    """
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise InputError("TRITON_INTERPRET is 1, so nothing is compiled: unset it")
    return share_out(workers, _compile, work)


def _compile(job: Job) -> Compiled:
    configuration = KERNELS[job.kernel].configurations[job.configuration]
    return compile_one(job.kernel, configuration, job.target)


def compile_one(kernel: str, configuration: Configuration, target: str) -> Compiled:
    """What becomes of a kernel in a configuration, which need not be one of its own."""
    result = partial(Compiled, kernel, configuration.words, target)
    try:
        return result(*_usage(KERNELS[kernel], configuration, TARGETS[target][0]))
    except Exception as error:  # a row of the table, whatever the compiler stumbled over
        words = " ".join(str(error).split())
        return result(0, 0, 0, f"{type(error).__name__}: {words[:200]}")


def _usage(kernel: Kernel, configuration: Configuration, gpu: GPUTarget) -> tuple[int, int, int]:
    """(registers a thread, bytes spilled a thread, bytes of shared memory)."""
    names = kernel.jit.arg_names
    constants: dict[str, Any] = {"PRECISION": _precision(kernel, configuration, gpu.backend)}
    constants |= configuration.constants
    constants = {name: value for name, value in constants.items() if name in names}
    constants |= dict.fromkeys(kernel.absent(configuration.constants))
    types = dict.fromkeys(names, "i32")
    types |= {name: f"*{configuration.dtype}" for name in names if name.startswith("p_")}
    types |= {name: kind for name, kind in kernel.types.items() if name in names}
    types |= dict.fromkeys(constants, "constexpr")
    facts = [["tt.divisibility", 16]]
    if gpu.backend == "hip":  # as Triton says of any tensor below 2 GiB there
        facts.append(["tt.pointer_range", 32])
    aligned = {(i,): facts for i, name in enumerate(names) if types[name].startswith("*")}
    out = triton.compile(
        ASTSource(kernel.jit, types, constants, aligned),
        target=gpu,
        options=launch.options(
            kernel.name, constants, hip=gpu.backend == "hip", hopper=gpu.arch == 90
        ),
    )
    read = _read_amd if gpu.backend == "hip" else _read_nvidia
    return *read(out.asm), out.metadata.shared


def _precision(kernel: Kernel, configuration: Configuration, backend: str) -> str:
    """What `launch.precision` and `launch.hop_precision` would say."""
    if backend != "cuda":
        return "ieee"
    accurate = kernel.accurate or (configuration.dtype == "fp32" and not configuration.tf32)
    return "tf32x3" if accurate else "tf32"


def _read_amd(asm: dict[str, Any]) -> tuple[int, int]:
    text = asm["amdgcn"]
    registers = _number(r"\.vgpr_count:\s+(\d+)", text)
    return registers, 4 * _number(r"\.vgpr_spill_count:\s+(\d+)", text)


def _read_nvidia(asm: dict[str, Any]) -> tuple[int, int]:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(asm["cubin"])
        usage = _output([tool, "-res-usage", file])
        registers, stack = _number(r"REG:(\d+)", usage), _number(r"STACK:(\d+)", usage)
        # Triton 3.6 leaves a byte of stack, which nothing touches: no spill stores, no spill loads.
        if stack and not re.search(r"\b(STL|LDL)\b", _output([tool, "-sass", file])):
            stack = 0
    return registers, stack


def _output(command: list[str | Path]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise RuntimeError(f"no {pattern} in what the compiler printed")
    return int(found[1])
