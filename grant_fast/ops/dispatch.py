"""Who computes a layer: the Triton kernels, the CPU's, or PyTorch. The meaning is the same."""

import os
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .. import native
from ..adjacency import Adjacency
from ..batches.edges import BatchAdjacency
from ..devices import has_tensor_memory, is_amd_without_units, is_before_ampere
from ..errors import InputError

PYTORCH = ("torch", "reference")
_SAYS_SO = "the backend setting says so"
BACKENDS = ("auto", "triton", *PYTORCH)
ENVIRONMENT = "GRANT_FAST_BACKEND"

#: Whether "auto" takes the kernels on a GPU: True once a device has run them.
AUTO_TAKES_KERNELS = False
#: Up to these a layer on graphs kept as bits is one kernel. Beyond, its state does not fit in
#: registers: the BLAS computes its products, and kernels its hops.
MAX_WIDTH, MAX_ORDER = 64, 5
DTYPES = (torch.float32, torch.float16, torch.bfloat16)

#: GPU builds of torch bring the triton that fits them, and older ones cannot compile the kernels.
TORCH, OLDEST_TORCH = tuple(map(int, torch.__version__.split(".")[:2])), (2, 8)
try:
    HAS_TRITON = find_spec("triton") is not None
except ModuleNotFoundError:  # an import hook refuses it
    HAS_TRITON = False
#: At a first launch, Triton for Linux compiles C (elsewhere it brings a compiler).
HAS_COMPILER = sys.platform != "linux" or (
    which(os.environ.get("CC") or which("gcc") or "clang") is not None
    and Path(sysconfig.get_paths()["include"], "Python.h").exists()
)


def takes_kernels(x: Tensor, backend: str | None = None) -> bool:
    """Whether the Triton kernels compute what is asked of X: a layer, or a readout.

    Args:
        x: features, of any shape; device and dtype decide.
        backend: "triton" takes the kernels, "torch" never does: there the hops are the vendor's
            sparse products. "reference" takes neither, see `is_reference`. "auto" chooses by what
            has been measured; no device has run the kernels yet, so today it never takes them.
            None reads the environment variable GRANT_FAST_BACKEND, "auto" where that is not set.

    Raises:
        InputError: an unknown backend, or "triton" where the kernels cannot run, and why not.
    """
    source, backend = _chosen(backend)
    if backend in PYTORCH or (backend == "auto" and not (AUTO_TAKES_KERNELS and x.is_cuda)):
        return False
    reason = why_not(x)
    if backend == "auto":
        return reason is None
    if reason is not None:
        raise InputError(f"{source} is 'triton', but {reason}: choose 'auto' or 'torch'")
    return True


def takes_native(x: Tensor, adjacency: Adjacency | None = None, backend: str | None = None) -> bool:
    """Whether the compiled CPU kernels compute it: where they can, under the backend "auto"."""
    return allows_native(backend) and native.takes(x, adjacency)


def allows_native(backend: str | None) -> bool:
    """Whether the compiled CPU kernels may be taken, for whole layers or for single products."""
    return _chosen(backend)[1] == "auto"


def products_by(backend: str | None) -> str:
    """Whose products a layer is made of that no kernel computes whole."""
    return "native" if allows_native(backend) else "torch"


def is_reference(backend: str | None) -> bool:
    """Whether PyTorch's own operators compute and differentiate, see `Choice`."""
    return _chosen(backend)[1] == "reference"


class Choice(NamedTuple):
    """Who computes a layer; and why, where that is PyTorch.

    "tiles" and "csr" are the Triton kernels over bits and over CSR, "native" the compiled CPU
    kernels, "torch" the vendor's products. "reference" are PyTorch's own operators, slow, and open
    to `create_graph`, `torch.func` and forward mode, of which this package's know nothing.
    """

    who: Literal["reference", "tiles", "csr", "native", "torch"]
    why: str = ""


