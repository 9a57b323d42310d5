"""The molecules of an SDF as a sheet: SMILES of the structures, names and data fields."""

import re
from collections.abc import Collection, Iterable
from itertools import chain
from pathlib import Path

from ..errors import InputError, few, short
from ..files import read_text
from ..progress import track
from ..workers import share_out
from .parsing import CHUNK, PIECES, import_rdkit, settled
from .sheet import Sheet, one_line

#: A data field: its name in a line that begins with >, and the lines from there to an empty one.
_FIELD = re.compile(r"^>[^\n<]*<([^\n]+)>[^\n>]*\n((?:[^\n]+\n?)*)", re.MULTILINE)
#: What looks like the next field's name among them, and the line before it, if there is one.
_SWALLOWED = re.compile(r"(?:^([^\n]*)\n|\A)>[^\n<]*<([^\n]+)>", re.MULTILINE)
_END = re.compile(r"^\$\$\$\$.*\n?", re.MULTILINE)
_END_OF_STRUCTURE = re.compile(r"^M  END", re.MULTILINE)


def read_sdf(
    path: Path, workers: int | None = None, progress: bool = False
) -> tuple[Sheet, tuple[str, ...]]:
    """An SDF, or a *.gz of one: a row for each molecule, counted from 1; and their names.

    The columns are smiles (RDKit's canonical SMILES of the structure without its explicit
    hydrogens; empty where it cannot be read), name (the first line of the molecule, where any has
    one) and the data fields of all molecules. Where a field is called smiles or name, that column
    is sdf_smiles or sdf_name.

    Args:
        path: the file, of UTF-8 text.
        workers: processes to share the work, at most; see `grant_fast.workers.share_out`.
        progress: show a progress bar.

    Returns:
        The sheet, and what its second column says; () where there is none of names.

    Raises:
        InputError: the file is missing, empty, not UTF-8 text or breaks off, a molecule in it is
            not ended, or no structure can be read.
        MissingExtraError: rdkit is not installed.
    """
    import_rdkit()  # a missing package is reported once, here, and not by every worker
    texts = _END.split(re.sub("\r\n?", "\n", read_text(path)))
    if is_marked := not texts[-1].strip():  # nothing is behind the last mark
        texts.pop()
    if not texts:
        raise InputError(f"{path} is empty: give an SDF with molecules")
    names = tuple(text.split("\n", 1)[0].strip() for text in texts)
    for number, text in enumerate(texts, 1):
        # A field may quote a structure; two outside of fields are two molecules: whose are those?
        if len(_END_OF_STRUCTURE.findall(_FIELD.sub("", text))) > 1:
            name = f" ({short(names[number - 1])!r})" if names[number - 1] else ""
            raise InputError(f"{path} molecule {number}{name} is not ended by $$$$: add that line")
    pieces = [texts[start : start + CHUNK] for start in range(0, len(texts), CHUNK)]
    some = max(1, min(workers or 1, len(pieces) // PIECES))
    read = share_out(some, _read_structures, pieces)
    found = list(chain.from_iterable(track(read, "reading structures", len(pieces), progress)))
    if not any(smiles for smiles, _ in found):
        shown = few([repr(name[:30]) for name in names])
        raise InputError(f"{path} holds no valid structure ({shown}): give an SDF RDKit can read")
    if not is_marked and _breaks_off(texts[-1]):
        raise InputError(
            f"{path} breaks off within molecule {len(texts)}: restore the file, or remove what it "
            "has of that molecule"
        )
    fields = list(dict.fromkeys(chain.from_iterable(values for _, values in found)))
    for number, (_, values) in enumerate(found, 1):
        _check_ended(f"{path} molecule {number}", values, fields)
    own = ("smiles", "name") if any(names) else ("smiles",)
    header = [*(f"sdf_{column}" if column in fields else column for column in own), *fields]
    body = [
        (row, [*(smiles, name)[: len(own)], *(values.get(field, "") for field in fields)])
        for row, (name, (smiles, values)) in enumerate(zip(names, found, strict=True), 1)
    ]
    return Sheet(path, ",", header, list(map(one_line, header)), body), names if any(names) else ()


def _check_ended(which: str, values: dict[str, str], fields: Collection[str]) -> None:
    """Refuse a field that has swallowed the next one (InputError), for want of an empty line."""
    for name, value in values.items():
        for found in _SWALLOWED.finditer(value) if ">" in value else ():
            before, other = found.groups()
            if other.strip() in fields or (before is not None and not before.strip()):
                raise InputError(
                    f"{which}: field {name!r} goes on to '> <{other}>': end it with an empty line, "
                    "in which there are no blanks"
                )


def _breaks_off(text: str) -> bool:
    """Whether a molecule without a $$$$ at its end is not whole: its structure or last field."""
    _, *data = _END_OF_STRUCTURE.split(text, maxsplit=1)
    if not data:
        return True
    last = data[-1].rstrip()
    return bool(last) and data[-1].count("\n", len(last)) < 2  # without an empty line behind it


def _read_structures(texts: Iterable[str]) -> list[tuple[str, dict[str, str]]]:
    """Of each molecule's text its SMILES, empty where there is none, and its data fields."""
    chem, rd_base = import_rdkit()
    found: list[tuple[str, dict[str, str]]] = []
    with rd_base.BlockLogs():  # RDKit explains each failure on stderr; ours are reported by row
        for text in texts:
            molecule = chem.MolFromMolBlock(text)
            smiles = "" if molecule is None else chem.MolToSmiles(settled(chem, molecule))
            data = _END_OF_STRUCTURE.split(text, maxsplit=1)[-1]
            fields: dict[str, str] = {}
            for name, value in ((n.strip(), v.strip()) for n, v in _FIELD.findall(data)):
                before = fields.get(name, value)  # if there are two, none of them is to be believed
                fields[name] = value if before == value else f"{before} / {value}"
            found.append((smiles, fields))
    return found
