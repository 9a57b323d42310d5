"""A progress bar on stderr, where somebody watches."""

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def track(items: Iterable[T], label: str, total: int, show: bool) -> Iterable[T]:
    """Pass `items` on, with a bar of `total` steps if `show` and stderr is a terminal."""
    if not show:
        return items
    from rich.console import Console
    from rich.progress import track as rich_track

    console = Console(stderr=True)
    disable = not console.is_terminal
    return rich_track(items, label, total=total, console=console, transient=True, disable=disable)
