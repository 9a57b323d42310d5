"""Which graphs the teacher picks, given their scores. Pure functions of tensors.

Every rule returns positions in the scores, ascending, and always the same ones: equal scores go to
the lowest position (for whole batches, to the lowest batch number). An infinite score sorts first.
A NaN is an error, which is looked for where that is free: on the CPU. On a device it would make the
host wait; there `score_graphs`, which has looked already, vouches for the scores.
"""

from numbers import Integral
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from ..ops.dispatch import takes_kernels

SelectMode = Literal["global", "graph", "batch"]

#: λ, the share of a proportional choice that pays no heed to the scores.
UNIFORM_SHARE = 0.5


def select_graphs(
    scores: Tensor,
    m: int,
    mode: SelectMode = "global",
    *,
    batches: Tensor | None = None,
    counts: Tensor | None = None,
    backend: str | None = None,
) -> Tensor:
    """Pick the graphs with the largest scores.

    - "global": the m largest overall (Algorithm 1). No sort: the m-th largest score is found by
      partition on the CPU, by a histogram of the scores' bits in the kernels; then one pass picks.
    - "graph", GraNT (S): the largest within each batch, m in all. With C_b the graphs in the
      batches up to b, batch b gives ⌊m·C_b/N⌋ − ⌊m·C_{b−1}/N⌋ graphs: its proportional share,
      rounded cumulatively, so that no batch is off by one or more and the total is exactly m.
      Batches may have any sizes, and their graphs may be in any order: this mode sorts, twice.
    - "batch", GraNT (B): the m whole batches with the largest mean scores.

    On a GPU, nothing waits for it, except that "batch" must learn how many batches there are, and
    how many graphs it picked.

    Args:
        scores: `[N]`, floating point.
        m: how many graphs to pick, 0 to N; for "batch", how many batches.
        mode: one of the above.
        batches: int64 `[N]`, the number of the batch that each graph is in, from 0, with no batch
            empty; "graph" and "batch" need it.
        counts: the histogram of these scores, where the kernel that made them made one.
        backend: "auto", "triton" or "torch", see `grant_fast.ops.dispatch.takes_kernels`.

    Returns:
        int64 ascending positions, `[m]`; for "batch", those of every graph of the picked batches.

    Raises:
        InputError: a score is NaN, or a batch number is impossible (both checked on the CPU only);
            m is out of range, the mode is unknown, or the shapes do not fit.
    """
    if mode not in get_args(SelectMode):
        raise InputError(f"unknown mode {mode!r}: choose one of {', '.join(get_args(SelectMode))}")
    scores = _checked(scores)
    if mode == "global":
        _check_count(m, len(scores), "graphs")
        return _largest(scores, m, backend, counts)
    if batches is None or batches.shape != scores.shape:
        found = None if batches is None else list(batches.shape)
        raise InputError(
            f"{found} batch numbers for {list(scores.shape)} scores: mode {mode!r} needs one for "
            "each graph"
        )
    _check_batches(batches)
    if mode == "graph":
        _check_count(m, len(scores), "graphs")
        return _largest_within(scores, batches, m)
    means = _means(scores, batches)
    _check_count(m, len(means), "batches")
    if means.device.type == "cpu" and (wrong := means.isnan()).any():
        raise InputError(
            f"the mean score of batch {int(wrong.nonzero()[0])} is NaN: it holds infinities of "
            "both signs"
        )
    chosen = torch.zeros(len(means), dtype=torch.bool, device=means.device)
    chosen[_largest(means, m, "torch", None)] = True
    return chosen[batches].nonzero().squeeze(1)


def sample_graphs(scores: Tensor, m: int, lot: Tensor) -> tuple[Tensor, Tensor]:
    """Draw m graphs without replacement, about in proportion to their scores, and their weights.

    Priority sampling (Duffield, Lund, Thorup, *Priority sampling for estimation of arbitrary
    subset sums*, J. ACM 2007): graph i has priority q_i / u_i with u_i uniform, the m largest are
    picked, and a picked graph stands for max(1, τ/q_i) graphs, τ being the largest priority that
    was not picked. A sum over the picked graphs with these weights has the expectation of the sum
    over all of them. q = λ mean(s) + (1 − λ) s: a score in proportion to the gradient's norm makes
    the weighted gradient's variance small (Katharopoulos and Fleuret, *Not all samples are created
    equal*, ICML 2018), and the uniform share bounds the weights (Needell, Srebro, Ward, *Stochastic
    gradient descent, weighted sampling, and the randomized Kaczmarz algorithm*, NeurIPS 2014).

    Args:
        scores: `[N]`, floating point, at least 0.
        m: how many to draw, 0 to N.
        lot: `[N]`, independent numbers, uniform in (0, 1], on the scores' device.

    Returns:
        int64 `[m]` ascending positions, and float32 `[m]` weights of at least 1.

    Raises:
        InputError: as `select_graphs`; a score is negative (on the CPU), or there is not one number
            of `lot` for each.
    """
    scores = _checked(scores)
    if scores.device.type == "cpu" and (below := scores < 0).any():
        first = int(below.nonzero()[0])
        raise InputError(
            f"the score of the graph at position {first} is {float(scores[first])}: "
            "to draw in proportion, give scores of at least 0"
        )
    if lot.shape != scores.shape:
        raise InputError(
            f"{list(lot.shape)} random numbers for {list(scores.shape)} scores: draw one for each "
            "graph"
        )
    _check_count(m, len(scores), "graphs")
    finite = scores.double().clamp(max=torch.finfo(torch.float32).max)
    q = UNIFORM_SHARE * finite.mean() + (1 - UNIFORM_SHARE) * finite
    q = torch.where(q.sum() > 0, q, 1.0)  # nothing is wrong anywhere: all alike
    priority = q / lot
    picked = select_graphs(priority, m, backend="torch")  # float64, which the kernels do not rank
    rest = priority.index_fill(0, picked, 0)
    tau = rest.max() if len(rest) else rest.sum()
    return picked, (tau / q[picked]).clamp(min=1).float()


