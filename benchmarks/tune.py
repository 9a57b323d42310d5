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
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import cached_property, partial
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor

from grant_fast import PackedGraphs, ops, score_graphs
from grant_fast.devices import has_hopper_units, indexed
from grant_fast.files import atomic_write_text
from grant_fast.ops.dispatch import why_not
from grant_fast.studies.markdown import markdown as table
from grant_fast.training.recording import record

from . import machine
from .cases import CHECK, Case
from .conftest import EXIT_LATE, Records
from .data import Store, big_graph, prepare
from .gradients import TOLERANCE, in_training
from .layers import Problem
from .measure import must_be_right, relative_error
from .runner import Outcome, Workers
from .settings import WIDE, Setting, through

Run = Callable[[], list[Tensor]]

#: Launches of a kernel in a recorded graph, and how often each side's graph is replayed.
_LAUNCHES, _ROUNDS = 20, 9
#: What is not faster by so much may be noise: of many ways, the best is named.
_GAIN = 0.05
#: The modules that launch the kernels of these pieces.
_LAUNCHERS = ("csr", "layer", "norm", "readout", "score", "tail", "wide")
#: What makes the command a worker.
WORKER = "worker"
#: Of a kernel's constants, what a table says.
_SIZES = ("ORDER", "H_IN", "H_OUT", "WIDTH", "WIDTHS", "PLANES", "TRANSPOSE", "RELU_IN", "CODED")


class Way(NamedTuple):
    """Another way to launch kernels.

    Args:
        words: what the tables call it.
        options: in place of `launch.options`'; None leaves one to the compiler.
        place: "module.name" of a function that gives a shape, or of a number.
        change: what becomes of that shape or number.
    """

    words: str
    options: dict[str, int | None]
    place: str = ""
    change: Callable[[Any], Any] | None = None


def _ways() -> Iterator[Way]:
    for warps in (1, 2, 4, 8):
        yield Way(f"{warps} warps", {"num_warps": warps})
    for registers in (None, 128, 168, 255):
        yield Way(f"{registers or 'any number of'} registers", {"maxnreg": registers})
    for stages in (2, 3):
        yield Way(f"{stages} stages", {"num_stages": stages})
    shapes = ("tile_shape", "tile_grad_shape", "block_shape", "block_grad_shape")
    places = [(f"layer.{name}", key) for name in shapes for key in ("BI", "BO")]
    places += [("wide.tile_shape", "BO"), ("wide.block_shape", "BO")]
    for (place, key), value in product(places, (16, 32, 64)):
        yield Way(f"{place} {key}={value}", {}, place, partial(_put, key, value))
    for edges in (2, 4, 8, 16):
        place = "csr.spmm_shape"
        yield Way(f"{place} EDGES={edges}", {}, place, partial(_put, "EDGES", edges))
    places = [("csr.spmm_shape", "ROWS"), ("norm.norm_shape", "ROWS")]
    places += [("readout.readout_shape", "NODES"), ("tail.tail_shape", "NODES")]
    for (place, key), factor in product(places, (0.5, 2)):
        yield Way(f"{place} {key}×{factor:g}", {}, place, partial(_scale, key, factor))
    for place, value in product(("layer.PROGRAMS", "norm.SHARES"), (256, 1024, 2048)):
        yield Way(f"{place}={value}", {}, place, partial(_instead, value))


def _put(key: str, value: int, shape: dict[str, int]) -> dict[str, int]:
    assert key in shape, f"there is no {key} in {shape}"
    return shape | {key: value}


def _scale(key: str, factor: float, shape: dict[str, int]) -> dict[str, int]:
    return shape | {key: max(1, int(shape[key] * factor))}


def _instead(value: int, _: int) -> int:
    return value


OURS = "ours"
WAYS = {way.words: way for way in (Way(OURS, {}), *_ways())}


class Launch(NamedTuple):
    """A kernel's launch, ready to be repeated.

    Args:
        kernel: its name.
        sizes: what it is launched for, in words.
        key: all that its time depends on: how it is compiled and started, and on how much.
    """

    kernel: str
    sizes: str
    key: str
    run: Callable[[], None]


