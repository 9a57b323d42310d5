"""How far something is, on stderr: a bar where somebody watches, a line now and then elsewhere."""

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

LINE_EVERY_SECONDS = 10.0


def track(items: Iterable[T], label: str, total: int, show: bool) -> Iterable[T]:
    """Pass `items` on, of which there are `total`, and if `show` say how far they are."""
    if not show:
        return items
    from rich.console import Console
    from rich.progress import track as rich_track

    console = Console(stderr=True)
    if console.is_terminal or console.is_jupyter:
        return rich_track(items, label, total=total, console=console, transient=True)
    return _with_lines(items, label, total, console)


def _with_lines(items: Iterable[T], label: str, total: int, console: "Console") -> Iterator[T]:
    last, said, count = time.monotonic(), 0, 0

    def say() -> None:
        console.print(f"{label}: {count:,} of {total:,}", highlight=False, soft_wrap=True)

    for count, item in enumerate(items, start=1):
        yield item
        if time.monotonic() - last > LINE_EVERY_SECONDS:
            last, said = time.monotonic(), count
            say()
    if 0 < said < count:  # the last one, where any were said
        say()
