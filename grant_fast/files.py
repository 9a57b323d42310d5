"""Files are written whole or not at all, and what is wrong with one is said with a remedy."""

import codecs
import csv
import difflib
import errno
import glob
import gzip
import io
import os
import re
import secrets
import shutil
import sys
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

from .errors import InputError, few, option, short

_GZIP = b"\x1f\x8b"  # what such a file begins with, and no UTF-8 text
#: How files begin that are no text or no data, in lower case; what they are, and what can be done.
_FOREIGN = {
    b"pk\x03\x04": ("a zip archive or a workbook, not text", "unzip it, or save it as CSV"),
    b"\xd0\xcf\x11\xe0": ("a workbook (.xls), not text", "save it as CSV (UTF-8)"),
    b"<!doctype html": ("a web page, not a file of data", "download the file itself"),
    b"<html": ("a web page, not a file of data", "download the file itself"),
}
_UTF16 = (b"\xff\xfe", b"\xfe\xff")  # its byte order marks, which Excel's Unicode text begins with
_TO_LOCK = 60  # seconds: far more than pass between a file's making and its locking
_TO_SCAN = 2  # seconds
_LONGEST = 255  # characters of a name, on most systems
FULL = (errno.ENOSPC, errno.EDQUOT)  # the disk, or the user's share of it


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary sibling of `path` that replaces it when the block succeeds.

    A failure inside the block (a full disk, Ctrl-C, an exception) leaves `path` as it was and no
    temporary file behind. What a process that was killed has left of it is removed by the next.

    Raises:
        InputError: the folder is missing or not writable, `path` is a folder or a device, or the
            disk is full.
    """
    target = check_writable(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    handle = None
    try:  # an interrupt may come as soon as there is a file
        try:
            temporary.touch(exist_ok=False)
        except OSError as error:
            remedy = "free some space" if error.errno in FULL else "give another folder"
            remedy = "give a shorter name" if error.errno == errno.ENAMETOOLONG else remedy
            raise InputError(f"cannot write {target}: {error.strerror}; {remedy}") from error
        if sys.platform != "win32":  # which replaces no open file
            handle = os.open(temporary, os.O_RDONLY)
            _is_taken(handle)  # from now on by this process
            if _can_be_written(temporary):
                _remove_abandoned(target)
            else:  # as on a Windows share (SMB), whose locks keep out all other handles
                locked, handle = handle, None
                os.close(locked)
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        with suppress(OSError):  # it is new, or lies where nobody changes them
            shutil.copymode(target, temporary)
        _replace(temporary, target)
    except OSError as error:
        remedy = "; free some space" if error.errno in FULL else ""
        if sys.platform == "win32" and isinstance(error, PermissionError):
            remedy = "; close it in other programs"
        raise InputError(f"cannot write {target}: {error.strerror or error}{remedy}") from error
    finally:
        if handle is not None:
            os.close(handle)
        with suppress(OSError):
            temporary.unlink()


def _can_be_written(path: Path) -> bool:
    """Whether the lock of a file lets this process write through another handle."""
    try:
        with open(path, "r+b", buffering=0) as file:
            file.write(b"\0")
            file.truncate(0)
    except PermissionError:
        return False
    except OSError:  # the disk is full, say
        pass
    return True


def _replace(temporary: Path, target: Path) -> None:
    """`os.replace`, tried for a while: on Windows a virus scanner may be reading one of them."""
    until = time.monotonic() + (_TO_SCAN if sys.platform == "win32" else 0)
    while True:
        try:
            return os.replace(temporary, target)
        except PermissionError:
            if time.monotonic() >= until:
                raise
            time.sleep(0.05)


def _remove_abandoned(target: Path) -> None:
    """Remove temporary files for `target` whose processes have ended, where locks tell."""
    for other in target.parent.glob(f".{glob.escape(target.name)}.*"):
        if re.fullmatch(r"\.[0-9a-f]{8}", other.suffix):
            with suppress(OSError):
                handle = os.open(other, os.O_RDONLY)
                try:
                    # One that is empty and new may be about to be locked by who made it.
                    facts = os.fstat(handle)
                    begun = facts.st_size or time.time() - facts.st_mtime > _TO_LOCK
                    if begun and _is_taken(handle) is False:
                        other.unlink()
                finally:
                    os.close(handle)


def _is_taken(handle: int) -> bool | None:
    """Whether another process has locked an open file or folder; else it is locked now. None where
    there are no locks, as on Windows and some network drives."""
    if sys.platform == "win32":
        return None
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False


def _let_go(handle: int) -> None:
    """Unlock what this process has locked: to close it would leave it to those it has forked."""
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_UN)


def atomic_write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write UTF-8 text to `path`, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def atomic_write_csv(
    path: str | os.PathLike[str], header: Sequence[str], rows: Iterable[Iterable[Any]]
) -> None:
    """Write a CSV file with a header to `path`, whole or not at all: with tabs where it is a *.tsv,
    and zipped where its name ends in .gz."""
    tabs = unzipped_name(path).suffix.lower() == ".tsv"
    with atomic_path(path) as temporary, ExitStack() as files:
        file: Any = files.enter_context(open(temporary, "wb"))
        if Path(path).suffix.lower() == ".gz":
            file = files.enter_context(gzip.GzipFile("", "wb", fileobj=file, mtime=0))
        text = files.enter_context(io.TextIOWrapper(file, encoding="utf-8", newline=""))
        style: dict[str, Any] = {"delimiter": "\t" if tabs else ",", "lineterminator": "\n"}
        usual, quoting = csv.writer(text, **style), csv.writer(text, **style, quoting=csv.QUOTE_ALL)
        for cells in map(list, chain([header], rows)):
            # Of itself Python (before 3.13) lets a carriage return end the row.
            broken = any(isinstance(cell, str) and "\r" in cell for cell in cells)
            (quoting if broken else usual).writerow(cells)


def check_writable(path: str | os.PathLike[str]) -> Path:
    """Where writing to `path` will put the file, if what can be known beforehand speaks for it.

    Raises:
        InputError: the folder is missing or not writable, `path` is a folder or a device.
    """
    check_name(os.path.abspath(path))
    target = Path(os.path.realpath(path))  # a link stays a link, to the new content
    if target.is_dir():
        raise InputError(f"cannot write {target}: it is a folder; give a file name")
    if target.exists() and not target.is_file():
        raise InputError(f"cannot write {target}: it is not an ordinary file; give another name")
    folder = target.parent
    if not folder.is_dir():
        problem = "is not a folder;" if folder.exists() else "does not exist: make it first, or"
        raise InputError(f"cannot write {target}: {folder} {problem} give another one")
    if not os.access(folder, os.W_OK):
        raise InputError(f"cannot write {target}: you may not write to {folder}; give another one")
    return target


def check_name(path: str | os.PathLike[str]) -> None:
    """Refuse what is no name, as text is that was in a file, and a name that cannot be written
    down, in a run's settings for one (InputError)."""
    name = os.fsdecode(path)
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"the name {name!r} is not UTF-8: rename the file or folder, or give another one"
        ) from error
    if "\0" in name:
        raise InputError(f"{short(name)!r} is no name of a file, as it holds a NUL: give a path")
    for part in Path(name).parts:
        if len(part) > _LONGEST:
            remedy = "give a shorter one, or the path of a file"
            raise InputError(f"{short(part)!r} is too long for a file's name: {remedy}")


