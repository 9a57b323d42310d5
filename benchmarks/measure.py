"""Check every side's answer, then time them in turns; one dict of plain numbers comes out."""

import gc
import statistics
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from .memory import peak
from .timing import Clock, least_rounds, rounds_for, seconds, spread
from .work import TOLERANCE, Side, Work

#: A side whose first run takes longer than this share of a case's budget takes no turns.
PATIENCE = 0.3


class WrongAnswer(Exception):
    """Ours differs from float64 by more than rounding explains."""


@dataclass(frozen=True)
class Bench:
    """How to measure.

    Args:
        device: where.
        budget: seconds that all rounds of a case may take together.
        copy_rate: measured bytes/s of a copy on the device.
    """

    device: torch.device
    budget: float
    copy_rate: float


def measure(work: Work, bench: Bench, clock: Clock, pedantic: Callable[..., Any]) -> dict[str, Any]:
    """Everything there is to say about a case.

    Args:
        clock: the timer of the pytest-benchmark fixture.
        pedantic: `benchmark.pedantic` of that fixture; our side is its target.

    Raises:
        WrongAnswer: our side's, and so no figure of it is worth anything.
        Exception: whatever our own side raises.
    """
    # What is there by now stays: without this the collector, called before every side, would go
    # through all objects of all libraries each time, which took longer than most sides do.
    gc.collect()
    gc.freeze()
    sides, report = _ready(work)
    first = _warm_up(sides, report, work.ours, bench)
    slow = PATIENCE * bench.budget
    turns = {n: s for n, s in sides.items() if n == work.ours or first[n] <= slow}
    samples = {name: [first[name]] for name in sides}

    rounds = rounds_for(sum(first[name] for name in turns), bench.budget)
    many = {name: max(rounds, least_rounds(first[name])) for name in turns}
    others, shuffle = [name for name in turns if name != work.ours], Random(0).shuffle

    def peers() -> None:
        shuffle(others)  # who goes before leaves something in the cache
        for name in others:
            if len(samples[name]) == many[name]:
                continue
            samples[name].append(seconds(turns[name].run, bench.device))

    def ours() -> None:
        samples[work.ours].append(clock.run(turns[work.ours].run, bench.device))

    pedantic(ours, setup=peers, rounds=many[work.ours] - 1)  # everyone had a turn already
    for name, side in sides.items():
        values = samples[name]  # the slow are measured apart, as often as must be
        while len(values) < least_rounds(statistics.median(values)):
            values.append(seconds(side.run, bench.device))
        report[name] |= {"seconds": statistics.median(values), "rounds": len(values)}
        report[name] |= {"spread": spread(values)}
    return _summary(work, report, bench)


def _ready(work: Work) -> tuple[dict[str, Side], dict[str, Any]]:
    """The sides that could be made and are right, and what there is to report of each."""
    exact = [t.detach() for t in work.exact()]
    sides: dict[str, Side] = {}
    report: dict[str, Any] = {}
    for name, make in work.sides.items():
        report[name] = {}
        try:
            side = make()
            answer = side.answer()
            report[name]["error"] = relative_error(answer, exact)
            tolerances = work.tolerances or [TOLERANCE] * len(exact)
            must_be_right(relative_errors(answer, exact), tolerances)
            if side.held is not None:
                report[name]["held bytes"] = side.held()
        except Exception as error:
            _give_up(report[name], name, error, work.ours)
            continue
        sides[name] = side
    return sides, report


def _warm_up(
    sides: dict[str, Side], report: dict[str, Any], ours: str, bench: Bench
) -> dict[str, float]:
    """Seconds of each side's second run or later: the first one compiles and fills caches."""
    first = {}
    for name in list(sides):
        run = sides[name].run
        try:
            most = peak(run, bench.device)
            report[name]["peak bytes"] = None if sides[name].recorded else most
            first[name] = seconds(run, bench.device)
        except Exception as error:
            _give_up(report[name], name, error, ours)
            del sides[name]
    return first


def _give_up(report: dict[str, Any], name: str, error: Exception, ours: str) -> None:
    """A peer may fail, and is then out of the race; ours may not, and a faulty device ends all."""
    if name == ours or is_fatal(error):
        raise error
    report |= {"failed": short(error), "trace": trace(error)}
    if isinstance(error, torch.OutOfMemoryError):
        torch.cuda.empty_cache()


#: What torch and Triton call an error of the device.
DEVICE_ERRORS = ("CUDA error", "HIP error", "Triton Error")


def is_fatal(error: BaseException) -> bool:
    """Whether the device is in no state to go on: after most CUDA errors everything fails."""
    if not any(words in str(error) for words in DEVICE_ERRORS):
        return False
    try:
        torch.ones(1, device="cuda").add_(1).item()
    except RuntimeError:
        return True
    return False


def short(error: BaseException) -> str:
    """One line for a table."""
    text = str(error).strip()
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    line = text.splitlines()[0] if text else ""
    if line.endswith(":"):  # Triton says where first, then shows the place, and what is wrong last
        line += " " + str(_cause(error)).strip().splitlines()[-1].strip()
    line = line[:200]
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def trace(error: BaseException) -> str:
    """The ends of the tracebacks of what went wrong first and of what came of it."""
    # Triton raises once more for each function that a kernel calls: many pages for one mistake.
    chain = dict.fromkeys([_cause(error), error])
    ends = ["".join(traceback.format_exception(each, chain=False))[-1500:] for each in chain]
    return "\n".join(ends)


def _cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def relative_error(got: Sequence[Tensor], want: Sequence[Tensor]) -> float:
    """The largest of `relative_errors`; NaN stays."""
    found = relative_errors(got, want)
    return max(found, key=lambda error: (error != error, error), default=0.0)


def relative_errors(got: Sequence[Tensor], want: Sequence[Tensor]) -> list[float]:
    """‖got − want‖ / ‖want‖ of each pair; infinite for all where shapes differ."""
    if [g.shape for g in got] != [w.shape for w in want]:
        return [float("inf")] * max(1, len(want))
    sizes = [float(w.double().norm()) or 1.0 for w in want]
    off = [float((g.detach().double() - w).norm()) for g, w in zip(got, want, strict=True)]
    return [error / size for error, size in zip(off, sizes, strict=True)]


def must_be_right(errors: Sequence[float], tolerances: Sequence[float]) -> None:
    """Compare each error with its tolerance.

    Raises:
        WrongAnswer: one of them is larger, or NaN.
    """
    for error, tolerance in zip(errors, tolerances, strict=True):
        if not error <= tolerance:
            raise WrongAnswer(f"off by {error:.1e} of the answer's size")


def _summary(work: Work, report: dict[str, Any], bench: Bench) -> dict[str, Any]:
    mine = report[work.ours]["seconds"]
    out: dict[str, Any] = {"ours": work.ours, "facts": work.facts, "sides": report}
    out["ratios"] = {
        name: values["seconds"] / mine
        for name, values in report.items()
        if name != work.ours and "seconds" in values
    }
    if work.bytes is not None:
        out["bytes"] = work.bytes
        out["fraction of copy bandwidth"] = work.bytes / mine / bench.copy_rate
    return out
