"""InfoBatch: skip some of what is learned already, and let the rest stand for it."""

from typing import Any

import torch
from torch import Tensor

from ..errors import InputError, whole_number
from .order import DEALING, arrange, permutation, serving_order
from .scoring import Ids

PRUNED = 0.5  # r, the share of the well-learned graphs to skip
ANNEALED = 0.125  # 1 − δ, the share of the epochs at the end in which nothing is skipped


class InfoBatchSampler:
    """Batches that leave out half of the graphs with less than the mean loss, anew every epoch.

    The rule of Qin et al., *InfoBatch: Lossless Training Speed Up by Unbiased Dynamic Data
    Pruning* (ICLR 2024): a graph's score is its loss when it was last trained on; of the graphs
    below the mean score a share r is skipped at random, rounded down, and the losses of the others
    below it are weighted by 1/(1 − r), or where r was rounded by what was skipped indeed, so that
    the gradient's expectation stays that of all graphs. In the last eighth of the run nothing is
    skipped. Until a graph is seen it scores like all others.

    Args:
        ids: positions of the training graphs.
        batch_size: as of a `GraNTSampler`.
        epochs: length of the run.
        seed: of the order and of what is skipped.

    Raises:
        InputError: no graphs, no epochs, or batches of none.
    """

    def __init__(self, ids: Ids, batch_size: int, *, epochs: int, seed: int = 0) -> None:
        self.ids = torch.as_tensor(ids).cpu().long().sort().values
        if not len(self.ids):
            raise InputError("ids name no graph: give at least 1")
        self.batch_size = whole_number("batch_size", batch_size)
        self.epochs = whole_number("epochs", epochs)
        self.seed = seed
        self.epoch = -1
        self.scores = torch.ones(len(self.ids), dtype=torch.float32, device="cpu")
        self._kept = torch.arange(len(self.ids), device="cpu")
        self._weights = torch.ones_like(self.scores)
        self._seen: list[tuple[Tensor, Tensor]] = []

    @property
    def selected(self) -> Tensor:
        """Positions of what the epoch trains on, ascending."""
        return self.ids[self._kept]

    def select(self, model: Any, epoch: int) -> bool:
        """Choose what `epoch` trains on, from the losses seen; the model itself is not asked.

        Returns:
            False: there is no teacher, and so nothing to restart a learning rate for.
        """
        self._take_in()
        size = len(self.ids)
        self._kept, self._weights = torch.arange(size, device="cpu"), torch.ones_like(self.scores)
        self.epoch = epoch
        if epoch < (1 - ANNEALED) * self.epochs:
            below = self.scores < self.scores.mean()
            low = below.nonzero().squeeze(1)
            lot = permutation(len(low), self.seed, DEALING, epoch)
            skipped = low[lot[: int(PRUNED * len(low))]]
            keep = torch.ones(size, dtype=torch.bool, device="cpu")
            keep[skipped] = False
            self._kept = keep.nonzero().squeeze(1)
            stands_for = len(low) / max(1, len(low) - len(skipped))
            self._weights[below] = stands_for
        return False

    def __iter__(self) -> Any:
        for batch in self.batches():
            yield batch.tolist()

    def batches(self) -> list[Tensor]:
        """The epoch's batches as int64 tensors on the CPU."""
        served = serving_order(self._kept, len(self.ids), self.seed, self.epoch)
        return arrange(self.ids[served], self.batch_size)

    def __len__(self) -> int:
        return -(-len(self._kept) // self.batch_size)

    def weights(self, ids: Ids) -> Tensor:
        """By how much the losses of the graphs at `ids` count, float32 [len(ids)]."""
        return self._weights[self._places(ids)]

    def observe(self, ids: Ids, losses: Tensor) -> None:
        """Note the losses [len(ids)] of graphs just trained on; nothing waits for the device."""
        self._seen.append((self._places(ids), losses))

    def state_dict(self) -> dict[str, Any]:
        """All that resuming at an epoch's end needs."""
        self._take_in()
        return {"epoch": self.epoch, "scores": self.scores.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` gave; `select` comes next.

        Raises:
            InputError: the state is of another number of graphs.
        """
        if len(state["scores"]) != len(self.ids):
            raise InputError(
                f"the saved sampler had {len(state['scores'])} graphs but this one has "
                f"{len(self.ids)}: make it with the graphs of the saved run"
            )
        self.epoch, self.scores = state["epoch"], state["scores"].clone()
        self._seen = []  # losses from before are of what the state replaces

    def _places(self, ids: Ids) -> Tensor:
        return torch.searchsorted(self.ids, torch.as_tensor(ids).cpu())

    def _take_in(self) -> None:
        if self._seen:
            places, losses = zip(*self._seen, strict=True)
            self.scores[torch.cat(places)] = torch.cat(losses).detach().float().cpu()
            self._seen = []
