"""The gradient of a network's loss over many graphs: what a step or an epoch must get right."""

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from grant_fast import FlexGCN, Task
from grant_fast.tasks import measured
from grant_fast.teaching import loss
from grant_fast.training.model import fitting

from .settings import Setting, backend

#: Of `in_training`'s answer. A ReLU that rounding turns over does so for all nodes that are alike,
#: and molecules have many: of 48 right answers, ours and PyG's, the worst was off by 6e-4.
TOLERANCE = 2e-3


def accumulate(model: nn.Module, batches: Iterable[Any], task: Task) -> None:
    """Leave the gradient of the mean loss over the labels of all batches in the parameters."""
    model.zero_grad()
    labels = torch.zeros((), device=next(model.parameters()).device)
    for batch in batches:
        loss(model(batch), batch.y, task, reduction="sum").backward()
        labels += measured(batch.y, task).sum()
    torch._foreach_div_([p.grad for p in model.parameters() if p.grad is not None], labels)


def in_training(model: nn.Module, batch: Any, task: Task) -> list[Tensor]:
    """The same of one batch, in training mode as it is timed, but without dropout, whose draws no
    two sides share.

    Of ours or a peer's weights, in the order and layout of ours; all in one tensor, as what comes
    right before a batch norm has a gradient of 0, of which rounding leaves nothing to compare.
    """
    model = _without_dropout(model).train()
    accumulate(model, [batch], task)
    return [torch.cat([gradient.flatten() for gradient in _found(model)])]


def in_evaluation(model: nn.Module, batches: Iterable[Any], task: Task) -> list[Tensor]:
    """The same of all batches in evaluation mode, weight by weight: a batch norm then does not
    depend on which graphs make a batch, so that all ways to batch them have one answer."""
    model = copy.deepcopy(model).eval()
    accumulate(model, batches, task)
    return _found(model)


def _without_dropout(model: nn.Module) -> nn.Module:
    """A copy, so that the batch norms of the model itself keep their statistics."""
    model = copy.deepcopy(model)
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    return model


def _found(model: nn.Module) -> list[Tensor]:
    """The gradients that it holds, in the order and layout of ours."""
    if any(isinstance(part, FlexGCN) for part in model.modules()):
        return [_given(p.grad) for p in model.parameters()]
    from .peers import pyg

    assert isinstance(model, pyg.TAGNet)
    return [_given(gradient) for gradient in pyg.gradients(model)]


def _given(gradient: Tensor | None) -> Tensor:
    assert gradient is not None  # every weight has its share in the loss
    return gradient


def exactly_in_training(setting: Setting, ids: Tensor) -> list[Tensor]:
    """`in_training` over these graphs in float64, by PyTorch's operators."""
    graphs = setting.graphs.subset(ids).to(dtype=torch.float64)
    with backend("torch"):
        return in_training(setting.double(), graphs.batch(slice(None)), setting.task)


def exactly_in_evaluation(setting: Setting) -> list[Tensor]:
    """`in_evaluation` over all training graphs in float64, by PyTorch's operators."""
    graphs = setting.graphs.subset(setting.ids).to(dtype=torch.float64)
    parts = fitting(graphs, torch.arange(len(graphs)), setting.model)
    # Each number takes twice as much, and more are kept.
    batches = [graphs.batch(quarter) for part in parts for quarter in part.chunk(4)]
    with backend("torch"):
        return in_evaluation(setting.double(), batches, setting.task)