@contextmanager
def alone_in(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Keep a folder from other processes that ask for the same, where the system can: Windows and
    some network drives cannot. Nothing is left behind, whatever ends the process.

    Raises:
        InputError: another process has the folder.
    """
    if sys.platform == "win32":
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        taken, process = _is_taken(handle), os.getpid()
        if taken:
            raise InputError(
                f"another process is writing to {os.fspath(folder)}: wait until it ends, or "
                f"give another folder with {option('out')}"
            )
        try:
            yield
        finally:
            if taken is False and os.getpid() == process:
                _let_go(handle)
    finally:
        os.close(handle)


def check_apart(
    source: str | os.PathLike[str], out: str | os.PathLike[str], what: str = "the source itself"
) -> None:
    """Refuse to write over what is read, by whatever names or links (InputError)."""
    if os.path.exists(source) and os.path.exists(out) and os.path.samefile(source, out):
        remedy = f"give another name with {option('out')}"
        raise InputError(f"cannot write {os.fspath(out)}: it is {what}; {remedy}")


def unzipped_name(path: str | os.PathLike[str]) -> Path:
    """`path` without .gz at its end: what tells a table's kind, and what runs are named after."""
    path = Path(path)
    return path.with_suffix("") if path.suffix.lower() == ".gz" else path


def read_text(path: Path) -> str:
    """What a file of text says, in UTF-8 or (by its byte order mark) UTF-16, without such a mark;
    unzipped, if it is gzip, by whatever name.

    Raises:
        InputError: it cannot be read, is not whole, is a workbook or a web page, or (naming its
            line) is in neither.
    """
    try:
        content = path.read_bytes()
        if path.suffix.lower() == ".gz" or content.startswith(_GZIP):
            content = gzip.decompress(content)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        remedy = "copy or pack it again"
        if not content.startswith(_GZIP):
            remedy = f"if it is none, name it {path.stem}"
        raise InputError(f"{path} is not a complete gzip file ({error}): {remedy}") from error
    except OSError as error:
        raise cannot_read(path, error) from error
    beginning = content[:100].removeprefix(codecs.BOM_UTF8).lstrip().lower()
    for start, (what, remedy) in _FOREIGN.items():
        if beginning.startswith(start):
            raise InputError(f"{path} is {what}: {remedy}")
    try:
        encoding = "utf-16" if content.startswith(_UTF16) else "utf-8-sig"
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        line = len(re.findall(rb"\r\n?|\n", content[: error.start])) + 1
        name = encoding.upper().removesuffix("-SIG")
        how = " (a spreadsheet program offers that as CSV UTF-8)" if b"$$$$" not in content else ""
        raise InputError(f"{path} line {line} is not {name} text: save it in UTF-8{how}") from error
    if "\0" in text:
        line = len(re.findall(r"\r\n?|\n", text[: text.index("\0")])) + 1
        raise InputError(f"{path} line {line} holds binary data: save it as text in UTF-8")
    return text


def check_local(name: str) -> None:
    """Refuse a web address where a file is wanted (InputError)."""
    if re.match(r"\w{2,}://", name):
        raise InputError(f"{name} is an address, not a file: download it, and give the file")


def cannot_read(path: str | os.PathLike[str], error: OSError) -> InputError:
    """What to raise where a file that the user named cannot be read: the culprit and a remedy."""
    path = Path(path)
    if isinstance(error, FileNotFoundError):
        return InputError(f"there is no file {path}: {likely(path)}")
    if isinstance(error, IsADirectoryError):
        return InputError(f"{path} is a folder: give a file in it")
    return InputError(f"cannot read {path}: {error.strerror or error}; check its permissions")


def likely(path: Path) -> str:
    """Advice on a file that is not there: what there is of its kind, the closest name first."""
    folder = path.parent
    if not folder.is_dir():
        return f"the folder {folder} does not exist; check the path"
    try:
        names = sorted(other.name for other in folder.glob(f"*{path.suffix}") if other.is_file())
    except OSError:
        names = []
    if hint := closest(path.stem, [name.removesuffix(path.suffix) for name in names]):
        return f"did you mean {folder / (hint + path.suffix)}?"
    where = "the current folder" if folder == Path() else str(folder)
    if not names:
        return f"{where} has no *{path.suffix} at all; check the path"
    return f"{where} has {few(names, 5)}; check the path"


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that looks most like `name`, in any case; None where none does."""
    by_lower = {other.lower(): other for other in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return by_lower[found[0]] if found else None
