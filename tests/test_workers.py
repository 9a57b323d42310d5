"""Work shared out among processes, one of which is killed."""

import _thread
import os
import signal
import subprocess
import sys
import time

import pytest

from grant_fast import workers
from grant_fast.errors import InputError
from grant_fast.workers import cores, share_out

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")


def test_windows_waits_for_61_processes_at_most(monkeypatch):
    class Started(Exception):
        pass

    def start(count, *_):
        raise Started(count)

    monkeypatch.setattr(workers, "ProcessPoolExecutor", start)
    for platform, count in (("linux", 80), ("win32", 61)):
        monkeypatch.setattr("sys.platform", platform)
        with pytest.raises(Started, match=f"^{count}$"):
            next(share_out(80, abs, [1]))


#: Prints the two processes that work, and works until it is ended. They take jobs in pairs, so that
#: neither does both; a job that was begun leaves a file.
ENDLESS = """
import os, time
from pathlib import Path
from grant_fast.workers import share_out

def work(number):
    pair = Path(__file__).parent / f"pair-{number // 2}"
    pair.mkdir(exist_ok=True)
    (pair / str(number)).touch()
    while len(list(pair.iterdir())) < 2:
        time.sleep(0.01)
    if number > 1:
        time.sleep(100)
    return os.getpid()

if __name__ == "__main__":
    for pid in share_out(2, work, range(9)):
        print(pid, flush=True)
"""


def start(folder, seconds=100):
    """The process that shares out jobs of so many seconds, and the two that work at them."""
    script = folder / "endless.py"
    script.write_text(ENDLESS.replace("100", str(seconds)))
    parent = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    pids = {int(parent.stdout.readline()) for _ in range(2)}
    assert len(pids) == 2 and all(map(is_alive, pids))
    return parent, pids


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_processes_end_with_the_one_that_started_them_even_if_it_is_killed(tmp_path):
    parent, workers = start(tmp_path)
    parent.kill()
    parent.communicate()  # ends once nobody has the output open any more
    until = time.monotonic() + 10
    while any(map(is_alive, workers)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(is_alive, workers))


@pytest.mark.parametrize("seconds", [2, 100])  # of work at hand, which is waited for or not
def test_an_interrupt_ends_all_soon_and_another_one_does_no_harm(tmp_path, seconds):
    parent, workers = start(tmp_path, seconds)
    while len(list(tmp_path.glob("pair-1/*"))) < 2:
        time.sleep(0.01)
    for _ in range(2):
        parent.send_signal(signal.SIGINT)
        time.sleep(0.2)
    parent.communicate(timeout=30)
    assert parent.returncode != 0 and not any(map(is_alive, workers))
    assert not (tmp_path / "pair-2").exists()  # what waited was not begun


def test_a_process_that_was_killed_is_one_line():
    with pytest.raises(InputError, match=r"one of 2 processes .* was killed, .*\(a script must"):
        list(share_out(2, signal.raise_signal, [signal.SIGKILL]))


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_waits_until_the_processes_have_started(monkeypatch, sent):
    started = []
    start = workers.ProcessPoolExecutor.submit

    def interrupted(*job):
        _thread.interrupt_main(sent)  # as if another thread had got it
        started.append(start(*job))
        return started[-1]

    monkeypatch.setattr(workers.ProcessPoolExecutor, "submit", interrupted)
    before = signal.signal(sent, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(share_out(2, abs, [-1, -2]))
    finally:
        signal.signal(sent, before)
    assert len(started) == 2


def test_a_job_of_a_cluster_has_the_cores_that_it_was_given(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 128)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5}, raising=False)
    assert cores() == 2
    monkeypatch.delattr(os, "sched_getaffinity")  # as on a Mac
    assert cores() == 128
