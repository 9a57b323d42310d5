"""AdamW as torch computes it, fused, without the compiler that torch's own imports."""

from collections.abc import Iterable
from inspect import unwrap

import torch
from torch import Tensor


class AdamW(torch.optim.AdamW):
    """`torch.optim.AdamW(fused=True)`, whose calls no compiler traces.

    To be left out of what is traced, torch's own imports the compiler, for most of a second.
    """

    add_param_group = unwrap(torch.optim.AdamW.add_param_group)
    load_state_dict = unwrap(torch.optim.AdamW.load_state_dict)
    state_dict = unwrap(torch.optim.AdamW.state_dict)
    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))
    zero_grad = unwrap(torch.optim.AdamW.zero_grad)

    def __init__(self, parameters: Iterable[Tensor], lr: float, weight_decay: float) -> None:
        super().__init__(parameters, lr=lr, weight_decay=weight_decay, fused=True)
