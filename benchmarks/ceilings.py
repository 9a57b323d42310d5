"""What the device can do at best: bytes copied and products computed in a second, measured."""

import statistics
from collections.abc import Callable

import torch

from .timing import seconds

_ROUNDS = 9


def measure(device: torch.device) -> dict[str, float]:
    """Copy bandwidth in bytes/s (read and written both counted) and GEMM rates in FLOP/s.

    On a GPU float32 is measured as PyTorch computes it by default (no TF32), then TF32 and
    bfloat16.
    """
    gpu = device.type == "cuda"
    out = {"copy bytes/s": _copy((2 << 30) if gpu else (128 << 20), device)}
    n = 8192 if gpu else 1024
    out["float32 FLOP/s"] = _gemm(n, torch.float32, device)
    if gpu:
        allowed = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        out["tf32 FLOP/s"] = _gemm(n, torch.float32, device)
        torch.set_float32_matmul_precision(allowed)
        out["bfloat16 FLOP/s"] = _gemm(n, torch.bfloat16, device)
    return out


def _copy(size: int, device: torch.device) -> float:
    source = torch.ones(size, dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    return 2 * size / _median(lambda: target.copy_(source), device)


def _gemm(n: int, dtype: torch.dtype, device: torch.device) -> float:
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * n**3 / _median(lambda: torch.mm(a, b, out=out), device)


def _median(run: Callable[[], object], device: torch.device) -> float:
    run()
    return statistics.median(seconds(run, device) for _ in range(_ROUNDS))
