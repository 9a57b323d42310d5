import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grant_fast.errors import InputError
from grant_fast.teaching.selection import select_batches, select_global, select_within_batches

# Few distinct values, so that ties are everywhere; ±0 are equal and infinity is allowed.
SCORES = st.lists(
    st.sampled_from([0.0, -0.0, 0.25, 0.5, 1.0, 1e-38, math.inf]), min_size=1, max_size=60
)


def best(positions: list[int], scores: list[float], m: int) -> list[int]:
    """The m largest by the plainest possible rule: Python's stable sort."""
    return sorted(sorted(positions, key=lambda i: -scores[i])[:m])


@st.composite
def dealt(draw: st.DrawFn) -> tuple[list[float], list[int]]:
    """Scores and a batch number for each, no batch empty, in any order."""
    scores = draw(SCORES)
    count = draw(st.integers(1, len(scores)))
    batches = [i % count for i in range(len(scores))]
    return scores, draw(st.permutations(batches))


@settings(deadline=None, max_examples=60)
@given(SCORES, st.data())
def test_global_selection_is_a_stable_sort(scores: list[float], data: st.DataObject) -> None:
    m = data.draw(st.integers(0, len(scores)))
    picked = select_global(torch.tensor(scores), m)
    assert picked.dtype == torch.int64
    assert picked.tolist() == best(list(range(len(scores))), scores, m)


@settings(deadline=None, max_examples=60)
@given(dealt(), st.data())
def test_selection_within_batches_takes_the_best_of_each(
    case: tuple[list[float], list[int]], data: st.DataObject
) -> None:
    scores, batches = case
    m = data.draw(st.integers(0, len(scores)))
    picked = select_within_batches(torch.tensor(scores), torch.tensor(batches), m).tolist()
    assert len(picked) == m
    for batch in range(max(batches) + 1):
        members = [i for i, b in enumerate(batches) if b == batch]
        mine = [i for i in picked if batches[i] == batch]
        assert mine == best(members, scores, len(mine))
        assert abs(len(mine) - m * len(members) / len(scores)) < 1


@settings(deadline=None, max_examples=60)
@given(dealt(), st.floats(0.01, 1))
def test_batch_selection_takes_the_worst_batches_whole(
    case: tuple[list[float], list[int]], ratio: float
) -> None:
    scores, batches = case
    members = [[i for i, b in enumerate(batches) if b == c] for c in range(max(batches) + 1)]
    means = [sum(scores[i] for i in group) / len(group) for group in members]
    chosen = best(list(range(len(members))), means, math.ceil(round(ratio * len(members), 6)))
    picked = select_batches(torch.tensor(scores), torch.tensor(batches), ratio).tolist()
    assert picked == sorted(i for c in chosen for i in members[c])


def test_equal_batches_go_to_the_lowest_number_whatever_the_order_of_their_members() -> None:
    scores = torch.tensor([0.1, 0.7, 0.3, 0.3, 0.1, 0.7, 0.7, 0.3, 0.1])
    batches = torch.tensor([2, 2, 2, 0, 0, 0, 1, 1, 1])
    assert select_batches(scores, batches, 0.3).tolist() == [3, 4, 5]
    assert select_batches(scores, batches, 0.6).tolist() == [3, 4, 5, 6, 7, 8]


def test_rounding_does_not_break_a_tie_of_means() -> None:
    scores = torch.tensor([2.0**24, 1, 1, 1, 1, 2.0**24])  # in float32 the order would matter
    assert select_batches(scores, torch.tensor([0, 0, 0, 1, 1, 1]), 0.5).tolist() == [0, 1, 2]


def test_a_short_last_batch_gives_its_share() -> None:
    scores = torch.arange(10.0)
    batches = torch.arange(10) // 4  # 4, 4 and 2 graphs
    assert select_within_batches(scores, batches, 5).tolist() == [2, 3, 6, 7, 9]


@pytest.mark.parametrize("select", [select_global, select_within_batches, select_batches])
def test_a_nan_score_is_an_error_that_names_the_graph(select) -> None:
    scores = torch.tensor([0.0, 1.0, math.nan, math.nan])
    arguments = (scores, 1) if select is select_global else (scores, torch.tensor([0, 0, 1, 1]), 1)
    with pytest.raises(InputError, match="position 2 is NaN: lower the learning rate"):
        select(*arguments)


def test_nonsense_is_named() -> None:
    scores = torch.rand(3)
    with pytest.raises(InputError, match=r"cannot select 4 of 3 graphs"):
        select_global(scores, 4)
    with pytest.raises(InputError, match=r"cannot select -1 of 3"):
        select_within_batches(scores, torch.zeros(3, dtype=torch.long), -1)
    with pytest.raises(InputError, match=r"\[2\] batch numbers beside \[3\] scores"):
        select_within_batches(scores, torch.zeros(2, dtype=torch.long), 1)
    with pytest.raises(InputError, match=r"\[num_graphs\], not \[3, 1\]"):
        select_global(scores.unsqueeze(1), 1)
    with pytest.raises(InputError, match=r"ratio=1\.5"):
        select_batches(scores, torch.zeros(3, dtype=torch.long), 1.5)
