"""The penalised logP of a molecule, the target of the paper's ZINC set."""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import MissingExtraError, require
from .smiles import by_chunks, check_list, import_rdkit

LONG_CYCLE = 6  # atoms; a ring of more counts


def penalized_logp(
    smiles: Sequence[str], workers: int | None = None, progress: bool = False
) -> Tensor:
    """logP − SA − (number of rings of more than six atoms), float32 [rows], NaN if unparsable.

    logP is Crippen's, SA the synthetic accessibility score of RDKit's Contrib folder, rings those
    of RDKit's smallest set. The terms are *not* normalised: PyG's ZINC, and so the paper, takes
    each of them less its mean and divided by its deviation over the 250,000 molecules, and the
    sum of those; errors on the two scales cannot be compared.

    Args:
        smiles: one molecule each.
        workers: processes to share the work, as in `featurize`.
        progress: show a progress bar.

    Raises:
        InputError: `smiles` is one string instead of a list.
        MissingExtraError: rdkit, or its Contrib folder, is not installed.
    """
    check_list(smiles)
    _sa_scorer()  # a missing package is reported once, here, and not by every worker
    parts = by_chunks(_score_chunk, smiles, workers, "scoring molecules", progress)
    return torch.tensor([value for part in parts for value in part], dtype=torch.float32)


def _score_chunk(_: int, smiles: Sequence[str]) -> list[float]:
    chem, rd_base = import_rdkit()
    crippen = require("rdkit.Chem.Crippen", "smiles")
    accessibility = _sa_scorer()
    scores = []
    with rd_base.BlockLogs():
        for text in smiles:
            molecule = chem.MolFromSmiles(text)
            if molecule is None or molecule.GetNumAtoms() == 0:
                scores.append(math.nan)
                continue
            long = sum(len(ring) > LONG_CYCLE for ring in molecule.GetRingInfo().AtomRings())
            scores.append(crippen.MolLogP(molecule) - accessibility(molecule) - long)
    return scores


@cache
def _sa_scorer() -> Callable[[Any], float]:
    """RDKit's sascorer, which lies beside the package and not in it."""
    folder = Path(require("rdkit.RDConfig", "smiles").RDContribDir) / "SA_Score"
    spec = importlib.util.spec_from_file_location("sascorer", os.fspath(folder / "sascorer.py"))
    if spec is None or spec.loader is None or not (folder / "sascorer.py").exists():
        raise MissingExtraError(
            f"RDKit's SA_Score is needed here and is not in {folder}: "
            'pip install --upgrade "grant_fast[smiles]"'
        )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.calculateScore
