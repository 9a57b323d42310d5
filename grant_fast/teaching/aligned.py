"""Predictions and targets, made to fit each other; and what to do where they do not."""

import torch
from torch import Tensor

from ..errors import InputError
from ..tasks import NOT_MEASURED, Task, check_task


def aligned(pred: Tensor, y: Tensor | None, task: Task) -> tuple[Tensor, Tensor]:
    """Prediction `[rows, C]`, at least float32, and target `[rows, C]` alike or class `[rows]`."""
    check_task(task)
    if not isinstance(pred, Tensor):
        raise InputError(
            f"predictions are a {type(pred).__name__}: give a tensor of raw outputs (give the "
            "teacher a predict(model, batch) that returns them)"
        )
    if not isinstance(y, Tensor):
        why = "the graphs have no targets" if y is None else f"targets are a {type(y).__name__}"
        raise InputError(f"{why}: give a tensor as y")
    if not pred.is_floating_point():
        raise InputError(f"predictions must be floating point, not {pred.dtype}: pass raw outputs")
    if y.is_complex():
        raise InputError("targets are complex: give real numbers")
    if y.device != pred.device:
        raise InputError(f"predictions are on {pred.device} and targets on {y.device}: move one")
    outputs = task.num_outputs
    columns = 1 if task.kind == "multiclass" else outputs
    matrix = pred.unsqueeze(1) if pred.dim() == 1 and outputs == 1 else pred
    target = y.unsqueeze(1) if y.dim() == 1 and columns == 1 else y
    if matrix.dim() != 2 or matrix.shape[1] != outputs:
        raise InputError(
            f"predictions have shape {tuple(pred.shape)}, and this {task.kind} task needs "
            f"[rows, {outputs}]: check the network's out_channels" + _or_the_task(matrix, y, task)
        )
    if target.shape != (len(matrix), columns):
        shape = f"[{len(matrix)}]" if task.kind == "multiclass" else f"[{len(matrix)}, {columns}]"
        if task.level == "node" and len(matrix) < len(y):
            shape = f"predictions [{len(y)}, {outputs}]"
        raise InputError(
            f"targets have shape {tuple(y.shape)} for predictions of shape {tuple(pred.shape)}: "
            f"this {task.level}-level {task.kind} task needs {shape}, one row "
            f"for each {task.level}" + _hint(len(matrix), y, columns, task)
        )
    matrix = matrix.to(torch.promote_types(pred.dtype, torch.float32))
    if task.kind == "regression":
        return matrix, target.to(matrix.dtype)
    if task.kind != "multiclass":
        return matrix, _checked_labels(target, matrix.dtype, task)
    return matrix, _checked_classes(target.squeeze(1), outputs)


def are_probabilities(pred: Tensor, task: Task) -> bool:
    """Whether outputs for classes are what a softmax gives; where that is free to see."""
    if task.kind != "multiclass" or pred.dim() != 2 or len(pred) < 2 or not may_look_at(pred):
        return False
    rows = pred[:1000].float()
    return bool((rows >= 0).all()) and bool(((rows.sum(1) - 1).abs() < 1e-3).all())


def _or_the_task(pred: Tensor, y: Tensor, task: Task) -> str:
    """What may be wrong of a task for which predictions have the wrong width."""
    if pred.dim() != 2:
        return ""
    if task.kind == "multiclass" and pred.shape[1] == 1:
        return ', or make the task Task("binary"), of labels 0 and 1'
    if task.kind == "multiclass":
        return f", or give the task num_outputs={pred.shape[1]}, the number of classes"
    if pred.shape == y.shape:
        kind = "multilabel" if task.kind == "binary" else task.kind
        return f', or make the task Task("{kind}", num_outputs={y.shape[1]})'
    if task.kind == "binary" and pred.shape[1] == 2:
        return ", or make the task multiclass, with an output for each class"
    return ""


