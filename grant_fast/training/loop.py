"""The steps of a training loop of one's own, recorded on a GPU as the trainer's are."""

import warnings
from collections.abc import Callable
from functools import partial
from operator import is_
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor, nn

from ..batches import GraphBatch
from ..batches.padded import NodesAskedFor
from ..errors import InputError, whole_number
from ..graphs import PackedGraphs
from ..indexing import Positions
from ..nn import FlexGCN
from ..nn.checks import is_hooked
from .recording import BatchRecorder, recording_device, room_for, without_frames

Given = TypeVar("Given")  # by a step, such as its loss
#: Settings that are the same where they are equal.
_VALUES = (bool, int, float, str, tuple, type(None))


def record_steps(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    graphs: PackedGraphs,
    batch_size: int,
    *,
    ids: Positions | None = None,
) -> Callable[[Callable[[GraphBatch], Given]], "RecordedSteps[Given]"]:
    """A decorator for a function that takes a training step on a batch of packed graphs.

    Python should take longer to start the kernels of a step over some hundred graphs than a GPU to
    run them. So where the Triton kernels compute a `FlexGCN`, one of the first steps is recorded,
    as a CUDA graph, and replayed for all batches from then on. Elsewhere, and for a batch that
    cannot be recorded, the function is called as it is. ::

        @record_steps(model, optimizer, graphs, batch_size=500)
        def step(batch):
            value = loss(model(batch), batch.y, task)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            return value

        for ids in sampler:
            value = step(graphs.batch(ids))

    A replay runs no Python. So the function must do the same for every batch, of which it may use
    `y` and `ids` beside what the model does, and wait for nothing, as it would for `.item()` or the
    rows in a mask. It must not rely on gradients of earlier steps. Between steps, whatever lies in
    memory may change: weights are loaded in place, say. Where something else does (a learning rate
    that is a number, other settings of the optimizer or a module, which parameters learn,
    `graphs.y`), the next step is not replayed, and the one after it recorded anew. A rate that
    changes with each step should therefore be a tensor on the GPU, as in `Adam(model.parameters(),
    fused=True, lr=torch.tensor(0.01, device="cuda"))`; PyTorch's schedulers write to it.

    Args:
        model: what the function trains; only a `FlexGCN` in training mode, without hooks, is
            recorded, and not under autocast.
        optimizer: of the model, whose `step` the function calls. Where steps are recorded, it is
            made `capturable`, if PyTorch has that for it.
        graphs: the data set that all batches are of.
        batch_size: graphs in a batch. Two other sizes at a time have recordings of their own.
        ids: positions of the graphs that batches are drawn from, or a mask; all if None. Memory is
            set aside for half as many nodes again as they have on average.

    Returns:
        A decorator, which makes the function a `RecordedSteps`.

    Raises:
        InputError: a batch size or positions that make no sense. When the step is called, on any
            device: it has not called `optimizer.step()`, or its batch is of other graphs.
    """
    drawn = graphs.batch(slice(None) if ids is None else ids).positions
    size = min(whole_number("batch_size", batch_size), len(drawn))
    return lambda work: RecordedSteps(work, model, optimizer, graphs, size, drawn)


