"""Bytes that kernels move, counted in the interpreter; and the graphs of which that is asked."""

import numpy as np
import pytest
import torch
from triton.runtime.interpreter import InterpreterBuilder

from grant_fast.kernels import layer
from grant_fast.ops.tiled import kernel_graphs
from tests.cases import dense_graphs

SMALL = (25, 30, 17, 9, 32, 21, 5, 14)


class Traffic:
    """Bytes loaded and stored by the interpreted kernels, by the tensor they belong to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.moved: list[tuple[int, int]] = []
        load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

        def count(pointers, mask) -> None:
            size = pointers.get_element_ty().primitive_bitwidth // 8
            chosen = np.asarray(pointers.data)[np.asarray(mask.data, dtype=bool)]
            self.moved += [(int(p), size) for p in chosen.ravel()]

        def counted_load(builder, pointers, mask, *rest):
            count(pointers, mask)
            return load(builder, pointers, mask, *rest)

        def counted_store(builder, pointers, value, mask, *rest):
            count(pointers, mask)
            return store(builder, pointers, value, mask, *rest)

        monkeypatch.setattr(InterpreterBuilder, "create_masked_load", counted_load)
        monkeypatch.setattr(InterpreterBuilder, "create_masked_store", counted_store)

    def of(self, tensor: torch.Tensor) -> int:
        first = tensor.data_ptr()
        last = first + tensor.numel() * tensor.element_size()
        return sum(size for pointer, size in self.moved if first <= pointer < last)

    def total(self) -> int:
        return sum(size for _, size in self.moved)


def column_blocks(width: int, block: int) -> int:
    return -(-width // block)


def packed_graphs(sizes: tuple[int, ...], width: int):
    graphs = dense_graphs(sizes, width)
    return graphs, kernel_graphs(graphs.batch(slice(None)), normalize=True)


def table_bytes(packed: layer.Graphs) -> int:
    """Word, scale and row of each row of a tile, used or not."""
    return 12 * 32 * packed.num_tiles
