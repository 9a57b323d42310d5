"""What a CUDA graph can record, judged operator by operator."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
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
