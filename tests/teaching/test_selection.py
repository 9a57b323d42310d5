import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grant_fast.errors import InputError
from grant_fast.teaching.selection import _largest_on_device, sample_graphs, select_graphs

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
@example([0.0] * 7, 3 / 7)
@example([math.inf] * 7, 3 / 7)
@example([math.inf, -math.inf, 1.0, math.inf, -math.inf], 4 / 5)
@example([0.5] * 7, 0.0)
@example([0.5] * 7, 1.0)
@example([], 0.0)
@given(SCORES, st.floats(0, 1))
def test_global_selection_is_a_stable_sort(scores: list[float], share: float) -> None:
    m = round(share * len(scores))
    expected = best(list(range(len(scores))), scores, m)
    for picked in (
        select_graphs(torch.tensor(scores), m),
        select_graphs(torch.tensor(scores, dtype=torch.float64), m, backend="torch"),
        _largest_on_device(torch.tensor(scores), m),  # what an accelerator without kernels does
    ):
        assert picked.dtype == torch.int64
        assert picked.tolist() == expected


@settings(deadline=None, max_examples=60)
@given(dealt(), st.data())
def test_selection_within_batches_takes_the_best_of_each(
    case: tuple[list[float], list[int]], data: st.DataObject
) -> None:
    scores, batches = case
    m = data.draw(st.integers(0, len(scores)))
    picked = select_graphs(torch.tensor(scores), m, "graph", batches=torch.tensor(batches)).tolist()
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
    count = math.ceil(round(ratio * len(members), 6))
    picked = select_graphs(
        torch.tensor(scores), count, "batch", batches=torch.tensor(batches)
    ).tolist()
    assert picked == sorted(i for c in chosen for i in members[c])


def test_equal_batches_go_to_the_lowest_number_whatever_the_order_of_their_members() -> None:
    scores = torch.tensor([0.1, 0.7, 0.3, 0.3, 0.1, 0.7, 0.7, 0.3, 0.1])
    batches = torch.tensor([2, 2, 2, 0, 0, 0, 1, 1, 1])
    assert select_graphs(scores, 1, "batch", batches=batches).tolist() == [3, 4, 5]
    assert select_graphs(scores, 2, "batch", batches=batches).tolist() == [3, 4, 5, 6, 7, 8]


def test_rounding_does_not_break_a_tie_of_means() -> None:
    scores = torch.tensor([2.0**24, 1, 1, 1, 1, 2.0**24])  # in float32 the order would matter
    assert select_graphs(scores, 1, "batch", batches=torch.tensor([0, 0, 0, 1, 1, 1])).tolist() == [
        0,
        1,
        2,
    ]


@pytest.mark.parametrize("mode", ["global", "graph", "batch"])
def test_a_nan_score_is_an_error_that_names_the_graph(mode) -> None:
    scores = torch.tensor([0.0, 1.0, math.nan, math.nan])
    with pytest.raises(InputError, match="position 2 is NaN: lower the learning rate"):
        select_graphs(scores, 1, mode, batches=torch.tensor([0, 0, 1, 1]))


def test_nonsense_is_named() -> None:
    scores, zeros = torch.rand(3), torch.zeros(3, dtype=torch.long)
    with pytest.raises(InputError, match=r"cannot select 4 of 3 graphs"):
        select_graphs(scores, 4)
    with pytest.raises(InputError, match=r"cannot select -1 of 3"):
        select_graphs(scores, -1, "graph", batches=zeros)
    with pytest.raises(InputError, match=r"cannot select 2 of 1 batches"):
        select_graphs(scores, 2, "batch", batches=zeros)
    with pytest.raises(InputError, match=r"cannot select 1.5 of 3 graphs: choose a whole number"):
        select_graphs(scores, 1.5)  # type: ignore[arg-type]
    for numbers in ([0, 0, 2], [0, -1, 1], [1, 1, 1], [0, 1, 3]):
        for mode in ("graph", "batch"):
            with pytest.raises(InputError, match="number the batches 0, 1, 2"):
                select_graphs(scores, 1, mode, batches=torch.tensor(numbers))
    with pytest.raises(InputError, match=r"must be int64, not torch.float32: use batches.long"):
        select_graphs(scores, 1, "graph", batches=zeros.float())
    with pytest.raises(InputError, match=r"\[2\] batch numbers for \[3\] scores"):
        select_graphs(scores, 1, "graph", batches=zeros[:2])
    with pytest.raises(InputError, match=r"\[num_graphs\], not torch.float32 \[3, 1\]"):
        select_graphs(scores.unsqueeze(1), 1)
    with pytest.raises(InputError, match="unknown mode 'worst'"):
        select_graphs(scores, 1, "worst")  # type: ignore[arg-type]


def test_drawing_in_proportion_keeps_the_expectation() -> None:
    scores = torch.tensor([0.0, 0.1, 0.2, 1.0, 3.0, 0.0, 0.7])
    values = torch.arange(1.0, 8.0)
    generator = torch.Generator().manual_seed(0)
    total, counts = 0.0, torch.zeros(7)
    for _ in range(3000):
        lot = 1 - torch.rand(7, dtype=torch.float64, generator=generator)
        picked, weights = sample_graphs(scores, 3, lot)
        assert len(picked) == 3 and bool((weights >= 1).all())
        total += float((weights * values[picked]).sum()) / 3000
        counts[picked] += 1
    assert total == pytest.approx(float(values.sum()), rel=0.03)
    assert counts.argmax() == 4 and counts[3] > counts[0]


