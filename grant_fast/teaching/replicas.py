"""Processes that train one model together: which graphs each scores, which batches each serves."""

import warnings
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import compress
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ..errors import InputError, whole_number

T = TypeVar("T")


@dataclass(frozen=True)
class Replicas:
    """All processes, and which of them this one is.

    Args:
        count: how many there are.
        rank: this one's number, from 0.

    Raises:
        InputError: no such number of processes, or no such rank among them.
    """

    count: int = 1
    rank: int = 0

    def __post_init__(self) -> None:
        whole_number("num_replicas", self.count)
        if whole_number("rank", self.rank, least=0) >= self.count:
            raise InputError(
                f"rank is {self.rank} of num_replicas={self.count}: give "
                "torch.distributed.get_rank() and get_world_size()"
            )

    def part(self, size: int) -> slice:
        """The neighbours among 0..size-1 that are this process's to score."""
        return slice(self.rank * size // self.count, (self.rank + 1) * size // self.count)

    def rounds(self, num_batches: int) -> int:
        """How many batches each process serves: as many as the others, or their steps would wait
        for one another for ever."""
        return -(-num_batches // self.count)

    def served(self, batches: list[T]) -> list[T]:
        """Every `count`-th batch from `rank` on; where a last round is short, the first again."""
        places = range(self.rank, self.rounds(len(batches)) * self.count, self.count)
        return [batches[place % len(batches)] for place in places]

    def inner(self, model: Any) -> Any:
        """The module that `DistributedDataParallel` wraps, with process 0's buffers in all, as the
        wrapper's own forward pass would have it; any other model as it is, and all of them for a
        process alone.

        Raises:
            InputError: PyTorch knows of no such processes.
        """
        if self.count == 1:
            if isinstance(model, DistributedDataParallel) and dist.get_world_size() > 1:
                warnings.warn(
                    f"the model learns in {dist.get_world_size()} processes, but num_replicas is "
                    "1, so each trains on every selected graph: give num_replicas and rank, unless "
                    "each process has graphs of its own",
                    stacklevel=4,
                )
            return model
        self._check_group()
        if not isinstance(model, DistributedDataParallel):
            return model
        if model.broadcast_buffers:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)
        return model.module

    def check_alike(self, settings: Mapping[str, object], device: torch.device) -> None:
        """Refuse, in all processes at once, what differs between them, and ranks that do not.

        Raises:
            InputError: a setting differs between processes, or some have the same rank.
        """
        marks = torch.tensor([zlib.crc32(repr(value).encode()) for value in settings.values()])
        ranks = torch.zeros(self.count, dtype=torch.long)
        ranks[self.rank] = 1
        given = torch.cat([marks, -marks, ranks]).to(device)
        dist.all_reduce(given, dist.ReduceOp.MAX)
        largest, smallest, ranks = given.cpu().split([len(marks), len(marks), self.count])
        if not ranks.all():
            raise InputError(
                f"no process has rank {int(ranks.argmin())} of num_replicas={self.count}, so some "
                f"have the same (here {self.rank}): give torch.distributed.get_rank()"
            )
        differs = (largest != -smallest).tolist()
        unlike = [f"{name} (here {value!r})" for name, value in compress(settings.items(), differs)]
        if unlike:
            raise InputError(
                f"not the same in all {self.count} processes: {', '.join(unlike)}. Give every "
                "process the same graphs, settings and epoch, and only a rank of its own"
            )

    def joined(self, part: Tensor, size: int) -> Tensor:
        """[size], put together from every process's `part`: the same bits in all of them."""
        out = part.new_zeros(size)
        out[self.part(size)] = part
        dist.all_reduce(out)  # each entry is one process's; the others add 0
        return out

    def _check_group(self) -> None:
        there = dist.is_available() and dist.is_initialized()
        size = dist.get_world_size() if there else None
        if size != self.count:
            found = f"the process group has {size}" if there else "PyTorch has no process group"
            raise InputError(
                f"num_replicas is {self.count}, but {found}: call "
                "torch.distributed.init_process_group, and give its get_world_size()"
            )
