import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from grant_fast.errors import InputError
from grant_fast.teaching.sampler import GraNTSampler
from grant_fast.teaching.schedules import Curriculum, ratio_at, selection_epochs, share_size


@pytest.mark.parametrize("epochs", [1, 7, 50, 250, 600])
def test_step_climbs_in_fifty_equal_stages(epochs: int) -> None:
    start = Fraction(1, 10)
    for epoch in range(epochs):
        stage = math.floor(Fraction(epoch) / (Fraction(epochs) / 50))
        expected = min(start + stage * (1 - start) / 50, Fraction(1))
        assert ratio_at(epoch, epochs, 0.1) == pytest.approx(float(expected), abs=1e-12)
    if epochs >= 50:
        assert len({ratio_at(epoch, epochs, 0.1) for epoch in range(epochs)}) == 50


def test_smooth_schedules_by_hand() -> None:
    assert [ratio_at(t, 4, 0.2, "linear") for t in range(4)] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert [ratio_at(t, 4, 0.2, "cosine") for t in (0, 2)] == pytest.approx([0.2, 0.6])
    assert ratio_at(1, 4, 0.2, "cosine") == pytest.approx(0.2 + 0.8 * (1 - 0.5**0.5) / 2)
    assert [ratio_at(t, 4, 0.2, "constant") for t in range(4)] == [0.2] * 4


@pytest.mark.parametrize("schedule", ["step", "linear", "cosine", "constant"])
@pytest.mark.parametrize("start", [0.05, 0.3, 1.0])
def test_every_schedule_starts_at_its_start_and_never_falls(schedule: str, start: float) -> None:
    ratios = [ratio_at(t, 83, start, schedule) for t in range(83)]
    assert ratios[0] == start
    assert ratios == sorted(ratios)
    assert ratios[-1] <= 1


@pytest.mark.parametrize(
    ("epochs", "start"), [(250, 0.05), (600, 0.1), (1000, 0.05), (30, 0.4), (12, 0.01), (3, 0.1)]
)
def test_the_curriculum_selects_at_first_always_and_then_ever_more_rarely(
    epochs: int, start: float
) -> None:
    chosen = selection_epochs(epochs, start)
    startup = int(epochs * start)
    assert list(chosen[: startup + 1]) == list(range(startup + 1))
    later = chosen[startup:]
    for epoch, following in itertools.pairwise(later):
        assert following - epoch == 5 + math.floor(Fraction(45 * epoch, epochs))
    assert chosen[-1] + 5 + math.floor(Fraction(45 * chosen[-1], epochs)) >= epochs


def test_a_decimal_startup_is_as_long_as_written() -> None:
    assert selection_epochs(100, 0.29)[28:31] == (28, 29, 29 + 5 + 13)  # 0.29 * 100 is below 29


@pytest.mark.parametrize(("epochs", "share"), [(50, 0.66), (300, 0.96)])
def test_the_last_share_is_what_the_sampler_s_help_says(epochs: int, share: float) -> None:
    assert round(Curriculum(epochs).ratio(epochs - 1), 2) == share
    assert f"{share} in" in (GraNTSampler.__doc__ or "")


@pytest.mark.parametrize(
    ("ratio", "total", "size"),
    [
        (0.07, 100, 7),
        (0.1, 30, 3),
        (0.29, 100, 29),
        (0.05, 30000, 1500),
        (0.1, 32901, 3291),
        (0.301, 10, 4),
    ],
)
def test_decimal_shares_round_as_written(ratio: float, total: int, size: int) -> None:
    assert share_size(ratio, total) == size


def test_a_share_is_at_least_one_and_at_most_all() -> None:
    assert share_size(1e-9, 5) == 1
    assert share_size(0.999, 5) == 5
    assert share_size(1.0, 5) == 5
    assert share_size(0.5, 0) == 0


def test_numpys_share_is_kept_as_a_plain_number() -> None:
    for kind in (np.float32, np.float64):  # a saved state holds plain values
        assert type(Curriculum(10, kind(0.5)).start_ratio) is float


def test_a_curriculum_knows_which_selection_an_epoch_uses() -> None:
    plan = Curriculum(20, 0.1, "linear", 6)
    assert plan.selection_epochs == (0, 6, 12, 18)
    assert [plan.last_selection(t) for t in (0, 5, 6, 11, 17, 19)] == [0, 0, 6, 6, 12, 18]
    assert plan.ratio(11) == plan.ratio(6) == ratio_at(6, 20, 0.1, "linear")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"epochs": 0}, "epochs=0: give a whole number of at least 1"),
        ({"epochs": -3}, "epochs=-3"),
        ({"start_ratio": 0.0}, r"start_ratio=0\.0: give a number above 0 and at most 1"),
        ({"start_ratio": 1.5}, r"start_ratio=1\.5"),
        ({"start_ratio": math.nan}, "start_ratio=nan"),
        ({"start_ratio": "half"}, "start_ratio='half'"),
        ({"start_ratio": None}, "start_ratio=None"),
        ({"ratio_schedule": "stairs"}, "'stairs': choose one of step, linear, cosine, constant"),
        ({"interval": 0}, "interval=0: give a whole number of at least 1"),
        ({"interval": "often"}, "'often': give 'curriculum' or a number"),
    ],
)
def test_nonsense_is_named(settings: dict, says: str) -> None:
    with pytest.raises(InputError, match=says):
        Curriculum(**{"epochs": 10, **settings})


@pytest.mark.parametrize("epoch", [-1, 10])
def test_an_epoch_outside_the_run_is_named(epoch: int) -> None:
    with pytest.raises(InputError, match=rf"epoch {epoch} is outside this run's 0\.\.9"):
        ratio_at(epoch, 10, 0.1)


def test_half_an_epoch_is_rounded_down() -> None:
    assert selection_epochs(50, 0.15)[:9] == (0, 1, 2, 3, 4, 5, 6, 7, 7 + 5 + 6)
