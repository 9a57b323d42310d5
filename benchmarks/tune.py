"""Would the Triton kernels be faster on this GPU if they were launched in another way?

    python -m benchmarks.tune --out DIR [--minutes N] [--only REGEX] [--ways REGEX]

does some pieces of work with the kernels launched as the package does it, and in each of `WAYS`:
with other numbers of warps and registers, with other blocks. First every way is tried out, side by
side in processes of their own, which compiles what is new and shows what fails or is wrong. Then
the ways that are right are timed in turns with ours: every kernel that one changes by itself, and
the piece as a whole, replayed from CUDA graphs. (A kernel by itself finds in the cache what its
last launch left there. What PyTorch adds up after it, only the whole shows.)

DIR/tuning.json holds every figure and is written after each; DIR/tuning.md has the best ways. What
is worth keeping goes into `kernels/launch.py` or the kernel's `…_shape`.
"""

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from grant_fast.devices import indexed
from grant_fast.files import atomic_write_text
from grant_fast.ops.dispatch import why_not
from grant_fast.studies.markdown import markdown as table

from . import machine
from .cases import CHECK, Case
from .conftest import EXIT_LATE, Records
from .data import Store
from .pieces import PIECES, timed, try_out, write_sets
from .runner import Outcome, Workers
from .ways import OURS, WAYS, exists

#: What is not faster by so much may be noise: of many ways, the best is named.
_GAIN = 0.05
#: What makes the command a worker.
WORKER = "worker"


def _cases(what: str, do: Callable[..., Any], names: Sequence[tuple[str, str]]) -> list[Case]:
    # As with other checks, a hundred kernels may have to be compiled first.
    return [Case(f"{what}/{piece}/{way}", CHECK, partial(do, piece, way)) for piece, way in names]


def tries(names: Sequence[tuple[str, str]]) -> list[Case]:
    """To try out ways, each named by its piece and itself."""
    return _cases("try", try_out, names)


def races(names: Sequence[tuple[str, str]]) -> list[Case]:
    """To time them."""
    return _cases("time", timed, names)


