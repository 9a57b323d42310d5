"""Splits of a data set into train, valid and test."""

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import InputError, option

PARTS = ("train", "valid", "test")
Fractions = tuple[float, float, float]
FRACTIONS: Fractions = (0.8, 0.1, 0.1)
#: Graphs of which each part can have one.
FEWEST = len(PARTS)


def random_split(n: int, fractions: Fractions = FRACTIONS, seed: int = 0) -> dict[str, Tensor]:
    """Draw the parts at random, the same way for the same `n`, `fractions` and `seed`.

    Returns:
        "train", "valid" and "test": ascending int64 positions that cover 0…n−1 once.

    Raises:
        InputError: fewer than 3 graphs, fractions that do not sum to 1, or an empty part.
    """
    train, valid = _bounds(n, fractions)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return _ascending(order[:train], order[train:valid], order[valid:])


def draw_valid(split: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
    """The split with a tenth of train (one graph or more, but not the last) as valid, at random."""
    train = split["train"]
    count = min(max(1, len(train) // 10), max(0, len(train) - 1))
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    drawn, kept = order.split([count, len(train) - count])
    return _ascending(train[kept], train[drawn], split["test"])


def split_by_scaffold(scaffolds: Sequence[str]) -> dict[str, Tensor]:
    """Keep molecules with the same Bemis-Murcko scaffold together, the commonest in train.

    Scaffolds go by size, largest first, to the first part that has room for all of their
    molecules; the last part takes what fits nowhere else. Of two equal in size, the one whose
    first molecule comes later goes first, as in DeepChem's splitter: so MoleculeNet's HIV gives
    ogbg-molhiv's split. Where RDKit now fails to parse seven of the 41,127 molecules, the bounds
    move by a few: three of the others are in another part than OGB's.

    Args:
        scaffolds: of each molecule, see `scaffold_of`.

    Returns:
        "train", "valid" and "test": ascending int64 positions that cover the molecules once.

    Raises:
        InputError: as `random_split`.
    """
    train_bound, valid_bound = _bounds(len(scaffolds), FRACTIONS)
    groups: dict[str, list[int]] = defaultdict(list)
    for position, name in enumerate(scaffolds):
        groups[name].append(position)
    train: list[int] = []
    valid: list[int] = []
    test: list[int] = []
    for group in sorted(groups.values(), key=lambda group: (-len(group), -group[0])):
        if len(train) + len(group) <= train_bound:
            train += group
        elif len(train) + len(valid) + len(group) <= valid_bound:
            valid += group
        else:
            test += group
    for part, positions in zip(PARTS, (train, valid, test), strict=True):
        if not positions:
            raise InputError(
                f"the scaffold split leaves {part} empty: {len(scaffolds)} molecules share "
                f"{len(groups)} scaffold{'s' * (len(groups) != 1)}; "
                f"use {option('split', 'random')}"
            )
    return _ascending(*(torch.tensor(positions) for positions in (train, valid, test)))


def _bounds(n: int, fractions: Fractions) -> tuple[int, int]:
    """Where train and valid end."""
    if n < FEWEST:
        raise InputError(
            f"{n} graph{'s' * (n != 1)} cannot be split into train, valid and test: "
            f"give {FEWEST} or more (of one large graph, give parts of it, or train on its nodes "
            "with FlexGCN in a loop of your own)"
        )
    if len(fractions) != 3 or min(fractions) <= 0 or abs(sum(fractions) - 1) > 1e-6:
        raise InputError(f"split fractions {fractions} must be three positive shares that sum to 1")
    # 0.8 + 0.1 falls short of 0.9 by rounding: a little more keeps ⌊0.9·n⌋ where it belongs.
    valid = min(int((fractions[0] + fractions[1]) * n + 1e-6), n - 1)
    train = min(int(fractions[0] * n + 1e-6), valid - 1)
    if train < 1:
        raise InputError(f"{n} graphs are too few for the fractions {fractions}: give more")
    return train, valid


def _ascending(*parts: Tensor) -> dict[str, Tensor]:
    return {name: part.sort().values for name, part in zip(PARTS, parts, strict=True)}
