"""Which graphs a run learned from, as its split.csv says."""

import csv
from pathlib import Path

import torch
from torch import Tensor

from ..data.alike import CHIRALITY, fingerprints
from ..data.dataset import Dataset
from ..files import atomic_write_csv
from ..graphs import PackedGraphs
from .folder import SPLIT_FILE

_HEADER = ["graph", "part"]
_LOOKS = "fingerprint"


def write_split(run_dir: Path, dataset: Dataset) -> None:
    """Say of every graph, by its id, whether it is in train, valid or test; and what each molecule
    looks like.

    Raises:
        InputError: the file cannot be written.
    """
    ids, parts = dataset.graphs.ids.tolist(), dataset.split.items()
    rows = sorted((ids[at], part, at) for part, where in parts for at in where.tolist())
    if dataset.encoder == "atom":
        looks = _looks_of(dataset.graphs)
        lines = [(graph, part, looks[at]) for graph, part, at in rows]
        atomic_write_csv(run_dir / SPLIT_FILE, [*_HEADER, _LOOKS], lines)
    else:
        atomic_write_csv(run_dir / SPLIT_FILE, _HEADER, [row[:2] for row in rows])


def learned(run_dir: Path, graphs: PackedGraphs) -> Tensor | None:
    """Which molecules look like one that a run learned from, bool [G] on the CPU; None where its
    split.csv does not say, or is not there."""
    try:
        with open(run_dir / SPLIT_FILE, encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            known = {row.get(_LOOKS) for row in rows if row.get("part") == "train"}
    except (OSError, UnicodeDecodeError, csv.Error):
        return None
    if not known - {None}:
        return None
    return torch.tensor([look in known for look in _looks_of(graphs)], dtype=torch.bool)


def _looks_of(graphs: PackedGraphs) -> list[str]:
    """Of each molecule 16 hexadecimal digits, the same for those that look alike."""
    return [f"{look:016x}" for look in fingerprints(graphs, but=CHIRALITY).tolist()]