@pytest.mark.parametrize("scale", [2.0**-20, 2.0**20])
def test_a_draw_heeds_the_ratios_of_the_scores_and_not_their_size(scale: float) -> None:
    scores, lot = torch.tensor([0.0, 0.1, 4.0, 1.0]), torch.tensor([1.0, 0.9, 0.8, 0.3])
    picked, weights = sample_graphs(scores, 2, lot)
    assert picked.tolist() == [2, 3]
    scaled, counted = sample_graphs(scale * scores, 2, lot)
    assert scaled.equal(picked) and counted.equal(weights)


def test_a_draw_is_the_same_where_the_environment_asks_for_the_kernels(monkeypatch) -> None:
    scores, lot = torch.rand(20), 1 - torch.rand(20)
    drawn = sample_graphs(scores, 7, lot)
    monkeypatch.setenv("GRANT_FAST_BACKEND", "triton")
    assert all(map(torch.equal, sample_graphs(scores, 7, lot), drawn))


@pytest.mark.parametrize("scores", [[0.0] * 5, [math.inf, 1.0, 0.0, 2.0, math.inf]])
def test_drawing_from_scores_at_the_edge(scores) -> None:
    lot = torch.rand(5, dtype=torch.float64) + 1e-9
    for m in (0, 2, 5):
        picked, weights = sample_graphs(torch.tensor(scores), m, lot)
        assert len(picked) == m and bool(weights.isfinite().all())
    assert weights.tolist() == [1.0] * 5


@pytest.mark.parametrize(
    ("scores", "m", "lot", "says"),
    [
        ([0.5, math.nan, 1.0], 1, [0.5] * 3, "position 1 is NaN: lower the learning rate"),
        ([0.5, 1.0, -0.25], 1, [0.5] * 3, r"position 2 is -0\.25: .* at least 0"),
        ([0.5, 1.0, 2.0], 1, [0.5], r"\[1\] random numbers for \[3\] scores: draw one for each"),
        (
            [0.5, 1.0, 2.0],
            4,
            [0.5] * 3,
            "cannot select 4 of 3 graphs: choose a whole number from 0 to 3",
        ),
        ([[0.5], [1.0]], 1, [[0.5], [0.5]], r"\[num_graphs\], not torch.float32 \[2, 1\]"),
        ([1, 2], 1, [0.5] * 2, r"floating point, \[num_graphs\], not torch.int64"),
    ],
)
def test_what_cannot_be_drawn_from_is_named(scores, m, lot, says) -> None:
    with pytest.raises(InputError, match=says):
        sample_graphs(torch.tensor(scores), m, torch.tensor(lot))


@settings(deadline=None, max_examples=60)
@given(SCORES, st.data())
def test_a_draw_has_m_graphs_once_each_and_weights_that_are_bounded(
    scores: list[float], data: st.DataObject
) -> None:
    m = data.draw(st.integers(0, len(scores)))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 9)))
    lot = 1 - torch.rand(len(scores), dtype=torch.float64, generator=generator)
    picked, weights = sample_graphs(torch.tensor(scores), m, lot)
    again, _ = sample_graphs(torch.tensor(scores), m, lot)
    assert picked.equal(again)
    assert picked.tolist() == sorted(set(picked.tolist())) and len(picked) == len(weights) == m
    assert weights.dtype == torch.float32 and bool(weights.isfinite().all() & (weights >= 1).all())
    # A larger score never counts more than a smaller one: it had the better odds.
    by_score = torch.tensor(scores)[picked].sort(descending=True, stable=True).indices
    assert bool((weights[by_score].diff() >= 0).all())


def test_a_batch_of_infinities_of_both_signs_has_no_mean():
    scores, batches = torch.tensor([1.0, math.inf, -math.inf]), torch.tensor([0, 1, 1])
    with pytest.raises(InputError, match="batch 1 is NaN"):
        select_graphs(scores, 1, "batch", batches=batches)


def test_a_draw_by_hand() -> None:
    # q is half the mean, 2, and half the score: (1, 3); the priorities q/lot are (4, 3)
    picked, weights = sample_graphs(torch.tensor([0.0, 4.0]), 1, torch.tensor([0.25, 1.0]))
    assert picked.tolist() == [0] and weights.tolist() == [3.0]


def test_scores_may_have_a_history_and_differ_in_their_last_bits() -> None:
    scores = torch.tensor([1.0, 1.0 + 2**-40], dtype=torch.float64, requires_grad=True)
    assert select_graphs(scores, 1, backend="torch").tolist() == [1]


def test_the_share_of_a_batch_is_rounded_down() -> None:
    batches = torch.tensor([0, 0, 1, 1])
    assert select_graphs(torch.zeros(4), 1, "graph", batches=batches).tolist() == [2]
