"""Work shared out among processes."""

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from typing import Any, TypeVar

from .errors import InputError

T = TypeVar("T")


def cores() -> int:
    """Cores that this process may use, of which a cluster's job gets a few."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def share_out(workers: int, work: Callable[..., T], *columns: Iterable[Any]) -> Iterator[T]:
    """`map(work, *columns)`, in order, by so many fresh processes (1: by this one).

    They start by importing the main module, so a script needs `if __name__ == "__main__":`, as for
    any multiprocessing. An interrupt ends them all. Few results wait at a time: a slow consumer
    does not fill the memory. Give and return NumPy arrays rather than tensors, which torch would
    put into shared memory: a container has little of it.

    Raises:
        InputError: one of the processes was killed, or could not start.
    """
    if workers == 1:
        yield from map(work, *columns)
        return
    # Forking a process in which torch runs threads may deadlock: start fresh ones.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _end_with_parent)
    jobs = zip(*columns, strict=False)
    try:
        with _without_interrupts():  # these start the processes
            waiting = deque(pool.submit(work, *job) for job in islice(jobs, 2 * workers))
        for job in jobs:
            yield waiting.popleft().result()
            waiting.append(pool.submit(work, *job))
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise InputError(
            f"one of {workers} processes that share the work was killed, most likely for lack of "
            "memory: look for an entry that is not a molecule, or free some memory (a script must "
            'start them below `if __name__ == "__main__":`)'
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """End this process once the one that started it is gone, even if that was killed."""
    parent = parent_process()
    assert parent is not None, "it is one of a pool"

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Start processes that Ctrl-C does not reach, even while they import: this one ends them.

    A terminal sends it to all of them. What comes meanwhile, by whichever thread, is delivered
    here at the end: one that is half started would complain.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    came: list[int] = []
    handlers = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if callable(handler := signal.getsignal(number)):
                handlers[number] = handler
                signal.signal(number, lambda number, _: came.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])
