"""Which graphs a run learned from: its split.csv, and what new molecules have in common with it."""

import csv
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..data.alike import CHIRALITY, fingerprints
from ..data.dataset import Dataset
from ..files import atomic_write_csv
from ..graphs import PackedGraphs
from .folder import SPLIT_FILE
from .predict import Predictor, resuming

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


def known_molecules(
    graphs: PackedGraphs, labelled: Tensor, predictors: Sequence[Predictor]
) -> tuple[Tensor | None, list[str]]:
    """Which molecules look like one that runs learned from, bool [G], or None where a run does not
    say; how many of those with a label, and which runs do not say, a line each.

    Args:
        graphs: molecules that the runs can take.
        labelled: which of them have a label, bool [G] on the CPU.
        predictors: of the runs.
    """
    lines, known, all_say = [], set[str](), True
    for run in predictors:
        looks = set[str]() if run.folder is None else _learned(run.folder)
        all_say = all_say and bool(looks)
        if not looks and run.folder is not None:
            lines.append(
                f"{run.folder} does not say which molecules it learned from, and these may be "
                f"among them: {resuming(run.folder, run.config)} writes its {SPLIT_FILE}"
            )
        known |= looks
    seen = torch.tensor([looks in known for looks in _looks_of(graphs)])
    if count := int((seen & labelled).sum()):
        total = int(labelled.sum())
        lines.append(f"{count} of {total} molecules with a label look like one in training")
    return (seen if all_say else None), lines


def _learned(run_dir: Path) -> set[str]:
    """What the molecules look like that a run learned from; nothing where its split.csv does not
    say, or is not there."""
    try:
        with open(run_dir / SPLIT_FILE, encoding="utf-8", newline="") as file:
            rows = csv.reader(file)
            header = next(rows, [])
            part, looks = header.index(_HEADER[1]), header.index(_LOOKS)
            last = max(part, looks)
            return {row[looks] for row in rows if len(row) > last and row[part] == "train"} - {""}
    except (OSError, UnicodeDecodeError, ValueError, csv.Error):
        return set()


def _looks_of(graphs: PackedGraphs) -> list[str]:
    """Of each molecule 16 hexadecimal digits, the same for those that look alike."""
    return [f"{look:016x}" for look in fingerprints(graphs, but=CHIRALITY).tolist()]
