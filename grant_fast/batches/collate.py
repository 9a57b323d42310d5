"""How torch's `DataLoader` makes one batch of those that it fetched."""

from typing import Any

import torch
from torch.utils.data._utils.collate import default_collate_fn_map

from ..errors import InputError
from .batch import GraphBatch


def joined(batches: list[GraphBatch], *, collate_fn_map: Any = None) -> GraphBatch:
    """One batch of all the graphs in several, in order.

    Raises:
        InputError: they are of several data sets.
    """
    if len(batches) == 1:
        return batches[0]
    if any(b.graphs is not batches[0].graphs for b in batches):
        raise InputError(
            "a batch mixes graphs from several datasets: join them with PackedGraphs.concat"
        )
    return batches[0].graphs.batch(torch.cat([b.positions for b in batches]))


default_collate_fn_map[GraphBatch] = joined
