"""Work that a GPU repeats: recorded once, as a CUDA graph, then replayed.

By the bytes that it moves, an epoch of one step over a few ten thousand molecules should take a GPU
less than Python takes to start its kernels one by one; a step over some hundred, far less. The
graphs of a batch change from step to step, but a `PaddedBatch` holds them in the same memory, so
that one recording serves all steps.
"""

import gc
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from operator import is_not
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor, nn

from ..batches import GraphBatch
from ..batches.padded import PaddedBatch
from ..graphs import PackedGraphs
from ..nn import BatchNorm, FlexGCN
from ..nn.checks import embeds_kinds, is_hooked
from ..nn.modules import ACTIVATIONS
from ..ops.dispatch import is_fused, takes_kernels

Result = TypeVar("Result")
#: Sizes beside the usual one that have room at the same time: an epoch ends with two at the most
#: (`teaching.order.batch_sizes`), which change with the selection.
MOST_OTHERS = 2


class Recorder(Generic[Result]):
    """Does work, and records what is asked for twice in a row.

    Args:
        device: a GPU; None does all work as it comes. See `recording_device`.
    """

    def __init__(self, device: torch.device | None) -> None:
        self.device = device  # None from where it has failed to record
        self.failure: Exception | None = None
        self._subjects: tuple[object, ...] = ()
        self._recorded: tuple[Any, Result] | None = None

    @property
    def is_replaying(self) -> bool:
        """Whether the last work was recorded, and is replayed from now on."""
        return self._recorded is not None

    def __call__(self, work: Callable[[], Result], *subjects: object) -> Result:
        """The result of `work`. Once recorded, every call returns the same tensors, refilled.

        Args:
            subjects: what the work is done on. While they are the same objects, `work` must start
                the same kernels on the same memory, and wait for nothing. It may be begun in vain,
                where the device cannot record it, and is then done as it comes from there on.
        """
        if self.device is None:
            return work()
        if len(subjects) != len(self._subjects) or any(map(is_not, subjects, self._subjects)):
            # Not recorded yet: a first time compiles kernels and fills caches. An old one is freed.
            self._subjects, self._recorded = subjects, None
            return work()
        if self._recorded is None:
            try:
                self._recorded = record(work, self.device)
            except RuntimeError as error:
                warnings.warn(
                    f"{self.device} could not record a step as a CUDA graph ({error}): training "
                    "goes on without, which is slower",
                    stacklevel=2,
                )
                self.device, self.failure = None, without_frames(error)
        if self._recorded is None:
            return work()
        graph, result = self._recorded
        graph.replay()
        return result

    def forget(self) -> None:
        """Record anew what was recorded, should it be asked for twice in a row again."""
        self._subjects, self._recorded = (), None


class BatchRecorder(Generic[Result]):
    """Does work on batches: by one recording those that fit into a room, one by one the others.

    Those of other sizes have rooms and recordings of their own: in a small set, to start the
    kernels of a shorter last batch one by one should take longer than all other batches. Whether a
    batch has room does not depend on those before it, or a resumed run would draw other numbers for
    its dropout.

    Args:
        device: as of a `Recorder`.
        room: see `room_for`; None where there is none.
        make_room: makes room for another number of graphs.
    """

    def __init__(
        self,
        device: torch.device | None,
        room: PaddedBatch | None,
        make_room: Callable[[int], PaddedBatch | None],
    ) -> None:
        self.usual = Recorder[Result](device)  # of batches that fill the room
        self.room, self._make_room = room, make_room
        self._others: dict[int, BatchRecorder[Result]] = {}

    def __call__(
        self, work: Callable[[GraphBatch], Result], batch: GraphBatch, *subjects: object
    ) -> Result:
        """The result of `work` on the batch, or on the room filled with the same graphs; `subjects`
        beside the batch as of a `Recorder`."""
        room = self.room
        if room is None:
            return work(batch)
        if len(batch) != len(room):
            return self._of_another_size(work, batch, subjects)
        if not room.fill(positions := batch.positions):
            return work(batch)

        def anew() -> Result:
            room.hold(positions)  # what a recording in vain derived, no kernel has filled
            return work(room)

        result = self.usual(anew, room, *subjects)
        if self.usual.failure is not None:
            self._others.clear()  # see `record`
        return result

    def _of_another_size(
        self, work: Callable[[GraphBatch], Result], batch: GraphBatch, subjects: tuple[object, ...]
    ) -> Result:
        size = len(batch)
        if size not in self._others:
            if len(self._others) == MOST_OTHERS:
                self._others.clear()
            room = self._make_room(size)
            self._others[size] = BatchRecorder(self.usual.device, room, self._make_room)
        other = self._others[size]
        is_first, result = other.usual.failure is None, other(work, batch, *subjects)
        if is_first and other.usual.failure is not None:
            self.usual.forget()  # see `record`
        return result


