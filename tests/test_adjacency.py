"""The width of indices."""

import torch

from grant_fast.adjacency import index_dtype


def test_indices_are_small_only_where_every_one_fits():
    assert index_dtype(5, 2**31 - 1) == torch.int32
    assert index_dtype(5, 2**31) == index_dtype(2**31, 5) == torch.int64
