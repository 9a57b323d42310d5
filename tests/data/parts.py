"""What the tests of data sets ask of a split."""

import torch

from grant_fast.data.dataset import Dataset


def parts(dataset: Dataset) -> dict[str, list[int]]:
    """The positions of each part."""
    return {part: positions.tolist() for part, positions in dataset.split.items()}


def assert_covers(dataset: Dataset) -> None:
    """Every graph is in one part."""
    together = torch.cat(list(dataset.split.values())).sort().values
    assert together.tolist() == list(range(dataset.graphs.num_graphs))
