"""Pieces of work that launch the Triton kernels, tried out and timed in other ways to do so."""

import statistics
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grant_fast import PackedGraphs, ops, score_graphs
from grant_fast.training.recording import record

from .data import Store, big_graph, prepare
from .gradients import TOLERANCE, in_training
from .layers import Problem
from .measure import must_be_right, relative_error
from .settings import WIDE, Setting, through
from .timing import seconds
from .ways import OURS, WAYS, Launch, launched

Run = Callable[[], list[Tensor]]

#: Launches of a kernel in a recorded graph, and how often each side's graph is replayed.
_LAUNCHES, _ROUNDS = 20, 9


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


#: Those that wait for the device, and so cannot be recorded as a whole.
WAIT = ("molhiv, scores",)


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

    both = None
    if known and name not in WAIT:
        both = in_turns([piece.run, whole], 1, piece.device)
    facts = [{"kernel": our.kernel, "sizes": our.sizes} for our in piece.launches]
    return {"launches": facts, "us": pairs, "whole": both}


def in_turns(runs: Sequence[Callable[[], Any]], times: int, device: torch.device) -> list[float]:
    """Median microseconds of each, which on a device is recorded so many times in a row."""
    gpu = device.type == "cuda"
    sides = [_recorded(run, times, device) if gpu else run for run in runs]
    rounds = [[seconds(side, device) for side in sides] for _ in range(_ROUNDS if gpu else 1)]
    count = times if gpu else 1
    return [1e6 * statistics.median(column) / count for column in zip(*rounds, strict=True)]


def _recorded(run: Callable[[], Any], times: int, device: torch.device) -> Callable[[], None]:
    """A CUDA graph of `run`, so many times."""
    graph, _ = record(lambda: [run() for _ in range(times)], device)
    replay: Callable[[], None] = graph.replay
    return replay
