"""GraNT as a batch sampler: the teacher picks graphs, the data loader serves them."""

import dataclasses
import zlib
from collections.abc import Iterator
from functools import cached_property
from numbers import Integral
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import Sampler

from ..batches import GraphBatch
from ..errors import InputError, few, whole_number
from ..graphs import PackedGraphs
from ..indexing import as_index, count_graphs, distinct_positions, flat_integers
from ..tasks import Task, check_task
from .gathering import Collate
from .order import arrange, serving_order
from .picking import MODES, SCORED, Mode, Picked, pick, pick_at_random
from .replicas import Replicas
from .residuals import ResidualKind, check_residual
from .schedules import Curriculum, Interval, RatioSchedule, share_size
from .scoring import Ids, Model, Predict, Score, ScoringPass, check_functions, check_numbers
from .watch import Watch

#: What the paper calls them.
PAPERS = {"batch": "B", "graph": "S", "global": "Algorithm 1"}
#: What a selection was made with, and so cannot change.
_FIXED = ("batch_size", "ids", "mode", "seed", "curriculum")
#: What a sampler is given and keeps under another name.
_GIVEN = ("epochs", "start_ratio", "ratio_schedule", "interval", "num_replicas", "rank")


class GraNTSampler(Sampler[list[int]]):
    """Batches of the graphs that the learner gets most wrong (GraNT, Algorithm 1).

    At a selection epoch, the teacher scores every training graph with the current model and keeps a
    share of them; the curriculum widens the share and spaces the selections out::

        sampler = GraNTSampler(dataset, task, batch_size=256, epochs=100)
        loader = DataLoader(dataset, batch_sampler=sampler)  # PyTorch's or PyG's
        for epoch in range(100):
            sampler.select(model, epoch)  # does nothing between selection epochs
            for batch in loader:
                ...

    Positions always refer to `dataset`, whatever order the graphs are served in. Every epoch's
    order is one permutation of the training graphs, drawn from (seed, epoch) and restricted to the
    selected ones: samplers with different modes but the same seed serve the graphs in the same
    order. (Only mode "batch" keeps its batches together, each where the first of its graphs would
    come.) PyTorch's global random state is neither read nor changed.

    `len()` is the current epoch's and follows the curriculum; `total_batches` is the whole run's.

    Under `DistributedDataParallel`, give each process its `num_replicas` and `rank`, as with
    PyTorch's `DistributedSampler`. Each process scores its part of the graphs, all of them get all
    scores, and each serves every `num_replicas`-th of the batches that one process would serve (if
    the last round is short, the first ones again). What is picked does not depend on the number of
    processes, except where scores differ only by rounding.

    The share stays below 1, which the schedule would reach only once the run is over: with the
    defaults it ends at 0.66 in a run of 50 epochs, and at 0.96 in one of 300.

    Train with any loss: whatever it is, the teacher ranks by the residual of `task`, computed from
    raw outputs: logits, or values in the units of y. Probabilities, or the outputs of a network
    that learns standardised targets, would give a wrong ranking: `predict` must undo that. Of
    several targets in different units the one with the largest numbers would decide: put each
    column of y on one scale instead. To rank by numbers of your own, give `score`.

    Args:
        dataset: a `PackedGraphs`, a sequence of PyG `Data`, or any sequence that `collate` takes.
        task: what is learned.
        batch_size: graphs in a batch; the last batch of an epoch may be smaller, but is never a
            single graph if the batch before it has one to spare.
        epochs: length of the whole run, which the schedules stretch over.
        mode: "batch" (B): the training graphs are dealt into random batches at each selection, and
            the batches with the largest mean score are kept, whole, until the next one (where
            all are kept, they are dealt anew in every epoch). "graph" (S): the largest scores
            within each such batch. "global": the largest overall. "proportional": the same number,
            drawn with odds that grow with the score, for losses weighted with `weights`, which
            preserve the expectation of their sum (`grant_fast.teaching.sample_graphs`;
            `grant_fast.teaching.graph_losses` gives the loss of each graph). "random": the share,
            drawn uniformly: the control. "full": every graph, always.
        start_ratio: the share of the graphs (for "batch", of the batches) to begin with.
        ratio_schedule: "step", "linear", "cosine" or "constant"; see
            `grant_fast.teaching.ratio_at`.
        interval: "curriculum", or a number of epochs; see `grant_fast.teaching.selection_epochs`.
        ids: positions of the training graphs in `dataset`, or a mask; all of them if None.
        predict: `predict(model, batch)` gives the raw outputs; `model(batch)` if None.
        score: `score(model, batch)` gives a number for each graph, `[num_graphs]`, in place of the
            size of its residual: the largest are picked first. The batch needs no targets, `task`
            and `residual` have no say, and `predict` may not be given. For mode "proportional" at
            least 0. It is called without gradients: what needs some begins with
            `torch.enable_grad()`.
        residual: "gradient" or "raw"; see `grant_fast.teaching.residual`.
        seed: for the order and for dealing graphs into batches.
        collate: makes a batch from a list of graphs when scoring; PyG's own if None.
        score_batch_size: graphs in one scoring pass; if None, `batch_size`, which is known to fit;
            where a `FlexGCN` alone scores a `PackedGraphs`, as many as fit into the cache.
        num_replicas, rank: how many processes train together, and which one this is, from 0.

    Attributes:
        ids: the training graphs' positions, int64, ascending.
        epoch: the epoch that iterating serves.
        scores: float32 `[len(ids)]`, in the order of `ids`: the scores that the last selection
            ranked by; None if nothing was scored, or not since `load_state_dict`.

    Raises:
        InputError: a number, name or position that makes no sense, or a task that is not a `Task`;
            and where batch_size, ids, mode, seed or the curriculum is set anew.
    """

    _is_set = False  # the epoch by `select`, and nothing was served since

    def __init__(
        self,
        dataset: Any,
        task: Task,
        batch_size: int,
        *,
        epochs: int,
        mode: Mode = "batch",
        start_ratio: float = 0.1,
        ratio_schedule: RatioSchedule = "step",
        interval: Interval = "curriculum",
        ids: Ids | None = None,
        predict: Predict | None = None,
        score: Score | None = None,
        residual: ResidualKind = "gradient",
        seed: int = 0,
        collate: Collate | None = None,
        score_batch_size: int | None = None,
        num_replicas: int = 1,
        rank: int = 0,
    ) -> None:
        if mode not in MODES:
            known = ", ".join(f"{m} (the paper's {PAPERS[m]})" if m in PAPERS else m for m in MODES)
            raise InputError(f"unknown mode {mode!r}: choose one of {known}")
        self.batch_size = whole_number("batch_size", batch_size)
        if score_batch_size is not None:
            score_batch_size = whole_number("score_batch_size", score_batch_size)
        self.score_batch_size = score_batch_size
        self.seed = whole_number("seed", seed, least=0)
        check_task(task)
        check_residual(residual)
        check_functions(predict, collate, score)
        self.curriculum = Curriculum(epochs, start_ratio, ratio_schedule, interval)
        self.dataset, self.task = dataset, task
        self.mode = cast(Mode, str.__str__(mode))  # a plain one, for the state
        self.residual = cast(ResidualKind, str.__str__(residual))
        self.predict, self.collate = predict, collate
        self.score = score
        self.ids = distinct_positions(ids, count_graphs(dataset))
        self.replicas = Replicas(num_replicas, rank)
        if len(self.ids) < num_replicas:
            raise InputError(
                f"num_replicas is {num_replicas}, but there are {len(self.ids)} graphs: give each "
                "process one or more"
            )
        self.epoch = 0
        self.scores: Tensor | None = None
        # Within this class graphs are numbered by their place in `ids`.
        self._picked: Tensor | None = None
        self._picked_at = -1
        self._batch_of: Tensor | None = None  # (B): the batch that each picked graph stays in
        self._weights: Tensor | None = None  # proportional: what each picked graph counts
        self._watch = Watch()
        self.set_epoch(0)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _GIVEN or (name in _FIXED and name in vars(self)):
            raise InputError(f"{name} of a sampler is fixed: make another {type(self).__name__}")
        super().__setattr__(name, value)

    @property
    def ratio(self) -> float:
        """The share that the schedule gives the current epoch."""
        return self._ratio(self.epoch)

    @property
    def selected(self) -> Tensor:
        """The selected graphs' positions in the dataset, int64 ascending, until the next selection.

        Raises:
            InputError: nothing has been selected yet.
        """
        return self.ids[self._picked_or_raise()]

    @property
    def num_selected(self) -> int:
        """How many graphs are selected; raises as `selected` does."""
        return len(self._picked_or_raise())

    def select(self, model: Model | None, epoch: int) -> bool:
        """Act as the teacher at the start of an epoch: pick new graphs if it is time to.

        A selection whose epoch was skipped is made up for, with the share it had. `model` may be
        None where nothing is scored: in modes "random" and "full", and at a share of 1.

        Returns:
            Whether new graphs were picked; never for "full".

        Raises:
            InputError: a NaN prediction or score (naming the graph), no model, an epoch that is
                outside the run or is not a whole number, processes that differ in more than `rank`.
        """
        self._move_to(epoch)
        if self._picked is None:
            self._watch.begins(self.epoch)
        self._is_set = False
        at = self.curriculum.last_selection(epoch)
        if self._picked_at == at and epoch != at:
            self._is_set = True
            return False
        size, scores = len(self.ids), None
        units = self._num_batches(size) if self.mode == "batch" else size
        m = share_size(self.ratio, units)
        if m == units:
            picked = Picked(torch.arange(size, device="cpu"))
        elif self.mode == "random":
            picked = pick_at_random(size, m, self.seed, at)
        else:
            scores, counts = self._score(model)
            picked = pick(self.mode, scores, m, self.batch_size, self.seed, at, counts)
        self._picked, self._batch_of, self._weights = picked
        self._picked_at, self.scores, self._is_set = at, scores, True
        return self.mode != "full"

    def set_epoch(self, epoch: int) -> None:
        """Serve `epoch` from now on, as PyTorch's `DistributedSampler` does; so does `select`.

        Modes that need no model pick their graphs here as well. An epoch before that of a `select`
        is passed over until something is served: loaders may count on their own, as accelerate's.

        Raises:
            InputError: the epoch is outside the run.
        """
        if self._is_set and isinstance(epoch, Integral) and 0 <= epoch < self.epoch:
            return
        if self.mode in SCORED:
            self._move_to(epoch)
        else:
            self.select(None, epoch)
            self._is_set = False

    def __len__(self) -> int:
        """The number of batches in this process's current epoch, before its selection, too."""
        return self._watch.tells(self._length(self.epoch))

    @property
    def total_batches(self) -> int:
        """The number of batches in the whole run: the steps for a learning rate schedule."""
        return sum(map(self._length, range(self.curriculum.epochs)))

    def __iter__(self) -> Iterator[list[int]]:
        """Yield each batch of the current epoch as a list of positions in the dataset.

        Raises:
            InputError: the selection that this epoch uses has not been made.
        """
        for batch in self.batches():
            yield batch.tolist()

    def batches(self) -> Iterator[Tensor]:
        """The same as int64 tensors on the CPU, which are quicker to index graphs by."""
        yield from self._watch.serves(self._batches(), self.epoch)

    def _batches(self) -> list[Tensor]:
        picked, self._is_set = self._picked_or_raise(), False
        if self._picked_at != self.curriculum.last_selection(self.epoch):
            raise InputError(self._not_selected)
        served = serving_order(picked, len(self.ids), self.seed, self.epoch)
        batch_of = self._batch_of
        if batch_of is not None:
            batch_of = torch.empty_like(self.ids).scatter_(0, picked, batch_of)[served]
        return self.replicas.served(arrange(self.ids[served], self.batch_size, batch_of))

    def weights(self, ids: Ids) -> Tensor:
        """The loss weights of the selected graphs at `ids`, float32 [len(ids)] on the CPU.

        A batch's loss is the weighted mean (w·l).sum() / (w·n).sum() of `graph_losses`: each
        graph's summed loss l, over its n labels. Over everything selected, the two sums have the
        same expectation as the sums of l and of n over all graphs; their ratio, and so the mean,
        nearly does. All weights are 1 in all modes but "proportional", and there too
        if everything is selected.

        Raises:
            InputError: nothing has been selected yet, a graph is not selected, or `ids` is a mask.
        """
        picked = self._picked_or_raise()
        asked = as_index(ids).cpu()
        if asked.dtype == torch.bool:
            raise InputError("weights takes positions, not a mask: give mask.nonzero().flatten()")
        asked = flat_integers(asked)
        # Asked for in every step, where `selected` would be gathered each time.
        among = torch.searchsorted(self.ids, asked)
        place = torch.searchsorted(picked, among).clamp_(max=len(picked) - 1)
        strange = asked[self.ids[picked[place]] != asked]
        if len(strange):
            raise InputError(
                f"position {int(strange[0])} is not selected, so it has no weight: ask only for "
                "positions that the sampler serves"
            )
        if self._weights is None:
            return torch.ones(len(asked), dtype=torch.float32, device="cpu")
        return self._weights[place]

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume: tensors, ints, and the settings as plain values."""
        nothing = torch.empty(0, dtype=torch.long, device="cpu")
        return {
            "epoch": self.epoch,
            "picked_at": self._picked_at,
            "picked": nothing if self._picked is None else self._picked.clone(),
            "batch_of": nothing if self._batch_of is None else self._batch_of.clone(),
            "weights": nothing.float() if self._weights is None else self._weights.clone(),
            "settings": self._settings,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state: from here on, the batches are those of the saved sampler.

        A state saved in the middle of an epoch starts that epoch again. If it is a selection epoch,
        `select` would pick again with the model as it is now: to serve the same graphs, just
        iterate.

        Raises:
            InputError: the state is none, or of a sampler with other settings or other `ids`. (The
                graphs themselves are not compared.)
        """
        if not isinstance(state, dict) or (missing := self.state_dict().keys() - state.keys()):
            what = f"lacks {few(sorted(missing))}" if isinstance(state, dict) else "is no dict"
            raise InputError(f"the saved state {what}: give what state_dict() returned")
        saved = state.get("settings", {})
        for name, value in self._settings.items():
            if saved.get(name) != value:
                raise InputError(
                    f"the saved sampler had {name}={saved.get(name)!r} but this one has "
                    f"{name}={value!r}: make it with the settings and graphs of the saved run"
                )
        self._move_to(state["epoch"])
        self._picked_at = state["picked_at"]
        self._picked = state["picked"].cpu().clone() if self._picked_at >= 0 else None
        self._batch_of = state["batch_of"].cpu().clone() if len(state["batch_of"]) else None
        self._weights = state["weights"].cpu().clone() if len(state["weights"]) else None
        self.scores, self._is_set = None, False

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self.ids)} graphs, mode={self.mode!r}, "
            f"batch_size={self.batch_size}, {self.curriculum}, seed={self.seed})"
        )

    def _score(self, model: Model | None) -> tuple[Tensor, Tensor | None]:
        """Scores in the order of `ids`, and their histogram where a kernel made one of them all."""
        if model is None:
            raise InputError(f"mode {self.mode!r} scores graphs with the model: give select one")
        look = ScoringPass(
            self.dataset,
            self.task,
            self._mine,
            predict=self.predict,
            residual=self.residual,
            batch_size=self.score_batch_size,
            collate=self.collate,
            whole=self._whole,
            score=self.score,
            usual=self.batch_size,
        )
        inner = self.replicas.inner(model)
        if self.replicas.count == 1:
            return look(inner)[:2]
        scores, _, _ = look(inner, check=False)
        alike = {**self._settings, "epoch": self.epoch}
        if isinstance(self.dataset, PackedGraphs):  # parts of one data set differ in these
            alike.update(num_nodes=self.dataset.num_nodes, num_edges=self.dataset.num_edges)
        self.replicas.check_alike(alike, scores.device)
        scores = self.replicas.joined(scores, len(self.ids))
        # Now, and so in all processes or in none.
        check_numbers(scores, self.ids, self.dataset, own=self.score is not None)
        return scores, None

    @property
    def _mine(self) -> Tensor:
        """The positions of the graphs that this process scores."""
        return self.ids[self.replicas.part(len(self.ids))]

    @cached_property
    def _whole(self) -> GraphBatch | None:
        """All graphs to score as one batch, of which the kernels keep how they share tiles."""
        return self.dataset.batch(self._mine) if isinstance(self.dataset, PackedGraphs) else None

    def _move_to(self, epoch: int) -> None:
        last = self.curriculum.epochs - 1
        if not isinstance(epoch, Integral):
            shown = repr(epoch) if isinstance(epoch, float | str | None) else type(epoch).__name__
            raise InputError(f"epoch is {shown}: give a whole number from 0 to {last}")
        if not 0 <= epoch <= last:
            raise InputError(
                f"epoch {epoch} is outside this run's 0..{last}: epochs count from 0, so a loop "
                "that counts from 1 gives epoch - 1; a longer run needs a sampler of more epochs"
            )
        if epoch != self.epoch:
            self._watch.leaves(self.epoch, int(epoch))
        self.epoch = int(epoch)

    @property
    def _not_selected(self) -> str:
        at = self.curriculum.last_selection(self.epoch)
        return (
            f"epoch {self.epoch} uses the selection of epoch {at}, which was not made: "
            f"call sampler.select(model, {self.epoch}) first"
        )

    def _picked_or_raise(self) -> Tensor:
        if self._picked is None:
            raise InputError(self._not_selected)
        return self._picked

    def _ratio(self, epoch: int) -> float:
        return 1.0 if self.mode == "full" else self.curriculum.ratio(epoch)

    def _length(self, epoch: int) -> int:
        if self.mode == "batch":
            total = share_size(self._ratio(epoch), self._num_batches(len(self.ids)))
        else:
            total = self._num_batches(share_size(self._ratio(epoch), len(self.ids)))
        return self.replicas.rounds(total)

    def _num_batches(self, num_graphs: int) -> int:
        return -(-num_graphs // self.batch_size)

    @property
    def _settings(self) -> dict[str, str | int | float]:
        settings: dict[str, str | int | float] = {
            "mode": self.mode,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "num_graphs": len(self.ids),
            "ids_crc32": zlib.crc32(self.ids.numpy().tobytes()),
        }
        if self.mode != "full":  # which keeps all graphs, whatever the curriculum
            settings.update(dataclasses.asdict(self.curriculum), residual=self.residual)
        return settings
