"""NaN and infinities go where the edges take them, and nowhere else."""

import numpy as np
import pytest
import torch

from grant_fast import ops
from tests.cases import dense_graphs


@pytest.fixture(autouse=True)
def silent_numpy():
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("normalize", [True, False])
def test_what_is_not_finite_stays_with_its_neighbours(bad, normalize):
    graphs = dense_graphs((5, 9, 12, 1, 3, 40, 70), 4)
    batch = graphs.batch(slice(None))
    adjacency = batch.adjacency(normalize)
    x = batch.x.clone()
    x[[7, 40], 1] = bad  # in the second graph, which shares its tile, and in a larger one
    x[80, 0], x[81, 0] = torch.inf, -torch.inf
    weight = torch.randn(3, 4, 3).abs()
    want = ops.flex_conv(x, weight, None, adjacency, backend="torch")
    got = ops.flex_conv(x, weight, None, adjacency, backend="triton")
    assert want.isfinite().any() and not want.isfinite().all()
    torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-5, atol=1e-5)
