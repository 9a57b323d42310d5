"""What a device is to the kernels."""

from functools import cache

import torch


@cache
def nvidia_major(device: torch.device) -> int:
    """Major version of an NVIDIA GPU's architecture; 0 of any other device."""
    if device.type != "cuda" or torch.version.hip:
        return 0
    return torch.cuda.get_device_properties(device).major


def has_hopper_units(device: torch.device) -> bool:
    """Whether matrix units take 64 rows at a time, and a factor of a product from shared memory."""
    return nvidia_major(device) in (9, 10)
