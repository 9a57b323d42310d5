"""What cannot be trained on, or not any longer, and what to do about it."""

import copy
from dataclasses import replace

import pytest
import torch

from grant_fast.errors import InputError
from grant_fast.training.trainer import Trainer
from tests.rings import make_dataset

KINDS = ["regression", "binary", "multilabel", "multiclass"]


def test_data_that_cannot_teach_are_refused(tmp_path, config):
    dataset = make_dataset()
    dataset.graphs.y.fill_(torch.nan)
    with pytest.raises(InputError, match="rings has no labels in its training split"):
        Trainer(dataset, config(), tmp_path)
    dataset.graphs.y = None
    with pytest.raises(InputError, match="rings has no targets to learn"):
        Trainer(dataset, config(), tmp_path)


@pytest.mark.parametrize("kind", ["binary", "multilabel", "multiclass"])
def test_a_single_class_in_training_is_refused(tmp_path, config, kind):
    dataset = make_dataset(kind)
    y, train = dataset.graphs.y, dataset.split["train"]
    y[train] = torch.where(y[train] >= 0, 1, y[train])  # what is not measured stays that
    with pytest.raises(InputError, match="labels of only one class in its training split, 1, so"):
        Trainer(dataset, config(), tmp_path)
    if kind == "multiclass":
        names = tuple("abcdefgh"[: dataset.task.num_outputs])
        named = replace(dataset, task=replace(dataset.task, names=names))
        with pytest.raises(InputError, match="training split, b, so"):
            Trainer(named, config(), tmp_path)


def test_a_diverging_run_stops_and_says_what_to_change(tmp_path, config):
    chosen = config(lr=1e30, standardize=False, arm="full", epochs=20)
    with pytest.raises(InputError, match=r"after \d+ of 20 epochs: .* lower lr \(now 1e\+30\)"):
        Trainer(make_dataset(), chosen, tmp_path).fit()
    with pytest.raises(
        InputError, match=r"\(and give overwrite=True where the folder keeps this run\)$"
    ):
        Trainer(make_dataset(), chosen, tmp_path).fit()
    dataset = make_dataset()
    dataset.graphs.y *= 1e30
    Trainer(dataset, config(epochs=1), tmp_path).fit()
    with pytest.raises(
        InputError, match=r"after 0 of 6 epochs: .*; standardize the targets, lower lr"
    ):
        Trainer(dataset, config(standardize=False), tmp_path).fit()


def test_targets_of_another_task_are_refused(tmp_path, config):
    dataset = make_dataset("regression")
    graphs = copy.copy(dataset.graphs)
    graphs.y = torch.arange(len(graphs.y)) % 3
    says = (
        r"y of .* is torch\.int64 .* which is not what Task\(kind='regression'.* load_dataset\(gra"
    )
    with pytest.raises(InputError, match=says):
        Trainer(replace(dataset, graphs=graphs), config(), tmp_path)


def test_unknown_devices_are_refused(tmp_path, config):
    with pytest.raises(InputError, match="device=abacus cannot be used here"):
        Trainer(make_dataset(), config(device="abacus"), tmp_path)
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="PyTorch sees no GPU, so give cpu, or auto"):
            Trainer(make_dataset(), config(device="cuda"), tmp_path)


@pytest.mark.parametrize(
    ("settings", "culprit"),
    [
        ({"lr": 1e30}, r"lower lr \(now 1e\+30\)"),
        ({"lr": 1e30, "weight_decay": 1e-4}, r"lower lr \(now 1e\+30\)"),
        ({"lr_restart": 1e30}, r"lower lr_restart \(now 1e\+30\)"),
        ({"weight_decay": 1e30}, r"lower weight_decay \(now 1e\+30\)"),
    ],
)
def test_what_made_a_run_diverge_is_named(tmp_path, config, settings, culprit):
    with pytest.raises(InputError, match=rf"training diverged after .*{culprit}, or set clip"):
        Trainer(make_dataset(), config(interval=1, arm="random", **settings), tmp_path).fit()