@contextmanager
def launched(way: Way, device: torch.device) -> Iterator[list[Launch]]:
    """Have kernels launched in a way, and note each launch."""
    modules = {name: import_module(f"grant_fast.kernels.{name}") for name in _LAUNCHERS}
    starter = import_module("grant_fast.kernels.launch")
    ours, start, noted = starter.options, starter.launch, list[Launch]()
    facts = {"hip": torch.version.hip is not None, "hopper": has_hopper_units(device)}

    def options(kernel: str, constants: Any, **facts: bool) -> dict[str, int]:
        changed = {**ours(kernel, constants, **facts), **way.options}
        return {name: value for name, value in changed.items() if value is not None}

    def launch(kernel: Any, grid: tuple[int, ...], *operands: Any, **constants: Any) -> None:
        run = partial(start, kernel, grid, *operands, **constants)

        def again() -> None:
            with mock.patch.object(starter, "options", options):
                run()

        again()
        written = constants.pop("written")
        name = kernel.fn.__name__
        sizes = " ".join(f"{k}={constants[k]}" for k in _SIZES if constants.get(k))
        how = sorted((constants | options(name, constants, **facts)).items())
        much = [tuple(o.shape) if isinstance(o, Tensor) else o for o in (*operands, *written)]
        noted.append(Launch(name, sizes, f"{name} {grid} {how} {much}", again))

    with ExitStack() as patches:
        for name in _LAUNCHERS:
            patches.enter_context(mock.patch.object(modules[name], "launch", launch))
        if way.change is not None:
            module, name = way.place.split(".")
            before = getattr(modules[module], name)
            after = way.change(before) if isinstance(before, int) else _after(before, way.change)
            patches.enter_context(mock.patch.object(modules[module], name, after))
        yield noted


