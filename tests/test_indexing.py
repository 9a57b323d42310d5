"""Index arithmetic over whole tensors."""

import pytest
import torch

from grant_fast.indexing import distinct_rows


@pytest.mark.parametrize("rows", [1, 7, 300_000])
@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [
        (0, 4, torch.uint8),
        (-3, 2, torch.int8),
        (5, 5, torch.int32),
        (-(2**40), 2**40, torch.int64),
        (-(2**62), 2**62, torch.int64),
    ],
)
def test_distinct_rows_and_where_they_are(low, high, dtype, rows):
    some = torch.tensor([low, high, (low + high) // 2], dtype=dtype)
    x = some[torch.randint(3, (rows, 4)) * (torch.rand(rows, 4) < 0.5)]
    x[-1] = some[1]  # what is new at the end is found there
    found, code = distinct_rows(x)
    assert code.dtype == torch.int32 and torch.equal(found[code], x)
    assert torch.equal(found, torch.unique(x, dim=0))
