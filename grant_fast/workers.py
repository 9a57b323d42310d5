"""Work shared out among processes."""

import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, TypeVar

T = TypeVar("T")


def share_out(workers: int, work: Callable[..., T], *columns: Iterable[Any]) -> Iterator[T]:
    """`map(work, *columns)`, in order, by so many fresh processes (1: by this one).

    They start by importing the main module, so a script needs `if __name__ == "__main__":`, as for
    any multiprocessing. An interrupt ends them all.
    """
    if workers == 1:
        yield from map(work, *columns)
        return
    # Forking a process in which torch runs threads may deadlock: start fresh ones.
    pool = ProcessPoolExecutor(workers, get_context("spawn"))
    try:
        with _without_interrupts():
            results = pool.map(work, *columns)
        yield from results
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
