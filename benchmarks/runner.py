"""Run cases in processes of their own, so that a crash costs one case and never the rest.

A worker is pytest on `test_suite.py`. It writes a line before and after each case; whatever was
begun and not ended when it dies, hangs or loses its device is that case's failure, and a new worker
goes on with the next, once another has tried that case without the Triton kernels.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event, Lock
from typing import Any

from .cases import CHECK, MIXED, Case
from .conftest import EXIT_FAILED, EXIT_LATE, claim
from .machine import end
from .measure import DEVICE_ERRORS

ROOT = Path(__file__).parents[1]
SUITE = (
    sys.executable,
    "-m",
    "pytest",
    "benchmarks/test_suite.py",
    "-q",
    "-p",
    "no:cacheprovider",
    "-W",
    "ignore",
    "--tb=short",
    "-rN",  # the log's last words are then an error, and no list of names
)
#: A case may take so many times its estimate, and so many seconds at least, before it is stopped.
PATIENCE, LEAST_PATIENCE = 6.0, 75.0
#: A check may first have to compile a hundred kernels, while others compile theirs.
CHECK_PATIENCE = 400.0
#: Seconds in which a worker without a case must be heard of: it imports, starts CUDA, measures the
#: ceilings; and seconds that it may take to end.
SILENCE, LEAST_SILENCE = 120.0, 15.0


@dataclass
class Outcome:
    """What is known so far; shared by the workers' threads.

    Args:
        save: called whenever there is something new.
    """

    save: Callable[[], None]
    cases: dict[str, dict[str, Any]] = field(default_factory=dict)
    ceilings: dict[str, float] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def lost(self, name: str) -> bool:
        """Whether the case took its process or its device down."""
        error = self.cases.get(name, {}).get("error", "")
        return any(words in error for words in (*DEVICE_ERRORS, "process died", "stopped after"))

    def add(self, name: str, values: dict[str, Any]) -> None:
        """Note how a case ended: {"result": …}, or {"error": …} and maybe its "trace"."""
        with self._lock:
            self.cases[name] = values
            self.save()


@dataclass(frozen=True)
class Workers:
    """How workers are started.

    Args:
        arguments: of pytest, see `conftest.py`.
        folder: for what they write.
        until: when the last case has to be over, in seconds of the Unix clock.
        command: what a worker runs.
        threads: of the CPU, for each worker; None leaves it to torch.
        kernels: whether the Triton kernels take part, and may be to blame for a case that is lost.
        stop: set when all of it is interrupted; what runs then has no outcome.
    """

    arguments: tuple[str, ...]
    folder: Path
    until: float
    command: tuple[str, ...] = SUITE
    threads: int | None = None
    kernels: bool = False
    stop: Event = field(default_factory=Event)

    def run(self, cases: Sequence[Case], outcome: Outcome, jobs: int = 1) -> None:
        """Run the cases in order, `jobs` side by side: each worker takes the next that is left.

        Those that there is no time for are not in `outcome` afterwards.
        """
        jobs = max(1, min(jobs, len(cases)))
        plan = _Plan(Path(tempfile.mkdtemp(dir=self.folder)), {case.name: case for case in cases})
        with ThreadPoolExecutor(jobs) as pool:
            numbers = range(jobs)
            try:
                reasons = list(pool.map(lambda number: self._work(number, plan, outcome), numbers))
            except BaseException:
                self.stop.set()  # else the pool would wait for all that is left
                raise
        if all(reasons):
            for name in plan.left():
                outcome.add(name, {"error": f"no worker could be started: {reasons[0]}"})

    def _work(self, number: int, plan: "_Plan", outcome: Outcome) -> str:
        """Start one worker after another until nothing is left; why none can be, else ""."""
        idle = 0
        while plan.left() and time.time() < self.until and not self.stop.is_set():
            worker = _Worker(self, number, plan, outcome)
            code, tail = worker.watch()
            # At once: if one kernel is faulty, the most important figures are not the first to go.
            for case in worker.ended if self.kernels else ():
                if case.group in MIXED and outcome.lost(case.name):
                    self._try_without_kernels(case, outcome)
            if code in (0, EXIT_LATE) or (code == EXIT_FAILED and worker.ended):
                break  # it went through the list, as far as there was time
            idle = 0 if worker.ended else idle + 1
            if idle == 2:
                return tail or f"exit code {code}"
        return ""

    def _try_without_kernels(self, case: Case, outcome: Outcome) -> None:
        """Give a lost case another chance, if there is time for it.

        What went wrong the first time stays beside the new result.
        """
        first = outcome.cases[case.name]
        again = replace(self, kernels=False, arguments=(*self.arguments, "--no-kernels"))
        again.run([case], outcome)
        if outcome.cases[case.name] is not first:
            kept = {key: first[key] for key in ("trace",) if key in first}
            kept["with the kernels"] = first["error"]
            outcome.add(case.name, {**outcome.cases[case.name], **kept})


@dataclass(frozen=True)
class _Plan:
    """What the workers of one run share.

    Args:
        folder: for what they write; a case's file in it says that one of them has begun it.
        todo: the cases that have not ended.
    """

    folder: Path
    todo: dict[str, Case]

    def left(self) -> list[str]:
        """Those that nobody has begun."""
        return [name for name in list(self.todo) if not claim(self.folder, name).exists()]


class _Worker:
    """One process, and what it has told so far."""

    def __init__(self, workers: Workers, number: int, plan: _Plan, outcome: Outcome) -> None:
        self.plan, self.outcome, self.until = plan, outcome, workers.until
        self.stop = workers.stop
        self.records = plan.folder / f"{number}.jsonl"
        self.log = plan.folder / f"{number}.log"
        names = plan.folder / f"{number}.txt"
        names.write_text("\n".join(plan.left()), encoding="utf-8")
        self.records.write_text("")
        self.read = 0
        self.ended: list[Case] = []
        self.current: tuple[str, float] | None = None
        self.heard = time.time()
        command = [*workers.command, "--only", str(names), "--records", str(self.records)]
        command += ["--claims", str(plan.folder)]
        # Whoever calls may interpret kernels, or be a test itself, beside which pytest-benchmark
        # would measure nothing.
        foreign = ("TRITON_INTERPRET", "PYTEST_")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
        if workers.threads is not None:
            environment["OMP_NUM_THREADS"] = str(workers.threads)
        command += ["--until", str(workers.until), *workers.arguments]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C is for us alone: its case has not failed
            )

    def watch(self) -> tuple[int, str]:
        """Wait for its end, or stop it where a case takes too long; (exit code, last words)."""
        stopped = ""
        try:
            while self.process.poll() is None and not self.stop.is_set():
                time.sleep(0.1)
                self._read()
                stopped = self._reason_to_stop()
                if stopped:
                    break
        finally:
            code = end(self.process)
        self._read()
        tail = f"{stopped} {self.log.read_text(errors='replace').strip()[-300:]}".strip()
        if self.current is not None and not self.stop.is_set():
            name = self.current[0]
            error = stopped or f"the process died, exit code {code}: {tail}"
            self._end(name, {"error": error}, time.time())
        return code, tail

    def _reason_to_stop(self) -> str:
        if self.current is None:
            if time.time() - self.until > LEAST_PATIENCE / 2:
                return "the time was up"
            limit = SILENCE if self.plan.left() else LEAST_SILENCE
            return f"no word for {limit:g} s" if time.time() - self.heard > limit else ""
        name, began = self.current
        case = self.plan.todo[name]
        patience = max(LEAST_PATIENCE, PATIENCE * case.seconds)
        limit = CHECK_PATIENCE if case.group == CHECK else patience
        if time.time() > min(began + limit, self.until + LEAST_PATIENCE / 4):
            return f"stopped after {time.time() - began:.0f} s"
        return ""

    def _read(self) -> None:
        with self.records.open(encoding="utf-8") as file:
            file.seek(self.read)
            for line in iter(file.readline, ""):
                if not line.endswith("\n"):
                    break  # the rest of it is still to come
                self.read = file.tell()
                self._take(json.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        self.heard = time.time()
        if event["event"] == "ceilings":
            self.outcome.ceilings.update(event["values"])
        elif event["event"] == "begin":
            self.current = (event["name"], event["at"])
        elif event["event"] == "end":
            told = ("error", "trace", "result")
            values: dict[str, Any] = {key: event[key] for key in told if key in event}
            self._end(event["name"], values, event["at"])

    def _end(self, name: str, values: dict[str, Any], at: float) -> None:
        took = {} if self.current is None else {"took": round(at - self.current[1], 2)}
        self.current = None
        case = self.plan.todo.pop(name, None)
        if case is not None:
            self.ended.append(case)
            self.outcome.add(name, {"group": case.group, **took, **values})
