import itertools

import pytest
import torch

from grant_fast.teaching.order import DEALING, ORDER, arrange, deal, permutation, uniform


def test_a_permutation_depends_on_its_arguments_alone() -> None:
    state = torch.get_rng_state()
    one = permutation(100, 3, ORDER, 5)
    torch.manual_seed(99)
    assert permutation(100, 3, ORDER, 5).equal(one)
    torch.set_rng_state(state)
    permutation(100, 3, ORDER, 5)
    assert torch.get_rng_state().equal(state)
    assert one.sort().values.equal(torch.arange(100))
    for other in [(4, ORDER, 5), (3, DEALING, 5), (3, ORDER, 6)]:
        assert not permutation(100, *other).equal(one)


@pytest.mark.parametrize(
    ("size", "batch_size", "sizes"),
    [
        (1, 4, [1]),
        (12, 4, [4, 4, 4]),
        (14, 4, [4, 4, 4, 2]),
        (13, 4, [4, 4, 3, 2]),  # one is not left alone
        (4, 3, [2, 2]),
        (3, 2, [2, 1]),  # unless another one would be
        (3, 1, [1, 1, 1]),
    ],
)
def test_batches_are_full_but_the_last(size: int, batch_size: int, sizes: list[int]) -> None:
    assert torch.bincount(deal(size, batch_size, seed=0, epoch=0)).tolist() == sizes
    assert [len(part) for part in arrange(torch.arange(size), batch_size)] == sizes


def test_neither_seeds_nor_streams_nor_epochs_repeat_each_other() -> None:
    grid = itertools.product(range(6), (ORDER, DEALING), range(6))
    assert len({tuple(permutation(30, *where).tolist()) for where in grid}) == 6 * 2 * 6
    order = permutation(64, 0, ORDER, 0)
    assert not deal(64, 8, 0, 0)[order].equal(torch.arange(64) // 8)
    assert not uniform(9, 0, DEALING, 0).equal(uniform(9, 0, ORDER, 0))


def test_arranging_in_the_given_order() -> None:
    assert arrange(torch.arange(0), 4) == []
    parts = arrange(torch.tensor([40, 10, 30, 20, 0]), 2)
    assert [part.tolist() for part in parts] == [[40, 10], [30, 20], [0]]


def test_arranging_whole_batches_where_their_first_member_comes() -> None:
    order = torch.tensor([5, 1, 4, 0, 2, 3])
    parts = arrange(order, 2, torch.tensor([9, 4, 9, 4, 7, 4]))
    assert [part.tolist() for part in parts] == [[5, 4], [1, 0, 3], [2]]


def test_a_seed_gives_the_same_order_in_every_version() -> None:
    """Or a run that is taken up by a newer one would not go on as it began."""
    assert permutation(8, seed=3, stream=DEALING, epoch=5).tolist() == [7, 2, 1, 0, 5, 6, 4, 3]
    assert deal(8, 3, seed=2, epoch=4).tolist() == [0, 0, 2, 0, 1, 1, 2, 1]
