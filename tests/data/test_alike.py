"""Molecules that a table holds twice, however they are written."""

import numpy as np
import pytest
import torch

from grant_fast import PackedGraphs
from grant_fast.data.alike import CHIRALITY, contradictions, fingerprints, seen_in_training
from tests.cases import Case


def packed(smiles: list[str]) -> PackedGraphs:
    pytest.importorskip("rdkit")
    pytest.importorskip("ogb")
    return PackedGraphs.from_smiles(smiles)


def test_the_order_of_atoms_does_not_matter() -> None:
    marks = fingerprints(
        packed(["CCO", "OCC", "C(O)C", "CC(=O)Oc1ccccc1C(=O)O", "OC(=O)c1ccccc1OC(C)=O"])
    )
    assert marks[0] == marks[1] == marks[2] != marks[3] == marks[4]


def test_isomers_that_the_features_do_not_tell_apart_look_alike() -> None:
    marks = fingerprints(packed(["C/C=C/C", "C/C=C\\C", "CCC=C"]))
    assert marks[0] == marks[1] != marks[2]


def test_different_molecules_have_different_numbers() -> None:
    chains = ["C" * n for n in range(1, 30)] + ["C" * n + "O" + "C" * 6 for n in range(1, 30)]
    rings = [f"C1{'C' * n}1" for n in range(2, 9)]
    others = ["CC(C)C", "CCCC", "C1CC1C", "N", "O", "F", "[Na+].[Cl-]", "C.C"]
    smiles = [*chains, *rings, *others]
    marks = fingerprints(packed(smiles))
    same = [i for i in range(len(smiles)) if (marks == marks[i]).sum() > 1]
    # Read from both ends, C…COCCCCCC with six before and six behind is itself alone.
    assert {smiles[i] for i in same} == {"CCCC"}


def test_a_node_more_or_an_edge_turned_round_is_seen() -> None:
    x = torch.zeros(6, 1, dtype=torch.long)
    batch = torch.tensor([0, 0, 0, 1, 1, 1])
    edges = torch.tensor([[0, 1, 3, 5], [1, 2, 4, 4]])  # a path, and two into the middle
    one, other = fingerprints(PackedGraphs.from_arrays(x, edges, batch))
    assert one != other
    empty = fingerprints(PackedGraphs.from_arrays(x[:1], torch.empty(2, 0), [1], num_graphs=4))
    assert empty[0] == empty[2] == empty[3] != empty[1]


def test_renumbered_graphs_keep_their_numbers() -> None:
    case = Case(weighted=False)
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(3, (case.num_nodes, 2), generator=generator)
    order = torch.cat(  # within each graph
        [
            (case.batch == g).nonzero()[:, 0][torch.randperm(size, generator=generator)]
            for g, size in enumerate(case.sizes)
        ]
    )
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    one = PackedGraphs.from_arrays(x, case.edge_index, case.batch, num_graphs=12)
    other = PackedGraphs.from_arrays(x[order], place[case.edge_index], case.batch, num_graphs=12)
    np.testing.assert_array_equal(fingerprints(one), fingerprints(other))


def test_what_a_part_shares_with_training_is_counted() -> None:
    graphs = packed(["CCO", "CCN", "CCC", "OCC", "CCF", "NCC"])
    split = {"train": torch.tensor([0, 1, 2]), "test": torch.tensor([3, 4, 5])}
    assert seen_in_training(fingerprints(graphs), split) == 2


def test_labels_of_graphs_that_look_alike_contradict_beyond_a_limit() -> None:
    nan = np.nan
    marks = np.array([7, 3, 7, 7, 3, 9, 5, 5], np.uint64)
    y = np.array([[0.0, 1], [5, 1], [2, nan], [9, 1], [5, 0], [1, 1], [nan, 1], [4, 1]])
    # Of mark 7 graphs 0 and 3 are furthest apart, of mark 3 only the second target differs.
    assert contradictions(marks, y, np.array([1.0, 0])).tolist() == [[0, 3], [4, 1]]
    assert contradictions(marks, y, np.array([9.0, 1])).tolist() == []
    assert contradictions(marks, y[:, 1:], np.zeros(1)).tolist() == [[4, 1]]
    assert contradictions(marks, y * nan, np.zeros(2)).tolist() == []


def test_a_group_is_named_once_however_many_targets_contradict() -> None:
    marks = np.array([7, 7], np.uint64)
    y = np.array([[0.0, 1], [3, 0]])
    assert contradictions(marks, y, np.array([1.0, 0])).tolist() == [[0, 1]]


def test_a_chiral_molecule_looks_like_itself_however_it_is_written():
    ways = ["C[C@H](N)C(=O)O", "C[C@@H](C(=O)O)N", "N[C@@H](C)C(=O)O", "CC(N)C(=O)O"]
    assert len(set(fingerprints(packed(ways)).tolist())) > 1
    assert len(set(fingerprints(packed(ways), but=CHIRALITY).tolist())) == 1


def test_a_graph_has_the_same_number_whoever_is_with_it(monkeypatch) -> None:
    case = Case(weighted=False)
    x = torch.randint(3, (case.num_nodes, 2), generator=torch.Generator().manual_seed(1))
    graphs = PackedGraphs.from_arrays(x, case.edge_index, case.batch, num_graphs=len(case.sizes))
    whole = fingerprints(graphs)
    monkeypatch.setattr("grant_fast.data.alike._BLOCK", 12)
    assert len(graphs.cut(12)) > 3
    assert fingerprints(graphs).tolist() == whole.tolist()
    assert [int(fingerprints(graphs[[i]])[0]) for i in range(len(graphs))] == whole.tolist()


def test_contradictions_come_by_how_far_they_go_beyond_their_limits() -> None:
    marks = np.array([7, 7, 7, 3, 3], np.uint64)
    y = np.array([[0.0, 0], [10, 0], [np.nan, 0], [0, 0], [0, 3]])  # 10/8 and 3/1
    assert contradictions(marks, y, np.array([8.0, 1])).tolist() == [[3, 4], [0, 1]]


def test_every_column_but_the_one_left_out_is_compared() -> None:
    def mark(row: list[int], but: int | None = None) -> int:
        graphs = PackedGraphs.from_arrays(torch.tensor([row]), torch.empty(2, 0), [0])
        return int(fingerprints(graphs, but)[0])

    assert mark([1, 2, 3]) != mark([2, 1, 3])
    assert mark([1, 2, 3], 1) == mark([1, 5, 3], 1) != mark([1, 2, 4], 1)
