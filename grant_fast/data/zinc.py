"""ZINC as the paper has it: 249,456 molecules with their penalised logP, from PyG's raw files."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import InputError
from ..graphs.arrays import GraphArrays, batch_vector, concatenate
from ..progress import track
from .fetching import Source, provide
from .pickles import read_pickled_tensors

SPLIT = (220_011, 24_445, 5_000)
TARGET = "penalised logP"
FILES = ("train.pickle", "val.pickle", "test.pickle")
# Nobody has published a digest of this archive: what is in it is checked instead.
SOURCES = (
    Source(
        "https://www.dropbox.com/s/feo9qle74kg48gy/molecules.zip?dl=1",
        {name: f"molecules/{name}" for name in FILES},
    ),
)
_KEYS = ("atom_type", "bond_type", "logP_SA_cycle_normalized")


def read(raw: Path, progress: bool) -> GraphArrays:
    """The molecules of train, valid and test, one after another; fetched if they are not there.

    An atom is one number, the index of its type; a bond is an edge each way.

    Args:
        raw: the folder with `FILES`, as PyG lays it out: ZINC/raw.
        progress: show progress bars.

    Returns:
        x float32 `[N, 1]`; y float32 `[G, 1]`, normalised as published.

    Raises:
        InputError: no network and no files; a file that holds something else, or not as many
            molecules as it should. Nothing in a file is executed.
    """
    provide(raw, SOURCES, progress)
    parts = []
    for name, expected in track(list(zip(FILES, SPLIT, strict=True)), "reading ZINC", 3, progress):
        molecules = read_pickled_tensors(raw / name)
        if not isinstance(molecules, list) or len(molecules) != expected:
            raise InputError(
                f"{raw / name} does not hold a list of {expected:,} molecules: "
                "delete it to fetch it again"
            )
        parts.append(_flatten(molecules, raw / name))
        del molecules  # before the next: the bonds of one file are a gigabyte
    return concatenate(parts)


def _flatten(molecules: list[Any], path: Path) -> GraphArrays:
    atoms, edges, y = [], [], []
    start = 0
    for number, molecule in enumerate(molecules):
        try:
            types, bonds, target = (np.asarray(molecule[key]) for key in _KEYS)
            size = types.size
            if bonds.shape != (size, size) or target.size != 1:
                raise ValueError(f"shapes {types.shape}, {bonds.shape}, {target.shape}")
            y.append(float(target.reshape(())))
            atoms.append(types.reshape(-1).astype(np.float32))
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            raise InputError(
                f"{path}: molecule {number} is not in the form of ZINC ({error}): delete the file "
                "to fetch it again"
            ) from error
        edges.append(np.stack(np.nonzero(bonds)) + start)
        start += size
    return GraphArrays(
        x=torch.from_numpy(np.concatenate(atoms)[:, None]),
        edge_index=torch.from_numpy(np.concatenate(edges, axis=1)),
        batch=batch_vector(np.array([len(types) for types in atoms])),
        num_graphs=len(molecules),
        y=torch.tensor(y, dtype=torch.float32)[:, None],
    )
