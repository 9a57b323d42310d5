"""Index arithmetic over whole tensors."""

import pytest
import torch

from grant_fast import PackedGraphs
from grant_fast.indexing import distinct_rows, neighbours


@pytest.mark.parametrize("rows", [1, 7, 3000])
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


@pytest.mark.parametrize("most", [0, 1, 3, 7, 100])
@pytest.mark.parametrize("longest", [None, 1, 4])
def test_neighbours_cost_no_more_than_they_may_and_are_as_many_as_can_be(most, longest):
    costs = torch.tensor([0, 2, 0, 5, 1, 1, 1, 9, 0, 0, 3, 0])
    runs = neighbours(lambda at: int(costs[:at].sum()), len(costs), most, longest)
    assert [i for run in runs for i in range(run.start, run.stop)] == list(range(len(costs)))
    for run in runs:
        length = run.stop - run.start
        assert length == 1 or costs[run].sum() <= most
        assert longest is None or length <= longest
        if run.stop < len(costs) and length != longest:
            assert costs[run.start : run.stop + 1].sum() > most
    assert neighbours(lambda at: 0, 0, most, longest) == [slice(0, 0)]


def test_a_huge_graph_among_small_ones_is_a_part_of_its_own():
    sizes = torch.tensor([1] * 50 + [1000, 1000] + [1] * 50)
    batch = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    edges = torch.arange(len(batch)).expand(2, -1)  # a loop at every node
    graphs = PackedGraphs.from_arrays(torch.ones(len(batch), 1), edges, batch)
    assert graphs.cut(200) == [slice(0, 50), slice(50, 51), slice(51, 52), slice(52, 102)]
    where = torch.tensor([50, 0, 1, 51, 2])
    assert graphs.cut(200, where) == [slice(0, 1), slice(1, 3), slice(3, 4), slice(4, 5)]
    assert graphs.cut(1000, where, edge=0) == [slice(0, 1), slice(1, 3), slice(3, 4), slice(4, 5)]
    assert graphs.cut(1002, where, edge=0) == [slice(0, 3), slice(3, 5)]
    assert graphs.cut(2**40, longest=60) == [slice(0, 60), slice(60, 102)]