def _after(before: Callable[..., Any], change: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda *args, **named: change(before(*args, **named))


def _gradient(recipe: str, whole: bool, store: Store, **changes: Any) -> Run:
    """A training step on a batch, or on the whole training set, as the paper's mode has it."""
    setting = Setting.of(recipe, store, **changes)
    at = slice(0, len(setting.ids)) if whole else setting.checked
    batch = setting.graphs.batch(at)
    return partial(in_training, setting.model, batch, setting.task)


def _scores(recipe: str, store: Store) -> Run:
    setting = Setting.of(recipe, store)
    return lambda: [score_graphs(setting.model, setting.graphs, setting.task, ids=setting.ids)]


def _layer(name: str, width: int, store: Store) -> Run:
    """A layer forward and backward, on all graphs."""
    if name == "big":
        graphs = PackedGraphs.load(store.folder / "big.gfast").to(store.device)
    else:
        graphs = store.dataset(name).graphs
    batch = graphs.batch(slice(None))
    problem, adjacency = Problem.draw(batch, width, 3), batch.adjacency(True)
    weight, bias = problem.weight.requires_grad_(), problem.bias.requires_grad_()

    def run() -> list[Tensor]:
        y = ops.flex_conv(problem.x, weight, bias, adjacency, backend="triton")
        return [y.detach(), *torch.autograd.grad(y, [problem.x, weight, bias], problem.grad)]

    return run


#: What is done to launch kernels, the most important first.
PIECES: dict[str, Callable[[Store], Run]] = {
    "molhiv, a step": partial(_gradient, "ogbg-molhiv", False),
    "molhiv, an epoch": partial(_gradient, "ogbg-molhiv", True),
    "molhiv, scores": partial(_scores, "ogbg-molhiv"),
    "gen-cls, a step": partial(_gradient, "gen-cls", False),
    "gen-cls, an epoch": partial(_gradient, "gen-cls", True),
    "molhiv of width 64, a step": partial(_gradient, "ogbg-molhiv", False, **WIDE),
    "a big graph of width 64": partial(_layer, "big", 64),
    "molecules of width 128": partial(_layer, "ogbg-molhiv", 128),
    "dense graphs of width 128": partial(_layer, "gen-cls", 128),
}


def write_sets(folder: Path, device: str) -> None:
    """The sets of the pieces: on a GPU molhiv in its true size, which no cache holds."""
    gpu = device == "cuda"
    prepare("ogbg-molhiv", "gpu" if gpu else "tiny", folder / "ogbg-molhiv.gfast")
    prepare("gen-cls", "cpu" if gpu else "tiny", folder / "gen-cls.gfast")
    big_graph(*((200_000, 6_000_000) if gpu else (60, 400))).save(folder / "big.gfast")


class Piece:
    """A piece of work in this process: what does it, and what comes out."""

    def __init__(self, name: str, store: Store) -> None:
        torch.manual_seed(0)  # the same weights in every process
        self.device, self.run = store.device, through("triton", PIECES[name](store))
        self.answer: list[Tensor] = self.run()

    @cached_property
    def launches(self) -> list[Launch]:
        """Ours; they keep their operands, so that whoever only tries out does without."""
        with launched(WAYS[OURS], self.device) as found:
            self.run()
        return found


#: The last piece that this process was asked for.
_kept: dict[str, Piece] = {}


def _piece(name: str, store: Store) -> Piece:
    if name not in _kept:
        _kept.clear()  # its memory is wanted
        _kept[name] = Piece(name, store)
    return _kept[name]


def try_out(name: str, way: str, store: Store) -> dict[str, Any]:
    """Do a piece of work with kernels launched in a way; how far off the result is.

    Raises:
        WrongAnswer: it is not what it is in our way.
    """
    piece = _piece(name, store)
    with launched(WAYS[way], piece.device):
        error = relative_error(piece.run(), [tensor.double() for tensor in piece.answer])
    must_be_right([error], [TOLERANCE])
    return {"error": error}


def timed(name: str, way: str, store: Store) -> dict[str, Any]:
    """Microseconds of our way and of another, in turns.

    Returns:
        "launches": the kernel and the sizes of each; "us": a pair for each that the way changes,
        else None; "whole": a pair for the piece, None where it cannot be recorded, or nothing is
        changed.
    """
    piece = _piece(name, store)
    with launched(WAYS[way], piece.device) as launches:
        piece.run()
    pairs: list[list[float] | None] = []
    known: dict[str, list[float]] = {}
    for our, other in zip(piece.launches, launches, strict=True):
        if our.key == other.key:
            pairs.append(None)
            continue
        if other.key not in known:  # of launches that are alike, one is timed
            known[other.key] = in_turns([our.run, other.run], _LAUNCHES, piece.device)
        pairs.append(known[other.key])

    def whole() -> None:
        with launched(WAYS[way], piece.device):
            piece.run()

    try:
        both = in_turns([piece.run, whole], 1, piece.device) if known else None
    except RuntimeError:  # it waits for the device, as scoring does
        both = None
    facts = [{"kernel": our.kernel, "sizes": our.sizes} for our in piece.launches]
    return {"launches": facts, "us": pairs, "whole": both}


def in_turns(runs: Sequence[Callable[[], Any]], times: int, device: torch.device) -> list[float]:
    """Median microseconds of each on the device; of one that is interpreted, on the host."""
    replays = [_replayed(run, times, device) for run in runs]
    samples: list[list[float]] = [[] for _ in runs]
    for _ in range(_ROUNDS if device.type == "cuda" else 1):
        for replay, values in zip(replays, samples, strict=True):
            values.append(replay())
    return [statistics.median(values) for values in samples]


def _replayed(run: Callable[[], Any], times: int, device: torch.device) -> Callable[[], float]:
    """A function that repeats `run` so many times, recorded, and says how long one took."""
    if device.type != "cuda":

        def interpreted() -> float:
            start = time.perf_counter()
            run()
            return 1e6 * (time.perf_counter() - start)

        return interpreted

    def many() -> None:
        for _ in range(times):
            run()

    graph, _ = record(many, device)

    def replayed() -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return 1e3 * begin.elapsed_time(end) / times

    return replayed


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
    there = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("--minutes", type=float, default=60.0, help="for everything together")
    parser.add_argument("--only", default="", help="the pieces with this regular expression")
    parser.add_argument("--ways", default="", help="the ways with this regular expression")
    parser.add_argument("--device", default=there, choices=("cpu", "cuda"), help="cpu interprets")
    given = parser.parse_args(arguments)
    if given.device == "cuda" and (reason := why_not(torch.empty(0, device="cuda"))):
        parser.error(f"the kernels cannot run here: {reason}")
    try:
        pieces = [piece for piece in PIECES if re.search(given.only, piece)]
        ways = [way for way in WAYS if way == OURS or re.search(given.ways, way)]
    except re.error as error:
        parser.error(f"no regular expression: {error}")
    if not pieces or len(ways) == 1:
        parser.error(f"nothing is left of: {'; '.join(PIECES)}; with: {'; '.join(WAYS)}")
    names = [(piece, way) for piece in pieces for way in ways if _exists(way)]
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


def _exists(way: str) -> bool:
    """Whether the machine knows the way: AMD's compiler takes no number of registers."""
    return torch.version.hip is None or "maxnreg" not in WAYS[way].options


if __name__ == "__main__":
    sys.exit(work(sys.argv[2:]) if sys.argv[1:2] == [WORKER] else main())
