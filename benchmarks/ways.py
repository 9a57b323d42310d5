"""Other ways to launch the Triton kernels, and what a piece of work launches in one of them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor

from grant_fast.devices import has_hopper_units

#: The modules that launch the kernels that train and score.
LAUNCHERS = ("csr", "kinds", "layer", "norm", "readout", "score", "tail", "weights", "wide")
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
    places = [("csr.spmm_shape", "ROWS"), ("norm.norm_shape", "ROWS"), ("kinds.sum_shape", "ROWS")]
    places += [("readout.readout_shape", "NODES"), ("tail.tail_shape", "NODES")]
    for (place, key), factor in product(places, (0.5, 2)):
        yield Way(f"{place} {key}×{factor:g}", {}, place, partial(_scale, key, factor))
    for place, value in product(
        ("layer.PROGRAMS", "kinds.PROGRAMS", "norm.SHARES"), (256, 512, 1024, 2048)
    ):
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
    modules = {name: import_module(f"grant_fast.kernels.{name}") for name in LAUNCHERS}
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
        for name in LAUNCHERS:
            patches.enter_context(mock.patch.object(modules[name], "launch", launch))
        if way.change is not None:
            module, name = way.place.split(".")
            before = getattr(modules[module], name)
            after = way.change(before) if isinstance(before, int) else _after(before, way.change)
            patches.enter_context(mock.patch.object(modules[module], name, after))
        yield noted


def _after(before: Callable[..., Any], change: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda *args, **named: change(before(*args, **named))


def exists(way: str) -> bool:
    """Whether the machine knows the way: AMD's compiler takes no number of registers."""
    return torch.version.hip is None or "maxnreg" not in WAYS[way].options
