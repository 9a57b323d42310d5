"""The penalised logP of a molecule, the target of the paper's ZINC set."""

import importlib.util
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import MissingExtraError, require
from .scaffolds import scaffold_of

LONG_CYCLE = 6  # atoms; a ring of more counts


def penalized_logp(molecule: Any) -> float:
    """logP − SA − (number of rings of more than six atoms) of RDKit's molecule.

    logP is Crippen's, SA the synthetic accessibility score of RDKit's Contrib folder, rings those
    of RDKit's smallest set. The terms are *not* normalised: PyG's ZINC, and so the paper, takes
    each of them less its mean and divided by its deviation over the 250,000 molecules, and the
    sum of those; errors on the two scales cannot be compared.

    Raises:
        MissingExtraError: rdkit, or its Contrib folder, is not installed.
    """
    long = sum(len(ring) > LONG_CYCLE for ring in molecule.GetRingInfo().AtomRings())
    logp = require("rdkit.Chem.Crippen", "smiles").MolLogP(molecule)
    return logp - sa_scorer()(molecule) - long


def logp_and_scaffold(molecule: Any) -> tuple[float, str]:
    """`penalized_logp` and `scaffold_of`, in a module that a worker can import without torch."""
    return penalized_logp(molecule), scaffold_of(molecule)


@cache
def sa_scorer() -> Callable[[Any], float]:
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
