"""Answers of a trained network: predictions, their files, and its scores."""

import csv
import json
from dataclasses import replace

import pytest
import torch

from grant_fast.data.load import load_dataset
from grant_fast.errors import InputError
from grant_fast.graphs import PackedGraphs
from grant_fast.teaching.residuals import graph_residuals
from grant_fast.teaching.scoring import score_graphs
from grant_fast.training.answers import _apart, predict_packed, write_tables
from grant_fast.training.checkpoints import load_checkpoint, save_checkpoint
from grant_fast.training.config import MEMORY
from grant_fast.training.metrics import evaluate
from grant_fast.training.predict import load_predictor
from grant_fast.training.source import dataset_of
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
    write_tables(tmp_path, dataset)
    with open(tmp_path / "test.csv", newline="") as file:
        missing, *others = csv.DictReader(file)
    targets = 1 if kind in ("binary", "multiclass") else 2
    assert list(missing.values())[: 1 + targets] == ["0", *[""] * targets]
    assert all(all(row.values()) for row in others)


def test_what_could_be_read_after_all_is_no_longer_listed(tmp_path, config):
    dataset = make_dataset()
    Trainer(dataset, config(epochs=1), tmp_path).fit()
    write_tables(tmp_path, replace(dataset, skipped=[(7, 'C"')]))
    assert (tmp_path / "skipped.csv").read_text() == 'row,text\n7,"C"""\n'
    write_tables(tmp_path, dataset)
    assert not (tmp_path / "skipped.csv").exists()


def test_a_target_called_graph_has_a_column_of_its_own(tmp_path, config):
    dataset = make_dataset("binary")
    dataset.task = replace(dataset.task, names=("graph",))
    Trainer(dataset, config(epochs=1), tmp_path).fit()
    write_tables(tmp_path, dataset)
    dataset.save(tmp_path / "a.gfast")
    predict_packed([load_predictor(tmp_path)], tmp_path / "a.gfast", tmp_path / "out.csv")
    with open(tmp_path / "test.csv") as tested, open(tmp_path / "out.csv") as predicted:
        assert next(tested) == "graph,graph_target,graph_predicted\n"
        assert next(predicted) == "graph,graph_predicted\n"


@pytest.mark.parametrize(
    ("names", "columns", "apart"),
    [
        (["y"], ["x"], ["y"]),
        (["y"], [" y "], ["y_predicted"]),
        (["y (nM)"], ["y\n(nM)"], ["y (nM)_predicted"]),
        (["y"], ["y", "y_predicted"], ["y_predicted_predicted"]),
        (["y", "y_predicted"], ["y"], ["y_predicted", "y_predicted_predicted"]),
    ],
)
def test_no_two_columns_are_called_alike(names, columns, apart):
    assert _apart(names, columns) == apart


def test_a_prediction_is_asked_for_packed_graphs_of_the_run_s_kind(tmp_path, config):
    dataset = make_dataset()
    Trainer(dataset, config(epochs=1), tmp_path).fit()
    predict = load_predictor(tmp_path)
    assert predict(dataset.graphs).shape == (NUM_GRAPHS, 2)
    for wrong in (["CCO"], dataset.graphs[0], 3, None):
        with pytest.raises(InputError, match=f"not a {type(wrong).__name__}: make one"):
            predict(wrong)
    wide = PackedGraphs.from_arrays(torch.ones(2, 4), torch.empty(2, 0), torch.zeros(2).long())
    with pytest.raises(InputError, match="have 4 features per node, but the run was trained on 3"):
        predict(wide)


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
    if level == "graph":
        assert predict.score(graphs[:1]).tolist() == [0]  # it has no label at all


@pytest.mark.parametrize("width", [1, 3])
def test_targets_of_another_width_are_refused_and_not_stretched(tmp_path, config, width):
    Trainer(make_dataset("regression"), config(epochs=1), tmp_path).fit()
    graphs = make_dataset("regression").graphs
    graphs.y = torch.zeros(len(graphs), width)
    with pytest.raises(InputError, match=rf"targets have shape \({len(graphs)}, {width}\)"):
        load_predictor(tmp_path).score(graphs)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_graphs_of_any_precision_are_learned_from_and_answered_for(tmp_path, config, dtype):
    dataset = make_dataset("regression")
    usual, other = tmp_path / "float32", tmp_path / "other"
    Trainer(dataset, config(epochs=2), usual).fit()
    graphs = dataset.graphs.to(dtype)
    Trainer(replace(dataset, graphs=graphs), config(epochs=2), other).fit()
    tolerance = 1e-5 if dtype == torch.float64 else 0.1
    expected, found = (load_predictor(folder)(graphs) for folder in (usual, other))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_who_scores_with_a_predictor_is_told_of_its_own_method(tmp_path, config):
    dataset = make_dataset()
    Trainer(dataset, config(epochs=1), tmp_path).fit()
    predict = load_predictor(tmp_path)
    with pytest.raises(InputError, match=r"call this predictor's score\(graphs\) instead"):
        score_graphs(predict, dataset.graphs, dataset.task)
    with pytest.raises(InputError, match="not a list: make one"):
        predict.score(["CCO"])
    dataset.graphs.y = None
    with pytest.raises(InputError, match="no targets"):
        predict.score(dataset.graphs)


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


