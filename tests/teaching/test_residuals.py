import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from grant_fast.errors import InputError
from grant_fast.tasks import Task
from grant_fast.teaching.residuals import graph_losses, graph_residuals, loss, residual

NAN = math.nan

TASKS = {
    "regression": Task("regression", num_outputs=1),
    "several targets": Task("regression", num_outputs=3),
    "many targets": Task("regression", num_outputs=9),
    "binary": Task("binary"),
    "multilabel": Task("multilabel", num_outputs=4),
    "multiclass": Task("multiclass", num_outputs=5),
}


def example(task: Task, rows: int, missing: bool = True) -> tuple[Tensor, Tensor]:
    """Float64 predictions, and targets of which some are missing."""
    torch.manual_seed(rows)
    pred = torch.randn(rows, task.num_outputs, dtype=torch.float64)
    if task.kind == "multiclass":
        y = torch.randint(task.num_outputs, (rows,))
        return pred, torch.where(torch.rand(rows) < 0.3, -100, y) if missing else y
    y = torch.randn_like(pred) if task.kind == "regression" else torch.randint_like(pred, 2)
    return pred, torch.where(torch.rand_like(y) < 0.3, NAN, y) if missing else y


def measured(y: Tensor) -> Tensor:
    return ~y.isnan() if y.is_floating_point() else y != -100


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
@pytest.mark.parametrize("rows", [1, 17])
@pytest.mark.parametrize("missing", [False, True])
def test_the_residual_is_the_gradient_of_the_loss(task: Task, rows: int, missing: bool) -> None:
    pred, y = example(task, rows, missing)
    pred.requires_grad_()
    factor = 2 if task.kind == "regression" else 1  # the residual is that of ½(f − y)²
    (of_sum,) = torch.autograd.grad(loss(pred, y, task, "sum"), pred)
    (of_mean,) = torch.autograd.grad(loss(pred, y, task), pred)
    expected = factor * residual(pred.detach(), y, task)
    count = max(int(measured(y).sum()), 1)
    torch.testing.assert_close(of_sum, expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(of_mean * count, expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(loss(pred, y, task) * count, loss(pred, y, task, "sum"))


@pytest.mark.parametrize("kind", ["regression", "binary", "multilabel"])
def test_the_loss_is_the_plain_loss_of_the_measured_entries(kind: str) -> None:
    task = Task(kind, num_outputs=3 if kind == "multilabel" else 1)
    pred, y = example(task, 23)
    f, t = pred[~y.isnan()], y[~y.isnan()]
    p = 1 / (1 + (-f).exp())
    plain = (f - t) ** 2 if kind == "regression" else -(t * p.log() + (1 - t) * (1 - p).log())
    torch.testing.assert_close(loss(pred, y, task), plain.mean(), rtol=1e-12, atol=0)


def test_the_multiclass_loss_is_the_plain_loss_of_the_measured_rows() -> None:
    pred, y = example(TASKS["multiclass"], 23)
    probability = pred.exp() / pred.exp().sum(1, keepdim=True)
    plain = [-probability[i, y[i]].log() for i in range(23) if y[i] != -100]
    torch.testing.assert_close(loss(pred, y, TASKS["multiclass"]), torch.stack(plain).mean())


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
@pytest.mark.parametrize("rows", [0, 4])
def test_with_nothing_measured_loss_gradient_and_scores_are_zero(task: Task, rows: int) -> None:
    pred = torch.randn(rows, task.num_outputs, requires_grad=True)
    y = torch.full((rows,), -100) if task.kind == "multiclass" else torch.full_like(pred, NAN)
    value = loss(pred, y, task)
    value.backward()
    assert value.item() == 0
    assert pred.grad is not None and pred.grad.eq(0).all()
    assert graph_residuals(pred.detach(), y, task).equal(torch.zeros(rows))


@pytest.mark.parametrize("outputs", [1, 3, 9])
def test_nothing_cancels_where_a_right_label_is_certain(outputs: int) -> None:
    task = Task("multilabel", num_outputs=outputs) if outputs > 1 else Task("binary")
    f, y = torch.full((2, outputs), 20.0), torch.tensor([[0.0], [1.0]]).expand(2, outputs)
    f[0] = -20
    small = 1 / (1 + math.exp(20))
    torch.testing.assert_close(residual(f, y, task), (1 - 2 * y) * small, rtol=1e-6, atol=0)
    scores = graph_residuals(f, y.contiguous(), task)
    assert scores.tolist() == pytest.approx([small / math.sqrt(outputs)] * 2, rel=1e-5)


@pytest.mark.parametrize("level", ["graph", "node"])
@pytest.mark.parametrize("kind", ["regression", "multilabel", "multiclass"])
def test_loss_and_scores_compile_into_one_graph(kind: str, level: str) -> None:
    task = Task(kind, level, 3)
    pred, y = example(task, 6)
    for function, arguments in [(loss, ()), (graph_residuals, (torch.tensor([0, 2, 6]),))]:
        compiled = torch.compile(function, fullgraph=True, backend="eager")
        expected = function(pred, y, task, *arguments)
        torch.testing.assert_close(compiled(pred, y, task, *arguments), expected)


def test_scores_computed_by_hand() -> None:
    half = torch.tensor([[0.0]])  # σ(0) = ½
    assert graph_residuals(half, torch.tensor([[1.0]]), Task("binary")).tolist() == [0.5]
    assert graph_residuals(half - 3, torch.tensor([[1.0]]), Task("regression")).tolist() == [4.0]
    # softmax of equal outputs is ½ each: (½ − 1, ½) has norm √½
    two = graph_residuals(torch.zeros(1, 2), torch.tensor([0]), Task("multiclass", num_outputs=2))
    torch.testing.assert_close(two, torch.tensor([0.5**0.5]))
    # errors 3 and 4 and one missing: ‖·‖₂ = 5 over 2 labelled
    several = graph_residuals(
        torch.zeros(1, 3), torch.tensor([[3.0, NAN, -4.0]]), Task("regression", num_outputs=3)
    )
    assert several.tolist() == [2.5]
    # one label of 0 and one of 1 at logit 0: (½, −½) over 2
    labels = graph_residuals(
        torch.zeros(1, 3), torch.tensor([[0.0, 1.0, NAN]]), Task("multilabel", num_outputs=3)
    )
    torch.testing.assert_close(labels, torch.tensor([0.5**0.5 / 2]))


@pytest.mark.parametrize("kind", ["regression", "multilabel", "multiclass"])
def test_a_node_level_score_is_the_norm_over_the_graph_divided_by_its_nodes(kind: str) -> None:
    task = Task(kind, "node", 3)
    sizes = torch.tensor([3, 0, 1, 17, 0])
    ptr = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    pred, y = example(task, int(ptr[-1]), missing=False)
    errors = residual(pred, y, task)
    expected = [
        errors[a:b].norm() / (b - a) if b > a else torch.tensor(0.0)
        for a, b in itertools.pairwise(ptr)
    ]
    scores = graph_residuals(pred, y, task, ptr)
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, torch.stack(expected).float())


def test_nodes_without_a_label_are_not_counted() -> None:
    task = Task("regression", "node", 2)
    y = torch.tensor([[3.0, NAN], [NAN, NAN], [NAN, 4.0], [NAN, NAN]])
    scores = graph_residuals(torch.zeros(4, 2), y, task, torch.tensor([0, 3, 4]))
    assert scores.tolist() == [2.5, 0.0]


def test_raw_residuals_ignore_the_link_function() -> None:
    pred = torch.tensor([[2.0, -1.0]])
    multilabel = Task("multilabel", num_outputs=2)
    multiclass = Task("multiclass", num_outputs=2)
    assert residual(pred, torch.tensor([[1.0, NAN]]), multilabel, "raw").tolist() == [[1.0, 0.0]]
    assert residual(pred, torch.tensor([1]), multiclass, "raw").tolist() == [[2.0, -2.0]]
    assert residual(pred, torch.tensor([-100]), multiclass, "raw").tolist() == [[0.0, 0.0]]
    many, y = Task("multilabel", num_outputs=16), torch.ones(1, 16)  # which C scores
    assert graph_residuals(torch.full((1, 16), 3.0), y, many, kind="raw").tolist() == [0.5]


@pytest.mark.parametrize("kind", ["regression", "binary"])
def test_one_column_is_accepted_in_every_shape(kind: str) -> None:
    task = Task(kind)
    pred, y = example(task, 15)
    expected = graph_residuals(pred, y, task)
    for f in (pred, pred.squeeze(1)):
        for t in (y, y.squeeze(1)):
            assert graph_residuals(f, t, task).equal(expected)
            assert loss(f, t, task).equal(loss(pred, y, task))


def test_integer_labels_and_a_column_of_classes_are_accepted() -> None:
    pred, y = example(TASKS["multilabel"], 9, missing=False)
    task = TASKS["multilabel"]
    for labels in (y.long(), y.bool()):
        assert residual(pred, labels, task).equal(residual(pred, y, task))
    pred, y = example(TASKS["multiclass"], 9)
    task = TASKS["multiclass"]
    for classes in (y.unsqueeze(1), y.int()):
        assert residual(pred, classes, task).equal(residual(pred, y, task))
        assert loss(pred, classes, task).equal(loss(pred, y, task))


@pytest.mark.parametrize("kind", ["binary", "multilabel"])
def test_minus_100_among_integer_labels_is_not_measured(kind: str) -> None:
    task = TASKS[kind]
    pred, y = example(task, 9, missing=False)
    whole = y.round().long()
    whole[2] = -100
    gaps = whole.float().masked_fill(whole == -100, torch.nan)
    assert loss(pred, whole, task).equal(loss(pred, gaps, task))
    assert graph_residuals(pred, whole, task).equal(graph_residuals(pred, gaps, task))


def test_minus_100_is_a_number_to_be_learned_like_any_other() -> None:
    pred, y = torch.zeros(2), torch.tensor([-100, 0])
    assert loss(pred, y, TASKS["regression"]) == loss(pred, y.float(), TASKS["regression"]) == 5000


@pytest.mark.parametrize("found", [-1.0, 2.0])
def test_labels_that_are_no_probabilities_are_named(found: float) -> None:
    many = Task("multilabel", num_outputs=9)  # which C scores
    for task, y in (
        (TASKS["binary"], torch.tensor([0.0, found])),
        (TASKS["multilabel"], None),
        (many, None),
    ):
        pred = torch.zeros(2, task.num_outputs)
        labels = torch.full_like(pred, found) if y is None else y
        with pytest.raises(InputError, match=rf"{task.kind} .* 0 and 1, found {found:g}: correct"):
            loss(pred, labels, task)
        with pytest.raises(InputError, match=rf"{task.kind} .* 0 and 1, found {found:g}: correct"):
            graph_residuals(pred, labels, task)
    assert loss(torch.zeros(2), torch.tensor([0.1, 0.9]), TASKS["binary"]).isfinite()


@pytest.mark.parametrize("name", ["regression", "several targets", "many targets"])
def test_infinite_targets_are_named_before_they_rank_first(name) -> None:
    task = TASKS[name]
    y = torch.zeros(4, task.num_outputs)
    y[2, -1] = -torch.inf
    with pytest.raises(InputError, match="the target in row 2 of y is infinite"):
        graph_residuals(torch.zeros_like(y), y, task)


def test_outputs_that_are_no_tensor_ask_for_a_predict() -> None:
    with pytest.raises(InputError, match=r"predictions are a tuple.*predict\(model, batch\)"):
        loss((torch.zeros(2),), torch.zeros(2), TASKS["binary"])  # type: ignore[arg-type]
    nodes = Task("multiclass", "node", 2)
    with pytest.raises(InputError, match=r"predictions are a tuple"):
        graph_residuals((torch.zeros(2, 2),), torch.zeros(2).long(), nodes)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="targets are complex"):
        loss(torch.ones(2, 1), torch.ones(2, 1) + 1j, TASKS["regression"])
    with pytest.raises(InputError, match="the graphs have no targets: give a tensor as y"):
        loss(torch.zeros(2), None, TASKS["binary"])  # type: ignore[arg-type]


