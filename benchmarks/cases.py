"""The suite: what is measured, on what, and in which order of importance."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import product
from typing import Any

from . import checks
from .data import LAYER_SETS, RECIPES, Store
from .epochs import epoch_work
from .layers import layer_work
from .networks import infer_work, step_work
from .packing import collate_work, pack_work
from .runs import whole_run
from .scores import score_work
from .settings import WIDE, Setting

WIDTHS = (9, 27, 64, 128, 300)
ORDERS = (2, 3, 4, 5)
#: Every width at this order and every order at this width come first; the rest of the grid last,
#: forward and backward in one.
CENTRE_WIDTH, CENTRE_ORDER = 27, 3

#: What a layer in training is thought to take on a CPU at the central order, by its width.
_CPU_SECONDS = {9: 1.2, 27: 1.4, 64: 2.5, 128: 5.0, 300: 11.0}

SCORED = ("ogbg-molhiv", "gen-cls", "ogbg-molpcba")  # the last has 350,343 training graphs
CHECK, RUN = "check", "run"  # groups that give numbers, but no race
#: Groups whose cases have the Triton kernels on some sides only, and so make sense without them.
MIXED = ("layer", "memory", "step", "infer", "epoch")


@dataclass(frozen=True)
class Case:
    """One row of the results.

    Args:
        name: unique; "group/what/…".
        group: "check", "layer", "step", "infer", "score", "epoch", "pack", "collate", "memory" or
            "run".
        build: gives a `Work`; in the groups "check" and "run" the results themselves.
        sets: names of the data sets that it needs.
        seconds: what it is thought to take.
    """

    name: str
    group: str
    build: Callable[[Store], Any]
    sets: tuple[str, ...] = ()
    seconds: float = 4.0


def suite(scale: str) -> list[Case]:
    """All cases of a scale ("tiny", "cpu" or "gpu"), the most important first."""
    headline = [*_runs(scale), _epoch("ogbg-molhiv"), *_networks()]
    star = list(_star())
    layers = [_layer(*at, train, scale) for at in star for train in (True, False)]
    middle = [c for c in layers if "/27/3/" in c.name or "/64/3/" in c.name]
    rest = [case for case in layers if case not in middle]
    grid = product(LAYER_SETS, WIDTHS, ORDERS) if scale != "tiny" else ()
    rest += [_layer(*at, True, scale) for at in grid if at not in star]
    epochs = [_epoch(name) for name in RECIPES[1:]]
    asked = ("auto", "triton") if scale == "gpu" else ("auto",)
    score = [_score(name, who) for name in SCORED for who in asked]
    memory = [_memory(order) for order in ORDERS]
    out = [*_checks(), *headline, *middle, *score, *epochs, *memory, *_packing(), *rest]
    # The tests check the CPU's operators; a device is checked where it is.
    out = [case for case in out if case.group != CHECK or scale != "cpu"]
    times = 0.1 if scale == "tiny" else 1
    return [replace(case, seconds=times * case.seconds) for case in out]


def _star() -> Iterator[tuple[str, int, int]]:
    for data in LAYER_SETS:
        for width in WIDTHS:
            yield data, width, CENTRE_ORDER
        for order in ORDERS:
            if order != CENTRE_ORDER:
                yield data, CENTRE_WIDTH, order


def _layer(data: str, width: int, order: int, train: bool, scale: str) -> Case:
    compiled = train and (scale == "gpu" or (scale == "cpu" and order == CENTRE_ORDER))
    name = f"layer/{data}/{width}/{order}/{'forward+backward' if train else 'forward'}"
    build = partial(_build_layer, data, width, order, train, compiled)
    # What is compiled for one set serves the others.
    compiling = 6.0 if compiled and data == LAYER_SETS[0] else 0.0
    work = 2.5
    if scale == "cpu":
        work = _CPU_SECONDS[width] * order / CENTRE_ORDER * (1.0 if train else 0.4)
    return Case(name, "layer", build, (data,), work + compiling)


def _build_layer(
    data: str, width: int, order: int, train: bool, compiled: bool, store: Store
) -> Any:
    batch = store.graphs(data).batch(slice(None))
    return layer_work(batch, width, order, train, compiled, store.backends)


def _memory(order: int) -> Case:
    build = partial(_build_layer, "molecules", 64, order, True, False)
    return Case(f"memory/molecules/64/{order}", "memory", build, ("molecules",), 2.0)


def _networks() -> Iterator[Case]:
    """Two of the recipes' networks, in batches: training steps and scoring passes."""
    for name, recipe, changes in (
        ("molhiv", "ogbg-molhiv", {}),
        ("molhiv, widths 64", "ogbg-molhiv", WIDE),
        ("gen-cls", "gen-cls", {}),
    ):
        for group, work in (("step", step_work), ("infer", infer_work)):
            build = partial(_build_network, work, recipe, changes)
            yield Case(f"{group}/{name}", group, build, (recipe,), 8.0)


def _build_network(work: Callable[..., Any], recipe: str, changes: dict, store: Store) -> Any:
    return work(Setting.of(recipe, store, **changes))


def _epoch(recipe: str) -> Case:
    work = partial(epoch_work, loader=recipe == "ogbg-molhiv")
    seconds = 20.0 if recipe == "ogbg-molhiv" else 8.0
    return Case(
        f"epoch/{recipe}", "epoch", partial(_build_network, work, recipe, {}), (recipe,), seconds
    )


def _score(recipe: str, who: str) -> Case:
    build = partial(_build_network, partial(score_work, who=who), recipe, {})
    name = f"score/{recipe}" if who == "auto" else f"score/{recipe}, {who}"
    return Case(name, "score", build, (recipe,), 5.0)


def _packing() -> Iterator[Case]:
    if find_spec("torch_geometric") is None:
        return
    for data, size in (("molecules", 100), ("graphon", 40)):
        yield Case(f"collate/{data}", "collate", partial(_build_collate, data, size), (data,), 3.0)
        yield Case(f"pack/{data}", "pack", partial(_build_pack, data), (data,), 4.0)


def _build_collate(data: str, size: int, store: Store) -> Any:
    return collate_work(store.graphs(data), size)


def _build_pack(data: str, store: Store) -> Any:
    graphs = store.graphs(data)
    return pack_work(graphs.subset(slice(0, min(len(graphs), 2000))))


def _runs(scale: str) -> Iterator[Case]:
    limit = {"tiny": 0.5, "cpu": 10.0, "gpu": 20.0}[scale]
    for backend in ("torch", "triton") if scale == "gpu" else ("auto",):
        name = "run/ogbg-molhiv (B)" + f", {backend}" * (backend != "auto")
        yield Case(name, RUN, partial(_build_run, limit, backend), ("ogbg-molhiv",), limit + 5)


def _build_run(limit: float, backend: str, store: Store) -> Any:
    if backend == "triton" and backend not in store.backends:
        raise ValueError("the Triton kernels are left out here")
    dataset = store.dataset("ogbg-molhiv")
    return whole_run("ogbg-molhiv", "grant-b", dataset, store.device, limit, backend)


def _checks() -> Iterator[Case]:
    for check in checks.checks():
        build = partial(_build_check, check)
        yield Case(f"check/{check.name}", CHECK, build, (), _check_seconds(check.name))


def _check_seconds(name: str) -> float:
    """About what compiling for sm_90 takes, most of it for the many kernels of a network."""
    if not name.startswith("triton"):
        return 1.0
    return 120.0 if name.startswith("triton network") else 15.0


def _build_check(check: Any, store: Store) -> Any:
    return checks.run(check, store.device)
