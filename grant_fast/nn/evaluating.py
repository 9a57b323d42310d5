"""A model, or any function, in evaluation mode."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Evaluation mode without gradients; each submodule's own mode and the random state return."""
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    modes = [module.training for module in modules]
    device = device_of(model)
    cuda = [device] if device is not None and device.type == "cuda" else []
    # no_grad, not inference_mode: what a model or dataset caches here must serve training too.
    with torch.random.fork_rng(devices=cuda), torch.no_grad():
        if isinstance(model, nn.Module):
            model.eval()
        try:
            yield
        finally:
            for module, mode in zip(modules, modes, strict=True):
                if module.training != mode:  # a module may do more there than note the mode
                    module.train(mode)
            for module, mode in zip(modules, modes, strict=True):
                module.training = mode  # of one that several share, too


def device_of(model: Any) -> torch.device | None:
    """Where a module's first parameter is; None without one."""
    if not isinstance(model, nn.Module):
        return None
    tensor = next(model.parameters(), None)
    return None if tensor is None else tensor.device
