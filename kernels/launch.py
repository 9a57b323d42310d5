"""How the kernels are compiled and started: what all launchers share."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..devices import has_hopper_units, has_nvidia_units

#: Warps of each kernel; those that are not here have one for each 16 columns that they hold.
WARPS = {
    "flex_conv_blocks": 4,
    "weight_grad_blocks": 4,
    "horner_blocks": 4,
    "powers_blocks": 4,
    "spmm_rows": 4,
    "value_grad_rows": 4,
    "readout_rows": 1,
    "readout_grad_rows": 1,
    "lay_out_tiles": 1,
    "score_rows": 1,
    "sum_by_kind": 4,
    **dict.fromkeys(("count_digits", "count_picked", "write_picked"), 4),
    **dict.fromkeys(("norm_moments", "norm_rows", "norm_grad_sums", "norm_grad_rows"), 4),
    **dict.fromkeys(("find_digit", "merge_moments"), 8),
}

#: Kernels that give each thread one wide load a row: AMD's warps have twice as many threads.
BY_THREADS = ("spmm_rows", "value_grad_rows")

#: `most_registers` of kernels for which it does not depend on the shape.
REGISTERS = {
    "horner_tiles": 144,
    **dict.fromkeys(("weight_grad_tiles", "weight_grad_blocks"), 255),
    **dict.fromkeys(("score_tiles", "find_digit"), 255),
}

#: Kernels compiled without fused multiply-adds. They sum products over the lanes of a warp, each
#: lane the whole sum. A lane's own product, fused with the addition, would not be rounded, those of
#: the others are: the lanes' sums would differ, and it is not defined which of them is stored.
UNFUSED = (
    *("readout_rows", "value_grad_rows", "score_tiles", "score_rows"),
    *("norm_moments", "merge_moments", "norm_grad_sums"),
)


def cdiv(a: int, b: int) -> int:
    """⌈a / b⌉, many times faster on the host than Triton's own, which kernels can call, too."""
    return -(-a // b)


def options(
    kernel: str, constants: Mapping[str, Any], *, hip: bool, hopper: bool
) -> dict[str, int]:
    """How a kernel is compiled. No software pipeline: it would cost registers and shared memory."""
    columns = max(constants.get("BLOCKS") or (constants.get("BO", 0),))
    out = {"num_warps": WARPS.get(kernel) or columns // 16, "num_stages": 1}
    out["enable_fp_fusion"] = kernel not in UNFUSED
    if kernel in BY_THREADS and hip:
        out["num_warps"] //= 2
    if not hip and (registers := most_registers(kernel, constants, hopper)):
        out["maxnreg"] = registers
    return out


def most_registers(kernel: str, constants: Mapping[str, Any], hopper: bool) -> int | None:
    """Registers that a thread may take; None where ptxas is to choose.

    Left alone it may stop at fewer, so that one more program fits beside, and spill. `grant-fast
    doctor --compile` shows that no configuration of the table spills, `python -m
    tests.kernels.spills` which others do.
    """
    if kernel == "flex_conv_tiles":
        h_in = constants["H_IN"]
        if h_in > 32 and h_in % 4:  # rows that do not begin at 16 bytes need an address each
            return 255
        most = 128 if hopper or h_in <= 32 else 144
        return most if constants["ORDER"] > 1 else None
    if kernel == "flex_conv_blocks":
        kept = constants["PLANES"] == 1 and constants["ORDER"] > 1
        return 128 if kept and not hopper else None
    if kernel in ("horner_blocks", "powers_blocks"):
        return None if hopper else 255
    return REGISTERS.get(kernel)


def precision(dtype: torch.dtype, device: torch.device) -> str:
    """How products reach the accuracy of `dtype`.

    float32: three TF32 products on NVIDIA, or the six of bfloat16 that cost as much (`tile.split`);
    one, or three, where the user allowed TF32 through PyTorch; and float32's own matrix
    instructions on AMD. Half precision is exact in TF32.
    """
    if not has_nvidia_units(device):
        return "ieee"
    return "tf32" if dtype != torch.float32 or allows_tf32() else "tf32x3"


def parts(dtype: torch.dtype, precision: str) -> int:
    """Of how many bfloat16s `tile.split` makes a number of X or W for a product so precise; 0 of
    none, where matrix units take float32."""
    if precision == "ieee":
        return 0
    if dtype == torch.bfloat16:
        return 1
    return 3 if precision == "tf32x3" else 2


def allows_tf32() -> bool:
    """Whether the user did, by either of PyTorch's switches; the older one raises where the newer
    was used."""
    matmul = torch.backends.cuda.matmul
    if hasattr(matmul, "fp32_precision"):
        return matmul.fp32_precision == "tf32"
    return matmul.allow_tf32


def hop_precision(device: torch.device) -> str:
    """The precision of kernels that do nothing but hop: float32's, whatever the features are.

    They wait for memory, so that the third product of a hop is free.
    """
    return "tf32x3" if has_nvidia_units(device) else "ieee"


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    *operands: Any,
    written: tuple[Tensor, ...],
    **constants: Any,
) -> None:
    """Start `kernel` on its operands' device; `written` are the operands that it writes.

    Triton would take the current device. And it would compile a kernel anew, unseen by the table of
    `inspect.py`, for an operand that begins off 16 bytes, as a view may: such a one is copied. What
    is written is our own, and chosen so that it does not.
    """
    device = written[0].device
    if any(isinstance(operand, Tensor) and operand.data_ptr() % 16 for operand in operands):
        operands = tuple(_aligned(operand, written) for operand in operands)
    hip, hopper = torch.version.hip is not None, has_hopper_units(device)
    constants |= options(kernel.fn.__name__, constants, hip=hip, hopper=hopper)
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        kernel[grid](*operands, **constants)


def side_by_side(device: torch.device, work: Sequence[Callable[[], None]]) -> None:
    """Do pieces of work, of which none reads or writes what another one writes.

    While a CUDA graph is recorded, each has a stream of its own, so that a replay starts them all
    at once: the few large graphs of a batch, which cannot fill the device, beside the many small
    ones, and dX beside dW. What is not recorded comes one after another: there, Python takes longer
    to start a kernel than the device to run it.

    Args:
        work: at most ten pieces, which keep none of the memory that they allocate.
    """
    if len(work) < 2 or device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
        for each in work:
            each()
        return
    *others, last = work
    stream, beside = torch.cuda.current_stream(device), _streams(device)[: len(others)]
    for other, each in zip(beside, others, strict=True):
        other.wait_stream(stream)
        with torch.cuda.stream(other):
            each()
    last()
    for other in beside:
        stream.wait_stream(other)


@cache
def _streams(device: torch.device) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(device) for _ in range(9)]


def _aligned(operand: Any, written: tuple[Tensor, ...]) -> Any:
    """`operand`, or a copy with the same strides of a tensor that begins off 16 bytes."""
    if not isinstance(operand, Tensor) or operand.data_ptr() % 16 == 0:
        return operand
    if any(operand is tensor for tensor in written):
        return operand
    copy = torch.empty_strided(
        operand.shape, operand.stride(), dtype=operand.dtype, device=operand.device
    )
    return copy.copy_(operand)