def test_many_targets_may_have_another_dtype_than_the_predictions() -> None:
    pred, y = torch.randn(3, 9), torch.ones(3, 9)
    for task in (TASKS["many targets"], Task("multilabel", num_outputs=9)):
        expected = graph_residuals(pred, y, task)
        for dtype in (torch.float64, torch.int64, torch.bfloat16):
            torch.testing.assert_close(graph_residuals(pred, y.to(dtype), task), expected)


def test_half_precision_predictions_are_scored_in_float32() -> None:
    pred, y = example(TASKS["binary"], 9)
    low = pred.bfloat16()
    assert residual(low, y, TASKS["binary"]).dtype == torch.float32
    assert loss(low, y, TASKS["binary"]).equal(loss(low.float(), y, TASKS["binary"]))


def test_a_very_small_or_large_single_error_is_not_lost_to_squaring() -> None:
    pred = torch.tensor([1e-30, -1e30])
    scores = graph_residuals(pred, torch.zeros(2), Task("regression"))
    assert scores.equal(pred.abs())


@pytest.mark.parametrize(
    ("pred", "y", "task", "says"),
    [
        ((4, 2), (4, 1), TASKS["regression"], r"shape \(4, 2\).*\[rows, 1\].*out_channels"),
        ((4, 2), (4,), TASKS["binary"], "out_channels, or make the task multiclass"),
        ((4, 2), (4, 2), TASKS["binary"], r'or make the task Task\("multilabel", num_outputs=2\)'),
        ((4, 2), (4, 2), TASKS["regression"], r'Task\("regression", num_outputs=2\)'),
        ((4, 9), (4,), TASKS["multiclass"], "or give the task num_outputs=9, the number of"),
        ((4, 3), (4, 1), TASKS["several targets"], r"shape \(4, 1\).*shape \(4, 3\).*\[4, 3\]"),
        (
            (4, 3),
            (12,),
            TASKS["several targets"],
            r"shape \(12,\).*give each y the shape \[1, 3\]$",
        ),
        ((4, 3), (12, 1), TASKS["several targets"], r"give each y the shape \[1, 3\]$"),
        ((4, 3), (11,), TASKS["several targets"], "one row for each graph$"),
        ((1, 3), (4, 3), TASKS["several targets"], r"give it: batch=batch\.batch$"),
        ((4, 9), (3, 9), TASKS["many targets"], r"shape \(3, 9\).*\[4, 9\], one row"),
        ((4, 16), (4, 16), TASKS["many targets"], r"\[rows, 9\]: check"),
        ((4, 9), (4, 9), TASKS["several targets"], r'Task\("regression", num_outputs=9\)'),
        ((4, 5), (4, 5), TASKS["multiclass"], r"class numbers, as y\.argmax\(1\)$"),
        ((2, 3), (9, 3), Task("regression", "node", 3), "one a graph, pool=None in FlexGCN"),
        (
            (9, 1),
            (2, 1),
            Task("regression", "node"),
            r"graphs.batch\(ids\).y, not graphs.y\[ids\]$",
        ),
        ((9, 3), (2, 3), TASKS["several targets"], "one a node, pool them"),
        (
            (2, 1),
            (9, 1),
            Task("regression", level="node"),
            r"needs predictions \[9, 1\], one row for each node; if the predictions are one",
        ),
        ((4,), (5,), TASKS["binary"], r"shape \(5,\).*shape \(4,\).*one row for each graph"),
        ((4, 5), (9,), TASKS["multiclass"], "give the task level='node' and FlexGCN pool=None$"),
        ((4, 3, 1), (4, 3), TASKS["several targets"], r"shape \(4, 3, 1\)"),
        ((4,), (4,), TASKS["multiclass"], r"\[rows, 5\]"),
    ],
)
def test_wrong_shapes_are_named(pred: tuple, y: tuple, task: Task, says: str) -> None:
    with pytest.raises(InputError, match=says):
        loss(torch.zeros(pred), torch.zeros(y), task)
    with pytest.raises(InputError, match=says):
        graph_residuals(torch.zeros(pred), torch.zeros(y), task)


