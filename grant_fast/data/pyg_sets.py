"""The paper's QM9 and ZINC, from the raw files of PyTorch Geometric's data sets, in its folders."""

import os
from pathlib import Path
from types import ModuleType

import torch

from ..errors import InputError
from . import qm9, zinc
from .published import Published
from .splits import PARTS

#: Each module has `read`, a `SPLIT` into so many graphs, and the `TARGET` that is learned.
_MODULES: dict[str, ModuleType] = {"QM9": qm9, "ZINC": zinc}
PYG_SETS = tuple(_MODULES)


def load_pyg(
    name: str, root: str | os.PathLike[str] = "dataset", progress: bool = False
) -> Published:
    """Load QM9 or ZINC, downloading it on first use.

    PyG's own reading would load pickles, which may execute code: the files are read without.

    Args:
        name: "QM9" (the first 110,000 molecules train, the next 10,000 validate, as the paper's
            code has it) or "ZINC" (the published split).
        root: the folder that holds, or will hold, QM9/raw and ZINC/raw.
        progress: show progress bars.

    Raises:
        InputError: an unknown name; no network and no files (the message says which file to put
            where); files that are damaged or hold another number of graphs.
        MissingExtraError: QM9 needs rdkit, and it is not installed.
    """
    if name not in PYG_SETS:
        raise InputError(f"unknown PyG set {name!r}: choose one of {', '.join(PYG_SETS)}")
    raw = Path(root) / name / "raw"
    module = _MODULES[name]
    graphs, sizes = module.read(raw, progress), module.SPLIT
    if graphs.num_graphs != sum(sizes):
        raise InputError(
            f"{raw} holds {graphs.num_graphs:,} graphs instead of {sum(sizes):,}: delete it to "
            "download it again"
        )
    split = dict(zip(PARTS, torch.arange(sum(sizes)).split(sizes), strict=True))
    return Published(graphs, split, "regression", "mae", (module.TARGET,))
