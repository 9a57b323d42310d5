"""The picture of a run: what its panels show."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from grant_fast.tasks import Task
from grant_fast.training.metrics import roc_auc
from grant_fast.training.picture import draw_run
from grant_fast.training.records import read_run
from grant_fast.training.run import train
from tests.rings import make_dataset
from tests.training.runs import TINY


def of_one_target(name=()):
    data = make_dataset("regression")
    data.graphs.y = data.graphs.y[:, :1]
    return replace(data, task=Task("regression", names=name))


def lines(axis):
    """What is drawn on an axis: [points, 2] of each line."""
    return [line.get_xydata() for line in axis.get_lines()]


def test_a_run_leaves_its_picture(tmp_path):
    train(make_dataset("regression"), tmp_path, **TINY)
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "run.png").write_bytes(b"old")
    train(make_dataset("regression"), tmp_path, **TINY, resume=True)
    assert len((tmp_path / "run.png").read_bytes()) > 3


def test_a_run_of_one_epoch_can_be_seen(tmp_path, figures):
    train(make_dataset("regression"), tmp_path, **{**TINY, "epochs": 1})
    for axis in figures[0].axes:
        (x, y), curve = axis.get_lines()[0].get_xydata()[0], axis.get_lines()[0]
        (left, right), (low, high) = axis.get_xlim(), axis.get_ylim()
        assert curve.get_marker() == "." and left == 0 < x < right and low < y < high
        assert high - low > abs(y) / 100


def test_what_is_no_number_does_not_end_a_run(tmp_path, figures):
    data = of_one_target()
    train(data, tmp_path, **TINY)
    answers = torch.zeros(len(data.split["test"]), 1)
    answers[0], answers[1] = torch.inf, torch.nan
    draw_run(tmp_path / "run.png", read_run(tmp_path), data, answers)


@pytest.mark.parametrize("arm", ["full", "random"])
def test_it_shows_how_the_loss_and_the_metric_went(tmp_path, figures, arm):
    result = train(make_dataset("regression"), tmp_path, **TINY, arm=arm)
    history = read_run(tmp_path).history
    losses, metric = figures[0].axes  # and no panel for two targets
    training, validation, guess = lines(losses)
    assert training.tolist() == [[r.epoch, r.loss] for r in history]
    assert validation.tolist() == [[r.epoch, r.valid_loss] for r in history]
    assert set(guess[:, 1]) == {result.constant_loss}
    named = [text.get_text() for text in losses.get_legend().get_texts()]
    assert named[0] == {"full": "training", "random": "training, graphs picked"}[arm]
    curve, best = lines(metric)
    assert curve.tolist() == [[r.epoch, r.valid_metric] for r in history]
    assert best.tolist() == [[result.best_epoch, result.valid_metric]]
    assert metric.get_ylabel() == "validation mae (lower is better)"
    assert figures[0].get_suptitle() == f"{make_dataset('regression').name}, {arm}"


def test_what_is_outside_the_frame_is_not_in_the_legend(tmp_path, figures):
    data = make_dataset("regression")
    train(data, tmp_path, **TINY)
    run = read_run(tmp_path)
    highest = max(r.valid_loss for r in run.history)
    for loss in (highest, 1e6, None):
        other = replace(run, result=replace(run.result, constant_loss=loss))
        draw_run(tmp_path / "run.png", other, data, None)
    legends = [figure.axes[0].get_legend().get_texts() for figure in figures[1:]]
    curves = ["training", "validation"]
    assert [text.get_text() for text in legends[1]] == curves
    assert [text.get_text() for text in legends[2]] == curves


def test_no_panel_covers_another_and_the_legend_no_curve(tmp_path, figures):
    data = make_dataset("binary")
    train(data, tmp_path, **TINY, arm="grant-b", metric="roc_auc")
    answers = torch.rand(len(data.split["test"]), 1)
    draw_run(tmp_path / "run.png", read_run(tmp_path), data, answers)
    figure = figures[-1]
    losses, metric, test = figure.axes
    for one, other in ((losses, metric), (metric, test)):
        gap = other.yaxis.label.get_window_extent().x0 - one.get_window_extent().x1
        assert gap > 0.1 * figure.dpi
    legend = losses.get_legend().get_window_extent()
    assert legend.y0 >= losses.get_window_extent().y1
    assert legend.x1 < metric.get_tightbbox().x0


@pytest.mark.parametrize("best", [0, 30])
def test_the_best_epoch_is_within_the_frame(tmp_path, figures, best):
    """Though the highest metrics of a long run are beyond it, as the highest losses are."""
    data = make_dataset("binary")
    train(data, tmp_path, **TINY)
    run = read_run(tmp_path)
    history = [replace(run.history[-1], epoch=e + 1, valid_metric=0.7) for e in range(60)]
    history[best] = replace(history[best], valid_metric=0.9)
    result = replace(run.result, best_epoch=best + 1, valid_metric=0.9)
    draw_run(tmp_path / "run.png", replace(run, result=result, history=tuple(history)), data, None)
    low, high = figures[-1].axes[1].get_ylim()
    assert low < 0.7 < 0.9 < high


def test_of_a_regression_it_shows_predictions_against_labels(tmp_path, figures):
    data = of_one_target("log$P")
    test = data.split["test"]
    y = data.graphs.y.clone()
    y[test[0]] = torch.nan  # not measured
    data.graphs.y = y
    train(data, tmp_path, **TINY)
    run = read_run(tmp_path)
    answers = torch.arange(float(len(test)))[:, None]
    draw_run(tmp_path / "run.png", run, data, answers)
    axis = figures[1].axes[2]
    _, points = lines(axis)
    (named,) = axis.get_legend().get_texts()
    assert named.get_text() == "perfect"
    guess = figures[1].axes[0].get_lines()[-1]
    assert axis.get_lines()[0].get_linestyle() != guess.get_linestyle()
    expected = torch.cat([y[test], answers], 1)[1:]
    np.testing.assert_allclose(points, expected)
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("log$P", "log$P, predicted")
    said = f"test ({len(test) - 1}): mae {run.result.test_metric:.3g}, rmse "
    assert axis.get_title().startswith(said)


def test_of_two_classes_it_shows_the_roc_curve(tmp_path, figures):
    data = make_dataset("binary")
    test = data.split["test"]
    train(data, tmp_path, **TINY)
    y = data.graphs.y[test]
    answers = torch.randint(3, (len(test), 1), generator=torch.Generator().manual_seed(3)) / 2
    draw_run(tmp_path / "run.png", read_run(tmp_path), data, answers)  # with ties
    _, curve = lines(figures[1].axes[2])
    assert curve[0].tolist() == [0, 0] and curve[-1].tolist() == [1, 1]
    assert len(curve) == len(answers.unique()) + 1
    area = np.sum(np.diff(curve[:, 0]) * (curve[1:, 1] + curve[:-1, 1]) / 2)
    assert area == pytest.approx(float(roc_auc(answers, y)))
    assert figures[1].axes[2].get_xlabel() == "false positive rate"


def test_two_classes_with_names_have_one_curve_too(tmp_path, figures):
    data = make_dataset("binary")
    test, y = data.split["test"], data.graphs.y[:, 0]
    answers = torch.rand(len(test), 2, generator=torch.Generator().manual_seed(3))
    train(data, tmp_path, **TINY)
    draw_run(tmp_path / "run.png", read_run(tmp_path), data, answers[:, 1:])
    data.graphs.y = torch.where(y.isnan(), -100, y).long()
    named = replace(data, task=Task("multiclass", num_outputs=2, names=("dead", "a$live$")))
    draw_run(tmp_path / "run.png", read_run(tmp_path), named, answers)
    _, one, two = ([*lines(f.axes[2])] for f in figures)
    np.testing.assert_array_equal(one[1], two[1])
    name = figures[2].axes[2].get_legend().get_texts()[1]
    assert name.get_text() == "class a$live$" and not name.get_parse_math()


def test_what_one_panel_cannot_show_is_left_out(tmp_path, figures):
    data = make_dataset("binary")
    train(data, tmp_path, **TINY)
    run, test = read_run(tmp_path), data.split["test"]
    answers = torch.rand(len(test), 1)
    y = data.graphs.y.clone()
    y[test] = 1  # no curve of one class
    data.graphs.y = y
    classes = make_dataset("multiclass")
    draw_run(tmp_path / "run.png", run, data, answers)
    draw_run(tmp_path / "run.png", run, classes, torch.rand(len(test), 3))
    draw_run(tmp_path / "run.png", run, data, None)
    assert [len(figure.axes) for figure in figures] == [3, 2, 2, 2]
