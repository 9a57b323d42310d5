"""Time on a device, in turns, and by a clock that runs only while the measured code does."""

import statistics
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

#: Bytes written before each run on a GPU, so that no run finds its data in the cache: twice the
#: largest there is (MI300's; NVIDIA's are a fifth of it).
FLUSH_BYTES = 512 << 20
LEAST_ROUNDS, MOST_ROUNDS = 3, 50
#: A run of less than so many seconds is quick, and has more rounds: more is left to chance there.
QUICK, LEAST_QUICK_ROUNDS = 0.1, 7


def seconds(run: Callable[[], Any], device: torch.device) -> float:
    """How long `run` takes, from its start to the end of the work that it gave the device."""
    if device.type != "cuda":
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    start_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    _flusher(device).zero_()
    # Or the host would give the device its work while this lasts, and the time that takes is ours.
    torch.cuda.synchronize(device)
    start_event.record()
    run()
    end_event.record()
    end_event.synchronize()
    return start_event.elapsed_time(end_event) / 1e3


def interleaved(
    sides: dict[str, Callable[[], Any]], rounds: int, turn: int = 1, rest: float = 0.0
) -> dict[str, list[float]]:
    """Seconds of each side's runs on the CPU; the sides take turns of so many of them.

    Args:
        rest: seconds before each turn, for what another side's processes are still at.
    """
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, run in sides.items():
            time.sleep(rest)
            for _ in range(turn):
                start = time.perf_counter()
                run()
                if number:  # the first round warms up
                    times[name].append(time.perf_counter() - start)
    return times


@cache
def _flusher(device: torch.device) -> torch.Tensor:
    return torch.empty(FLUSH_BYTES, dtype=torch.int8, device=device)


class Clock:
    """Counts the seconds of what is run through it; pytest-benchmark reads it as its timer.

    So pytest-benchmark's figures are the device's own time of our side, while the peers take their
    turns between its rounds.
    """

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def run(self, run: Callable[[], Any], device: torch.device) -> float:
        """Seconds of `run`, which the clock advances by."""
        elapsed = seconds(run, device)
        self.now += elapsed
        return elapsed


def rounds_for(turn: float, budget: float) -> int:
    """How often every side takes its turn: as often as `budget` seconds allow, within limits."""
    return max(LEAST_ROUNDS, min(MOST_ROUNDS, int(budget / max(turn, 1e-9))))


def least_rounds(run: float) -> int:
    """How often a side is timed at least whose run takes so many seconds."""
    return LEAST_QUICK_ROUNDS if run < QUICK else LEAST_ROUNDS


def spread(values: list[float]) -> float:
    """Interquartile range over the median, of three values their range: how noisy it was."""
    low, middle, high = statistics.quantiles(values, n=4)
    return (high - low) / middle if middle else 0.0