def _largest(scores: Tensor, m: int, backend: str | None, counts: Tensor | None) -> Tensor:
    if takes_kernels(scores, backend):
        from ..kernels.select import largest

        return largest(scores, m, counts)
    return (_largest_on_cpu if scores.device.type == "cpu" else _largest_on_device)(scores, m)


def _largest_on_device(scores: Tensor, m: int) -> Tensor:
    size = len(scores)
    if m in (0, size):
        return torch.arange(m, device=scores.device)
    threshold = torch.topk(scores, m, sorted=False).values.min()
    above, equal = scores > threshold, scores == threshold
    short = m - above.sum()
    return _places(above | (equal & (equal.cumsum(0) <= short)), m)


def _largest_on_cpu(scores: Tensor, m: int) -> Tensor:
    # NumPy's partition is seven times faster than torch's kthvalue and topk, and sixty times
    # faster than a sort.
    values = (scores if scores.dtype == torch.float64 else scores.float()).numpy()
    size = len(values)
    if m in (0, size):
        return torch.arange(m, device="cpu")
    threshold = np.partition(values, size - m)[size - m]
    picked = values > threshold
    equal = np.flatnonzero(values == threshold)
    picked[equal[: m - np.count_nonzero(picked)]] = True
    return torch.from_numpy(np.flatnonzero(picked))


def _largest_within(scores: Tensor, batches: Tensor, m: int) -> Tensor:
    size = len(scores)
    # There are at most as many batches as graphs; counting them would make the host wait.
    sizes = torch.zeros_like(batches).index_add_(0, batches, torch.ones_like(batches))
    ends = sizes.cumsum(0)
    quotas = (m * ends // max(size, 1)).diff(prepend=ends.new_zeros(1))
    # Stable sorts, last key first: by batch, then by falling score, then by position.
    order = torch.sort(scores, descending=True, stable=True).indices
    order = order[torch.sort(batches[order], stable=True).indices]
    batch = batches[order]
    rank = torch.arange(size, device=scores.device) - (ends - sizes)[batch]
    picked = torch.zeros(size, dtype=torch.bool, device=scores.device)
    picked[order] = rank < quotas[batch]
    return _places(picked, m)


def _places(picked: Tensor, m: int) -> Tensor:
    """Where `picked` is true, which is so at m places: int64 [m], ascending."""
    # The length is known, so nothing waits: whoever is not picked writes to a place beyond it.
    to = torch.where(picked, picked.cumsum(0) - 1, m)
    out = torch.empty(m + 1, dtype=torch.int64, device=picked.device)
    return out.scatter_(0, to, torch.arange(len(picked), device=picked.device))[:m]


def _means(scores: Tensor, batches: Tensor) -> Tensor:
    # In float64 and in a fixed order: the mean of equal batches is equal, run after run.
    by_batch = torch.sort(batches, stable=True).indices
    lengths = torch.bincount(batches)
    return torch.segment_reduce(scores[by_batch].double(), "mean", lengths=lengths, unsafe=True)


def _check_count(m: int, total: int, things: str) -> None:
    if not isinstance(m, Integral) or not 0 <= m <= total:
        raise InputError(
            f"cannot select {m} of {total} {things}: choose a whole number from 0 to {total}"
        )


def _check_batches(batches: Tensor) -> None:
    if batches.dtype != torch.int64:
        raise InputError(f"batch numbers must be int64, not {batches.dtype}: use batches.long()")
    if batches.device.type != "cpu" or not len(batches):
        return
    low, high = (int(end) for end in torch.aminmax(batches))
    if low < 0 or high >= len(batches) or not torch.bincount(batches).all():
        raise InputError(
            f"batch numbers run from {low} to {high}, negative or with gaps: number the batches "
            "0, 1, 2, …, each with a graph or more"
        )


def _checked(scores: Tensor) -> Tensor:
    """The scores without their history, if they can be ranked."""
    if not isinstance(scores, Tensor):
        raise InputError(f"scores are a {type(scores).__name__}: give a tensor, [num_graphs]")
    if scores.dim() != 1 or not scores.is_floating_point():
        raise InputError(
            f"scores must be floating point, [num_graphs], not {scores.dtype} {list(scores.shape)}"
        )
    if scores.device.type == "cpu" and (wrong := scores.isnan()).any():
        raise InputError(
            f"the score of the graph at position {int(wrong.nonzero()[0])} is NaN: "
            "lower the learning rate, or check the features and targets"
        )
    return scores.detach()
