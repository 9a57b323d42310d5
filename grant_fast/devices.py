"""What there is to know of a device."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")
_HOST_MEMORY = sys.maxsize  # where the system does not say
if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", ()):
    _HOST_MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def usual_tensors(make: Callable[P, T]) -> Callable[P, T]:
    """Run `make` where new tensors are float32 and on the CPU, whatever `torch.set_default_dtype`
    and `torch.set_default_device` say, and no compiler traces it."""

    @wraps(make)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if torch.compiler.is_compiling():
            return untraced(*args, **kwargs)
        # Every call of PyTorch's functions goes through such a context, at a microsecond each.
        # (`torch.get_default_device` does not see those that others entered before torch 2.8.)
        elsewhere = torch.empty(0).device.type != "cpu"
        with _FLOAT32, torch.device("cpu") if elsewhere else nullcontext():
            return make(*args, **kwargs)

    untraced = torch._disable_dynamo(run)
    return run


@contextmanager
def one_thread() -> Iterator[None]:
    """For operators on the CPU whose result may not depend on the threads, or whose threads would
    keep other processes waiting."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Float32:
    """float32 as the default dtype, which is one for all threads: the last of those that leave puts
    back what the first one found."""

    def __init__(self) -> None:
        self._lock, self._inside, self._before = threading.Lock(), 0, torch.float32

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = torch.get_default_dtype()
            self._inside += 1
            torch.set_default_dtype(torch.float32)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                torch.set_default_dtype(self._before)


_FLOAT32 = _Float32()


def indexed(device: torch.device | str) -> torch.device:
    """`device` as the tensors there name it: of GPUs the current one, where no index is given."""
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def memory_of(device: torch.device) -> int:
    """Bytes of memory that a device has, whether free or not."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return _HOST_MEMORY


def nvidia_major(device: torch.device) -> int:
    """Major version of an NVIDIA GPU's architecture; 0 of any other device."""
    if device.type != "cuda" or torch.version.hip:
        return 0
    # Not `get_device_capability`, of which torch.compile cannot make a constant.
    return torch.cuda.get_device_properties(device).major


def is_before_ampere(device: torch.device) -> bool:
    """Whether an NVIDIA GPU has no matrix units for bfloat16 and TF32."""
    return 0 < nvidia_major(device) < 8


def has_tensor_memory(device: torch.device) -> bool:
    """Whether matrix units keep their sums in a memory of their own (B200, B300, Jetson Thor)."""
    return nvidia_major(device) in (10, 11)


def has_nvidia_units(device: torch.device) -> bool:
    """Whether matrix units take bfloat16 and TF32, but no float32."""
    return nvidia_major(device) >= 8


def has_hopper_units(device: torch.device) -> bool:
    """Whether matrix units take 64 rows at a time, and a factor of a product from shared memory.

    Not Blackwell's, whose tensor memory is too small for blocks of that shape.
    """
    return nvidia_major(device) == 9


def is_amd_without_units(device: torch.device) -> bool:
    """Whether an AMD GPU has no matrix units for float32, as Instinct has since MI100."""
    if device.type != "cuda" or not torch.version.hip:
        return False
    name = torch.cuda.get_device_properties(device).gcnArchName
    return not name.startswith(("gfx908", "gfx90a", "gfx94", "gfx95"))


def clock(device: torch.device) -> float:
    """Seconds on a clock, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
