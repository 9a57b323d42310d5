"""Scores of graphs whose nodes have classes: `kernels/cpu/scores.h`."""

from torch import Tensor

from .loading import call, threads


def class_scores(pred: Tensor, y: Tensor, ptr: Tensor) -> Tensor:
    """‖softmax(f) − onehot(y)‖_F / n_i over the nodes of each graph that have a label, [B] float32.

    Args:
        pred: f, [n, C].
        y: [n] int64, below 0 where a label is missing.
        ptr: [B + 1] int64, the rows of each graph.
    """
    out = pred.new_empty(ptr.shape[0] - 1)
    args = (out.shape[0], threads(), pred.shape[1], pred.contiguous(), out)
    call("class_scores", ptr.contiguous(), y.contiguous(), *args)
    return out
