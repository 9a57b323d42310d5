"""One run, from the first weights to the test metric: resumable at every moment, honestly timed."""

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..batches import GraphBatch
from ..data.dataset import Dataset
from ..devices import clock
from ..errors import InputError, option
from ..graphs import PackedGraphs
from ..indexing import take, upload
from ..nn.one_pass import unchanging
from ..tasks import Task, measured
from ..teaching.infobatch import InfoBatchSampler
from ..teaching.residuals import at_least_one, backward_of_mean, graph_losses, summed_loss
from ..teaching.sampler import GraNTSampler
from .checkpoints import copied, load_optimizer, load_weights, taken_from
from .config import INFOBATCH, PROPORTIONAL, WEIGHTED, RunConfig
from .elements import elements_of
from .evaluation import Evaluator
from .folder import BEST_FILE, LAST_FILE, load_state, make_folder, prepare_folder, save_state
from .metrics import check_metric, higher_is_better
from .model import RANDOM, ModelSpec, build_model, resolve_device
from .observers import Observer
from .optimizer import AdamW
from .passes import Pass, Passes
from .rates import LearningRate
from .recording import BatchRecorder, Recorder, recording_device, room_for
from .records import CHECKSUM, EpochRecord, RunResult, all_known, known, write_result
from .targets import Scaling, check_learnable, targets_of, with_targets

#: Share of a metric that rounding may add: a mean of the same values in another order differs so.
_ROUNDING = 1e-12
SAVE_EVERY_SECONDS = 5.0  # between checkpoints; an interrupt loses no finished epoch all the same

_MODES: dict[str, Any] = {
    "full": "full",
    "random": "random",
    "grant-b": "batch",
    "grant-s": "graph",
    "grant-global": "global",
    PROPORTIONAL: "proportional",
}

#: The sum of the losses of some graphs' labels, and how many labels there are.
Sums = tuple[Tensor, Tensor | int]


@dataclasses.dataclass
class _Totals:
    """What adds up over epochs; see `EpochRecord`."""

    epoch: int = 0
    graphs_seen: int = 0
    train_seconds: float = 0.0
    selection_seconds: float = 0.0
    valid_seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class _Best:
    """The weights that were best by validation, so far."""

    metric: float
    epoch: int
    weights: dict[str, Tensor]


