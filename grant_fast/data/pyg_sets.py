"""QM9 as the paper has it, through PyTorch Geometric's own data set; and why ZINC is not read."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError, require
from .arrays import GraphArrays, batch_vector
from .checksums import check_sha256

QM9_SPLIT = (110_000, 10_000, 10_831)
_QM9_FILES = (
    "gdb9.sdf and gdb9.sdf.csv (of https://deepchemdata.s3-us-west-1.amazonaws.com/datasets/"
    "molnet_publish/qm9.zip), and https://ndownloader.figshare.com/files/3195404 as "
    "uncharacterized.txt"
)
_SKIPPED = Path("raw") / "uncharacterized.txt"
# As TensorFlow Datasets publishes it.
_SKIPPED_SHA256 = "3aa5115d540b356de94791d4a74c3bf1ed91c469ecf52a4f5d7cc0506fe02e24"


@dataclass(frozen=True)
class PygSet:
    """Graphs with y float32 `[G, 1]`, the paper's split, and the target's name."""

    graphs: GraphArrays
    split: dict[str, Tensor]
    targets: tuple[str, ...]


def load_pyg(name: str, root: str | os.PathLike[str] = "dataset") -> PygSet:
    """Load QM9, downloading it on first use.

    x float32 `[N, 11]`, each row divided by its sum; y the dipole moment in debye; the first
    110,000 molecules train, the next 10,000 validate, as the paper's code has it.

    Args:
        name: "QM9".
        root: the folder that holds, or will hold, the folder QM9.

    Raises:
        InputError: an unknown name, or ZINC; no network and no files (the message says which file
            to put where); another number of graphs than there should be.
        MissingExtraError: torch_geometric is not installed.
    """
    if name not in PYG_SETS:
        raise InputError(f"unknown PyG set {name!r}: choose one of {', '.join(PYG_SETS)}")
    return PYG_SETS[name](Path(root) / name)


def from_collated(dataset: Any, target: int) -> GraphArrays:
    """An in-memory PyG data set from its flat tensors: no graph is built one by one.

    Args:
        dataset: an `InMemoryDataset` with x, edge_index and graph-level y, not a subset.
        target: the column of y to keep.

    Returns:
        x float32; y float32 `[G, 1]`.
    """
    data, slices = dataset._data, dataset.slices
    nodes, edges = slices["x"].numpy(), slices["edge_index"].numpy()
    shift = torch.from_numpy(np.repeat(nodes[:-1], np.diff(edges)))
    y = data.y.reshape(len(nodes) - 1, -1)[:, [target]].float()
    return GraphArrays(
        x=data.x.float(),
        edge_index=data.edge_index + shift,
        batch=batch_vector(np.diff(nodes)),
        num_graphs=len(nodes) - 1,
        y=y,
    )


def _qm9(folder: Path) -> PygSet:
    if (folder / _SKIPPED).exists():  # which molecules are left out decides the split
        check_sha256(folder / _SKIPPED, _SKIPPED_SHA256)
    graphs = from_collated(_made("QM9", folder, _QM9_FILES), target=0)
    _check_count(folder, graphs.num_graphs, sum(QM9_SPLIT))
    total = graphs.x.sum(1, keepdim=True).clamp(min=1)  # PyG's NormalizeFeatures
    graphs = replace(graphs, x=graphs.x / total)
    return PygSet(graphs, _in_order(QM9_SPLIT), ("dipole moment (D)",))


def _zinc(folder: Path) -> PygSet:
    raise InputError(
        "ZINC is published as pickles, which may execute code when they are read, so they are not: "
        "give its molecules as a *.smi file, or twin:ZINC for timing"
    )


PYG_SETS: dict[str, Callable[[Path], PygSet]] = {"QM9": _qm9, "ZINC": _zinc}


def _made(name: str, folder: Path, files: str) -> Any:
    """PyG's data set, or what to fetch by hand."""
    kind = getattr(require("torch_geometric.datasets", "pyg"), name)
    try:
        return kind(str(folder))
    except Exception as error:  # a network that is not there raises almost anything
        words = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"cannot make {name} ({words}): without a network, fetch {files}, and put them into "
            f"{folder / 'raw'}"
        ) from error


def _check_count(folder: Path, found: int, expected: int) -> None:
    if found != expected:
        raise InputError(
            f"{folder} holds {found:,} graphs where {expected:,} belong: "
            "delete it to download it again"
        )


def _in_order(sizes: tuple[int, int, int]) -> dict[str, Tensor]:
    train, valid, test = torch.arange(sum(sizes)).split(list(sizes))
    return {"train": train, "valid": valid, "test": test}
