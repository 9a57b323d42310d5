"""Answers of a trained network: predictions, their files, and its scores."""

import csv
from dataclasses import replace

import pytest
import torch

from grant_fast.data.dataset import save_dataset
from grant_fast.errors import InputError
from grant_fast.teaching.residuals import graph_residuals
from grant_fast.teaching.scoring import score_graphs
from grant_fast.training.answers import predict_packed, write_parts
from grant_fast.training.metrics import evaluate
from grant_fast.training.predict import load_predictor
from grant_fast.training.targets import targets_of
from grant_fast.training.trainer import Trainer
from tests.rings import NUM_GRAPHS, make_dataset

KINDS = ["regression", "binary", "multilabel", "multiclass"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_not_measured_stays_empty_beside_the_predictions(tmp_path, config, kind):
    dataset = make_dataset(kind)
    dataset.split["test"] = torch.cat([torch.tensor([0]), dataset.split["test"]])
    dataset.split["train"] = dataset.split["train"][1:]
    Trainer(dataset, config(epochs=1), tmp_path).fit()
    write_parts(tmp_path, dataset)
    with open(tmp_path / "test.csv", newline="") as file:
        missing, *others = csv.DictReader(file)
    targets = 1 if kind in ("binary", "multiclass") else 2
    assert list(missing.values())[: 1 + targets] == ["0", *[""] * targets]
    assert all(all(row.values()) for row in others)


def test_a_target_called_graph_has_a_column_of_its_own(tmp_path, config):
    dataset = make_dataset("binary")
    dataset.task = replace(dataset.task, names=("graph",))
    Trainer(dataset, config(epochs=1), tmp_path).fit()
    write_parts(tmp_path, dataset)
    save_dataset(dataset, tmp_path / "a.gfast")
    predict_packed([load_predictor(tmp_path)], tmp_path / "a.gfast", tmp_path / "out.csv")
    with open(tmp_path / "test.csv") as tested, open(tmp_path / "out.csv") as predicted:
        assert next(tested) == "graph,graph_target,graph_predicted\n"
        assert next(predicted) == "graph,graph_predicted\n"


def test_a_prediction_is_asked_for_packed_graphs_of_the_run_s_kind(tmp_path, config):
    dataset = make_dataset()
    Trainer(dataset, config(epochs=1), tmp_path).fit()
    predict = load_predictor(tmp_path)
    assert predict(dataset.graphs).shape == (NUM_GRAPHS, 2)
    for wrong in (["CCO"], dataset.graphs[0], 3, None):
        with pytest.raises(InputError, match=f"not a {type(wrong).__name__}: make one"):
            predict(wrong)


@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("level", ["graph", "node"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("targets", [1, 2])
def test_a_predictor_scores_as_the_run_learned(tmp_path, config, kind, level, standardize, targets):
    """One target in its own units, several in their deviations."""
    dataset = make_dataset(kind, level)
    if targets == 1 and kind in ("regression", "multilabel"):
        dataset.graphs.y = dataset.graphs.y[:, :1]
        dataset = replace(dataset, task=replace(dataset.task, num_outputs=1))
    Trainer(dataset, config(epochs=1, standardize=standardize), tmp_path).fit()
    predict = load_predictor(tmp_path)
    graphs, task = dataset.graphs, dataset.task
    answers = predict(graphs)
    if kind != "regression":  # as if the probabilities' logarithms, or log odds, were the outputs
        answers = answers.log() if kind == "multiclass" else answers.logit()
    y, scaling = graphs.y, predict.spec.scaling
    if scaling is not None and targets == 2:
        mean, deviation = map(torch.tensor, (scaling.mean, scaling.deviation))
        answers, y = (answers - mean) / deviation, (y - mean) / deviation
    expected = graph_residuals(answers, y, task, graphs.ptr)
    torch.testing.assert_close(predict.score(graphs), expected, rtol=1e-4, atol=1e-5)
    ids = [7, 3, 3]
    torch.testing.assert_close(predict.score(graphs, ids), expected[ids], rtol=1e-4, atol=1e-5)


def test_who_scores_with_a_predictor_is_told_of_its_own_method(tmp_path, config):
    dataset = make_dataset()
    Trainer(dataset, config(epochs=1), tmp_path).fit()
    predict = load_predictor(tmp_path)
    with pytest.raises(InputError, match=r"call this predictor's score\(graphs\) instead"):
        score_graphs(predict, dataset.graphs, dataset.task)
    with pytest.raises(InputError, match="not a list: make one"):
        predict.score(["CCO"])


def test_the_result_holds_every_metric_of_the_task_for_the_best_weights(tmp_path, config):
    for kind, names in (
        ("regression", ["mae", "r2"]),  # several targets: a mean of RMSEs would mix units
        ("binary", ["roc_auc", "ap", "accuracy"]),
    ):
        data = make_dataset(kind)
        result = Trainer(data, config(epochs=2), tmp_path / kind).fit()
        assert sorted(result.test_metrics) == sorted(names)
        assert result.test_metrics[result.metric] == result.test_metric
        y = targets_of(data.graphs, data.split["test"])
        answers = load_predictor(tmp_path / kind)(data.graphs.subset(data.split["test"]))
        pred = answers if kind == "regression" else answers.logit()
        for name in names:
            expected = pytest.approx(evaluate(name, pred, y, data.task), abs=1e-5)
            assert result.test_metrics[name] == expected
