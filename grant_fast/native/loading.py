"""The library that was built for this CPU, and how to call its functions."""

import ctypes
import sys
from functools import cache
from importlib.util import find_spec
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

#: What `interface` of kernels/cpu/cpu.c must say.
INTERFACE = 15

#: The builds of `kernels/cpu/`, by what torch says of this CPU; the baseline serves the others.
#: One would not do: how long a vector is must be known when the sources are compiled.
BUILDS = {"AVX512": ("_cpu_v4", "_cpu_v3", "_cpu"), "AVX2": ("_cpu_v3", "_cpu")}


@cache
def _found() -> tuple[str, str] | None:
    """Name and path of the build for this CPU."""
    for name in BUILDS.get(torch.backends.cpu.get_cpu_capability(), ("_cpu",)):
        found = find_spec(f"{__package__}.{name}")
        if found is not None and found.origin is not None:
            return name, found.origin
    return None


@cache
def library() -> ctypes.CDLL | None:
    """The build for this CPU; None where none was made, or one of other sources is left over."""
    found = _found()
    kernels = None if found is None else ctypes.CDLL(found[1])
    if kernels is None or getattr(kernels, "interface", lambda: 0)() != INTERFACE:
        return None
    kernels.use_openmp(_openmp())
    return kernels


def _openmp() -> ctypes.c_void_p | None:
    """The entry to the threads of PyTorch's own operators: that of GNU's OpenMP, or of LLVM's,
    which has the same one, where PyTorch brings that, as conda's and Apple's do.

    On Linux a copy that another package loaded before, for all to see, serves PyTorch, too.
    """
    seen = [None] if sys.platform == "linux" else []
    places = [ctypes.CDLL(place) for place in (*seen, torch._C.__file__)]
    entries = (getattr(place, "GOMP_parallel", None) for place in places)
    entry = next(filter(None, entries), None)
    return None if entry is None else ctypes.cast(entry, ctypes.c_void_p)


def build() -> str | None:
    """Its name: `_cpu_v4` for AVX-512, `_cpu_v3` for AVX2, `_cpu` for any CPU; or None."""
    found = _found()
    return None if found is None or library() is None else found[0]


def is_readable(tensor: Any, *shape: int) -> TypeGuard[Tensor]:
    """Whether the kernels find float32 in memory, of this shape if one is given: they compare
    nothing themselves, and of other classes of tensors only torch knows what is where."""
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.dtype == torch.float32
    return plain and tensor.is_cpu and (not shape or tensor.shape == shape)


def pointer(tensor: Tensor | None) -> int | None:
    assert tensor is None or tensor.is_cpu, f"a kernel of the CPU cannot read {tensor.device}"
    if tensor is None:
        return None
    place = tensor.data_ptr()
    assert place or not tensor.numel(), f"a {type(tensor).__name__} has no memory of its own"
    assert not tensor.is_neg(), "what lies in memory has the other sign"
    return place


def aside(tensor: Tensor) -> Tensor:
    """A tensor's values as they lie, for a backward pass that reads them by pointer: `model.half()`
    gives the parameter other memory, of another dtype. Writes to it are counted as before."""
    return tensor.detach().resolve_neg().contiguous()


def by_rows(x: Tensor) -> Tensor:
    """A matrix whose rows lie anywhere in memory, but the numbers of each side by side."""
    x = x.resolve_neg()
    return x if x.stride(1) == 1 else x.contiguous()


def call(name: str, *args: Any) -> Any:
    """A function of the library: tensors as pointers, whole numbers and bools as int64."""
    converted = [
        ctypes.c_void_p(pointer(arg))
        if arg is None or isinstance(arg, Tensor)
        else ctypes.c_int64(arg)
        if isinstance(arg, int)
        else arg
        for arg in args
    ]
    return getattr(library(), name)(*converted)


def lanes() -> int:
    """How many float32 a vector holds, in the build that is in use."""
    return _lanes_of(library())


@cache
def _lanes_of(build: ctypes.CDLL) -> int:
    """Asked for some twenty times in each step."""
    return int(build.vector_lanes())


def padded(width: int) -> int:
    """The floats that whole vectors take for so many."""
    return -(-width // lanes()) * lanes()


def threads() -> ctypes.c_int:
    return ctypes.c_int(torch.get_num_threads())
