"""Molecules with elements that a network has not learned about."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from grant_fast.graphs import PackedGraphs
from grant_fast.training.answers import _doubts_of_answers
from grant_fast.training.elements import SYMBOLS, elements_of, unseen_elements
from grant_fast.training.trainer import Trainer
from tests.rings import make_dataset


def molecules(*of_symbols, first_row=2):
    """Molecules of these atoms without bonds, whose ids are rows."""
    atoms = [SYMBOLS.index(symbol) for symbols in of_symbols for symbol in symbols]
    owner = torch.arange(len(of_symbols)).repeat_interleave(torch.tensor([*map(len, of_symbols)]))
    x = torch.zeros(len(atoms), 9, dtype=torch.uint8)
    x[:, 0] = torch.tensor(atoms)
    graphs = PackedGraphs.from_arrays(x, torch.empty(2, 0), owner)
    graphs.ids += first_row
    return graphs


def test_symbols_are_numbered_as_by_ogb():
    features = pytest.importorskip("ogb.utils.features")
    table = pytest.importorskip("rdkit.Chem").GetPeriodicTable()
    *numbers, other = features.allowable_features["possible_atomic_num_list"]
    assert [table.GetElementSymbol(number) for number in numbers] == SYMBOLS[:-1]
    assert other == "misc" and SYMBOLS[-1] == "*"


def test_new_elements_are_named_with_their_molecules():
    seen = elements_of(molecules("CO", "OCC").x)
    assert seen == (5, 7)
    assert unseen_elements(molecules("OC", "C"), seen, "row") == []
    new = molecules("C", ["Se", "C", "Se"], ["C", "*", "Br"])
    assert unseen_elements(new, seen, "row") == [
        "2 molecules have an element that no molecule in training had (Se in row 3, Br in row 4, "
        "* in row 4), so what is predicted for them means little"
    ]
    assert unseen_elements(molecules("H"), seen, "row") == [
        "1 molecule has an element that no molecule in training had (H, as deuterium or a hydrogen "
        "of its own, in row 2), so what is predicted for it means little"
    ]
    assert unseen_elements(new[:2], seen, "graph") == [
        "1 molecule has an element that no molecule in training had (Se in graph 3), so what is "
        "predicted for it means little"
    ]


def test_of_several_runs_it_is_said_once_what_some_have_not_seen():
    runs = [SimpleNamespace(spec=SimpleNamespace(elements=seen)) for seen in ((5, 7), (5, 6), ())]
    new = molecules("C", "N", "O")
    assert _doubts_of_answers(runs[:1], new, "row") == unseen_elements(new, (5, 7), "row")
    assert _doubts_of_answers(runs, new, "row") == [
        "2 molecules have an element that no molecule in the training of some of the runs had (N "
        "in row 3, O in row 4), so what is predicted for them means little"
    ]
    assert _doubts_of_answers(runs[2:], new, "row") == []


def test_of_unknown_elements_nothing_is_said():
    """As of a run that is not of molecules."""
    assert unseen_elements(molecules("CO"), (), "row") == []


def test_elements_of_the_test_part_alone_are_not_learned(tmp_path, config):
    graphs = molecules(*["CO", "OCC"] * 4, "CC", ["C", "Br"])
    graphs.y = torch.arange(20.0).view(10, 2)
    split = dict(zip(("train", "valid", "test"), torch.arange(10).split([6, 2, 2]), strict=True))
    dataset = replace(make_dataset(), graphs=graphs, split=split, encoder="atom")
    assert Trainer(dataset, config(), tmp_path).spec.elements == elements_of(molecules("CO").x)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32])
def test_elements_are_found_in_numbers_of_any_kind(dtype):
    """What an encoder does not take it refuses itself."""
    assert elements_of(torch.tensor([[7, 200], [5, 0], [7, 1]]).to(dtype)) == (5, 7)
