"""The gradient of a network's loss over many graphs: what a step or an epoch must get right."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from grant_fast import FlexGCN
from grant_fast.tasks import measured
from grant_fast.teaching import loss
from grant_fast.training.model import fitting

from .settings import CHECKED, Setting, backend


def accumulate(model: nn.Module, batches: Iterable[Any], setting: Setting) -> None:
    """Leave the gradient of the mean loss over the labels of all batches in the parameters."""
    model.zero_grad()
    labels = torch.zeros((), device=setting.graphs.device)
    for batch in batches:
        loss(model(batch), batch.y, setting.task, reduction="sum").backward()
        labels += measured(batch.y, setting.task).sum()
    torch._foreach_div_([p.grad for p in model.parameters() if p.grad is not None], labels)


def gradients(model: nn.Module, batches: Iterable[Any], setting: Setting) -> list[Tensor]:
    """The same, of ours or a peer's weights, in the order and layout of ours.

    In evaluation mode: dropout draws nothing, and batch normalisation does not depend on which
    graphs make a batch, so that all ways to batch the same graphs have one answer.
    """
    model.eval()
    accumulate(model, batches, setting)
    if isinstance(model, FlexGCN):
        found = [p.grad for p in model.parameters()]
    else:
        from .peers import pyg

        assert isinstance(model, pyg.TAGNet)
        found = pyg.gradients(model)
    model.zero_grad()
    return [_given(gradient) for gradient in found]


def _given(gradient: Tensor | None) -> Tensor:
    assert gradient is not None  # every weight has its share in the loss
    return gradient


def exact(setting: Setting, count: int = CHECKED) -> list[Tensor]:
    """The gradient over the first `count` training graphs in float64, by PyTorch's operators."""
    part = setting.graphs.subset(slice(0, min(count, len(setting.ids))))
    graphs = part.to(dtype=torch.float64)
    parts = fitting(graphs, torch.arange(len(graphs)), setting.model)
    # Each number takes twice as much, and more are kept.
    batches = [graphs.batch(quarter) for part in parts for quarter in part.chunk(4)]
    with backend("torch"):
        return gradients(setting.double(), batches, setting)
