"""SMILES read by RDKit, into arrays: without torch, which a process that helps need not import."""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..errors import require

#: Molecules of a piece of the work, and pieces for each process, which takes time to start.
CHUNK, PIECES = 1000, 3

#: Characters of a SMILES. For a ring of so many atoms RDKit takes 3 GB, of twice as many 10 GB.
_LONGEST = 10_000

Failure = tuple[int, str]
# Atom rows [n, 9] uint8, bonds [2, e] int32 in node numbers of the chunk, their rows [e, 3] uint8
# or None, nodes of each molecule, the failures, what else was found of each.
Chunk = tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray, list[Failure], list[Any]]
# OGB's of an atom, one for each of `nn.ATOM_CARDINALITIES` (which imports torch), and of a bond.
_ATOM_COLUMNS, _BOND_COLUMNS = 9, 3


def import_rdkit() -> tuple[Any, Any]:
    """RDKit's `Chem` and `rdBase`, or MissingExtraError."""
    return require("rdkit.Chem", "smiles"), require("rdkit.rdBase", "smiles")


_LOADING = threading.Lock()  # OGB, by one thread at a time


@contextmanager
def _without_version_check() -> Iterator[None]:
    """Let ogb be imported quietly: it starts a thread that asks the network for its version.

    It leaves that out where the package `outdated` cannot be imported, which is what a None among
    the loaded modules means to Python.
    """
    missing = object()
    before: Any = sys.modules.get("outdated", missing)
    sys.modules["outdated"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if before is missing:
            del sys.modules["outdated"]
        else:
            sys.modules["outdated"] = before


def featurizers() -> tuple[Callable[[Any], list[int]], Callable[[Any], list[int]]]:
    """OGB's, of an atom and of a bond."""
    with _LOADING, _without_version_check():
        features = require("ogb.utils.features", "smiles")
    return features.atom_to_feature_vector, features.bond_to_feature_vector


def _looks(atom: Any) -> tuple[Any, ...]:
    """All that OGB's features of an atom are made of."""
    return (
        atom.GetAtomicNum(),
        atom.GetChiralTag(),
        atom.GetTotalDegree(),
        atom.GetFormalCharge(),
        atom.GetTotalNumHs(),
        atom.GetNumRadicalElectrons(),
        atom.GetHybridization(),
        atom.GetIsAromatic(),
        atom.IsInRing(),
    )


def _bond_looks(bond: Any) -> tuple[Any, ...]:
    """All that OGB's features of a bond are made of."""
    return bond.GetBondType(), bond.GetStereo(), bond.GetIsConjugated()


def settled(chem: Any, molecule: Any) -> Any:
    """A molecule without what may differ where it does not: numbers that map its atoms, which RDKit
    ranks them by, and which of its mirror images shows a racemate (or what is either of the two).

    Of a stereo group with one centre that is then unspecified; of one with several, which turn
    together, it is always the same image, and its atoms are put in another order.
    """
    mapped = [atom for atom in molecule.GetAtoms() if atom.GetAtomMapNum()]
    groups = [
        list(group.GetAtoms())
        for group in molecule.GetStereoGroups()
        if group.GetGroupType() != chem.StereoGroupType.STEREO_ABSOLUTE
    ]
    if not mapped and not groups:
        return molecule
    for atom in mapped:
        atom.SetAtomMapNum(0)
    for centre in (group[0] for group in groups if len(group) == 1):
        centre.SetChiralTag(chem.ChiralType.CHI_UNSPECIFIED)
    chem.AssignStereochemistry(molecule, cleanIt=True, force=True)  # what told neighbours apart
    if not any(len(group) > 1 for group in groups):
        return molecule
    return chem.MolFromSmiles(chem.MolToCXSmiles(molecule).split()[0]) or molecule


def _tag_canonically(chem: Any, molecule: Any) -> None:
    """Give the atoms the chiral tags that they have in RDKit's canonical SMILES.

    A tag says which way an atom's neighbours turn in the order in which the SMILES names them, so a
    molecule written in two ways may have either.
    """
    canonical = chem.MolFromSmiles(chem.MolToSmiles(molecule))
    if canonical is None or canonical.GetNumAtoms() != molecule.GetNumAtoms():
        return
    order = molecule.GetPropsAsDict(includePrivate=True, includeComputed=True)
    for atom, place in zip(canonical.GetAtoms(), order["_smilesAtomOutputOrder"], strict=True):
        molecule.GetAtomWithIdx(place).SetChiralTag(atom.GetChiralTag())


def _is_one(chem: Any, text: str) -> bool:
    """Whether a text is one SMILES, perhaps with a name or an extension behind a space: RDKit reads
    what is before a space, and says nothing of the other lines, molecules or parts of one."""
    if len(text) > _LONGEST or "\n" in text.strip():
        return False
    rest = text.split(maxsplit=1)[1:]
    if not rest or rest[0].startswith("|"):
        return True
    return chem.MolFromSmiles("".join(text.split())) is None


def read_chunk(
    edge_attr: bool, also: Callable[[Any], Any] | None, first_row: int, smiles: Sequence[str]
) -> Chunk:
    """The molecules of a piece of the work; see `smiles.read_molecules`.

    Args:
        edge_attr: give the features of bonds, too.
        also: what else is to be found of each of RDKit's molecules.
        first_row: what failures are counted from.
        smiles: one molecule each.
    """
    chem, rd_base = import_rdkit()
    atom_features, bond_features = featurizers()
    # The atoms of a chunk are of some 100 kinds, its bonds of a dozen.
    features: dict[tuple[Any, ...], bytes] = {}
    atoms: list[bytes] = []
    bonds: list[tuple[int, int]] = []
    rows: list[bytes] = []
    sizes: list[int] = []
    failures: list[Failure] = []
    found: list[Any] = []
    with rd_base.BlockLogs():  # RDKit explains each failure on stderr; ours are reported by row
        for row, text in enumerate(smiles, first_row):
            molecule = chem.MolFromSmiles(text) if _is_one(chem, text) else None
            if molecule is None or molecule.GetNumAtoms() == 0:
                failures.append((row, text))
                continue
            if ":" in text:  # of an atom's number, or of a stereo group's centres
                molecule = settled(chem, molecule)
            if also is not None:
                found.append(also(molecule))
            if "@" in text or "|" in text:  # the latter opens an extension, which may have wedges
                _tag_canonically(chem, molecule)
            start = len(atoms)
            # By index: RDKit's iterators take twice as long.
            for atom in map(molecule.GetAtomWithIdx, range(molecule.GetNumAtoms())):
                looks = _looks(atom)
                if looks not in features:
                    features[looks] = bytes(atom_features(atom))
                atoms.append(features[looks])
            for bond in map(molecule.GetBondWithIdx, range(molecule.GetNumBonds())):
                i, j = start + bond.GetBeginAtomIdx(), start + bond.GetEndAtomIdx()
                bonds += ((i, j), (j, i))
                if edge_attr:
                    looks = _bond_looks(bond)
                    if looks not in features:
                        if str(looks[1]).startswith("STEREOATROP"):  # which OGB's list is without
                            bond.SetStereo(chem.BondStereo.STEREONONE)
                        features[looks] = bytes(bond_features(bond))
                    rows += (features[looks],) * 2
            sizes.append(len(atoms) - start)
    return (
        _table(atoms, _ATOM_COLUMNS),
        np.array(bonds, dtype=np.int32).reshape(-1, 2).T,
        _table(rows, _BOND_COLUMNS) if edge_attr else None,
        np.array(sizes, dtype=np.int64),
        failures,
        found,
    )


def _table(rows: list[bytes], columns: int) -> np.ndarray:
    return np.frombuffer(bytearray().join(rows), np.uint8).reshape(-1, columns)
