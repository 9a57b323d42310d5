"""The few distinct rows of a matrix, by the compiled CPU kernels and without them."""

import pytest
import torch

from grant_fast import native
from grant_fast.graphs.kinds import find_kinds

pytestmark = pytest.mark.skipif(native.build() is None, reason="the kernels were not compiled")

DTYPES = [torch.uint8, torch.int16, torch.int64, torch.float32, torch.float64]


def check(x):
    """Rows are those of x, each once, in the order in which they come."""
    found, code = native.few_rows(x)
    assert code.dtype == torch.int32 and torch.equal(found[code], x)
    assert len(found) == len(torch.unique(x, dim=0))
    assert torch.equal(code.cummax(0).values.unique(), torch.arange(len(found), dtype=torch.int32))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 2, 3, 7, 8, 17, 33])
def test_few_rows_and_where_they_are(build, dtype, width):
    rows = torch.randint(5, (9, width)).to(dtype)
    x = rows[torch.randint(9, (3000,))]
    x[-1] = 77  # what is new at the end is found there
    wide = torch.ones(3000, width + 2, dtype=dtype)
    wide[:, 1:-1] = x
    for same in (x, x.T.contiguous().T, x[::3], wide[:, 1:-1]):
        check(same)


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_rows_that_are_many(build, dtype):
    x = torch.arange(8).repeat(4)[:, None].to(dtype)
    check(x)
    assert native.few_rows(x[:31]) is None and native.few_rows(x[:1]) is None
    late = torch.zeros(20_000, 1, dtype=dtype)
    late[:4000, 0] = torch.arange(4000)
    check(late)
    late[:4500, 0] = torch.arange(4500)  # a quarter of all might be distinct, but not to begin with
    assert native.few_rows(late) is None


def test_rows_that_meet_at_the_end_of_the_table(build):
    for seed in range(300):
        some = torch.randint(2**31, (8, 1), generator=torch.Generator().manual_seed(seed))
        x = some.repeat(4, 1)
        found, code = native.few_rows(x)
        assert torch.equal(found[code], x)


def test_the_sign_of_zero_tells_rows_apart(build):
    x = torch.tensor([[0.0], [-0.0]]).repeat(8, 1)
    found, code = native.few_rows(x)
    assert len(found) == 2 and torch.equal(found[code].signbit(), x.signbit())


def test_without_the_kernels_integers_alone_are_looked_at(monkeypatch):
    x = torch.randint(3, (100, 2))
    monkeypatch.setattr(native.loading, "library", lambda: None)
    found, code = find_kinds(x)
    assert torch.equal(found[code], x) and len(found) == len(torch.unique(x, dim=0))
    assert find_kinds(x.float()) is None and find_kinds(torch.arange(8)[:, None]) is None