class RecordedSteps(Generic[Given]):
    """A function that takes training steps, see `record_steps`; it is called like that function.

    Whatever tensors the function gives are given detached, as copies that no later step changes.

    Raises:
        InputError: when called, with a batch of something other than the data set; or if the
            function has not called the optimizer's `step`, which a replay would then never do.
    """

    def __init__(
        self,
        work: Callable[[GraphBatch], Given],
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        graphs: PackedGraphs,
        size: int,
        ids: Tensor,
    ) -> None:
        self._work, self._optimizer, self._graphs = work, optimizer, graphs
        self._modules = list(model.modules())
        on = recording_device(model) if type(model) is FlexGCN else None
        make_room = partial(room_for, cast(FlexGCN, model), graphs, ids)
        room = None if on is None else make_room(size)
        self._steps: BatchRecorder[Given] = BatchRecorder(on, room, make_room)
        self._settings: tuple[list[Any], list[Any]] = [], []
        #: What each module is set to in numbers and words, such as the rate of a dropout.
        self._attributes = [
            (vars(module), [k for k, v in vars(module).items() if isinstance(v, _VALUES)])
            for module in self._modules
        ]

    @property
    def is_replaying(self) -> bool:
        """Whether the last step on a batch of the usual size was recorded, and is replayed now."""
        return self._steps.usual.is_replaying

    @property
    def failure(self) -> Exception | None:
        """Why steps are not recorded, if that was tried in vain."""
        return self._steps.usual.failure

    def __call__(self, batch: GraphBatch) -> Given:
        """Take a step on a batch, and give what the function gives."""
        if not isinstance(batch, GraphBatch) or batch.graphs is not self._graphs:
            raise InputError(
                "the batch is not of the data set that record_steps was given: call the step with "
                "graphs.batch(positions)"
            )
        if self._steps.room is None or not all(map(_is_as_recorded, self._modules)):
            return self._step_on(batch)
        if not self._are_settings(self._settings_now()):
            _make_capturable(self._optimizer)
            self._settings = self._settings_now()
        try:
            return _each(Tensor.clone, self._steps(self._step_on, batch, self._settings))
        except NodesAskedFor as error:
            self._steps.room, self._steps.usual.failure = None, without_frames(error)
            why = f"steps go on without being recorded, which is slower: {error}"
            warnings.warn(why, stacklevel=2)
        return self._step_on(batch)

    def _step_on(self, batch: GraphBatch) -> Given:
        self._optimizer.zero_grad()  # of what a recording began in vain
        steps: list[Any] = []
        hook = self._optimizer.register_step_post_hook(lambda *_: steps.append(True))
        try:
            given = self._work(batch)
        except NodesAskedFor as error:
            if steps:  # it cannot be taken again
                raise InputError(f"{error}: ask for it before optimizer.step()") from error
            raise
        finally:
            hook.remove()
        if not steps:
            raise InputError(
                "the function that record_steps was given has not called optimizer.step(): a "
                "replay does what the function does, so let it take the whole step"
            )
        return _each(Tensor.detach, given)  # or what autograd made would outlive a recording

    def _settings_now(self) -> tuple[list[Any], list[Any]]:
        """All that may change between steps and what is recorded would not see: values, and objects
        of which there is one each."""
        values: list[Any] = []
        for module in self._modules:  # whose `parameters()` would take most of the time
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                if tensor is not None:
                    values += tensor.data_ptr(), tensor.requires_grad
        for table, names in self._attributes:
            values += map(table.get, names)
        objects: list[Any] = [self._graphs.y]
        for group in self._optimizer.param_groups:
            objects += group["params"]
            for name, value in group.items():
                if name != "params":
                    self._add(value, values, objects)
        for state in self._optimizer.state.values():  # some optimizers count steps in Python
            for value in state.values():
                self._add(value, values, objects)
        return values, objects

    def _add(self, setting: Any, values: list[Any], objects: list[Any]) -> None:
        """Of a number on the host a recording would keep the value, as of Python's own."""
        if isinstance(setting, _VALUES):
            values.append(setting)
        elif isinstance(setting, Tensor) and setting.device.type != self._graphs.device.type:
            values.append(setting.tolist())
        else:
            objects.append(setting)

    def _are_settings(self, now: tuple[list[Any], list[Any]]) -> bool:
        values, objects = self._settings
        same = now[0] == values and len(now[1]) == len(objects)
        return same and all(map(is_, now[1], objects))


def _is_as_recorded(module: nn.Module) -> bool:
    return module.training and not is_hooked(module)


def _make_capturable(optimizer: torch.optim.Optimizer) -> None:
    """Have an optimizer count its steps where its parameters are, which a CUDA graph can record."""
    # Else PyTorch warns of each that does so while it is not recorded, as the first steps are.
    optimizer._warned_capturable_if_run_uncaptured = True
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = True
    for parameter, state in optimizer.state.items():
        if isinstance(state.get("step"), Tensor):
            state["step"] = state["step"].to(parameter.device)


def _each(change: Callable[[Tensor], Tensor], given: Any) -> Any:
    """What a step gives, with its tensors changed."""
    if isinstance(given, tuple):
        return tuple(_each(change, one) for one in given)
    return change(given) if isinstance(given, Tensor) else given
