"""Who computes a layer: the Triton kernels or PyTorch. The meaning is the same either way."""

import os
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from . import native
from .adjacency import Adjacency
from .batch import BatchAdjacency
from .errors import InputError

BACKENDS = ("auto", "triton", "torch")
ENVIRONMENT = "GRANT_FAST_BACKEND"

#: Beyond these a layer's state does not fit in registers: the BLAS and the sparse library take it.
MAX_WIDTH, MAX_ORDER = 64, 5
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def takes_kernels(
    x: Tensor, weight: Tensor, adjacency: Adjacency, backend: str | None = None
) -> bool:
    """Whether the kernels compute this layer.

    Args:
        backend: "triton" takes the kernels, "torch" never does. "auto" chooses by what has been
            measured; no device has run the kernels yet, so today it means "torch". None reads the
            environment variable GRANT_FAST_BACKEND, "auto" where that is not set.

    Raises:
        InputError: an unknown backend, or "triton" where the kernels cannot run, and why not.
    """
    source, backend = _chosen(backend)
    if backend != "triton":
        return False
    reason = why_not(x, weight, adjacency)
    if reason is not None:
        raise InputError(f"{source} is 'triton', but {reason}: choose 'auto' or 'torch'")
    return True


def takes_native(
    x: Tensor,
    adjacency: Adjacency | None = None,
    weight: Tensor | None = None,
    backend: str | None = None,
) -> bool:
    """Whether the compiled CPU kernels do: where they can, unless "torch" is asked for."""
    return _chosen(backend)[1] != "torch" and native.takes(x, adjacency, weight)


def _chosen(backend: str | None) -> tuple[str, str]:
    """Where the choice of a backend comes from, and the choice."""
    source = "backend"
    if backend is None:
        source, backend = ENVIRONMENT, os.environ.get(ENVIRONMENT) or "auto"
    if backend not in BACKENDS:
        raise InputError(f"{source} is {backend!r}: choose one of {', '.join(BACKENDS)}")
    return source, backend


def why_not(x: Tensor, weight: Tensor, adjacency: Adjacency) -> str | None:
    """Why the kernels cannot compute this layer, or None where they can."""
    order, h_in, h_out = weight.shape
    device = x.device
    if not isinstance(adjacency, BatchAdjacency):
        return "the graphs are no GraphBatch of a PackedGraphs"
    if device.type != "cuda" and not (device.type == "cpu" and is_interpreting()):
        return f"x is on the {device.type}, not on a GPU"
    if find_spec("triton") is None:
        return "triton is not installed"
    if device.type == "cuda" and not torch.version.hip and _capability(device.index) < (8, 0):
        return "the GPU has no TF32 matrix units (it is older than Ampere)"
    if x.dtype not in DTYPES:
        return f"x is {x.dtype}"
    if max(h_in, h_out) > MAX_WIDTH:
        return f"the layer is {max(h_in, h_out)} wide (the kernels take up to {MAX_WIDTH})"
    if order > MAX_ORDER:
        return f"the order is {order} (the kernels take up to {MAX_ORDER})"
    if adjacency.batch.tiles is None:
        return "the edges have weights"
    return None


def is_interpreting() -> bool:
    """Whether Triton's interpreter stands in for a GPU: how the kernels are tested without one."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@cache
def _capability(index: int | None) -> tuple[int, int]:
    return torch.cuda.get_device_capability(index)
