"""Downloads whose content is known are compared with it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ..errors import InputError


def check_sha256(path: Path, expected: str) -> None:
    """Refuse a file of other content.

    Raises:
        InputError: the SHA-256 digest of the file is not `expected` (hexadecimal).
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != expected:
        raise InputError(
            f"{path.name} is damaged, or another file (SHA-256 {digest.hexdigest()[:12]}… instead "
            f"of {expected[:12]}…): delete it and fetch it again"
        )
