"""Work shared by several processes, with results in order and a progress bar."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TypeVar

from ..errors import InputError
from .progress import track

Job = TypeVar("Job")
Result = TypeVar("Result")


def in_order(
    function: Callable[[Job], Result],
    jobs: Sequence[Job],
    workers: int | None = None,
    *,
    label: str = "",
    progress: bool = False,
) -> Iterable[Result]:
    """`map(function, jobs)`, shared by processes; the results do not depend on how many.

    Few results wait at a time, so that a slow consumer does not fill the memory.

    Args:
        function: of a module's top level; what it takes and gives travels between processes, so
            arrays are NumPy's (torch would put its tensors into shared memory, of which a
            container has little).
        jobs: what to call it with.
        workers: processes; None or 1 stays in this one. More of them start by importing the main
            module, so a script needs `if __name__ == "__main__":`, as for any multiprocessing.
        label, progress: of a progress bar.

    Raises:
        InputError: `workers` is below 1.
    """
    if workers is not None and workers < 1:
        raise InputError(f"workers={workers}: give 1 or more")
    count = min(workers or 1, len(jobs))
    results = map(function, jobs) if count <= 1 else _shared(function, jobs, count)
    return track(results, label, len(jobs), progress)


def _shared(
    function: Callable[[Job], Result], jobs: Sequence[Job], workers: int
) -> Iterator[Result]:
    # Forking a process in which torch runs threads may deadlock: start fresh ones.
    pool = ProcessPoolExecutor(workers, get_context("spawn"))
    ahead = 2 * workers
    try:
        with _without_interrupts():  # these start the processes
            waiting: deque[Future[Result]] = deque(pool.submit(function, j) for j in jobs[:ahead])
        for job in jobs[ahead:]:
            yield waiting.popleft().result()
            waiting.append(pool.submit(function, job))
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Start processes that Ctrl-C does not reach, even while they import: this one ends them.

    A terminal sends it to all of them. What comes meanwhile is delivered here at the end.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
