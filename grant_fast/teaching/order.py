"""Random order from (seed, epoch) alone, so that it depends neither on history nor on the arm.

All on the CPU, whatever PyTorch's default device.
"""

import numpy as np
import torch
from torch import Tensor

# Independent streams of random numbers drawn from one seed.
ORDER, DEALING = 0, 1


def permutation(size: int, seed: int, stream: int, epoch: int) -> Tensor:
    """A permutation of 0..size-1, int64, the same whenever it is asked for; no global state."""
    return torch.randperm(size, device="cpu", generator=_generator(seed, stream, epoch))


def uniform(size: int, seed: int, stream: int, epoch: int) -> Tensor:
    """Numbers in (0, 1], float64 [size], the same whenever they are asked for."""
    generator = _generator(seed, stream, epoch)
    return 1 - torch.rand(size, dtype=torch.float64, device="cpu", generator=generator)


def _generator(seed: int, stream: int, epoch: int) -> torch.Generator:
    entropy = np.random.SeedSequence((seed, stream, epoch)).generate_state(1, np.uint64)
    return torch.Generator("cpu").manual_seed(int(entropy[0]))


def batch_sizes(size: int, batch_size: int) -> list[int]:
    """How many things are in each batch of `size` in all: `batch_size`, in the last what is left.

    That is not one alone: PyTorch's batch norm refuses a single row, and how many graphs there are
    changes with the share. The batch before gives one up, where it keeps two or more itself.
    """
    sizes = [batch_size] * (size // batch_size) + [size % batch_size] * (size % batch_size > 0)
    if sizes[-1:] == [1] and len(sizes) > 1 and batch_size > 2:
        sizes[-2:] = [batch_size - 1, 2]
    return sizes


def serving_order(picked: Tensor, size: int, seed: int, epoch: int) -> Tensor:
    """What is picked of 0..size-1, as they come in a permutation of all, whatever is picked."""
    order = permutation(size, seed, ORDER, epoch)
    chosen = torch.zeros(size, dtype=torch.bool, device="cpu")
    chosen[picked] = True
    return order[chosen[order]]


def deal(size: int, batch_size: int, seed: int, epoch: int) -> Tensor:
    """Deal 0..size-1 at random into batches of `batch_sizes`: int64 `[size]`, each one's batch,
    numbered from 0."""
    sizes = torch.tensor(batch_sizes(size, batch_size), device="cpu")
    dealt = torch.empty(size, dtype=torch.long, device="cpu")
    order = permutation(size, seed, DEALING, epoch)
    dealt[order] = torch.repeat_interleave(torch.arange(len(sizes), device="cpu"), sizes)
    return dealt


def arrange(order: Tensor, batch_size: int, batch_of: Tensor | None = None) -> list[Tensor]:
    """Cut things, given in the order to serve them, into batches.

    Args:
        order: int64 `[m]`, the things.
        batch_size: as in `batch_sizes`. Not used with `batch_of`.
        batch_of: int64 `[m]`, or None. Things of equal number stay together as one batch, which
            comes where the first of them would.

    Returns:
        The parts of `order`, one tensor for each batch.
    """
    if batch_of is None:
        return list(order.split(batch_sizes(len(order), batch_size)))
    _, batch, sizes = batch_of.unique(return_inverse=True, return_counts=True)
    first = torch.full_like(sizes, len(order))
    first = first.scatter_reduce(0, batch, torch.arange(len(order), device="cpu"), "amin")
    together = first[batch].sort(stable=True).indices
    return list(order[together].split(sizes[first.argsort()].tolist()))
