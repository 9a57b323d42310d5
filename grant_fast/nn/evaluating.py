"""A model, or any function, in evaluation mode."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from ..native.network import ACTIVATIONS
from .checks import is_hooked

_OURS = f"{__name__.partition('.')[0]}."
#: PyTorch's parts of our networks.
_QUIET = {nn.ModuleList, nn.Sequential, nn.Linear, nn.LayerNorm, nn.Dropout, *ACTIVATIONS}


@contextmanager
def evaluating(model: Any, alone: bool = False) -> Iterator[None]:
    """Evaluation mode without gradients; each submodule's own mode and the random state return.

    Args:
        alone: nothing else than the model is called. The random state, which is one for all
            threads, is then left alone if none of its modules draws.
    """
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    modes = [module.training for module in modules]
    device = device_of(model)
    cuda = [device] if device is not None and device.type == "cuda" else []
    quiet = alone and _draw_nothing(modules)
    drawing = nullcontext() if quiet else torch.random.fork_rng(devices=cuda)
    # no_grad, not inference_mode: what a model or dataset caches here must serve training too.
    with drawing, torch.no_grad():
        try:
            if isinstance(model, nn.Module):
                model.eval()
            yield
        finally:
            for module, mode in zip(modules, modes, strict=True):
                if module.training != mode:  # a module may do more there than note the mode
                    module.train(mode)
            for module, mode in zip(modules, modes, strict=True):
                module.training = mode  # of one that several share, too


def _draw_nothing(modules: list[nn.Module]) -> bool:
    """Whether these, in evaluation mode, are known to draw no random numbers."""
    kinds = {type(module) for module in modules}
    known = all(kind in _QUIET or kind.__module__.startswith(_OURS) for kind in kinds)
    return bool(modules) and known and not any(map(is_hooked, modules))


def device_of(model: Any) -> torch.device | None:
    """Where a module's first parameter is; None without one."""
    if not isinstance(model, nn.Module):
        return None
    tensor = next(model.parameters(), None)
    return None if tensor is None else tensor.device
