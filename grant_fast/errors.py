"""The errors a user can cause, each with the culprit and the remedy in one line."""

import importlib
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from numbers import Integral
from types import ModuleType
from typing import Any


class InputError(ValueError):
    """The input cannot be used; the message names what, where, and what to do instead."""


class MissingExtraError(ImportError):
    """A feature needs a package that cannot be imported; the message gives the install command,
    or what is in the way."""


def is_out_of_memory(error: Exception) -> bool:
    """PyTorch's CPU allocator raises a mere RuntimeError, its GPU allocators a kind of it."""
    words = str(error)
    known = ("DefaultCPUAllocator", "out of memory")
    return isinstance(error, MemoryError) or any(word in words for word in known)


def whole_number(name: str, value: Any, least: int = 1) -> int:
    """`value`, of any integer type, as an int; InputError unless it is at least `least`."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise InputError(f"{name}={value!r}: give a whole number of at least {least}")
    return int(value)


def yes_or_no(name: str, value: Any) -> bool:
    """`value`, True or False or what equals one of them, as a bool; None as False. InputError for
    another."""
    if isinstance(value, str) or value not in (True, False, None):
        raise InputError(f"{name}={value!r}: give True or False")
    return bool(value)


def short(text: str, most: int = 80) -> str:
    """The text, or the beginning of a long one, for a message."""
    return text if len(text) <= most else f"{text[:most]}…"


def few(names: Sequence[str], most: int = 3) -> str:
    """The first of them, for a message: "a, b, c, …"."""
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


def typed(*words: str) -> str:
    """A command, or a part of one, as the system's shell wants it typed."""
    if sys.platform == "win32":
        import subprocess

        quoted = ((word, subprocess.list2cmdline([word])) for word in words)
        special = set("&|<>^")
        return " ".join(f'"{w}"' if q == w and special & set(w) else q for w, q in quoted)
    return shlex.join(words)


_is_command = False  # whether this process runs a command, whose options were typed
_OTHERWISE = {"out": "-o", "num_graphs": "--graphs"}  # called otherwise at a command


@contextmanager
def in_a_command() -> Iterator[None]:
    """Within it, `option` writes options as a command takes them."""
    global _is_command
    before, _is_command = _is_command, True
    try:
        yield
    finally:
        _is_command = before


def option(name: str, value: str | bool | Sequence[str] | None = None) -> str:
    """An option as its user gives it, for a message: --split random to a command, split='random' in
    Python; --split or split= where no value is meant."""
    if isinstance(value, Sequence) and len(value) == 1:
        (value,) = value
    if not _is_command:
        return f"{name}=" if value is None else f"{name}={value!r}"
    words = name.replace("_", "-")
    flag = f"--no-{words}" if value is False else _OTHERWISE.get(name, f"--{words}")
    if value is None or isinstance(value, bool):
        return flag
    each = [value] if isinstance(value, str) else value
    return " ".join(f"{flag} {typed(one)}" for one in each)


def installed(package: str) -> str | None:
    """The version of a package, or of its build for AMD (Triton's have names of their own)."""
    for name in (package, f"{package}-rocm", f"pytorch-{package}-rocm"):
        with suppress(PackageNotFoundError):
            return version(name)
    return None


def require(module: str, extra: str) -> ModuleType:
    """Import an optional module, or say which extra of grant_fast brings it.

    Raises:
        MissingExtraError: the module, or something it needs, is not installed or is broken.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"{error.name or module} is needed here but is not installed: "
            f'pip install "grant_fast[{extra}]"'
        ) from error
    except ImportError as error:
        raise MissingExtraError(
            f"{module} is needed here and is installed, but cannot be imported: {error}"
        ) from error
