"""AdamW as torch computes it, fused, without what torch imports and finds out anew at each step."""

from collections.abc import Iterable
from inspect import unwrap
from operator import is_
from typing import Any

import torch
from torch import Tensor


class AdamW(torch.optim.AdamW):
    """`torch.optim.AdamW(fused=True)`: the same numbers and the same state, without hooks.

    Torch's own calls import the compiler, so that it leaves them out, which takes most of a second.
    Of its step on a small network three quarters go into lists of what has not changed.
    """

    add_param_group = unwrap(torch.optim.AdamW.add_param_group)
    state_dict = unwrap(torch.optim.AdamW.state_dict)
    _load = unwrap(torch.optim.AdamW.load_state_dict)

    def __init__(self, parameters: Iterable[Tensor], lr: float, weight_decay: float) -> None:
        self._learning: list[Tensor] = []
        super().__init__(parameters, lr=lr, weight_decay=weight_decay, fused=True)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._learning = []
        self._load(state_dict)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        group = self.param_groups[0]
        grads = [parameter.grad for parameter in group["params"]]
        pairs = zip(group["params"], grads, strict=True)
        learning = [parameter for parameter, grad in pairs if grad is not None]
        if not learning:
            return
        if len(learning) != len(self._learning) or not all(map(is_, learning, self._learning)):
            self._list(learning)
        for count in self._counts:
            count += 1
        torch._fused_adamw_(
            learning,
            [grad for grad in grads if grad is not None],
            self._means,
            self._squares,
            [],
            self._steps,
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )

    def _list(self, learning: list[Tensor]) -> None:
        """List the state of the parameters that have gradients. Those that have made as many steps
        share the tensor that counts them."""
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
        self._learning, self._counts = learning, list(counts.values())
        self._means = [state["exp_avg"] for state in states]
        self._squares = [state["exp_avg_sq"] for state in states]
        self._steps = [state["step"] for state in states]
