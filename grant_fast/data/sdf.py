"""The molecules of an SDF as a sheet: SMILES of the structures, names and data fields."""

import re
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from ..errors import InputError
from ..files import read_text
from ..workers import share_out
from .progress import track
from .sheet import Sheet
from .smiles import CHUNK, PIECES, import_rdkit

SMILES, NAME = "smiles", "name"
#: A data field: its name in a line that begins with >, and the lines from there to an empty one.
_FIELD = re.compile(r"^>[^\n<]*<([^\n]+)>[^\n>]*\n((?:[^\n]*\S[^\n]*\n?)*)", re.MULTILINE)
_END = re.compile(r"^\$\$\$\$.*\n?", re.MULTILINE)


def read_sdf(path: Path, workers: int | None = None, progress: bool = False) -> Sheet:
    """An SDF, or a *.gz of one: a row for each molecule, counted from 1.

    The columns are smiles (RDKit's canonical SMILES of the structure without its explicit
    hydrogens; empty where it cannot be read), name (the first line of the molecule, where any has
    one) and the data fields of all molecules; fields called smiles or name give way to these.

    Args:
        path: the file, of UTF-8 text.
        workers: processes to share the work, at most; see `grant_fast.workers.share_out`.
        progress: show a progress bar.

    Raises:
        InputError: the file is missing, empty or not UTF-8 text.
        MissingExtraError: rdkit is not installed.
    """
    import_rdkit()  # a missing package is reported once, here, and not by every worker
    texts = _END.split(re.sub("\r\n?", "\n", read_text(path)))
    if not texts[-1].strip():  # behind the last mark
        texts.pop()
    if not texts:
        raise InputError(f"{path} is empty: give an SDF with molecules")
    pieces = [texts[start : start + CHUNK] for start in range(0, len(texts), CHUNK)]
    some = max(1, min(workers or 1, len(pieces) // PIECES))
    read = share_out(some, _read_structures, pieces)
    fields = list(chain.from_iterable(track(read, "reading structures", len(pieces), progress)))
    names = [text.split("\n", 1)[0].strip() for text in texts]
    rows = [
        {SMILES: "", **found, NAME: name or found.get(NAME, "")}
        for name, found in zip(names, fields, strict=True)
    ]
    header = list(dict.fromkeys(chain([SMILES, NAME], *rows)))
    if not any(row[NAME] for row in rows):
        header.remove(NAME)
    cells = [[row.get(column, "") for column in header] for row in rows]
    return Sheet(path, "", header, header, list(enumerate(cells, 1)))


def _read_structures(texts: Iterable[str]) -> list[dict[str, str]]:
    """Of each molecule's text its data fields and its SMILES, empty where there is none."""
    chem, rd_base = import_rdkit()
    found = []
    with rd_base.BlockLogs():  # RDKit explains each failure on stderr; ours are reported by row
        for text in texts:
            molecule = chem.MolFromMolBlock(text)
            fields = {name: value.strip() for name, value in _FIELD.findall(text)}
            smiles = "" if molecule is None else chem.MolToSmiles(molecule)
            found.append({**fields, SMILES: smiles})
    return found