class Trainer:
    """Trains a FlexGCN on a dataset under a teacher, into a folder.

    The folder holds `config.json`, `metrics.csv` (one row an epoch), `last.pt` and `best.pt`, and
    at the end `result.json`. Initial weights depend on the config's seed alone, and so does the
    order of the graphs, of which each arm serves those that it picked (see `GraNTSampler`).
    PyTorch's global random state is left as it was; runs in several threads of one process, which
    share it, wait for each other.

    Args:
        dataset: graphs, task and split.
        config: everything else that defines the run.
        run_dir: where to write; made if it is not there.
        resume: go on from `last.pt` in the folder, if there is one; with the arm "full" for more
            epochs, or with more patience, than before, if the config says so. Where a run begins,
            `fit` first removes what an earlier one left there.

    Raises:
        InputError: the config does not fit the data, the device or the folder's checkpoint.
    """

    def __init__(
        self, dataset: Dataset, config: RunConfig, run_dir: str | Path, *, resume: bool = False
    ) -> None:
        self.config, self.run_dir, self.task = config, Path(run_dir), dataset.task
        self.metric = config.metric_of(dataset.metric)
        check_metric(self.metric, self.task)
        self._higher_is_better = higher_is_better(self.metric)
        self._device = resolve_device(config.device)
        dataset = dataset.grouped()
        check_learnable(dataset)
        self._checksum = dataset.checksum
        self._data = dataset.summary | {CHECKSUM: self._checksum}
        split = {name: ids.cpu() for name, ids in dataset.split.items()}
        self._train_ids = split["train"]
        graphs = dataset.graphs.to(self._device)
        scaled = config.standardize and self.task.kind == "regression"
        scaling = Scaling.fit(targets_of(graphs, self._train_ids)) if scaled else None
        elements: tuple[int, ...] = ()
        if dataset.encoder == "atom":
            elements = elements_of(take(graphs.x, graphs.batch(self._train_ids).nodes))
        self.spec = ModelSpec(
            graphs.num_features, dataset.encoder, self.task, scaling, dataset.targets, elements
        )
        self._what = {  # of each state, which are many
            "config": config.to_dict(),
            "spec": self.spec.to_dict(),
            "data": self._checksum,
            "metric": self.metric,
        }
        self.model = build_model(config, self.spec).to(self._device)
        dtype = next(self.model.parameters()).dtype
        self._graphs = with_targets(graphs, self.spec.encode).to(dtype)
        self._parameters = list(self.model.parameters())  # which each step would look for anew
        on = recording_device(self.model)
        decay = config.weight_decay
        self._optimizer = AdamW(self._parameters, config.lr, decay, recorded=on is not None)
        self._rate = LearningRate(self._optimizer, config, self.metric)
        self._sampler = _sampler(config, self._graphs, self.task, self._train_ids)
        self._passes = Passes(self._graphs, self._sampler, self.model, config)
        y = {name: targets_of(graphs, ids) for name, ids in split.items()}
        weighted = config.arm in WEIGHTED
        self._complete = not weighted and bool(measured(y["train"], self.task).all())
        self._evaluator = Evaluator(self._graphs, split, y, self.metric, self.spec, Recorder(on))
        # New loss weights are uploaded in each step, which a recorded graph cannot.
        on = None if weighted else on
        self._epochs: Recorder[tuple[int, Sums]] = Recorder(on)
        room, make_room = None, partial(room_for, self.model, self._graphs, self._train_ids)
        if on is not None and config.step_every == "batch":
            room = make_room(min(config.batch_size, len(self._train_ids)))
        self._steps: BatchRecorder[Sums] = BatchRecorder(on, room, make_room)
        self._totals = _Totals()
        self._best: _Best | None = None
        self.history: list[EpochRecord] = []
        self._rng: dict[str, Tensor] | None = None
        if resume and (state := load_state(self.run_dir, config, self._checksum, self.metric)):
            with taken_from(self.run_dir / LAST_FILE):
                self._restore(state)

    @property
    def epoch(self) -> int:
        """How many epochs are done."""
        return self._totals.epoch

    def fit(self, observer: Observer | None = None) -> RunResult:
        """Train to the end, test, and write everything down.

        Interrupted at any moment (Ctrl-C, an observer's exception), it leaves the state after the
        last whole epoch in the folder and passes the exception on; resuming gives the very result
        of an unbroken run.

        Raises:
            InputError: the loss is no longer finite, or the folder cannot be written.
        """
        observer = observer or Observer()
        make_folder(self.run_dir)
        with self._random_stream():
            fresh = self.epoch == 0
            prepare_folder(self.run_dir, self.config, fresh=fresh, done=self._is_done)
            observer.started(self.config, self.run_dir, self.epoch)
            boundary = self._state()
            saved = time.monotonic()
            try:
                while not self._is_done:
                    record = self._run_epoch()
                    boundary = self._state()
                    observer.epoch_done(record)
                    if time.monotonic() - saved > SAVE_EVERY_SECONDS:
                        save_state(self.run_dir, boundary)
                        saved = time.monotonic()
            except BaseException:  # Ctrl-C, an observer that stops the run, a loss of NaN
                save_state(self.run_dir, boundary)
                raise
            save_state(self.run_dir, boundary)
            result = self._finish()
        observer.finished(result)
        return result

    @property
    def _is_done(self) -> bool:
        return self._visits_left == 0 or self.epoch >= self.config.epochs or self._is_in_vain

    @property
    def _is_in_vain(self) -> bool:
        """Whether `config.patience` has run out."""
        if self.config.patience is None or self._best is None:
            return False
        return self.epoch - self._best.epoch >= self.config.patience * self.config.eval_every

    def _run_epoch(self) -> EpochRecord:
        """Train, then validate if it is time to."""
        totals = self._totals
        start = clock(self._device)
        if self._sampler.select(self.model, self.epoch):
            self._rate.restart()
        selected = clock(self._device)
        seen, train_loss = self._train()
        trained = clock(self._device)
        totals.selection_seconds += selected - start
        totals.train_seconds += trained - start
        totals.graphs_seen += seen
        totals.epoch += 1
        valid_loss = valid_metric = math.nan
        if totals.epoch % self.config.eval_every == 0 or self._is_done:
            valid_loss, valid_metric = self._evaluate("valid")
            self._keep_if_best(valid_metric)
            self._rate.step(valid_metric)
            totals.valid_seconds += clock(self._device) - trained
        record = EpochRecord(
            **vars(totals),
            share=seen / len(self._train_ids),
            loss=train_loss,
            valid_loss=known(valid_loss),
            valid_metric=known(valid_metric),
        )
        self.history.append(record)
        return record

    def _train(self) -> tuple[int, float]:
        """One pass over what is selected: graphs visited, and the mean loss of a label.

        Nothing in the loop waits for the device; the loss is read once, at the end.
        """
        self.model.train()
        self._optimizer.tell_rate()
        passes = self._passes(self._visits_left)
        with unchanging(self.model):
            if self.config.step_every == "batch":
                seen, (total, count) = self._sum(passes, self._step_on)
            else:
                seen, (total, count) = self._epochs(lambda: self._epoch_step(passes), passes)
        mean = float(total / at_least_one(count))
        if not math.isfinite(mean):
            raise self._diverged(f"the training loss is {mean}")
        return seen, mean

    def _sum(
        self, passes: Iterable[Pass], visit: Callable[[Tensor, GraphBatch], Sums]
    ) -> tuple[int, Sums]:
        """Graphs visited, and what the visits of the passes add up to."""
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        count: Tensor | int = 0 if self._complete else torch.zeros_like(total)
        seen = 0
        for ids, batch in passes:
            part, labels = visit(ids, batch)
            total += part
            count += labels
            seen += len(ids)
        return seen, (total, count)

    def _step_on(self, ids: Tensor, batch: GraphBatch) -> Sums:
        return self._steps(partial(self._batch_step, ids), batch)

    def _batch_step(self, ids: Tensor, batch: GraphBatch) -> Sums:
        """A step by the mean over a batch's labels."""
        self._optimizer.zero_grad()  # of what a recording began in vain
        part, labels = self._summed_loss(ids, batch)
        backward_of_mean(part, labels)
        self._step()
        return part.detach(), labels

    def _epoch_step(self, passes: Iterable[Pass]) -> tuple[int, Sums]:
        """A step by the mean over all selected labels; and what `_sum` gives."""

        def visit(ids: Tensor, batch: GraphBatch) -> Sums:
            part, labels = self._summed_loss(ids, batch)
            part.backward()
            return part.detach(), labels

        self._optimizer.zero_grad()
        seen, (total, count) = self._sum(passes, visit)
        given = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        by = at_least_one(count)  # which, of another dtype than theirs, is slow on a GPU
        torch._foreach_div_(given, by.to(given[0].dtype) if isinstance(by, Tensor) else by)
        self._step()
        return seen, (total, count)

    def _summed_loss(self, ids: Tensor, batch: GraphBatch) -> Sums:
        """The sum of a batch's losses, and how many labels that is of; graphs may have weights."""
        pred, y = self.model(batch), batch.y
        assert y is not None  # `check_learnable` has seen to that
        if self.config.arm not in WEIGHTED:
            return summed_loss(pred, y, self.task, complete=self._complete)
        losses, labels = graph_losses(pred, y, self.task, batch.ptr)
        if isinstance(self._sampler, InfoBatchSampler):
            self._sampler.observe(ids, losses.detach() / labels.clamp(min=1))
        weights = upload(self._sampler.weights(ids), self._device)
        return (weights * losses).sum(), (weights * labels).sum()

    def _step(self) -> None:
        if self.config.clip is not None:
            torch.nn.utils.clip_grad_norm_(self._parameters, self.config.clip)
        self._optimizer.step()
        self._optimizer.zero_grad()

    @property
    def _visits_left(self) -> int | None:
        visits = self.config.visits
        return None if visits is None else visits - self._totals.graphs_seen

    def _keep_if_best(self, metric: float) -> None:
        best = self._best
        if best is not None and math.isfinite(best.metric):
            gain = metric - best.metric if self._higher_is_better else best.metric - metric
            if not gain > _ROUNDING * abs(metric):  # the first of equal ones stays
                return
        self._best = _Best(metric, self.epoch, copied(self.model.state_dict()))

    def _finish(self) -> RunResult:
        """Test the last weights and the best ones, and write the result."""
        assert self._best is not None
        last = copied(self.model.state_dict())
        _, test_metric_last = self._evaluate("test")
        load_weights(self.model, self._best.weights, BEST_FILE)
        test_loss, test_metric = self._evaluate("test")
        metrics, each = self._evaluator.details(self.model, "test")
        constants = self._evaluator.constant_metrics("test")
        load_weights(self.model, last, LAST_FILE)
        result = RunResult(
            arm=self.config.label,
            seed=self.config.seed,
            metric=self.metric,
            higher_is_better=self._higher_is_better,
            test_metric=known(test_metric),
            test_metric_last=known(test_metric_last),
            test_loss=known(test_loss),
            valid_metric=known(self._best.metric),
            best_epoch=self._best.epoch,
            epochs=self._totals.epoch,
            graphs_seen=self._totals.graphs_seen,
            train_seconds=self._totals.train_seconds,
            selection_seconds=self._totals.selection_seconds,
            valid_seconds=self._totals.valid_seconds,
            constant_loss=known(self._evaluator.constant_loss("valid")),
            test_metrics=all_known(metrics),
            test_metrics_each={target: all_known(values) for target, values in each.items()},
            constant_metric=known(constants[self.metric]),
            constant_metrics=all_known(constants),
        )
        made_on: dict[str, Any] = {"torch": torch.__version__, "device": str(self._device)}
        made_on["threads"] = torch.get_num_threads()
        write_result(self.run_dir, result, self._data, made_on)
        return result

    def _evaluate(self, part: str) -> tuple[float, float]:
        try:
            return self._evaluator(self.model, part)
        except InputError as error:
            raise self._diverged(str(error)) from error

    # The state of a run, in memory and on disk.

    def _state(self) -> dict[str, Any]:
        """A copy of everything that the run's future depends on."""
        rng = {"cpu": torch.get_rng_state()}
        if self._device.type == "cuda":
            rng["cuda"] = torch.cuda.get_rng_state(self._device)
        return self._what | {
            "model": copied(self.model.state_dict()),
            "optimizer": copied(self._optimizer.state_dict()),
            "rate": self._rate.state_dict(),
            "sampler": self._sampler.state_dict(),
            "totals": dict(vars(self._totals)),
            "history": list(self.history),
            "best": None if self._best is None else vars(self._best),
            "rng": rng,
        }

    def _restore(self, state: dict[str, Any]) -> None:
        load_weights(self.model, state["model"], self.run_dir / LAST_FILE)
        load_optimizer(self._optimizer, state["optimizer"])
        self._rate.load_state_dict(state["rate"])
        self._sampler.load_state_dict(state["sampler"])
        self._totals = _Totals(**state["totals"])
        if not all(isinstance(total, (int, float)) for total in state["totals"].values()):
            raise TypeError("totals are numbers")
        self.history = [EpochRecord(*values) for values in state["history"]]
        self._best = None if state["best"] is None else _Best(**state["best"])
        self._rng = state["rng"]
        torch.Generator().set_state(self._rng["cpu"])  # or refuse it now

    @contextmanager
    def _random_stream(self) -> Iterator[None]:
        """The run's own random numbers (dropout), apart from the caller's."""
        cuda = [self._device] if self._device.type == "cuda" else []
        with RANDOM, torch.random.fork_rng(devices=cuda):
            torch.default_generator.manual_seed(self.config.seed)
            if cuda:
                torch.cuda.default_generators[self._device.index].manual_seed(self.config.seed)
            if self._rng is not None:
                torch.set_rng_state(self._rng["cpu"])
                if cuda and "cuda" in self._rng:  # not where a CPU began the run
                    torch.cuda.set_rng_state(self._rng["cuda"], self._device)
            yield

    def _diverged(self, what: str) -> InputError:
        config, culprit = self.config, "lr"
        if config.weight_decay > config.lr and config.lr * config.weight_decay > 1:
            # A step then overshoots 0.
            culprit = "weight_decay"
        elif config.lr_restart is not None and config.lr_restart > config.lr:
            culprit = "lr_restart"
        unscaled = self.task.kind == "regression" and self.spec.scaling is None
        return InputError(
            f"training diverged after {self.epoch} of {config.epochs} epochs: {what}; "
            + ("standardize the targets, " if unscaled else "")
            + f"lower {culprit} (now {getattr(config, culprit):g}), or set clip to bound the "
            f"gradient (and give {option('overwrite', True)} where the folder keeps this run)"
        )


def _sampler(
    config: RunConfig, graphs: PackedGraphs, task: Task, ids: Tensor
) -> GraNTSampler | InfoBatchSampler:
    """Who picks the graphs at `ids`."""
    if config.arm == INFOBATCH:
        return InfoBatchSampler(ids, config.batch_size, epochs=config.epochs, seed=config.seed)
    return GraNTSampler(
        graphs,
        task,
        config.batch_size,
        epochs=config.epochs,
        mode=_MODES[config.arm],
        start_ratio=config.start_ratio,
        ratio_schedule=config.ratio_schedule,  # type: ignore[arg-type]
        interval=config.interval,  # type: ignore[arg-type]
        ids=ids,
        seed=config.seed,
    )
