"""Which graphs the teacher picks, given their scores. Pure functions of tensors.

All three rules return positions in the scores, in ascending order, and always the same ones: equal
scores go to the lowest position (for whole batches, to the lowest batch number). An infinite score
sorts first; a NaN is an error.
"""

import torch
from torch import Tensor

from ..errors import InputError
from .schedules import share_size


def select_global(scores: Tensor, m: int) -> Tensor:
    """The m largest scores of the whole set: Algorithm 1.

    Args:
        scores: `[N]`, floating point.
        m: how many to pick, 0 to N.

    Returns:
        int64 `[m]`, ascending positions.

    Raises:
        InputError: a score is NaN, or m is outside 0..N.
    """
    _check(scores, m)
    return torch.sort(scores, descending=True, stable=True).indices[:m].sort().values


def select_within_batches(scores: Tensor, batches: Tensor, m: int) -> Tensor:
    """The largest scores within each batch, m in all: the paper's GraNT (S).

    With C_b the graphs in the batches up to b, batch b gives ⌊m·C_b/N⌋ − ⌊m·C_{b−1}/N⌋ graphs: its
    proportional share, rounded cumulatively, so that no batch is off by one or more and the total
    is exactly m.

    Args:
        scores: `[N]`, floating point.
        batches: int64 `[N]`, the number of the batch that each graph is in, from 0.
        m: how many to pick in all, 0 to N.

    Returns:
        int64 `[m]`, ascending positions.

    Raises:
        InputError: a score is NaN, m is outside 0..N, or the shapes differ.
    """
    _check(scores, m, batches)
    sizes = torch.bincount(batches)
    ends = sizes.cumsum(0)
    quotas = (m * ends // max(len(scores), 1)).diff(prepend=ends.new_zeros(1))
    # Stable sorts, last key first: by batch, then by falling score, then by position.
    order = torch.sort(scores, descending=True, stable=True).indices
    order = order[torch.sort(batches[order], stable=True).indices]
    batch = batches[order]
    rank = torch.arange(len(order), device=order.device) - (ends - sizes)[batch]
    return order[rank < quotas[batch]].sort().values


def select_batches(scores: Tensor, batches: Tensor, ratio: float) -> Tensor:
    """Whole batches of the largest mean score, ⌈ratio · num_batches⌉ of them: GraNT (B).

    Args:
        scores: `[N]`, floating point.
        batches: int64 `[N]`, the number of the batch that each graph is in, from 0, none empty.
        ratio: the share of the batches to pick, above 0 and at most 1.

    Returns:
        int64, the ascending positions of every graph of the picked batches.

    Raises:
        InputError: a score is NaN, the ratio is outside (0, 1], or the shapes differ.
    """
    _check(scores, 0, batches)
    by_batch = torch.sort(batches, stable=True).indices
    # In float64 and in a fixed order: the mean of equal batches is equal, run after run.
    means = torch.segment_reduce(
        scores[by_batch].double(), "mean", lengths=torch.bincount(batches), unsafe=True
    )
    picked = select_global(means, share_size(ratio, len(means)))
    chosen = torch.zeros(len(means), dtype=torch.bool, device=means.device)
    chosen[picked] = True
    return chosen[batches].nonzero().squeeze(1)


def _check(scores: Tensor, m: int, batches: Tensor | None = None) -> None:
    if scores.dim() != 1:
        raise InputError(f"scores must have shape [num_graphs], not {list(scores.shape)}")
    if batches is not None and batches.shape != scores.shape:
        raise InputError(
            f"{list(batches.shape)} batch numbers beside {list(scores.shape)} scores: "
            "give one for each graph"
        )
    if not 0 <= m <= len(scores):
        raise InputError(f"cannot select {m} of {len(scores)} graphs: choose 0 to {len(scores)}")
    wrong = scores.isnan()
    if wrong.any():
        raise InputError(
            f"the score of the graph at position {int(wrong.nonzero()[0])} is NaN: "
            "lower the learning rate, or check the features and targets"
        )
