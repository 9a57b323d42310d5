"""Whether a Triton kernel is faster on this GPU if it is launched in another way than it is.

    python -m benchmarks.tune --out DIR [--minutes N] [--only REGEX]

does a few pieces of work, and times each kernel that they launch by itself, replayed from a CUDA
graph: as the package launches it, and in each of `WAYS`, which are other numbers of warps and
registers, and other blocks. All ways are tried out first, side by side, which compiles them; what
fails or is wrong is not timed. DIR/tuning.json holds every figure, DIR/tuning.md the best way of
each kernel. What is worth keeping goes into `kernels/launch.py` or the kernel's `…_shape`.
"""

import argparse
import gc
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor

from grant_fast import GraphBatch, PackedGraphs, ops, score_graphs
from grant_fast.devices import has_hopper_units
from grant_fast.errors import InputError
from grant_fast.files import atomic_write_text
from grant_fast.ops.dispatch import why_not
from grant_fast.studies.markdown import markdown as table
from grant_fast.training.recording import record
from grant_fast.workers import share_out

from . import machine
from .data import Store, big_graph
from .gradients import TOLERANCE, in_training
from .layers import Problem
from .measure import relative_error, short
from .settings import WIDE, Setting, through

Run = Callable[[], list[Tensor]]

#: Launches in a recorded graph, and how often that is replayed.
_LAUNCHES, _REPLAYS = 20, 5
#: Nodes and edges of the one big graph, on each scale.
_BIG = {"tiny": (60, 400), "cpu": (200_000, 6_000_000)}
#: The modules of the kernels that launch some.
_LAUNCHERS = ("csr", "layer", "norm", "readout", "score", "select", "tables", "tail", "wide")
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
        yield Way(f"EDGES={edges}", {}, "csr.spmm_shape", partial(_put, "EDGES", edges))
    places = [("csr.spmm_shape", "ROWS"), ("norm.norm_shape", "ROWS")]
    places += [("readout.readout_shape", "NODES"), ("tail.tail_shape", "NODES")]
    for (place, key), factor in product(places, (0.5, 2)):
        yield Way(f"{place} {key}×{factor:g}", {}, place, partial(_scale, key, factor))
    for place, value in product(("layer.PROGRAMS", "norm.SHARES"), (256, 1024, 2048)):
        yield Way(f"{place}={value}", {}, place, partial(_instead, value))


def _put(key: str, value: int, shape: dict[str, int]) -> dict[str, int]:
    return shape | {key: value}


def _scale(key: str, factor: float, shape: dict[str, int]) -> dict[str, int]:
    return shape | {key: max(1, int(shape[key] * factor))}


def _instead(value: int, _: int) -> int:
    return value


OURS = Way("ours", {})
WAYS = {way.words: way for way in _ways()}


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
        file = store.folder / "tuned.gfast"
        if not file.exists():
            big_graph(*_BIG[store.scale]).save(file)
        graphs = PackedGraphs.load(file).to(store.device)
    else:
        graphs = store.dataset(name).graphs
    batch: GraphBatch = graphs.batch(slice(None))
    problem = Problem.draw(batch, width, 3)
    weight, bias = problem.weight.requires_grad_(), problem.bias.requires_grad_()

    def run() -> list[Tensor]:
        y = ops.flex_conv(problem.x, weight, bias, batch.adjacency(True), backend="triton")
        return [y.detach(), *torch.autograd.grad(y, [problem.x, weight, bias], problem.grad)]

    return run


#: What is done to see which kernels are launched, the most important first.
PIECES: dict[str, Callable[[Store], Run]] = {
    "molhiv, a step": partial(_gradient, "ogbg-molhiv", False),
    "molhiv, an epoch": partial(_gradient, "ogbg-molhiv", True),
    "molhiv, scores": partial(_scores, "ogbg-molhiv"),
    "gen-cls, a step": partial(_gradient, "gen-cls", False),
    "gen-cls, an epoch": partial(_gradient, "gen-cls", True),
    "molhiv of width 64, an epoch": partial(_gradient, "ogbg-molhiv", True, **WIDE),
    "a big graph of width 64": partial(_layer, "big", 64),
    "molecules of width 128": partial(_layer, "ogbg-molhiv", 128),
    "dense graphs of width 128": partial(_layer, "gen-cls", 128),
}


