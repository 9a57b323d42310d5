"""What a kernel leaves unwritten shows."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

if TYPE_CHECKING:
    from tests.kernels.traffic import Traffic


@pytest.fixture(autouse=True)
def bfloat16_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter multiplies the bit patterns of bfloat16s; here, what they stand for."""
    # Not before the tests' configuration has chosen the interpreter.
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def value(factor: Any) -> Any:
        if factor.dtype.scalar != tl.bfloat16:
            return factor
        bits = factor.data.view(np.uint16).astype(np.uint32) << 16
        return TensorHandle(bits.view(np.float32), tl.float32)

    def product(builder, a, b, *rest):  # type: ignore[no-untyped-def]
        return multiply(builder, value(a), value(b), *rest)

    multiply = InterpreterBuilder.create_dot
    monkeypatch.setattr(InterpreterBuilder, "create_dot", product)


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh memory holds NaN, so that what a kernel leaves unwritten, or reads too far, shows."""

    def poisoned(tensor: torch.Tensor, *size: object, **kwargs: object) -> torch.Tensor:
        out = original(tensor, *size, **kwargs)
        return out.fill_(torch.nan) if out.is_floating_point() else out

    original = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)
    empty_like = torch.empty_like
    monkeypatch.setattr(
        torch,
        "empty_like",
        lambda t, **kw: (
            empty_like(t, **kw).fill_(torch.nan) if t.is_floating_point() else empty_like(t, **kw)
        ),
    )


@pytest.fixture
def untouched(tmp_path: Path) -> Callable[..., torch.Tensor]:
    """Makes tensors in sparse files: of any size, and only what is written takes space."""

    def allocate(dtype: torch.dtype, *shape: int) -> torch.Tensor:
        path, size = tmp_path / str(len(list(tmp_path.iterdir()))), math.prod(shape)
        return torch.from_file(str(path), shared=True, size=size, dtype=dtype).view(shape)

    return allocate


@pytest.fixture
def no_cpu_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where no C compiler was at hand when the package was installed."""
    monkeypatch.setattr("grant_fast.native.loading.library", lambda: None)


@pytest.fixture
def traffic(monkeypatch: pytest.MonkeyPatch) -> "Callable[[], Traffic]":
    """Counts the bytes that kernels move from the call on."""
    from tests.kernels.traffic import Traffic

    return lambda: Traffic(monkeypatch)