def work(arguments: Sequence[str]) -> int:
    """A worker, as `runner.Workers` starts it: do the cases in a file, and note how each ended."""
    parser = argparse.ArgumentParser()
    for name in ("--only", "--records", "--claims", "--sets"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--until", type=float)
    parser.add_argument("--on")
    given = parser.parse_args(arguments)
    if given.on == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    every = [(piece, way) for piece in PIECES for way in WAYS]
    known = {case.name: case for case in (*tries(every), *races(every))}
    store = Store(given.sets, "tiny", indexed(given.on))
    with closing(Records(given.records, given.claims)) as records:
        for name in given.only.read_text(encoding="utf-8").splitlines():
            if time.time() > given.until:
                return EXIT_LATE
            if not records.begin(name):
                continue
            try:
                result = known[name].build(store)
            except Exception as error:
                records.failed(name, error)  # and end, where the device can do no more
            else:
                records.write("end", name=name, result=result)
    return 0


def tune(names: Sequence[tuple[str, str]], workers: Workers, outcome: Outcome, jobs: int) -> None:
    """Try out ways, each named by its piece and itself, for half of the time; then time those that
    are right, as far as the other half goes."""
    trying = replace(workers, until=(time.time() + workers.until) / 2)
    ours = [(piece, way) for piece, way in names if way == OURS]
    others = [at for at in names if at not in ours]
    for some in (ours, others):  # ours first: what others need of it is compiled then
        trying.run(tries(some), outcome, jobs)
    right = [at for at in others if "result" in outcome.cases.get(f"try/{'/'.join(at)}", {})]
    workers.run(races(right), outcome)


class Row(NamedTuple):
    """What a table says of launches that are alike in a piece, or of the piece as a whole.

    Args:
        us: what they take us, in microseconds, in the race with the best other way.
        best: what they take in that way; as `us` where none gains more than noise might.
    """

    piece: str
    kernel: str
    sizes: str
    launches: int
    us: float
    way: str
    best: float


def best(cases: dict[str, Any]) -> list[Row]:
    """The rows of all pieces, those first where most is to be gained."""
    found: dict[tuple[str, str, str], list[tuple[str, int, float, float]]] = {}
    for name, case in cases.items():
        what, piece, way = name.split("/", 2)
        if what != "time" or "result" not in case:
            continue
        result = case["result"]
        alike: dict[tuple[str, str, str], list[Any]] = {}
        for launch, pair in zip(result["launches"], result["us"], strict=True):
            alike.setdefault((piece, launch["kernel"], launch["sizes"]), []).append(pair)
        alike[piece, "the whole", ""] = [result["whole"]]
        for key, pairs in alike.items():
            if None not in pairs:
                ours, other = (sum(each) for each in zip(*pairs, strict=True))
                found.setdefault(key, []).append((way, len(pairs), ours, other))
    rows = []
    for key, races in found.items():
        way, count, ours, other = max(races, key=lambda race: race[2] / race[3])
        if ours < (1 + _GAIN) * other:
            way, other = "", ours
        rows.append(Row(*key, count, ours, way, other))
    return sorted(rows, key=lambda row: row.best - row.us)


def markdown(document: dict[str, Any]) -> str:
    """tuning.md."""
    head = ["work", "kernel", "sizes", "launches", "µs", "best other way", "µs"]
    body = [
        [*row[:3], str(row.launches), f"{row.us:.1f}", row.way, f"{row.best:.1f}" * bool(row.way)]
        for row in best(document["cases"])
    ]
    failed: dict[str, list[str]] = {}
    for name, case in document["cases"].items():
        if "error" in case:
            failed.setdefault(case["error"], []).append(name)
    lines = [f"{document['device']['name']}, {document['date']}, `{document['command']}`.", ""]
    lines += [table(head, body, left=3), "", f"No other way gains {_GAIN:.0%} where none is named."]
    lines += ["", *(f"- {why}: {', '.join(names)}." for why, names in failed.items())]
    if document["left out"]:
        lines.append(f"- no time: {', '.join(document['left out'])}.")
    return "\n".join(lines).rstrip() + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("--minutes", type=float, default=60.0, help="for everything together")
    parser.add_argument("--only", default="", help="the pieces with this regular expression")
    parser.add_argument("--ways", default="", help="the ways with this regular expression")
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"), help="cpu interprets")
    given = parser.parse_args(arguments)
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU: --device cpu tries the command, in the interpreter")
    if given.device == "cuda" and (reason := why_not(torch.empty(0, device="cuda"))):
        parser.error(f"the kernels cannot run here: {reason}")
    try:
        pieces = [piece for piece in PIECES if re.search(given.only, piece)]
        ways = [way for way in WAYS if way == OURS or re.search(given.ways, way)]
    except re.error as error:
        parser.error(f"no regular expression: {error}")
    if not pieces or len(ways) == 1:
        parser.error(f"nothing is left of: {'; '.join(PIECES)}; with: {'; '.join(WAYS)}")
    names = [(piece, way) for piece in pieces for way in ways if exists(way)]
    start = time.time()
    words = [f"--out {given.out.name}", f"--minutes {given.minutes:g}"]
    words += [f"--only {given.only!r}"] if given.only else []
    words += [f"--ways {given.ways!r}"] if given.ways else []
    document: dict[str, Any] = {
        "command": " ".join(["python -m benchmarks.tune", *words]),
        "device": machine.describe(torch.device(given.device)),
        "date": time.strftime("%Y-%m-%d", time.gmtime(start)),
    }

    def save() -> None:
        cases = outcome.cases
        document["cases"] = cases
        document["left out"] = [
            f"{piece}/{way}"
            for piece, way in names
            if way != OURS
            and f"time/{piece}/{way}" not in cases
            and "error" not in cases.get(f"try/{piece}/{way}", {})
        ]
        text = json.dumps(document, indent=1, ensure_ascii=False)
        atomic_write_text(given.out / "tuning.json", text + "\n")
        atomic_write_text(given.out / "tuning.md", markdown(document))

    outcome = Outcome(save)
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        write_sets(Path(folder), given.device)
        command = (sys.executable, "-m", "benchmarks.tune", WORKER)
        workers = Workers(
            ("--on", given.device, "--sets", folder),
            Path(folder),
            start + 60 * given.minutes,
            command,
            threads=1,
        )
        tune(names, workers, outcome, max(1, min(15, (os.cpu_count() or 1) - 1)))
    save()
    print((given.out / "tuning.md").read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(work(sys.argv[2:]) if sys.argv[1:2] == [WORKER] else main())