@dataclass(frozen=True)
class Options:
    """Where, on which scale ("tiny" or "cpu", whose sets suffice here), and what of `PIECES`."""

    folder: Path
    scale: str
    device: str
    pieces: tuple[str, ...]


@cache
def _piece(options: Options, name: str) -> Run:
    store = _store(options)
    torch.manual_seed(0)  # the same weights in every process
    return through("triton", PIECES[name](store))


@cache
def _store(options: Options) -> Store:
    return Store(options.folder, options.scale, torch.device(options.device))


@cache
def _answer(options: Options, piece: str) -> list[Tensor]:
    return _piece(options, piece)()


def try_out(options: Options, piece: str, way: str) -> str:
    """Do a piece of work with kernels launched in a way; what is wrong with that, or ""."""
    try:
        right = _answer(options, piece)
        with launched(WAYS.get(way, OURS), torch.device(options.device)):
            found = _piece(options, piece)()
        error = relative_error(found, [t.double() for t in right])
        return "" if error <= TOLERANCE else f"off by {error:.1e} of the answer's size"
    except Exception as error:  # whatever a compiler or a device stumbles over
        return short(error)


def microseconds(run: Callable[[], None], device: torch.device) -> float:
    """What one launch takes the device; on a CPU, which interprets it, the host."""
    if device.type != "cuda":
        start = time.perf_counter()
        run()
        return 1e6 * (time.perf_counter() - start)

    def many() -> None:
        for _ in range(_LAUNCHES):
            run()

    graph, _ = record(many, device)
    times = []
    for _ in range(_REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / _LAUNCHES)
    return statistics.median(times)


class _Timer:
    """Times launches, each that is like another only once."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.known = device, dict[str, float]()

    def __call__(self, launch: Launch) -> float:
        if launch.key not in self.known:
            self.known[launch.key] = microseconds(launch.run, self.device)
        return self.known[launch.key]


def tune(options: Options, jobs: int, until: float, save: Callable[[dict[str, Any]], None]) -> None:
    """Try out and time everything, as far as there is time until then (Unix seconds).

    Args:
        save: is given what is known, after each piece. Of each these are its "launches", with their
            "kernel", "sizes" and "us" (microseconds), and "ways": the "us" of every launch that one
            changes (None of others), or why it "failed".
    """
    start = time.time()
    for piece in options.pieces:  # and so write the sets, which the processes below then read
        _piece(options, piece)
    ways = [way for way in WAYS if _exists(way)]
    # Ours first: all others are compared with it.
    plan = [(piece, OURS.words) for piece in options.pieces]
    plan += [(piece, way) for piece in options.pieces for way in ways]
    tried = dict(_tried_out(options, plan, jobs, (start + until) / 2))
    gc.collect()
    gc.freeze()  # recording collects garbage each time
    out: dict[str, Any] = {}
    for piece in options.pieces:
        failed = tried.get((piece, OURS.words), "no time")
        if failed or time.time() > until:
            out[piece] = {"launches": [], "ways": {OURS.words: {"failed": failed or "no time"}}}
        else:
            verdicts = {way: tried.get((piece, way), "no time") for way in ways}
            out[piece] = _timed(options, piece, verdicts, until)
        save(out)


def _tried_out(
    options: Options, plan: Sequence[tuple[str, str]], jobs: int, until: float
) -> Iterator[tuple[tuple[str, str], str]]:
    """Each of the plan that there is time for, and what `try_out` says of it, in order.

    Where a process dies, as a compiler may abort, what was being tried out is passed over.
    """
    done = 0
    while done < len(plan) and time.time() < until:
        verdicts = share_out(jobs, partial(try_out, options), *zip(*plan[done:], strict=True))
        try:
            for verdict in verdicts:
                yield plan[done], verdict
                done += 1
                if time.time() > until:
                    break
        except InputError:
            for at in plan[done : done + 2 * jobs]:
                yield at, "a process died that may have been at this"
            done += 2 * jobs


def _timed(options: Options, piece: str, verdicts: dict[str, str], until: float) -> dict[str, Any]:
    """What `tune` saves of a piece; of each way there is the verdict of `try_out`."""
    device, run = torch.device(options.device), _piece(options, piece)
    timer, ways = _Timer(device), dict[str, Any]()
    _answer(options, piece)  # and what is computed once for a data set
    with launched(OURS, device) as ours:
        run()
    facts = [{"kernel": our.kernel, "sizes": our.sizes, "us": timer(our)} for our in ours]
    for way, verdict in verdicts.items():
        if verdict or time.time() > until:
            ways[way] = {"failed": verdict or "no time"}
            continue
        with launched(WAYS[way], device) as launches:
            run()
        pairs = list(zip(launches, ours, strict=True))
        us = [timer(launch) if launch.key != our.key else None for launch, our in pairs]
        if us != [None] * len(us):
            ways[way] = {"us": us}
    return {"launches": facts, "ways": ways}


def _exists(way: str) -> bool:
    """Whether the machine knows the way: AMD's compiler takes no number of registers."""
    return torch.version.hip is None or "maxnreg" not in WAYS[way].options


