"""Work shared out among processes."""

import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from multiprocessing import current_process, get_context, parent_process
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from .errors import InputError

T = TypeVar("T")
GRACE_SECONDS = 3.0  # for what a process is at when no more is wanted


def cores() -> int:
    """Cores that this process may use, of which a cluster's job gets a few."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def share_out(workers: int, work: Callable[..., T], *columns: Iterable[Any]) -> Iterator[T]:
    """`map(work, *columns)`, in order, by so many fresh processes (1: by this one).

    They start by importing the main module, so a script needs `if __name__ == "__main__":`, as for
    any multiprocessing. An interrupt ends them all, within seconds. Few results wait at a time: a
    slow consumer does not fill the memory. Give and return NumPy arrays rather than tensors, which
    torch would put into shared memory: a container has little of it.

    Raises:
        InputError: one of the processes was killed, or could not start.
    """
    if workers == 1 or current_process().daemon:  # which may start none
        yield from map(work, *columns)
        return
    # Forking a process in which torch runs threads may deadlock: start fresh ones.
    fresh = get_context("spawn")
    end, held = fresh.Pipe(duplex=False)
    most = 61 if sys.platform == "win32" else workers  # as many as it can wait for
    pool = ProcessPoolExecutor(min(workers, most), fresh, _watch_for, (end,))
    jobs = zip(*columns, strict=False)
    try:
        with _without_interrupts():  # these start the processes
            some = islice(jobs, 2 * workers)
            waiting = deque(pool.submit(_unless_ended, work, *job) for job in some)
        for job in jobs:
            yield waiting.popleft().result()
            waiting.append(pool.submit(_unless_ended, work, *job))
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise InputError(
            f"one of {workers} processes that share the work was killed, most likely for lack of "
            "memory: free some, or take fewer workers (a script must start them below "
            '`if __name__ == "__main__":`)'
        ) from error
    finally:
        held.close()
        with _without_interrupts():  # interrupted, it would leave processes that wait for ever
            pool.shutdown(cancel_futures=True)


_ended = threading.Event()  # in a process of a pool: no more of its work is wanted


def _unless_ended(work: Callable[..., T], *job: Any) -> T:
    """Work of a pool, of which some is with the processes already when it is to end."""
    if _ended.is_set():
        raise CancelledError
    return work(*job)


def _watch_for(end: Connection) -> None:
    """End this process once the one that started it is gone, even if that was killed; and soon
    after that one has closed its side of `end`."""
    parent = parent_process()
    assert parent is not None, "it is one of a pool"

    def watch() -> None:
        if parent.sentinel not in wait([parent.sentinel, end]):
            _ended.set()
            time.sleep(GRACE_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Start or end processes undisturbed; what comes meanwhile, by whichever thread, is delivered
    here at the end.

    A terminal sends Ctrl-C to all processes. Those started here it never reaches, even while they
    import: this one ends them. One that is half started would complain.
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
