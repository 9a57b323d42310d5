"""Which graphs a run learned from, as its split.csv says."""

import csv
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..data.alike import CHIRALITY, fingerprints
from ..data.dataset import Dataset
from ..files import atomic_write_csv
from ..graphs import PackedGraphs
from .folder import SPLIT_FILE

_HEADER = ["graph", "part"]
#: Of a molecule: what it looks like, as 16 hexadecimal digits.
_LOOKS = "fingerprint"


def write_split(run_dir: Path, dataset: Dataset) -> None:
    """Say of every graph, by its id, whether it is in train, valid or test.

    Raises:
        InputError: the file cannot be written.
    """
    ids, parts = dataset.graphs.ids.tolist(), dataset.split.items()
    rows = [[ids[at], part, at] for part, where in parts for at in where.tolist()]
    rows.sort()
    if dataset.encoder == "atom":
        looks = _looks_of(dataset.graphs)
        told = [[graph, part, f"{looks[at]:016x}"] for graph, part, at in rows]
        atomic_write_csv(run_dir / SPLIT_FILE, [*_HEADER, _LOOKS], told)
    else:
        atomic_write_csv(run_dir / SPLIT_FILE, _HEADER, [row[:2] for row in rows])


def learned(run_dir: Path, graphs: PackedGraphs) -> Tensor:
    """Which molecules look like one that a run learned from, bool [G] on the CPU; none of them
    where its split.csv does not say, or is not there."""
    known = []
    try:
        with open(run_dir / SPLIT_FILE, encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                if row["part"] == "train":
                    known.append(int(row[_LOOKS], 16))
        looks = np.array(known, np.uint64)
    except (OSError, KeyError, TypeError, ValueError, OverflowError, csv.Error):
        return torch.zeros(len(graphs), dtype=torch.bool)
    return torch.from_numpy(np.isin(_looks_of(graphs), looks))


def _looks_of(graphs: PackedGraphs) -> np.ndarray:
    return fingerprints(graphs, but=CHIRALITY)
