"""Triton's driver, which launches on the machine."""

from collections import Counter
from typing import Any

import numpy as np
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import CompiledKernel
from triton.runtime.driver import driver

from grant_fast import devices
from grant_fast.ops import dispatch

from .. import emulator as package
from . import arithmetic, warps  # noqa: F401  # enter their operations
from .machine import run

#: What was noticed, and how often. Whoever looks empties it.
HAZARDS: Counter[str] = Counter()
TARGETS = {f"sm_{arch}": GPUTarget("cuda", arch, 32) for arch in (80, 90)}


class Emulator:
    """A driver as Triton asks for one."""

    def __init__(self, target: GPUTarget) -> None:
        self.target = target

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def emulate(target: str) -> None:
    """From now on kernels are compiled for `target` and take CPU tensors, as on such a GPU.

    The kernels must not have been imported with TRITON_INTERPRET=1. Graphs keep as many bits as on
    Hopper.
    """
    package.TARGET = target
    driver.set_active(Emulator(TARGETS[target]))
    CompiledKernel._init_handles = lambda kernel: None
    CompiledKernel.launch_metadata = lambda kernel, *arguments: None
    CompiledKernel.run = property(lambda kernel: lambda *launched: _launch(kernel, *launched))
    dispatch.is_interpreting = lambda: True
    devices.nvidia_major = lambda device: TARGETS[target].arch // 10


def _bits(argument: torch.Tensor | float) -> int:
    """A parameter as an integer: an address, a whole number, or the bits of a float32."""
    if isinstance(argument, float):
        return int(np.float32(argument).view(np.uint32))
    return argument.data_ptr() if isinstance(argument, torch.Tensor) else argument


def _launch(kernel: CompiledKernel, x: int, y: int, z: int, *rest: Any) -> None:
    """After the grid come the stream and five more of the driver's, then the arguments."""
    taken = [
        argument
        for argument, kind in zip(rest[6:], kernel.src.signature.values(), strict=True)
        if kind != "constexpr"
    ]
    storages = [a.untyped_storage() for a in taken if isinstance(a, torch.Tensor)]
    run(
        kernel.asm["ptx"],
        (x, y, z),
        list(map(_bits, taken)),
        [(s.data_ptr(), s.data_ptr() + s.nbytes()) for s in storages if s.nbytes()],
        kernel.metadata.shared,
        HAZARDS,
    )
