"""The selection kernels against a stable sort, in Triton's interpreter."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grant_fast import InputError, select_graphs
from grant_fast.kernels import select

NUMBERS = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 1.0000001, 0.5, 1e-45, 3e38, math.inf]),
    st.floats(width=32, allow_nan=False),
)


def by_sorting(scores: torch.Tensor, m: int) -> list[int]:
    return torch.sort(scores, descending=True, stable=True).indices[:m].sort().values.tolist()


@settings(max_examples=25, deadline=None, derandomize=True)
@example(numbers=[0.0] * 9, share=0.5)
@example(numbers=[math.inf, 1.0, math.inf, math.inf], share=0.5)
@given(numbers=st.lists(NUMBERS, min_size=1, max_size=70), share=st.floats(0, 1))
def test_the_kernels_pick_what_a_stable_sort_would(numbers, share):
    scores, m = torch.tensor(numbers), round(share * len(numbers))
    picked = select_graphs(scores, m, backend="triton")
    assert picked.dtype == torch.int64
    assert picked.tolist() == by_sorting(scores, m)


@pytest.mark.parametrize("size", [1023, 1024, 1025, 5000])
def test_several_blocks_with_ties_across_them(size):
    scores = torch.randint(0, 4, (size,)).float()
    for m in (0, 1, size // 3, size - 1, size):
        assert select.largest(scores, m).tolist() == by_sorting(scores, m)


def test_one_leading_digit_for_all():
    scores = 1 + torch.rand(3000) * 2**-8
    assert (scores.view(torch.int32) >> 16).unique().numel() == 1
    assert select.largest(scores, 700).tolist() == by_sorting(scores, 700)


def test_a_histogram_made_elsewhere_serves(monkeypatch):
    scores = torch.rand(2500)
    counts = select.empty_counts(scores.device)
    for part in scores.split(1100):
        select.count_leading(part, counts)
    monkeypatch.setattr(select, "count_leading", None)
    assert select.largest(scores, 400, counts).tolist() == by_sorting(scores, 400)


def test_half_precision_scores_and_an_impossible_choice():
    scores = torch.rand(200).bfloat16()
    assert select_graphs(scores, 50, backend="triton").tolist() == by_sorting(scores.float(), 50)
    with pytest.raises(InputError, match=r"backend is 'triton', but x is torch\.float64"):
        select_graphs(scores.double(), 50, backend="triton")
