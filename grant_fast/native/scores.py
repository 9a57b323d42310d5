"""Scores of graphs with many targets, or whose nodes have classes: `kernels/cpu/scores.h`."""

from torch import Tensor

from .loading import aside, call, threads


def class_scores(pred: Tensor, y: Tensor, ptr: Tensor) -> Tensor:
    """‖softmax(f) − onehot(y)‖_F / n_i over the nodes of each graph that have a label, [B] float32.

    Args:
        pred: f, [n, C].
        y: [n] int64, below 0 where a label is missing.
        ptr: [B + 1] int64, the rows of each graph.
    """
    out = pred.new_empty(ptr.shape[0] - 1)
    args = (out.shape[0], threads(), pred.shape[1], aside(pred), out)
    call("class_scores", aside(ptr), aside(y), *args)
    return out


def target_scores(pred: Tensor, y: Tensor, *, sigmoid: bool, labels: bool) -> Tensor:
    """‖g(f) − y‖₂ of each graph over its known targets, divided by their number, [B] float32.

    Args:
        pred: f, [B, C].
        y: [B, C] float32, NaN where not measured.
        sigmoid: g is the sigmoid instead of the identity.
        labels: a graph with a target outside of [0, 1] scores -1.
    """
    out = pred.new_empty(pred.shape[0])
    args = (out.shape[0], threads(), pred.shape[1], sigmoid, labels)
    call("target_scores", *args, aside(pred), aside(y), out)
    return out