def choose(
    x: Tensor, weight: Tensor, bias: Tensor | None, adjacency: Adjacency, backend: str | None
) -> Choice:
    """Who computes a layer: the one place that says so, for `ops.flex_conv` and for `explain`.

    Args:
        x: the features, or what has their dtype and device.

    Raises:
        InputError: as `takes_kernels`; or nobody computes on such a device.
    """
    setting = _chosen(backend)[1]
    if setting == "reference":
        return Choice("reference", _SAYS_SO)
    if x.device.type == "mps":
        raise InputError(
            "PyTorch has no sparse products on an Apple GPU (mps): move the model and the graphs "
            "to the CPU"
        )
    if takes_kernels(x, backend):
        bits = isinstance(adjacency, BatchAdjacency) and adjacency.batch.tiles is not None
        return Choice("tiles" if bits else "csr")
    if setting == "torch":
        return Choice("torch", _SAYS_SO)
    reason = native.why_not(x, adjacency, weight)
    if reason is None and (bias is None or native.is_readable(bias)):
        return Choice("native")
    if x.device.type != "cpu":
        reason = why_not(x) or "the Triton kernels run only on request (backend='triton')"
    return Choice("torch", reason or "the bias is not an ordinary float32 tensor")


def native_products(weight: Tensor, rows: int, backend: str | None) -> list[str]:
    """What the compiled CPU kernels multiply of a layer of `rows` nodes that PyTorch computes: its
    hops, the other products, both, or nothing."""
    if not allows_native(backend):
        return []
    h_in, h_out = weight.shape[1:]
    hops = ["hops"] if native.multiplies(weight) else []
    return hops + (["products"] if native.takes_products(weight, rows, h_in, h_out) else [])


def check_backend(backend: str | None, source: str = "backend") -> str | None:
    """`backend`, unless it is unknown: InputError, which calls it `source`."""
    if backend is not None and backend not in BACKENDS:
        raise InputError(f"{source} is {backend!r}: choose one of {', '.join(BACKENDS)}")
    return backend


def _chosen(backend: str | None) -> tuple[str, str]:
    """Where the choice of a backend comes from, and the choice."""
    source = "backend"
    if backend is None:
        source, backend = ENVIRONMENT, os.environ.get(ENVIRONMENT) or "auto"
    check_backend(backend, source)
    return source, backend


def why_not(x: Tensor) -> str | None:
    """Why the kernels cannot compute on X, or None where they can: any graphs, width and order."""
    device = x.device
    if device.type != "cuda" and not (device.type == "cpu" and is_interpreting()):
        return f"x is on the {device.type}, not on a GPU"
    if not HAS_TRITON:
        return "triton is not installed"
    if device.type == "cuda" and TORCH < OLDEST_TORCH:
        return f"torch {torch.__version__} brings a triton that cannot compile them (torch 2.8 can)"
    if device.type == "cuda" and not HAS_COMPILER:
        return "Triton needs a C compiler (gcc or clang) and Python's headers (Python.h)"
    if is_before_ampere(device):
        return "the GPU has no TF32 matrix units (it is older than Ampere)"
    if has_tensor_memory(device):
        return (
            "Triton has miscompiled such products for GPUs with tensor memory (B200, B300, Jetson "
            "Thor: Triton's issue 10821)"
        )
    if is_amd_without_units(device):
        return "the GPU has no float32 matrix units (of AMD's, Instinct has them since MI100)"
    if x.dtype not in DTYPES:
        return f"x is {x.dtype}"
    return None


def is_fused(weight: Tensor) -> bool:
    """Whether a layer of these weights [κ, h_in, h_out] is one kernel where bits hold the graphs.

    Otherwise the BLAS computes its products, and kernels its hops.
    """
    order, h_in, h_out = weight.shape
    return order <= MAX_ORDER and max(h_in, h_out) <= MAX_WIDTH


def is_interpreting() -> bool:
    """Whether Triton's interpreter stands in for a GPU: how the kernels are tested without one."""
    return os.environ.get("TRITON_INTERPRET") == "1"