def _hint(rows: int, y: Tensor, columns: int, task: Task) -> str:
    """What the numbers of rows say about why targets do not fit predictions."""
    if columns > 1 and y.shape in ((rows * columns,), (rows * columns, 1)):
        return f"; give each y the shape [1, {columns}]"
    if task.kind == "multiclass" and y.shape == (rows, task.num_outputs):
        return "; multiclass targets are class numbers, as y.argmax(1)"
    if task.level == "node" and rows < len(y):
        return "; if the predictions are one a graph, pool=None in FlexGCN gives one a node"
    if task.level == "node" and rows > len(y):
        return "; the nodes' of some graphs are graphs.batch(ids).y, not graphs.y[ids]"
    if task.level == "graph" and rows < len(y) and y.numel() == len(y) * columns:
        if rows > 1:
            return "; if they are the nodes', give the task level='node' and FlexGCN pool=None"
        return "; if the model was called without the batch vector, give it: batch=batch.batch"
    if task.level == "graph" and rows > len(y):
        return "; if the predictions are one a node, pool them, as FlexGCN's pool='mean' does"
    return ""


def _checked_labels(target: Tensor, dtype: torch.dtype, task: Task) -> Tensor:
    """Labels as floats; of integers, NaN in place of -100."""
    labels = target.to(dtype)
    if not target.is_floating_point():
        labels = labels.masked_fill(labels == NOT_MEASURED, torch.nan)
    if may_look_at(labels) and labels.numel():
        low, high = torch.aminmax(labels)
        if float(low) >= 0 and float(high) <= 1:
            return labels
        wrong = (labels < 0) | (labels > 1)  # none, if some are missing
        if wrong.any():
            raise InputError(
                f"a {task.kind} task needs labels 0 and 1, found {float(labels[wrong][0]):g}: "
                "correct them, and use NaN where a label was not measured"
            )
    return labels


def _checked_classes(classes: Tensor, num_classes: int) -> Tensor:
    if classes.is_floating_point() or classes.is_complex() or classes.dtype == torch.bool:
        raise InputError(
            f"multiclass targets must be class numbers (int64), not {classes.dtype}: use "
            f"y.long(), with {NOT_MEASURED} for NaN; to pack graphs, integers of shape [rows], as "
            "y.view(-1).long()"
        )
    if may_look_at(classes) and classes.numel():
        low, high = torch.aminmax(classes)
        if int(low) < 0 or int(high) >= num_classes:
            wrong = (classes != NOT_MEASURED) & ((classes < 0) | (classes >= num_classes))
            if wrong.any():
                raise InputError(
                    f"class {int(classes[wrong][0])} is outside 0..{num_classes - 1}: "
                    f"correct the label, or raise num_outputs; {NOT_MEASURED} is 'not measured'"
                )
    return classes.long()


def checked_ptr(ptr: Tensor | None, rows: Tensor) -> Tensor:
    """Where the rows of each graph begin, [G + 1] int64; InputError where they cannot."""
    if ptr is None or ptr.dim() != 1 or len(ptr) == 0:
        found = None if ptr is None else list(ptr.shape)
        raise InputError(
            f"a node-level task needs ptr of shape [num_graphs + 1], not {found}: give batch.ptr"
        )
    if ptr.device != rows.device:
        raise InputError(f"ptr is on {ptr.device} and predictions on {rows.device}: move one")
    if may_look_at(ptr):
        if int(ptr[0]) != 0 or bool((ptr.diff() < 0).any()):
            raise InputError("ptr does not ascend from 0: it says where each graph's rows begin")
        if int(ptr[-1]) != len(rows):
            raise InputError(
                f"ptr ends at {int(ptr[-1])}, but there are {len(rows)} rows of predictions: a "
                "node-level task needs one for each node, as FlexGCN's pool=None gives"
            )
    return ptr.long()


def may_look_at(values: Tensor) -> bool:
    """Whether a value check is free: an accelerator would wait for it, a compiler would give up."""
    if values.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    return not torch._C._are_functorch_transforms_active()
