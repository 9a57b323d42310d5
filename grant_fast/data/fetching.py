"""Files from the network, whole or not at all, compared with what is known of them."""

import hashlib
import os
import shutil
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from ..errors import InputError

#: What may be raised where something is fetched and unpacked.
FAILURES = (OSError, EOFError, HTTPException, KeyError, zipfile.BadZipFile, zlib.error)

TIMEOUT_SECONDS = 30


@dataclass(frozen=True)
class Source:
    """Where some files come from.

    Args:
        url: of one file, or of a zip archive.
        members: names for the files, and where each is in the archive; "" where `url` is the file.
        sha256: of what is behind `url`, where somebody has published it.
    """

    url: str
    members: Mapping[str, str]
    sha256: str | None = None


def provide(folder: Path, sources: Sequence[Source], progress: bool) -> None:
    """Fetch into `folder` whichever of the sources' files are not there.

    Raises:
        InputError: no network (the message says which files to put where), or other content.
    """
    for source in sources:
        missing = [name for name in source.members if not (folder / name).is_file()]
        if not missing:
            continue
        try:
            _fetch(folder, source, missing, progress)
        except FAILURES as error:
            words = " and ".join(
                f"its {member} as {name}" if member else f"it as {name}"
                for name, member in source.members.items()
            )
            raise InputError(
                f"cannot download {source.url} ({error}): fetch it elsewhere, and put {words} "
                f"into {folder}"
            ) from error


def _fetch(folder: Path, source: Source, names: Sequence[str], progress: bool) -> None:
    """Fetch these of a source's files, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
        fetched = Path(scratch) / "fetched"
        download(source.url, fetched, source.sha256, progress)
        for name in names:
            if member := source.members[name]:
                _extract(fetched, member, Path(scratch) / name)
            else:
                fetched.rename(Path(scratch) / name)
            os.replace(Path(scratch) / name, folder / name)


def _extract(archive: Path, member: str, target: Path) -> None:
    with (
        zipfile.ZipFile(archive) as content,
        content.open(member) as source,
        target.open("wb") as file,
    ):
        shutil.copyfileobj(source, file, 1 << 20)


def download(url: str, path: Path, sha256: str | None, progress: bool) -> None:
    """Fetch `url` to `path`, and compare it with its digest if that is known.

    Raises:
        OSError: no network, or no such file there.
        HTTPException: an answer that is none, or breaks off.
        InputError: other content.
    """
    from rich.console import Console
    from rich.progress import wrap_file

    with (
        urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response,
        path.open("wb") as file,
        wrap_file(
            response,
            int(response.headers.get("Content-Length", 0)),
            description=f"downloading {url.rsplit('/', 1)[-1]}",
            console=Console(stderr=True),
            disable=not progress,
        ) as shown,
    ):
        shutil.copyfileobj(shown, file)
    if sha256 is not None:
        check_sha256(path, sha256, url)


def check_sha256(path: Path, expected: str, name: str | None = None) -> None:
    """Refuse a file of other content; `name` is what the message calls it.

    Raises:
        InputError: the SHA-256 digest of the file is not `expected` (hexadecimal).
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != expected:
        raise InputError(
            f"{name or path} is damaged or is another file (SHA-256 {digest.hexdigest()[:12]}… "
            f"instead of {expected[:12]}…): delete it and fetch it again"
        )
