"""Check and measure everything on this machine's device, in one command and a given time.

    python -m benchmarks.device --out DIR [--minutes N] [--hiv hiv.gfast]

writes DIR/results.json, DIR/table.md and DIR/ratio.png, and results.json anew after every case, so
that nothing is lost whatever happens. On a GPU, every kernel is checked against float64 first; then
the suite runs, the most important cases first. What does not fit into N minutes is dropped from the
bottom of that list, and named. On a GPU, compute-sanitizer comes last where there is one. Data
comes from the repository: shape twins where the real sets cannot be had, and the real molecules
where a file of them is given.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import compress
from pathlib import Path
from typing import Any

import torch

from grant_fast.files import atomic_write_text

from . import machine, report
from .cases import CHECK, Case, suite
from .runner import Outcome, Workers

#: Seconds of rounds a case, on each scale.
BUDGET = {"tiny": 0.02, "cpu": 0.7, "gpu": 0.6}
_MEANWHILE = 3  # cases that are run while a more important one waits for its data set
_SANITIZING = 75.0  # seconds that compute-sanitizer takes, or so


@dataclass(frozen=True)
class Options:
    """The command line.

    Args:
        out: a folder; made if it is not there.
        device: "cpu" or "cuda".
        scale: "tiny", "cpu" or "gpu".
        minutes: for everything together; None is as long as it takes.
        hiv: hiv.csv or a packed file of it.
        only: run the cases in whose name this regular expression is found.
    """

    out: Path
    device: str
    scale: str
    minutes: float | None = None
    hiv: Path | None = None
    only: str = ""


def run(options: Options) -> dict[str, Any]:
    """Do everything; the document that results.json holds."""
    start = time.time()
    until = start + 60 * options.minutes if options.minutes else start + 24 * 3600
    options.out.mkdir(parents=True, exist_ok=True)
    cases = [case for case in suite(options.scale) if re.search(options.only, case.name)]
    device = torch.device(options.device)
    document: dict[str, Any] = {
        "command": " ".join(["python -m benchmarks.device", *_shown(options)]),
        "scale": options.scale,
        "device": machine.describe(device),
        "date": time.strftime("%Y-%m-%d", time.gmtime(start)),
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(start)),
    }

    def save() -> None:
        document["minutes taken"] = round((time.time() - start) / 60, 2)
        document["ceilings"], document["cases"] = outcome.ceilings, outcome.cases
        document["dropped"] = [case.name for case in cases if case.name not in outcome.cases]
        write(options.out, document)

    outcome = Outcome(save)
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            _preparing(cases, options, Path(folder)) as writers,
        ):
            workers = Workers(_arguments(options, folder), Path(folder), until)
            if device.type == "cuda":
                document |= _on_gpu(cases, replace(workers, kernels=True), outcome, writers)
            else:
                workers.run(cases, outcome)
    finally:  # also of an interrupt: what was done until then
        save()
    report.plot(options.out / "ratio.png", document)
    return document


def _on_gpu(
    cases: Sequence[Case], workers: Workers, outcome: Outcome, writers: dict[str, "Writer"]
) -> dict[str, Any]:
    """Checks, races, compute-sanitizer; what there is to say of the data sets and of the last."""
    until, left = workers.until, workers.until - time.time()
    checks = [case for case in cases if case.group == CHECK]
    races = [case for case in cases if case.group != CHECK]
    # Compiling is most of a check: side by side, and the races find it done. Those that take
    # longest go first, and none may hang for so long that no time is left for the races.
    checks.sort(key=lambda case: -case.seconds)
    checking = replace(workers, threads=1, until=until - left / 2)
    checking.run(checks, outcome, jobs=max(1, min(15, (os.cpu_count() or 1) - 1)))
    # What it finds is worth more than the last races, and they would leave it no time.
    kept = min(_SANITIZING, left / 7) if machine.sanitizer() else 0.0
    racing = replace(workers, until=until - kept)
    for share in _as_written(races, writers, racing.until):
        _run_share(share, racing, outcome, writers)
    found = machine.sanitize(max(1.0, min(4 * _SANITIZING, until - time.time())))
    sets = {name: writer.told for name, writer in writers.items()}
    return {"sets": sets, "compute-sanitizer": found}


def write(out: Path, document: dict[str, Any]) -> None:
    """results.json and table.md, whole or not at all."""
    text = json.dumps(document, indent=1, ensure_ascii=False, sort_keys=False)
    atomic_write_text(out / "results.json", text + "\n")
    atomic_write_text(out / "table.md", report.markdown(document))


def _shown(options: Options) -> list[str]:
    """The arguments as a reader would give them; of a path, only the name."""
    out = [f"--out {options.out.name}", f"--device {options.device}", f"--scale {options.scale}"]
    out += [f"--minutes {options.minutes:g}"] if options.minutes else []
    out += [f"--hiv {options.hiv.name}"] if options.hiv else []
    return out + ([f"--only {options.only!r}"] if options.only else [])


def _arguments(options: Options, folder: str) -> tuple[str, ...]:
    out = ["--on", options.device, "--scale", options.scale, "--sets", folder]
    out += ["--budget", str(BUDGET[options.scale])]
    return (*out, "--hiv", str(options.hiv.resolve())) if options.hiv else tuple(out)


@dataclass(frozen=True)
class Writer:
    """A process that writes a data set.

    Args:
        name: of the set.
        file: what it writes; its own words go beside it.
    """

    name: str
    file: Path
    process: subprocess.Popen[bytes]
    began: float

    @classmethod
    def of(cls, name: str, options: Options, folder: Path) -> "Writer":
        """Start it."""
        file = folder / f"{name}.gfast"
        command = [sys.executable, "-m", "benchmarks.data", name, options.scale, str(file)]
        command += [str(options.hiv.resolve())] if options.hiv else []
        alone = {**os.environ, "OMP_NUM_THREADS": "1"}  # many at once: more would only wait
        root = Path(__file__).parents[1]
        with file.with_suffix(".log").open("w") as log:
            process = subprocess.Popen(command, cwd=root, stdout=log, stderr=log, env=alone)
        return cls(name, file, process, time.time())

    @property
    def failure(self) -> str:
        """Why there will be no such set; "" where it is written, or may be yet."""
        code = self.process.poll()
        if not code:
            return ""
        last = self.file.with_suffix(".log").read_text(errors="replace").strip().splitlines()[-1:]
        return ": ".join([f"{self.name} could not be written, exit code {code}", *last])

    @property
    def told(self) -> str:
        """How it went so far."""
        if self.process.poll() is None:
            return "not ready in time"
        return self.failure or f"ready after {self.file.stat().st_mtime - self.began:.0f} s"


@contextmanager
def _preparing(
    cases: Sequence[Case], options: Options, folder: Path
) -> Iterator[dict[str, Writer]]:
    """Start writing the data sets, all at once: they need the CPU while the checks do not. What is
    not written by the end of the block never will be."""
    big = options.scale == "gpu"  # small ones are made by whoever asks first
    out: dict[str, Writer] = {}
    try:
        for name in dict.fromkeys(name for case in cases for name in case.sets if big):
            out[name] = Writer.of(name, options, folder)
        yield out
    finally:
        for writer in out.values():
            writer.process.kill()
            writer.process.wait()


def _as_written(
    cases: Sequence[Case], writers: dict[str, Writer], until: float
) -> Iterator[list[Case]]:
    """The cases in order, as many at a time as have their data sets, or will never have them.

    While the first of those that are left waits for its set, a few of the others go before it.
    """
    waiting = list(cases)
    while waiting and time.time() < until:
        absent = {name for name, writer in writers.items() if writer.process.poll() is None}
        ready = [absent.isdisjoint(case.sets) for case in waiting]
        first = ready.index(False) if False in ready else len(ready)
        share = waiting[:first] or list(compress(waiting, ready))[:_MEANWHILE]
        if share:
            yield share
        else:
            time.sleep(0.1)
        waiting = [case for case in waiting if case not in share]


def _run_share(
    share: Sequence[Case], workers: Workers, outcome: Outcome, writers: dict[str, Writer]
) -> None:
    """Run these cases, but none whose data set could not be written: it would try that itself."""
    for case in share:
        failures = [writers[name].failure for name in case.sets if name in writers]
        if why := "; ".join(filter(None, failures)):
            outcome.add(case.name, {"group": case.group, "error": why})
    workers.run([case for case in share if case.name not in outcome.cases], outcome)


def _why_none(only: str, scale: str) -> str:
    """Why no case is to be run; "" where one is."""
    cases = suite(scale)
    try:
        if any(re.search(only, case.name) for case in cases):
            return ""
    except re.error as error:
        return f"--only {only!r} is no regular expression: {error}"
    groups = ", ".join(dict.fromkeys(case.group for case in cases))
    return f"--only {only!r} is in no case's name: names begin with their group, one of {groups}"


_INTERRUPTS = signal.SIGINT, signal.SIGTERM


def _interrupt(*_: Any) -> None:
    """Interrupt, but only once: `timeout` sends a signal twice, and the second would come while
    what was started is being ended."""
    for number in _INTERRUPTS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 where a check or one of our own sides failed, 130 after an interrupt."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    there = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("--minutes", type=float, help="for everything together")
    parser.add_argument("--hiv", type=Path, help="hiv.csv, or a packed file of it")
    parser.add_argument("--device", default=there, choices=("cpu", "cuda"))
    parser.add_argument("--scale", choices=tuple(BUDGET), help="sizes; by default the device's")
    parser.add_argument(
        "--only", default="", help="cases with this (a regular expression) in their name"
    )
    given = parser.parse_args(arguments)
    scale = given.scale or ("gpu" if given.device == "cuda" else "cpu")
    if given.hiv is not None and not given.hiv.exists():
        parser.error(f"there is no file {given.hiv}")
    if find_spec("pytest_benchmark") is None:
        parser.error("the cases need pytest-benchmark: pip install pytest-benchmark")
    if why := _why_none(given.only, scale):
        parser.error(why)
    machine.warn_without_kernels()
    options = Options(given.out, given.device, scale, given.minutes, given.hiv, given.only)
    before = {number: signal.signal(number, _interrupt) for number in _INTERRUPTS}
    try:
        document = run(options)
    except KeyboardInterrupt:
        print(f"Interrupted; {options.out / 'table.md'} has what was done until then.")
        return 130
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    print((options.out / "table.md").read_text(encoding="utf-8"))
    return int(any(report.failures(document["cases"], peers=False)))


if __name__ == "__main__":
    sys.exit(main())