@pytest.mark.parametrize(
    ("task", "remedy"),
    [
        ("multiclass", r'Task\("multiclass", num_outputs=2\)'),
        ("binary", r'Task\("binary"\)'),
        (Task, r'Task\("multiclass", num_outputs=2\)'),
    ],
)
@pytest.mark.parametrize("take", [loss, residual, graph_losses, graph_residuals])
def test_a_bare_kind_is_no_task(take: Any, task: Any, remedy: str) -> None:
    with pytest.raises(InputError, match=rf"task is .*: give a Task, e\.g\. {remedy}"):
        take(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long), task)


def test_impossible_classes_and_dtypes_are_named() -> None:
    task, pred = TASKS["multiclass"], torch.zeros(2, 5)
    with pytest.raises(InputError, match=r"class 5 is outside 0\.\.4"):
        loss(pred, torch.tensor([0, 5]), task)
    with pytest.raises(InputError, match=r"class -1 is outside .*; -100 is 'not measured'"):
        residual(pred, torch.tensor([0, -1]), task)
    with pytest.raises(InputError, match=r"float32.*y\.long"):
        residual(pred, torch.tensor([0.0, 1.0]), task)
    with pytest.raises(InputError, match=r"floating point, not torch\.int64"):
        residual(torch.zeros(2, 1, dtype=torch.long), torch.zeros(2), Task("binary"))
    with pytest.raises(InputError, match=r"-100"):  # as a number it is no "not measured"
        loss(torch.zeros(1, 1), torch.tensor([[-100.0]]), Task("binary"))


