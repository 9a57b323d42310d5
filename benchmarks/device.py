"""Check and measure everything on this machine's device, in one command and a given time.

    python -m benchmarks.device --out DIR [--minutes N] [--hiv hiv.gfast]

writes DIR/results.json, DIR/table.md and DIR/ratio.png, and results.json anew after every case, so
that nothing is lost whatever happens. Every kernel is checked against float64 first; then the
suite runs, the most important cases first. What does not fit into N minutes is dropped from the
bottom of that list, and named. On a GPU, compute-sanitizer comes last where there is one. Data
comes from the repository: shape twins where the real sets cannot be had, and the real molecules
where a file of them is given.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from grant_fast.files import atomic_write_text

from . import machine, report
from .cases import CHECK, Case, suite
from .runner import Outcome, Workers

#: Seconds of rounds a case, on each scale.
BUDGET = {"tiny": 0.02, "cpu": 0.7, "gpu": 0.6}
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
    with (
        tempfile.TemporaryDirectory() as folder,
        _preparing(cases, options, Path(folder)) as preparing,
    ):
        workers = Workers(_arguments(options, folder), Path(folder), until)
        if device.type == "cuda":
            document |= _on_gpu(cases, replace(workers, kernels=True), outcome, preparing)
        else:
            workers.run(cases, outcome)
    save()
    report.plot(options.out / "ratio.png", document)
    return document


def _on_gpu(
    cases: Sequence[Case],
    workers: Workers,
    outcome: Outcome,
    preparing: dict[str, tuple[subprocess.Popen[bytes], float]],
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
    written = dict[str, str]()
    for share in _as_written(races, preparing, racing.until, written):
        racing.run(share, outcome)
    found = machine.sanitize(max(1.0, min(4 * _SANITIZING, until - time.time())))
    return {"sets": written, "compute-sanitizer": found}


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


@contextmanager
def _preparing(
    cases: Sequence[Case], options: Options, folder: Path
) -> Iterator[dict[str, tuple[subprocess.Popen[bytes], float]]]:
    """Start writing the data sets, all at once: they need the CPU while the checks do not. What is
    not written by the end of the block never will be."""
    big = options.scale == "gpu"  # small ones are made by whoever asks first
    names = dict.fromkeys(name for case in cases for name in case.sets if big)
    hiv = [str(options.hiv.resolve())] if options.hiv else []
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}  # many at once: more would only wait
    out: dict[str, tuple[subprocess.Popen[bytes], float]] = {}
    try:
        for name in names:
            command = [sys.executable, "-m", "benchmarks.data", name, options.scale]
            command += [str(folder / f"{name}.gfast"), *hiv]
            root = Path(__file__).parents[1]
            with (folder / f"{name}.log").open("w") as log:
                process = subprocess.Popen(command, cwd=root, stdout=log, stderr=log, env=alone)
            out[name] = (process, time.time())
        yield out
    finally:
        for process, _ in out.values():
            process.kill()
            process.wait()


def _as_written(
    cases: Sequence[Case],
    preparing: dict[str, tuple[subprocess.Popen[bytes], float]],
    until: float,
    written: dict[str, str],
) -> Iterator[list[Case]]:
    """The cases in order, as many at a time as have their data sets; `written` gets to know how the
    writing of each set ended."""
    start = 0
    while start < len(cases):
        end = start
        while end < len(cases):
            missing = [name for name in cases[end].sets if name in preparing.keys() - written]
            if end > start and any(preparing[name][0].poll() is None for name in missing):
                break
            written |= {name: _written(*preparing[name], until) for name in missing}
            end += 1
        yield list(cases[start:end])
        start = end


def _written(process: subprocess.Popen[bytes], began: float, until: float) -> str:
    """Wait for the writing of a data set, and say how it ended."""
    try:
        code = process.wait(max(1.0, until - time.time()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return "not ready in time"
    return f"exit {code}" if code else f"ready after {time.time() - began:.0f} s"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 where a check or one of our own sides failed."""
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
    options = Options(given.out, given.device, scale, given.minutes, given.hiv, given.only)
    document = run(options)
    print((options.out / "table.md").read_text(encoding="utf-8"))
    return int(any(report.failures(document["cases"], peers=False)))


if __name__ == "__main__":
    sys.exit(main())
