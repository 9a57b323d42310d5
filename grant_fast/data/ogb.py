"""The molecule sets of the Open Graph Benchmark, ogbg-mol*.

The raw files that OGB publishes are read directly, with pandas, into flat tensors. OGB's own
loader would build a Python dictionary for every graph, cache them in a file that may hold code
(which torch ≥ 2.6 refuses to load), and ask questions on the terminal. The files are five tables
and three lists of a split, so that reading them is shorter than working around all that.
"""

import os
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError, require
from ..graphs.arrays import GraphArrays, batch_vector
from ..nn import ATOM_CARDINALITIES
from ..tasks import Kind
from .fetching import FAILURES, download
from .published import Published
from .splits import PARTS

Metric = Literal["roc_auc", "ap", "rmse"]
# The archive and the official metric of each set; a test compares them with ogb's own list.
SETS: dict[str, tuple[str, Metric]] = {
    "ogbg-molbace": ("bace", "roc_auc"),
    "ogbg-molbbbp": ("bbbp", "roc_auc"),
    "ogbg-molclintox": ("clintox", "roc_auc"),
    "ogbg-molmuv": ("muv", "ap"),
    "ogbg-molpcba": ("pcba", "ap"),
    "ogbg-molsider": ("sider", "roc_auc"),
    "ogbg-moltox21": ("tox21", "roc_auc"),
    "ogbg-moltoxcast": ("toxcast", "roc_auc"),
    "ogbg-molhiv": ("hiv", "roc_auc"),
    "ogbg-molesol": ("esol", "rmse"),
    "ogbg-molfreesolv": ("freesolv", "rmse"),
    "ogbg-mollipo": ("lipophilicity", "rmse"),
    "ogbg-molchembl": ("chembl", "roc_auc"),
}
URL = "http://snap.stanford.edu/ogb/data/graphproppred/csv_mol_download/{}.zip"
# Published digests of the archives: pcba's by TensorFlow Datasets, hiv's (the file of 2020-05-04)
# by two independent public repositories. What is in an archive is checked with or without one.
SHA256 = {
    "hiv": "47d747664b9e1653de5aac99bf26c015d88a3daa474f5a32f3fe5c014111375b",
    "pcba": "0bb12da2f3ec8b0bb80564114a6174fad2df6a3a0d3c19470b3a27813a7d4e53",
}


def load_ogb(
    name: str, root: str | os.PathLike[str] = "dataset", progress: bool = False
) -> Published:
    """Load an ogbg-mol* set from OGB's folder, downloading it on first use.

    Split and metric are OGB's own.

    Args:
        name: such as "ogbg-molhiv".
        root: where OGB keeps its folders, ogbg_molhiv and so on; OGB's default.
        progress: show a progress bar of the download.

    Raises:
        InputError: an unknown name; no network and no files (the message says which file to put
            where); files that are missing, damaged or contradict each other.
        MissingExtraError: pandas is not installed.
    """
    if name not in SETS:
        raise InputError(f"unknown OGB set {name!r}: choose one of {', '.join(SETS)}")
    archive, metric = SETS[name]
    folder = Path(root) / name.replace("-", "_")
    if not folder.is_dir():
        _download(URL.format(archive), archive, folder, progress)
    graphs = _read_graphs(folder / "raw")
    split = {part: _read_split(folder, part, graphs.num_graphs) for part in PARTS}
    assert graphs.y is not None
    kind: Kind = "multilabel" if graphs.y.shape[1] > 1 else "binary"
    if metric == "rmse":
        kind = "regression"
    return Published(graphs, split, kind, metric, encoder="atom", missing_labels=True)


def _read_graphs(raw: Path) -> GraphArrays:
    nodes = _read(raw / "num-node-list.csv.gz", 1)[:, 0].astype(np.int64)
    edges = _read(raw / "num-edge-list.csv.gz", 1)[:, 0].astype(np.int64)
    x = _read(raw / "node-feat.csv.gz")
    bonds = _read(raw / "edge.csv.gz", 2).astype(np.int64)
    y = _read(raw / "graph-label.csv.gz").astype(np.float32)
    for file, found, expected in (
        ("num-edge-list.csv.gz", len(edges), len(nodes)),
        ("graph-label.csv.gz", len(y), len(nodes)),
        ("node-feat.csv.gz", len(x), nodes.sum()),
        ("edge.csv.gz", len(bonds), edges.sum()),
    ):
        if found != expected:
            raise InputError(
                f"{raw / file} has {found} rows instead of {expected}: delete {raw.parent} to "
                "download it again"
            )
    if x.shape[1] != len(ATOM_CARDINALITIES) or not ((x >= 0) & (x < ATOM_CARDINALITIES)).all():
        raise InputError(
            f"{raw / 'node-feat.csv.gz'} does not hold OGB's nine atom columns: "
            f"delete {raw.parent} to download it again"
        )
    bonds += np.repeat(np.cumsum(nodes) - nodes, edges)[:, None]
    # A bond is stored once; an edge runs each way, the two side by side as OGB orders them.
    both = np.stack((bonds, bonds[:, ::-1]), axis=1).reshape(-1, 2)
    return GraphArrays(
        x=torch.from_numpy(x.astype(np.uint8)),
        edge_index=torch.from_numpy(np.ascontiguousarray(both.T)),
        batch=batch_vector(nodes),
        num_graphs=len(nodes),
        y=torch.from_numpy(y),
    )


def _read_split(folder: Path, part: str, num_graphs: int) -> Tensor:
    path = folder / "split" / "scaffold" / f"{part}.csv.gz"
    positions = _read(path, 1)[:, 0].astype(np.int64)
    if ((positions < 0) | (positions >= num_graphs)).any():
        raise InputError(
            f"{path} names a graph outside 0…{num_graphs - 1}: delete {folder} to download it again"
        )
    return torch.from_numpy(np.sort(positions))


def _read(path: Path, columns: int | None = None) -> np.ndarray:
    """A gzipped CSV of numbers without header, `[rows, columns]`; empty cells are NaN."""
    pandas: Any = require("pandas", "ogb")
    try:
        values = pandas.read_csv(path, compression="gzip", header=None).to_numpy()
        if columns not in (None, values.shape[1]):
            raise ValueError(f"{values.shape[1]} columns where {columns} belong")
        if not np.issubdtype(values.dtype, np.number):
            raise ValueError("a cell is not a number")
    except pandas.errors.EmptyDataError:  # molecules of one atom each: no bonds at all
        return np.empty((0, columns or 0))
    except FileNotFoundError as error:
        raise InputError(f"{path} is missing: unpack the whole of OGB's archive") from error
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise InputError(
            f"{path} cannot be read ({error}): delete {path.parents[1]} to download it again"
        ) from error
    return values


def _download(url: str, archive: str, folder: Path, progress: bool) -> None:
    """Fetch and unpack `url` to `folder`, whole or not at all."""
    parent = folder.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".ogb-", dir=parent) as scratch:
            zipped = Path(scratch) / f"{archive}.zip"
            download(url, zipped, SHA256.get(archive), progress)
            with zipfile.ZipFile(zipped) as content:
                content.extractall(scratch)
            try:
                (Path(scratch) / archive).rename(folder)
            except OSError:
                if not folder.is_dir():  # which another process may have put there meanwhile
                    raise
    except FAILURES as error:
        raise InputError(
            f"cannot download {url} ({error}): fetch it elsewhere, unpack it, and rename its "
            f"folder {archive} to {folder}"
        ) from error
