"""Generated data sets are kept in the user's cache folder, packed, for the next time."""

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ..errors import InputError
from ..graphs import PackedGraphs
from .stream import Part, joined, save_parts

VERSION = 1  # raised whenever the generator would draw other graphs
SMALLEST = 10_000  # graphs; fewer are drawn again in a few seconds


def cache_folder() -> Path:
    """Where this package may keep what it can make again: `$XDG_CACHE_HOME/grant_fast`.

    By default `~/.cache/grant_fast`, on macOS `~/Library/Caches/grant_fast`, on Windows
    `%LOCALAPPDATA%\\grant_fast`. InputError where there is no home.
    """
    given = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):  # a relative one is to be ignored, says the XDG specification
        return Path(given) / "grant_fast"
    if sys.platform == "win32" and os.environ.get("LOCALAPPDATA"):
        return Path(os.environ["LOCALAPPDATA"]) / "grant_fast"
    try:
        home = Path.home()
    except RuntimeError as error:  # of a container's user that nobody knows
        raise InputError("there is no home folder: set XDG_CACHE_HOME to a folder") from error
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "grant_fast"


def cached_graphs(
    name: str, num_graphs: int, seed: int, draw: Callable[[], Iterable[Part]]
) -> PackedGraphs:
    """The graphs from the cache, memory-mapped, or else drawn, and kept there.

    They go into the file part by part and are mapped from it, so that drawing them takes little
    memory. Sets of fewer than 10,000 graphs are not kept. A file that is cut short, or of an older
    format, is made again; its numbers are not compared with their checksums. A folder that cannot
    be written costs memory, the next user time, and a warning now, but no result.

    Args:
        name, num_graphs, seed: what the graphs depend on, besides the generator's version.
        draw: gives them.
    """
    if num_graphs < SMALLEST:
        return joined(draw())
    path = cache_folder() / f"{name}-{num_graphs}-seed{seed}-v{VERSION}.gfast"
    if os.path.exists(path):  # Path.exists raises in another user's folder
        try:
            return PackedGraphs.load(path)
        except InputError:
            pass  # truncated by something other than us, or of an older format
    undrawn: list[Exception] = []

    def drawn() -> Iterator[Part]:
        try:
            yield from draw()
        except (InputError, OSError) as error:
            undrawn.append(error)
            raise

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_parts(drawn(), path)
    except (InputError, OSError) as error:
        if undrawn:  # to draw them again, and to keep them in memory, would not help
            raise
        warnings.warn(f"{name} could not be kept for next time: {error}", stacklevel=2)
        return joined(draw())
    return PackedGraphs.load(path)
