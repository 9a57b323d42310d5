"""AdamW as torch computes it, fused, without what torch imports and finds out anew at each step."""

from collections.abc import Iterable
from inspect import unwrap
from operator import is_
from typing import Any

import torch
from torch import Tensor


class AdamW(torch.optim.AdamW):
    """`torch.optim.AdamW(fused=True)` of one group of parameters: the same numbers and state.

    Torch's own methods import the compiler, to be left out of what it traces, which takes most of a
    second. Of their step on a small network three quarters go into lists of what has not changed.

    Parameters share the tensor that counts their steps, where they have made as many: copy a
    `state_dict` before another optimizer takes it.

    Args:
        recorded: steps may be recorded, see `recording`. They then read the learning rate where
            `tell_rate` writes it: in float32 on a GPU, whose fused step reads no other. (Those of
            a copy are not to be recorded.)
    """

    _lr: Tensor | None = None

    add_param_group = unwrap(torch.optim.AdamW.add_param_group)
    load_state_dict = unwrap(torch.optim.AdamW.load_state_dict)
    state_dict = unwrap(torch.optim.AdamW.state_dict)

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float,
        weight_decay: float,
        *,
        recorded: bool = False,
    ) -> None:
        super().__init__(parameters, lr=lr, weight_decay=weight_decay, fused=True)
        self._listed: list[Tensor] = []
        if recorded:
            device = self.param_groups[0]["params"][0].device
            dtype = torch.float32 if device.type == "cuda" else torch.float64
            self._lr = torch.full((), lr, dtype=dtype, device=device)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a copy, or a state that is loaded."""
        super().__setstate__(state)
        self._listed = []

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = None

    def tell_rate(self) -> None:
        """Have recorded steps take the group's learning rate as it is now."""
        if self._lr is not None:
            self._lr.fill_(self.param_groups[0]["lr"])

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        (group,) = self.param_groups
        grads = [parameter.grad for parameter in group["params"]]
        pairs = zip(group["params"], grads, strict=True)
        learning = [parameter for parameter, grad in pairs if grad is not None]
        if not learning:
            return
        if len(learning) != len(self._listed) or not all(map(is_, learning, self._listed)):
            self._list(learning)
        for count in self._counts:
            count += 1
        torch._fused_adamw_(
            learning,
            [grad for grad in grads if grad is not None],
            self._means,
            self._squares,
            [],
            self._count_of_each,
            lr=group["lr"] if self._lr is None else self._lr,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )

    def _list(self, learning: list[Tensor]) -> None:
        """List the state of the parameters that have gradients."""
        for parameter in learning:
            if not self.state[parameter]:
                step = torch.zeros((), dtype=torch.float32, device=parameter.device)
                moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                self.state[parameter] = {"step": step, **moments}
        for state in self.state.values():  # what shared a tensor may go its own way now
            state["step"] = state["step"].clone()
        states = [self.state[parameter] for parameter in learning]
        counts = {float(state["step"]): state["step"] for state in states}
        for state in states:
            state["step"] = counts[float(state["step"])]
        self._listed, self._counts = learning, list(counts.values())
        self._count_of_each = [state["step"] for state in states]
        self._means = [state["exp_avg"] for state in states]
        self._squares = [state["exp_avg_sq"] for state in states]