@pytest.mark.parametrize(
    ("metric", "names"), [("ap", ["accuracy", "ap"]), ("accuracy", ["accuracy"])]
)
def test_of_many_classes_only_the_curve_that_was_asked_for_is_measured(
    tmp_path, config, monkeypatch, metric, names
):
    monkeypatch.setattr("grant_fast.training.evaluation._MANY_CLASSES", 2)
    result = Trainer(make_dataset("multiclass"), config(epochs=2, metric=metric), tmp_path).fit()
    assert sorted(result.test_metrics) == names
    assert result.test_metrics[metric] == result.test_metric


SMILES = [f"{'C' * (n % 7 + 1)}{end}" for n in range(21) for end in ("O", "N=O")]


@pytest.fixture
def table(tmp_path):
    pytest.importorskip("rdkit")
    pytest.importorskip("ogb")
    path = tmp_path / "table.csv"
    path.write_text("smiles,y\n" + "".join(f"{smiles},{n}\n" for n, smiles in enumerate(SMILES)))
    return path


def test_the_data_of_a_run_are_those_that_it_learned_from(tmp_path, config, table):
    settings = config(epochs=1, source=str(table), split="random")
    data = dataset_of(settings)
    Trainer(data, settings, tmp_path / "run").fit()
    again = load_predictor(tmp_path / "run").dataset()
    assert torch.equal(again.split["test"], data.split["test"])
    table.write_text(table.read_text().replace(",5\n", ",6\n"))
    for last in (False, True):
        with pytest.raises(InputError, match=r"table\.csv has changed since the run learned"):
            load_predictor(tmp_path / "run", last=last).dataset()
    table.unlink()
    with pytest.raises(InputError, match=r"no file .*table\.csv.*read the data with load_dataset"):
        load_predictor(tmp_path / "run").dataset()


@pytest.mark.parametrize("where", ["csv", "gfast", "memory"])
def test_molecules_numbered_as_pygs_are_only_for_a_run_that_learned_from_such(
    tmp_path, config, table, where
):
    utils = pytest.importorskip("torch_geometric.utils")
    packed = PackedGraphs.from_data_list([utils.from_smiles(smiles) for smiles in SMILES])
    packed.y = torch.arange(len(SMILES)).float()[:, None]
    data = load_dataset(table, split="random", progress=False)
    source = str(table)
    if where == "memory":
        data, source = replace(data, graphs=packed), MEMORY + "a"
    elif where == "gfast":
        source = str(tmp_path / "a.gfast")
        data.save(source)
    Trainer(data, config(epochs=1, source=source, split="random"), tmp_path / "run").fit()
    predict = load_predictor(tmp_path / "run")
    if where == "memory":
        assert predict(packed).shape == (len(SMILES), 1)
    else:
        says = r"have the features of torch_geometric\.utils\.from_smiles, and .* OGB's: make them"
        with pytest.raises(InputError, match=says):
            predict(packed)


def test_graphs_that_share_an_id_are_each_in_split_csv(tmp_path, config):
    dataset = make_dataset()
    dataset.graphs.ids = torch.arange(NUM_GRAPHS) // 2
    Trainer(dataset, config(epochs=1), tmp_path).fit()
    write_tables(tmp_path, dataset)
    rows = (tmp_path / "split.csv").read_text().splitlines()
    assert rows[1:5] == ["0,train", "0,train", "1,train", "1,train"]
    assert len(rows) == 1 + NUM_GRAPHS


@pytest.mark.parametrize("level", ["graph", "node"])
def test_packed_graphs_are_answered_for_once_they_are_sound_and_known(tmp_path, config, level):
    dataset, packed = make_dataset(level=level), tmp_path / "a.gfast"
    dataset.save(packed)
    Trainer(dataset, config(epochs=1, source=str(packed)), tmp_path / "run").fit()
    predictors = [load_predictor(tmp_path / "run")]
    doubts = predict_packed(predictors, packed, tmp_path / "out.csv").doubts
    assert doubts == [f"{packed} is what the run learned from: the metrics are of training, too"]
    content = bytearray(packed.read_bytes())
    content[content.index(dataset.graphs.x.numpy().tobytes()[:64])] ^= 65
    packed.write_bytes(content)
    with pytest.raises(InputError, match="is damaged"):
        predict_packed(predictors, packed, tmp_path / "out.csv")


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("config"),
        lambda state: state.pop("spec"),
        lambda state: state["spec"].update(targets=5),
        lambda state: state.update(model=None),
        lambda state: state.update(metric="x"),
        lambda state: state.update(metric="accuracy"),  # of classes
        lambda state: state.update(metric={}),
        lambda state: state["model"].update({"convs.0.weight": "text"}),
    ],
)
def test_weights_without_what_says_how_to_use_them_are_refused(tmp_path, config, change):
    Trainer(make_dataset(), config(epochs=1), tmp_path).fit()
    state = load_checkpoint(tmp_path / "best.pt")
    change(state)
    save_checkpoint(tmp_path / "best.pt", state)
    with pytest.raises(InputError, match=r"best\.pt: not what grant-fast writes .*; restore it"):
        load_predictor(tmp_path)


def test_widths_that_the_weights_have_not_are_refused_before_they_take_memory(tmp_path, config):
    Trainer(make_dataset(), config(epochs=1), tmp_path).fit()
    huge = {"hidden_channels": [65_536], "orders": [1_000, 1_000]}
    state = load_checkpoint(tmp_path / "best.pt")
    state["config"].update(huge)
    save_checkpoint(tmp_path / "best.pt", state)
    written = json.loads((tmp_path / "config.json").read_text()) | huge
    (tmp_path / "config.json").write_text(json.dumps(written))
    with pytest.raises(InputError, match=r"best\.pt: checkpoint of another model"):
        load_predictor(tmp_path)