def best(document: dict[str, Any]) -> list[tuple[str, ...]]:
    """The rows of the table: of each kernel for the same sizes in a piece, what its launches take,
    and the way in which they take least; those first where most is to be gained."""
    rows = []
    for piece, found in document["pieces"].items():
        alike: dict[tuple[str, str], list[int]] = {}
        for at, launch in enumerate(found["launches"]):
            alike.setdefault((launch["kernel"], launch["sizes"]), []).append(at)
        for what, places in alike.items():
            ours = sum(found["launches"][at]["us"] for at in places)
            others = {"": ours}
            for way, told in found["ways"].items():
                us = [told["us"][at] for at in places] if "us" in told else [None]
                if None not in us:
                    others[way] = sum(us)
            way = min(others, key=others.__getitem__)
            rows.append((ours - others[way], piece, *what, len(places), ours, way, others[way]))
    return [
        (piece, kernel, sizes, str(many), f"{ours:.1f}", way, f"{least:.1f}" if way else "")
        for _, piece, kernel, sizes, many, ours, way, least in sorted(rows, reverse=True)
    ]


def markdown(document: dict[str, Any]) -> str:
    """tuning.md."""
    header = ["work", "kernel", "sizes", "launches", "µs", "best other way", "µs"]
    failed: dict[str, list[str]] = {}
    for piece, found in document["pieces"].items():
        for way, told in found["ways"].items():
            if "failed" in told:
                failed.setdefault(f"{piece}: {told['failed']}", []).append(way)
    lines = [f"{document['device']['name']}, {document['date']}, `{document['command']}`.", ""]
    lines += [table(header, best(document), left=3), ""]
    lines += [f"- Not timed, {why}: {', '.join(ways)}." for why, ways in failed.items()]
    return "\n".join(lines).rstrip() + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("--minutes", type=float, default=60.0, help="for everything together")
    parser.add_argument("--only", default="", help="pieces of work with this in their name")
    given = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if reason := why_not(torch.empty(0, device=device)):
        parser.error(f"the kernels cannot run here: {reason}")
    pieces = tuple(piece for piece in PIECES if re.search(given.only, piece))
    if not pieces:
        parser.error(f"--only {given.only!r} is in none of: {'; '.join(PIECES)}")
    words = [f"--out {given.out.name}", f"--minutes {given.minutes:g}"]
    words += [f"--only {given.only!r}"] if given.only else []
    start = time.time()
    document: dict[str, Any] = {
        "command": " ".join(["python -m benchmarks.tune", *words]),
        "device": machine.describe(torch.device(device)),
        "date": time.strftime("%Y-%m-%d", time.gmtime(start)),
        "pieces": {},
    }

    def save(pieces: dict[str, Any]) -> None:
        document["pieces"] = pieces
        text = json.dumps(document, indent=1, ensure_ascii=False)
        atomic_write_text(given.out / "tuning.json", text + "\n")
        atomic_write_text(given.out / "tuning.md", markdown(document))

    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        scale = "cpu" if device == "cuda" else "tiny"
        options = Options(Path(folder), scale, device, pieces)
        jobs = max(1, min(15, (os.cpu_count() or 1) - 1)) if device == "cuda" else 1
        tune(options, jobs, start + 60 * given.minutes, save)
    print(markdown(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
