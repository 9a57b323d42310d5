"""QM9 as the paper has it: 130,831 molecules with their dipole moment, from PyG's raw files."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError, require
from ..graphs.arrays import GraphArrays, batch_vector
from ..progress import track
from .fetching import Source, check_sha256, provide
from .parsing import import_rdkit

SPLIT = (110_000, 10_000, 10_831)
TARGET = "dipole moment (D)"
_COLUMN = "mu"  # the target's
_STRUCTURES, _TARGETS, _SKIPPED = "gdb9.sdf", "gdb9.sdf.csv", "uncharacterized.txt"
SOURCES = (
    # The archive's digest, as several public repositories that pin their data record it.
    Source(
        "https://deepchemdata.s3-us-west-1.amazonaws.com/datasets/molnet_publish/qm9.zip",
        {_STRUCTURES: _STRUCTURES, _TARGETS: _TARGETS},
        "f11d3f8ecc3097a72656a35c4847767852e6f346bf99a54619a1a3b6389ddc02",
    ),
    Source("https://ndownloader.figshare.com/files/3195404", {_SKIPPED: ""}),
)
# The first two as public repositories record them for PyG's raw files, the third as TensorFlow
# Datasets publishes it.
SHA256 = {
    _STRUCTURES: "98c4e97d50ac549b8c9f0b2114b348a9a944718e17e50d9a724b729f1deaa28e",
    _TARGETS: "73a67793e3cfa9660f001278bd019c143f57e4785db537a01811cf2ce72aa7eb",
    _SKIPPED: "3aa5115d540b356de94791d4a74c3bf1ed91c469ecf52a4f5d7cc0506fe02e24",
}
_ELEMENTS = np.array([1, 6, 7, 8, 9])  # H, C, N, O, F
_HEADER, _FOOTER = 9, 1  # lines around the list of molecules to leave out


def read(raw: Path, progress: bool) -> GraphArrays:
    """The molecules, without those that their publishers found inconsistent; fetched if missing.

    The features are PyG's eleven: which of H, C, N, O, F; the atomic number; aromatic; sp, sp²,
    sp³; bonded hydrogens. PyG reads the structures as they are written, without perceiving
    aromaticity or hybridisation in them, so that those four are 0.

    Args:
        raw: the folder with the three files, as PyG lays it out: QM9/raw.
        progress: show progress bars.

    Returns:
        x float32 `[N, 11]`, each row divided by its sum, as in the paper's code; each bond is an
        edge each way; y float32 `[G, 1]`, in debye.

    Raises:
        InputError: no network and no files, or a file of other content.
        MissingExtraError: rdkit is not installed.
    """
    chem, rd_base = import_rdkit()
    provide(raw, SOURCES, progress)
    for name, digest in SHA256.items():
        check_sha256(raw / name, digest)
    skipped = _skipped(raw / _SKIPPED)
    names, dipoles = _read_targets(raw / _TARGETS)
    with rd_base.BlockLogs():
        supplier = chem.SDMolSupplier(str(raw / _STRUCTURES), removeHs=False, sanitize=False)
        if len(supplier) != len(names):
            raise InputError(
                f"{raw / _STRUCTURES} has {len(supplier):,} molecules and {_TARGETS} "
                f"{len(names):,} rows: delete both and fetch them again"
            )
        atoms: list[tuple[int, bool, int]] = []
        bonds: list[tuple[int, int]] = []
        sizes, y = [], []
        for row, molecule in enumerate(track(supplier, "reading QM9", len(supplier), progress)):
            if row in skipped:
                continue
            if molecule is None or molecule.GetProp("_Name") != names[row]:
                raise InputError(
                    f"{raw / _STRUCTURES}: molecule {row + 1} is not {names[row]}, which "
                    f"{_TARGETS} expects there: delete both and fetch them again"
                )
            start = len(atoms)
            atoms += [_described(atom) for atom in molecule.GetAtoms()]
            bonds += [
                (start + bond.GetBeginAtomIdx(), start + bond.GetEndAtomIdx())
                for bond in molecule.GetBonds()
            ]
            sizes.append(len(atoms) - start)
            y.append(dipoles[row])
    once = np.array(bonds, dtype=np.int64).reshape(-1, 2).T
    edges = np.concatenate([once, once[::-1]], axis=1)
    return GraphArrays(
        x=_features(np.array(atoms, dtype=np.int64).reshape(-1, 3), edges),
        edge_index=torch.from_numpy(edges),
        batch=batch_vector(np.array(sizes)),
        num_graphs=len(sizes),
        y=torch.tensor(y, dtype=torch.float32)[:, None],
    )


def _described(atom: Any) -> tuple[int, bool, int]:
    return atom.GetAtomicNum(), atom.GetIsAromatic(), int(atom.GetHybridization())


def _features(atoms: np.ndarray, edges: np.ndarray) -> Tensor:
    """[N, 11] from the atoms as `_described`, [N, 3]."""
    kinds = require("rdkit.Chem.rdchem", "smiles").HybridizationType
    orbitals = np.array([int(kinds.SP), int(kinds.SP2), int(kinds.SP3)])
    number, aromatic, hybrid = atoms.T[:, :, None]
    if not np.isin(number, _ELEMENTS).all():
        raise InputError("gdb9.sdf has atoms other than H, C, N, O and F: fetch it again")
    source, target = edges
    hydrogens = np.bincount(target, weights=number[source, 0] == 1, minlength=len(atoms))
    columns = (number == _ELEMENTS, number, aromatic, hybrid == orbitals, hydrogens[:, None])
    x = np.concatenate(columns, axis=1).astype(np.float32)
    return torch.from_numpy(x / np.maximum(x.sum(1, keepdims=True), 1))


def _skipped(path: Path) -> set[int]:
    """Positions of the molecules to leave out; the file counts from 1."""
    lines = path.read_text(encoding="utf-8").splitlines()[_HEADER:-_FOOTER]
    return {int(line.split()[0]) - 1 for line in lines}


def _read_targets(path: Path) -> tuple[list[str], list[float]]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [row["mol_id"] for row in rows], [float(row[_COLUMN]) for row in rows]
