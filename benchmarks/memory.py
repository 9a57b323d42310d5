"""Bytes: the least that a layer must move, and what a call holds on to."""

import ctypes
import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class LayerShape:
    """One flexible layer on one batch, in float32.

    Args:
        nodes, edges: of the batch.
        h_in, h_out, order: widths of X and Y, and κ.
        words: 64-bit words whose bits hold all rows of A; None where graphs are too large for that.
        fits: whether a graph fits on chip, so that every hop can stay there.
    """

    nodes: int
    edges: int
    h_in: int
    h_out: int
    order: int
    words: int | None = None
    fits: bool = True

    @property
    def adjacency(self) -> int:
        """Bytes of Â read once: bits, or row pointers and columns; and a rank-1 scale a node."""
        csr = 4 * (self.nodes + 1) + 4 * self.edges
        return (csr if self.words is None else min(8 * self.words, csr)) + 4 * self.nodes

    @property
    def weights(self) -> int:
        """Bytes of W and b."""
        return 4 * (self.order * self.h_in + 1) * self.h_out

    def forward(self) -> int:
        """The least that Y = Σ_k Â^k X W_k + b moves: X, Â, W and b in, Y out.

        Where a graph exceeds the chip each hop after the first reads Â and the width it hops at
        once more, and each hop but the last writes it: rows are counted once, not once an edge.
        """
        x, y = (4 * self.nodes * width for width in (self.h_in, self.h_out))
        return x + y + self.weights + self._hops(min(self.h_in, self.h_out))

    def backward(self) -> int:
        """The least that dX, dW and db move: dY, X, Â and W in, dX, dW and db out."""
        x, y = (4 * self.nodes * width for width in (self.h_in, self.h_out))
        return y + 2 * x + 2 * self.weights + self._hops(min(2 * self.h_in, self.h_out))

    def _hops(self, width: int) -> int:
        """Bytes of Â, and of what goes out and comes back between hops at `width`."""
        hops = self.order - 1
        if self.fits:
            return self.adjacency if hops else 0
        return self.adjacency * hops + 2 * 4 * self.nodes * width * max(0, hops - 1)

    def train(self) -> int:
        """Forward and backward."""
        return self.forward() + self.backward()


def held_for_backward(run: Callable[[], Any], given: Iterable[Tensor]) -> int:
    """Bytes that autograd holds between `run` (a forward pass) and its backward pass.

    Args:
        given: tensors that exist anyway, such as X, the weights and the edges: not counted.
    """
    known = {tensor.untyped_storage().data_ptr() for tensor in given}
    held: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.layout == torch.strided:  # the parts of a sparse matrix belong to its owner
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in known:
                held[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = run()
        total = sum(held.values())
    del out
    return total


def peak(run: Callable[[], Any], device: torch.device) -> int | None:
    """Bytes that `run` needs at once beyond what is there before; None where nobody can tell.

    On a GPU what PyTorch's allocator gave out; on Linux what the process had resident, which
    leaves out whatever fitted into memory it had already.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        before = _status("VmRSS")
        run()
        return max(0, _status("VmHWM") - before)
    except (OSError, KeyError, AttributeError):
        return None


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return 1024 * int(line.split()[1])
    raise KeyError(field)
