"""What the tests of tables look at."""

import torch

from grant_fast.data.table import Table


def columns(table: Table) -> list[list[float]]:
    """The targets by columns, -9 where a cell is missing."""
    assert table.y is not None
    assert table.y.dtype == torch.float32
    return table.y.nan_to_num(-9).T.tolist()


def cells_of(table: Table) -> list[list[str]]:
    """All cells of each row."""
    return [cells for _, cells in table.sheet.body]
