"""What a selection picks, by its mode: a pure function of scores and seed."""

from typing import Literal, NamedTuple, get_args

from torch import Tensor

from .order import DEALING, deal, permutation, uniform
from .selection import sample_graphs, select_graphs

Mode = Literal["batch", "graph", "global", "proportional", "random", "full"]
MODES = get_args(Mode)
#: Those that score graphs with the model.
SCORED = tuple(mode for mode in MODES if mode not in ("random", "full"))


class Picked(NamedTuple):
    """Graphs by their places among the training graphs, all on the CPU.

    Args:
        places: int64 `[m]`, ascending.
        batch_of: "batch": the batch that each stays in, int64 `[m]`.
        weights: "proportional": what each counts in a loss, float32 `[m]`.
    """

    places: Tensor
    batch_of: Tensor | None = None
    weights: Tensor | None = None


def pick_at_random(size: int, m: int, seed: int, epoch: int) -> Picked:
    """`m` of 0..size-1, drawn uniformly."""
    return Picked(permutation(size, seed, DEALING, epoch)[:m].sort().values)


def pick(
    mode: Mode,
    scores: Tensor,
    m: int,
    batch_size: int,
    seed: int,
    epoch: int,
    counts: Tensor | None = None,
) -> Picked:
    """What a mode that scores picks.

    Args:
        scores: of all training graphs.
        m: how many graphs, or batches in mode "batch".
        batch_size: of the batches that graphs are dealt into, in modes "batch" and "graph".
        seed, epoch: for dealing and drawing.
        counts: the scores' histogram, where a kernel made one.
    """
    if scores.device.type not in ("cpu", "cuda"):  # Apple's has no float64
        scores, counts = scores.cpu(), None
    size, device = len(scores), scores.device
    if mode == "global":
        return Picked(select_graphs(scores, m, counts=counts).cpu())
    if mode == "proportional":
        lot = uniform(size, seed, DEALING, epoch).to(device)
        places, weights = sample_graphs(scores, m, lot)
        return Picked(places.cpu(), weights=weights.cpu())
    dealt = deal(size, batch_size, seed, epoch)
    if mode == "graph":
        return Picked(select_graphs(scores, m, "graph", batches=dealt.to(device)).cpu())
    places = select_graphs(scores, m, "batch", batches=dealt.to(device)).cpu()
    return Picked(places, dealt[places])