def recording_device(model: FlexGCN) -> torch.device | None:
    """The GPU on which kernels compute `model`, never waiting for it, as a recording asks; None
    where there is none, or hooks that a replay would pass over."""
    weight = model.convs[0].weight
    assert isinstance(weight, torch.Tensor)
    if any(map(is_hooked, model.modules())) or not takes_kernels(weight, model.backend):
        return None
    return weight.device if weight.is_cuda else None


def room_for(model: FlexGCN, graphs: PackedGraphs, ids: Tensor, size: int) -> PaddedBatch | None:
    """Room for any `size` of the graphs at `ids`, to train a `build_model` by the kernels.

    None where something other than the kernels would sum over rows, and so over padding: graphs not
    kept as bits, node-level targets, another pooling, wide layers, no hidden layer, gathered X, a
    norm that they do not know, an activation or a dropout that may learn or mix rows.
    """
    weights = [cast(Tensor, conv.weight) for conv in model.convs[:-1]]
    if type(model) is not FlexGCN or not weights or not all(map(is_fused, weights)):
        return None
    if graphs.bits is None or graphs.y_level != "graph" or model.pool not in ("mean", "sum"):
        return None
    if type(model.act) not in (*ACTIVATIONS.values(), nn.Identity):
        return None
    if not all(type(dropout) is nn.Dropout for dropout in model.dropouts):
        return None
    if not all(map(_is_of_kernels, model.norms)):
        return None
    if model.encoder is None:
        in_place = graphs.x.dtype == weights[0].dtype
    else:
        in_place = embeds_kinds(model.encoder) and graphs.kinds is not None
    return PaddedBatch(graphs, ids, size) if in_place else None


def _is_of_kernels(norm: nn.Module) -> bool:
    return type(norm) is nn.Identity or (type(norm) is BatchNorm and norm.kernels_know_it)


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Where a device's work is recorded; for each stream that it sees, cuBLAS keeps its memory."""
    stream = torch.cuda.Stream(device)
    if torch.version.hip is not None:
        # There each thread has a handle to the BLAS for each stream, which cannot be made while it
        # is recorded: this one's, and the one's that computes gradients.
        with torch.cuda.device(device), torch.cuda.stream(stream), torch.enable_grad():
            weight = torch.ones(16, 16, device=device, requires_grad=True)
            nn.functional.linear(weight, weight).sum().backward()
        stream.synchronize()
    return stream


@contextmanager
def _uncollected() -> Iterator[None]:
    """Nothing is collected for a time, but right before."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def without_frames(error: Exception) -> Exception:
    """An error to keep, and nothing of what was computed where it and its causes were raised."""
    chain: list[BaseException | None] = [error]
    while chain:
        if (each := chain.pop()) is not None and each.__traceback__ is not None:
            traceback.clear_frames(each.__traceback__)
            each.__traceback__ = None
            chain += each.__cause__, each.__context__
    return error


def record(work: Callable[[], Result], device: torch.device) -> tuple[Any, Result]:
    """A CUDA graph of `work`, and its result, whose tensors only a replay fills.

    The work pins no memory. Where it fails, graphs that draw random numbers are to be recorded
    anew: those of before would draw what others draw, too.
    """
    graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream(device)
    pool, stream = torch.cuda.graph_pool_handle(), _stream(device)
    random = torch.cuda.get_rng_state(device)
    try:
        # No other thread spoils it, nor the collector, which may free a graph that is left over.
        with (
            _uncollected(),
            torch.cuda.device(device),
            torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"),
        ):
            result = work()
    except BaseException:
        # After a failed capture torch stays on the capture stream, its allocator takes the capture
        # for one that goes on, and refuses to empty its cache, as each later recording does first;
        # and its generator stays registered with the graph. So go back to the stream before (which
        # makes its device the current one), end the allocating (an error where it has ended), let
        # go of the memory unless the graph is whole and will, and give the generator a new state,
        # which says what the old one did.
        with torch.cuda.device(torch.cuda.current_device()):
            torch.cuda.set_stream(before)
        private = suppress(RuntimeError, AttributeError)  # another torch may lack these
        with private:
            torch._C._cuda_endAllocateToPool(before.device_index, pool)
        try:
            graph.pool()
        except RuntimeError:
            with private:
                torch._C._cuda_releasePool(before.device_index, pool)
        generator = torch.cuda.default_generators[before.device_index]
        generator.graphsafe_set_state(torch.Generator(device))
        generator.set_state(random)
        _stream.cache_clear()
        raise
    return graph, result
