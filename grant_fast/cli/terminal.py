"""How a command meets the terminal: signals, standard streams, what ends in one line."""

import _thread
import errno
import functools
import gc
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import typer
from rich.console import Console
from rich.status import Status

from ..errors import InputError, MissingExtraError, in_a_command, is_out_of_memory
from ..files import FULL

IMPORT = "<frozen importlib._bootstrap>"


def set_up() -> None:
    """See to the signals and the standard streams of this process."""
    # A scheduler's polite kill leaves a resumable run, as Ctrl-C does.
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is to be ignored
        signal.signal(signal.SIGINT, _interrupt)
    sys.unraisablehook = _interrupt_again
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # ± and κ need not be in the terminal's alphabet
            stream.reconfigure(errors="replace")


def wait_briefly() -> None:
    """Have the threads of GNU's OpenMP, which is not loaded yet, spin for some 20 µs between two
    operators and then sleep, unless the user chose: usually they spin for milliseconds, in vain
    where one of them waits for a core that is busy with something else.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


@contextmanager
def uncollected() -> Iterator[None]:
    """For a `with` that imports: Python would search what was imported for garbage again and again,
    and once more at the end."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()


def _open_streams() -> None:
    """Put a null device where a standard stream is closed, which Python gives as None.

    The first files that are opened would take its number, and get what C code prints.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def _interrupt(_number: int, frame: FrameType | None) -> None:
    """For `signal.signal`: KeyboardInterrupt, but once what is being imported is there, and what is
    being started, which else leaves locks of its own undone.

    C code that imports (PyTorch takes up NumPy so) drops an exception, aborts, or fails later on.
    """
    while frame is not None:
        if frame.f_code.co_filename == IMPORT or frame.f_code in _TO_FINISH:
            return _interrupt_soon()
        frame = frame.f_back
    raise KeyboardInterrupt


def _interrupt_again(lost: Any) -> None:
    """For `sys.unraisablehook`: an interrupt in a callback, where Python drops it, comes again, but
    once this has returned."""
    if isinstance(lost.exc_value, KeyboardInterrupt):
        _interrupt_soon()
    else:
        sys.__unraisablehook__(lost)


def _interrupt_soon() -> None:
    # Not as SIGINT, which a shell's background jobs ignore.
    threading.Timer(0.01, _thread.interrupt_main, [signal.SIGTERM]).start()


#: Functions that no interrupt may leave halfway.
_TO_FINISH = (_interrupt_again.__code__, threading.Thread.start.__code__)


#: What to do about an error of a file that nothing else has put into words.
_REMEDIES = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), "check its folder's permissions"),
    errno.ENAMETOOLONG: "give a shorter name",
}


def readable(command: Callable[..., None]) -> Callable[..., None]:
    """Turn what a user can cause into one line on stderr and an exit code."""

    @functools.wraps(command)
    def run(**values: Any) -> None:
        try:
            with _here(), in_a_command():
                command(**values)
        except (InputError, MissingExtraError, OSError) as error:
            if isinstance(error, OSError) and _is_of_output(error):
                raise  # to `lose_output`
            said = " ".join(str(error).split())
            if isinstance(error, OSError) and error.filename and error.errno in _REMEDIES:
                said = f"{error.filename}: {error.strerror}; {_REMEDIES[error.errno]}"
            say(f"error: {said}")
            raise typer.Exit(1) from error
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            remedy = "free some, or give fewer graphs, smaller batches or narrower layers"
            say(f"error: out of memory: {remedy}")
            raise typer.Exit(1) from error
        except KeyboardInterrupt as interrupt:
            say(str(interrupt) or "interrupted")
            raise typer.Exit(130) from interrupt

    return run


@contextmanager
def _here() -> Iterator[None]:
    """Refuse to work in a folder that was deleted (InputError), before or meanwhile: PyTorch's
    kernels end there."""
    try:
        os.getcwd()
        yield
    except FileNotFoundError as error:
        if error.filename is not None or _is_there():
            raise
        raise InputError("the current folder was deleted: go to another one (cd)") from error


def _is_there() -> bool:
    """Whether the current folder is."""
    try:
        return bool(os.getcwd())
    except FileNotFoundError:
        return False


def _is_of_output(error: OSError) -> bool:
    """Whether it is of what is printed: a pipe or a disk, and no file that has a name."""
    return error.filename is None and error.errno in (errno.EPIPE, errno.EIO, *FULL)


def lose_output(error: OSError) -> None:
    """Say, if that can be said, that what is printed cannot be written, and print no more of it."""
    with suppress(OSError):
        say(
            f"error: cannot write the output: {error.strerror or error}; send it to a file or "
            "terminal that accepts it"
        )
    with suppress(OSError), open(os.devnull, "w") as null:
        os.dup2(null.fileno(), sys.stdout.fileno())  # what waits to be written is tried again


def stderr() -> Console:
    """A console for messages, 100 columns wide where no terminal says how wide it is."""
    return Console(stderr=True, width=None if sys.stderr.isatty() else 100)


def busy(words: str) -> Status:
    """For a `with`: what takes a while and cannot say how far it is; shown on a terminal alone."""
    return stderr().status(words, spinner="line")


def say(line: str) -> None:
    """A line for people, apart from a command's results."""
    print(line, file=sys.stderr)
