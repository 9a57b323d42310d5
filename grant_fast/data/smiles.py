"""Molecules from SMILES: OGB's nine categorical atom columns, and every bond in both directions."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from typing import Any, TypeVar

import torch

from ..devices import one_thread
from ..errors import InputError, whole_number
from ..graphs import PackedGraphs
from ..graphs.arrays import GraphArrays, batch_vector
from ..progress import track
from ..workers import share_out
from .parsing import CHUNK, PIECES, Failure, featurizers, read_chunk

T = TypeVar("T")


def are_pyg_features(x: torch.Tensor) -> bool:
    """Whether atoms, [n, 9] integers, are numbered as torch_geometric.utils.from_smiles does it.

    It counts elements from 0 and hybridisations from "unspecified", and so nearly every carbon is
    what hardly an atom is in OGB's numbers: a nitrogen with five or six hybrid orbitals.
    """
    light = (x[:, 0] >= 5) & (x[:, 0] <= 8)
    hypervalent = (x[:, 6] == 3) | (x[:, 6] == 4)
    carbon = x[:, 0] == 5  # in OGB's numbers, where one with a bond of any kind (~) has them, too
    return bool(2 * (light & hypervalent & ~carbon).sum() > light.sum())


def as_list(smiles: Any) -> list[str]:
    """SMILES as a list; InputError where they have no order, or are one string, whose letters would
    be taken for molecules."""
    if isinstance(smiles, str):
        raise InputError(f"smiles is one string, {smiles[:40]!r}: give a list, [{smiles[:40]!r}]")
    is_table = hasattr(smiles, "columns")  # of which only the names would be read
    if is_table or isinstance(smiles, Mapping | Set | bytes) or not isinstance(smiles, Iterable):
        raise InputError(
            f"smiles is a {type(smiles).__name__}: give a list of strings, or one column of a table"
        )
    return list(smiles)


def read_molecules(
    smiles: Sequence[str],
    also: Callable[[Any], T] | None = None,
    workers: int | None = None,
    progress: bool = False,
    edge_attr: bool = False,
) -> tuple[PackedGraphs, list[Failure], list[T]]:
    """Turn SMILES into graphs: atoms are nodes, each bond is an edge in both directions.

    The numbers are those of `ogb.utils.mol.smiles2graph`, but that the chirality of an atom is that
    of RDKit's canonical SMILES: a molecule gets the same numbers however it is written. What RDKit
    cannot parse, or has no atoms, is left out and reported; a single atom is a graph without edges.

    Args:
        smiles: one molecule each.
        also: what else is to be found of each of the graphs' molecules, RDKit's; a function that
            can be sent to other processes.
        workers: processes to share the work, at most, one for each 3,000 molecules; None or 1 stays
            in this one. More of them start by importing the main module, so a script needs
            `if __name__ == "__main__":`, as for any multiprocessing.
        progress: show a progress bar.
        edge_attr: give the features of bonds, too.

    Returns:
        The graphs, x uint8 `[N, 9]`, edge_attr uint8 `[E, 3]` if asked for and no y, in the order
        of `smiles` without the failures; the failures as (index into `smiles`, text); and what
        `also` found, nothing without it. Graphs are packed a thousand at a time, since all of them
        unpacked would take several times the memory.

    Raises:
        InputError: something in `smiles` is no string, or `workers` is below 1.
        MissingExtraError: rdkit or ogb is not installed.
    """
    for row, text in enumerate(smiles):
        if not isinstance(text, str):
            raise InputError(f"smiles[{row}] is {text!r}, not a string: remove it or quote it")
    featurizers()  # a missing package is reported once, here, and not by every worker
    if workers is not None:
        whole_number("workers", workers)
    starts = range(0, max(1, len(smiles)), CHUNK)
    pieces = [smiles[start : start + CHUNK] for start in starts]
    some = max(1, min(workers or 1, len(pieces) // PIECES))
    read = share_out(some, partial(read_chunk, edge_attr, also), starts, pieces)
    chunks = track(read, "reading molecules, in thousands", len(pieces), progress)
    parts: list[PackedGraphs] = []
    failures: list[Failure] = []
    found: list[T] = []
    for atoms, bonds, rows, sizes, failed, others in chunks:
        failures.extend(failed)
        found.extend(others)
        with one_thread():  # the others would take turns with the processes that read
            arrays = GraphArrays(
                x=torch.from_numpy(atoms),
                edge_index=torch.from_numpy(bonds).long(),
                batch=batch_vector(sizes),
                num_graphs=len(sizes),
                edge_attr=None if rows is None else torch.from_numpy(rows),
            )
            parts.append(PackedGraphs.from_graph_arrays(arrays))
    return PackedGraphs.concat(parts), failures, found
