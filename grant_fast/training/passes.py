"""Which graphs go through the network together in an epoch."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from ..batches import GraphBatch
from ..graphs import PackedGraphs
from ..teaching.infobatch import InfoBatchSampler
from ..teaching.sampler import GraNTSampler
from .config import RunConfig
from .model import fitting

#: Positions in the dataset, and the graphs there.
Pass = tuple[Tensor, GraphBatch]


class Passes:
    """An epoch's graphs, some at a time.

    Where a step follows each batch they come as the sampler batches them. Where one step follows
    all of them, the gradient is a sum over graphs, however they are cut; only a batch norm looks
    at a whole pass. `config.pass_size` says how many go together; where it is not given,
    without a batch norm they are `fitting` parts, and with one batches.

    Args:
        graphs: the dataset, with targets.
        sampler: who serves positions in it.
        model: the network.
        config: the run's.
    """

    def __init__(
        self,
        graphs: PackedGraphs,
        sampler: GraNTSampler | InfoBatchSampler,
        model: nn.Module,
        config: RunConfig,
    ) -> None:
        self._graphs, self._sampler, self._size = graphs, sampler, config.pass_size
        self._model = model
        self._mixes = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())
        fits = config.step_every == "epoch" and not self._mixes
        self._by_batch = self._size is None and not fits
        self._last: list[Pass] | None = None

    def __call__(self, visits: int | None) -> Iterable[Pass]:
        """The positions in each pass, and the graphs there: all of the epoch, or so many visits.

        An epoch of one pass is the same list again until something else is selected.
        """
        if self._by_batch:
            return map(self._pass, _first(self._sampler.batches(), visits))
        ids = self._sampler.selected
        whole = visits is None or visits >= len(ids)
        # The teacher picks anew only now and then: until then this epoch's pass is the last's.
        if whole and self._last is not None and torch.equal(self._last[0][0], ids):
            return self._last
        self._last = None  # before the next one takes memory
        parts = self._parts(ids)
        if whole and len(parts) == 1:
            self._last = [self._pass(ids)]
            return self._last
        # A batch norm depends on who shares a pass, and a cut of the epoch on who comes first.
        if self._mixes or not whole:
            ids = torch.cat(list(self._sampler.batches()))[:visits]
            parts = self._parts(ids)
        return map(self._pass, parts)

    def _parts(self, ids: Tensor) -> Sequence[Tensor]:
        if self._size is not None:
            return ids.split(self._size)
        return fitting(self._graphs, ids, self._model)

    def _pass(self, ids: Tensor) -> Pass:
        return ids, self._graphs.batch(ids)


def _first(batches: Iterable[Tensor], visits: int | None) -> Iterator[Tensor]:
    """Batches, cut where the budget of visits ends."""
    for ids in batches:
        if visits is not None:
            ids, visits = ids[:visits], visits - len(ids[:visits])
        if len(ids) == 0:
            return
        yield ids