def test_a_node_level_score_needs_fitting_node_ranges() -> None:
    task, pred, y = Task("regression", "node"), torch.zeros(4), torch.zeros(4)
    with pytest.raises(InputError, match=r"needs ptr of shape \[num_graphs \+ 1\]"):
        graph_residuals(pred, y, task)
    with pytest.raises(InputError, match=r"needs ptr of shape \[num_graphs \+ 1\]"):
        graph_losses(pred, y, task)
    with pytest.raises(InputError, match="ptr ends at 3, but there are 4 rows"):
        graph_residuals(pred, y, task, torch.tensor([0, 3]))
    for wrong in ([1, 4], [0, 3, 2, 4]):  # a row in no graph, a row in two
        with pytest.raises(InputError, match="ptr does not ascend from 0"):
            graph_residuals(pred, y, task, torch.tensor(wrong))


def test_unknown_names_are_refused() -> None:
    pred, y = torch.zeros(1), torch.zeros(1)
    with pytest.raises(InputError, match=r"'logit'.*'gradient' or 'raw'"):
        residual(pred, y, Task("binary"), "logit")
    with pytest.raises(InputError, match=r"'none'.*'mean' or 'sum'"):
        loss(pred, y, Task("binary"), "none")


def test_classes_are_scored_however_large_the_outputs_and_wherever_they_lie() -> None:
    task, y = TASKS["multiclass"], torch.tensor([0, 1, 2, 3, -100])
    for size in (1.0, 30.0, 1000.0):
        for low in (0.0, -2.0, -60 / size, -200 / size, 1.0):
            pred = size * (torch.eye(5)[:, [1, 0, 4, 2, 3]] + low)
            pred = pred.T.contiguous().T.requires_grad_()
            scores = graph_residuals(pred, y, task)
            expected = residual(pred.double(), y, task).norm(dim=1).float()
            torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-6)
            assert not scores.requires_grad


@pytest.mark.parametrize("kind", ["regression", "multiclass"])
@pytest.mark.parametrize("away", ["y", "ptr"])
def test_what_is_on_another_device_is_named(kind, away):
    y = torch.zeros(4, 2) if kind == "regression" else torch.zeros(4).long()
    given = {"y": y, "ptr": torch.tensor([0, 1, 4])}
    given[away] = given[away].to("meta")
    with pytest.raises(InputError, match=r"on meta and .* on cpu|on cpu and .* on meta"):
        graph_residuals(torch.randn(4, 2), task=Task(kind, "node", 2), **given)


@pytest.mark.parametrize("outputs", [1, 9])
def test_what_cannot_be_scored_is_named_however_many_targets(outputs: int) -> None:
    task, pred = Task("regression", num_outputs=outputs), torch.zeros(2, outputs)
    with pytest.raises(InputError, match="the graphs have no targets"):
        graph_residuals(pred, None, task)
    with pytest.raises(InputError, match="predictions are a list"):
        graph_residuals(pred.tolist(), pred, task)
    with pytest.raises(InputError, match="unknown residual 'logit'"):
        graph_residuals(pred, pred, task, kind="logit")
