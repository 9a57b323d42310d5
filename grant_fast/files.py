"""Files are written whole or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import InputError


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary sibling of `path` that replaces it when the block succeeds.

    A failure inside the block (a full disk, Ctrl-C, an exception) leaves `path` as it was and no
    temporary file behind.

    Raises:
        InputError: the folder is missing or not writable, `path` is a folder or a device, or the
            disk is full.
    """
    target = Path(path).resolve()  # a link stays a link, to the new content
    if target.is_dir():
        raise InputError(f"cannot write {target}: it is a folder; give a file name")
    if target.exists() and not target.is_file():
        raise InputError(f"cannot write {target}: it is not an ordinary file; give another name")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror}") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        # mkstemp makes private files; a result should be as readable as any other new file.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        os.replace(temporary, target)
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def atomic_write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write UTF-8 text to `path`, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
