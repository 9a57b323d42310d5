"""What a CUDA graph can record, judged operator by operator, and one on the CPU; what a device is
asked for."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

READS_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class Recording(TorchDispatchMode):
    """Refuses whatever operator a CUDA graph could not record."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if READS_VALUES & set(func.tags) and not _knows_its_size(func, args, kwargs):
            raise AssertionError(f"{func} depends on values")
        out = func(*args, **kwargs)
        leaves = [t for t in tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor)]
        devices = {t.device.type for t in leaves}
        if len(devices) > 1:
            raise AssertionError(f"{func} goes between {devices}")
        return out


def _knows_its_size(func, args, kwargs) -> bool:
    """Whether an operator whose result may depend on values does not do so as it is called."""
    if func is torch.ops.aten.repeat_interleave.Tensor:
        return kwargs.get("output_size") is not None
    if func is torch.ops.aten.index.Tensor:
        return not any(i is not None and i.dtype == torch.bool for i in args[1])
    return False


class Asked(TorchDispatchMode):
    """Counts what a device other than the CPU is asked for, each of which costs its launch.

    copies: from or to the host.  launches: operators that do more than give another view of memory,
    or new memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.copies = self.launches = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = _tensors((args, kwargs))
        out = func(*args, **(kwargs or {}))
        devices = {t.device.type for t in (*given, *_tensors(out))}
        known = {t.untyped_storage()._cdata for t in given}
        does = func._schema.is_mutable or any(
            t.untyped_storage()._cdata not in known for t in _tensors(out)
        )
        if len(devices) > 1:
            self.copies += 1
        elif devices != {"cpu"} and does and "empty" not in func._schema.name:
            self.launches += 1
        return out


class Tape(Recording):
    """A CUDA graph on the CPU: what is recorded is undone, and a replay runs it in its memory.

    As of a CUDA graph, a replay takes new values from the tensors of the recording, and new random
    numbers; and it knows nothing of what the recorded work did beside operators, but for kernels
    that were started through `starting`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._steps: list[tuple[Any, Any, Any, list[torch.Tensor]]] = []
        self._own: set[int] = set()  # memory that the recording made
        self._before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def __enter__(self):
        self._random = torch.get_rng_state()
        return super().__enter__()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        for storage in _memory((args, kwargs)):
            if storage.data_ptr() not in self._own | self._before.keys():
                self._before[storage.data_ptr()] = storage, storage.clone()
        out = super().__torch_dispatch__(func, types, args, kwargs)
        self._own |= {storage.data_ptr() for storage in _memory(out)} - self._before.keys()
        self._steps.append((func, args, kwargs or {}, _tensors(out)))
        return out

    def starting(self, start: Callable[[], None]) -> None:
        """Start a kernel outside any operator; it must write memory alone that the tape made."""
        with _disable_current_modes():
            start()
        self._steps.append((start, (), {}, []))

    def __exit__(self, *error):
        super().__exit__(*error)
        torch.set_rng_state(self._random)
        for storage, before in self._before.values():
            storage.copy_(before)
        for *_, results in self._steps:
            for tensor in results:
                if tensor.untyped_storage().data_ptr() in self._own and tensor.is_floating_point():
                    tensor.detach().fill_(torch.nan)  # not there before a replay

    def replay(self) -> None:
        with torch.no_grad():
            for func, args, kwargs, results in self._steps:
                for old, new in zip(results, _tensors(func(*args, **kwargs)), strict=True):
                    if new.data_ptr() != old.data_ptr():  # else a view, or changed in place
                        old.copy_(new)


def _tensors(values) -> list[torch.Tensor]:
    return [t for t in tree_leaves(values) if isinstance(t, torch.Tensor)]


def _memory(values) -> list[torch.UntypedStorage]:
    return [tensor.untyped_storage() for tensor in _tensors(values)]
