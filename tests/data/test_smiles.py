"""Molecules from SMILES."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from grant_fast import PackedGraphs
from grant_fast.data import parsing, sdf
from grant_fast.data import smiles as reading
from grant_fast.data.scaffolds import scaffold_of
from grant_fast.data.smiles import read_molecules
from grant_fast.errors import InputError, MissingExtraError
from grant_fast.nn import ATOM_CARDINALITIES
from tests.cases import check_equal

pytest.importorskip("rdkit")
pytest.importorskip("ogb")

ASPIRIN = "CC(=O)Oc1ccccc1C(=O)O"


def test_graphs_are_those_of_ogb() -> None:
    mol = pytest.importorskip("ogb.utils.mol")
    smiles = [ASPIRIN, "C", "[Na+].[Cl-]", "C/C=C/[C@H](Cl)Br", "*", "[H][H]", "F[P-](F)(F)(F)(F)F"]
    # Among these there are atoms that differ in one feature alone, for nearly each of the nine.
    smiles += ["CCBr", "II", "CC[C@@H](N)CO", "CC(C)C", "COC=O", "O=C[O-]", "CO", "NC=O", "NO"]
    smiles += ["C1=CCCC1", "c1ccoc1", "C1CS1", "CCO", "[CH3]", "[O]c1ccccc1"]
    graphs, failures, _ = read_molecules(smiles, edge_attr=True)
    assert failures == []
    assert len(graphs) == len(smiles)
    assert graphs.x.dtype == torch.uint8
    assert graphs.edge_attr is not None and graphs.edge_attr.dtype == torch.uint8
    for i, text in enumerate(smiles):
        expected, mine = mol.smiles2graph(text), graphs.batch([i])
        np.testing.assert_array_equal(mine.x.numpy(), expected["node_feat"])
        by_target = np.lexsort(expected["edge_index"])  # as they are packed
        edges = expected["edge_index"][:, by_target].reshape(2, -1)
        np.testing.assert_array_equal(mine.edge_index.numpy(), edges)
        assert mine.edge_attr is not None
        np.testing.assert_array_equal(mine.edge_attr.numpy(), expected["edge_feat"][by_target])
    assert read_molecules(smiles)[0].edge_attr is None


@pytest.mark.parametrize(
    "text",
    [
        "C[C@H](N)C(=O)O",
        "O[C@@H]1[C@H](C)CC[C@]1(F)Cl",
        "C[S@](=O)CC",
        "C/C=C/[C@H](Cl)Br.[Na+].[Cl-]",
        "OC[C@H]1OC(O)[C@H](O)[C@@H](O)[C@@H]1O",
        "CC(F)(Cl)Br |(0,0,;1,0,;2,0,;1,1,;1,-1,),wU:1.0|",  # chiral by a wedge alone
    ],
)
def test_a_chiral_molecule_gets_the_same_numbers_however_it_is_written(text: str) -> None:
    chem, _ = parsing.import_rdkit()
    mol = pytest.importorskip("ogb.utils.mol")
    canonical = chem.CanonSmiles(text)
    molecule = chem.MolFromSmiles(canonical)
    expected = mol.smiles2graph(canonical)["node_feat"]
    assert expected[:, 1].any()  # there is chirality
    ways = [text, canonical, *chem.MolToRandomSmilesVect(molecule, 20, randomSeed=1)]
    tags = set()
    for way in ways:
        written = chem.MolFromSmiles(way)
        tags.add(tuple(str(atom.GetChiralTag()) for atom in written.GetAtoms()))
        order = written.GetSubstructMatch(molecule, useChirality=True)
        x = read_molecules([way])[0].x.numpy()
        np.testing.assert_array_equal(x[list(order)], expected)
    assert len(tags) > 1  # RDKit's tags are those of the text


@pytest.mark.parametrize(
    "text",
    ["C[C@H](N)C(=O)O", "c1cc(C)ccc1CO", "CN[C@@H]1CC[C@@H](CC1)NC(=O)C", "O[C@]1(F)CCCC1Br"],
)
def test_numbers_that_map_atoms_change_nothing(text: str) -> None:
    chem, _ = parsing.import_rdkit()
    molecule = chem.MolFromSmiles(text)
    (of_ring,) = read_molecules([text], scaffold_of)[2]
    plain = read_molecules([chem.MolToSmiles(molecule)])[0].x
    draw = random.Random(0)
    for _ in range(10):
        for atom in molecule.GetAtoms():
            atom.SetAtomMapNum(draw.randrange(30))
        mapped = chem.MolToSmiles(molecule, doRandom=True)
        graphs, _, found = read_molecules([mapped], scaffold_of)
        assert found == [of_ring]
        assert sorted(graphs.x.tolist()) == sorted(plain.tolist())


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("C[C@H](N)C(=O)O |&1:1|", "C[C@@H](N)C(=O)O |&1:1|", True),
        ("C[C@H](N)C(=O)O |o1:1|", "CC(N)C(=O)O", True),  # one of the two, unknown which
        ("C[C@H](N)C(=O)O |a:1|", "C[C@H](N)C(=O)O", True),
        ("C[C@H](N)C(=O)O |a:1|", "C[C@@H](N)C(=O)O |a:1|", False),
        ("C[C@H](N)[C@H](O)CC |&1:1,3|", "C[C@@H](N)[C@@H](O)CC |&1:1,3|", True),
        ("C[C@H](N)[C@H](O)CC |&1:1,3|", "CC[C@@H](O)[C@@H](N)C |&1:2,4|", True),
        ("C[C@H](N)[C@H](O)CC |&1:1,3|", "C[C@@H](N)[C@H](O)CC |&1:1,3|", False),
        ("C[C@H](N)[C@H](O)CC |&1:1,&2:3|", "C[C@@H](N)[C@H](O)CC |&1:1,&2:3|", True),
    ],
)
def test_a_racemate_is_the_same_whichever_image_shows_it(one: str, other: str, same: bool) -> None:
    chem, _ = parsing.import_rdkit()
    rows = [sorted(read_molecules([text])[0].x.tolist()) for text in (one, other)]
    assert (rows[0] == rows[1]) == same
    blocks = [chem.MolToV3KMolBlock(chem.MolFromSmiles(text)) for text in (one, other)]
    (first, _), (second, _) = sdf._read_structures(blocks)
    assert (first == second) == same


def test_a_molecule_that_cannot_be_read_back_keeps_its_own_chirality() -> None:
    chem, _ = parsing.import_rdkit()
    for back in (None, chem.MolFromSmiles("C")):
        molecule = chem.MolFromSmiles("C[C@@H](N)F")
        stub = SimpleNamespace(MolToSmiles=chem.MolToSmiles, MolFromSmiles=lambda _, m=back: m)
        parsing._tag_canonically(stub, molecule)
        assert str(molecule.GetAtomWithIdx(1).GetChiralTag()) == "CHI_TETRAHEDRAL_CW"


@pytest.mark.parametrize("wedge", ["wU", "wD"])
def test_a_bond_that_ogb_has_no_word_for_has_no_stereo(wedge: str) -> None:
    twisted = "Cc1cccc(I)c1-c1c(C)cccc1Br"
    graphs, failures, _ = read_molecules([twisted, f"{twisted} |{wedge}:7.7|", "C"], edge_attr=True)
    assert failures == [] and graphs.edge_attr is not None
    flat, atropisomer = graphs.edge_attr.split(34)
    assert torch.equal(flat, atropisomer)


def test_unparsable_smiles_are_reported_and_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    bad = ["", "C1", "not a molecule", "C(C)(C)(C)(C)C", "CCO\nCCN", "CCO\r\nCCN"]
    graphs, failures, _ = read_molecules(["CC", *bad, " O\n"], progress=True)
    assert failures == list(enumerate(bad, 1))
    assert graphs.ptr.tolist() == [0, 2, 3]
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err == ""  # RDKit's own complaints are silenced


def test_what_stands_behind_a_space_is_a_name_or_not_a_part_of_the_molecule() -> None:
    apart = ["C C O", "C C ( = O ) O", "CCO CCCCC", "CC\tO"]
    names = ["CC ethane", "CC 1", "CC |(0,0,;1,0,)|", "CC O'Neill"]
    graphs, failures, _ = read_molecules([*apart, *names])
    assert failures == list(enumerate(apart))
    assert graphs.ptr.diff().tolist() == [2] * len(names)


def test_a_ring_that_would_fill_the_memory_is_not_read() -> None:
    long = "C1" + "C" * 10_000 + "C1"
    graphs, failures, _ = read_molecules(["CC", long, "C" * 10_000])
    assert failures == [(1, long)]
    assert graphs.ptr.tolist() == [0, 2, 10_002]


def test_bonds_of_any_kind_do_not_look_like_pygs_numbers() -> None:
    for smiles in ("C~C", "CC~C~CC"):
        assert not reading.are_pyg_features(PackedGraphs.from_smiles([smiles]).x)


@pytest.mark.parametrize("smiles", [[], ["C1"]])
def test_nothing_parsable_gives_no_graphs(smiles: list[str]) -> None:
    graphs, failures, _ = read_molecules(smiles)
    assert len(graphs) == graphs.num_edges == 0
    assert graphs.x.shape == (0, 9)
    assert len(failures) == len(smiles)


def test_several_processes_give_the_same_as_one(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    smiles = ["CC", "C1", ASPIRIN] * 34
    one, failures, _ = read_molecules(smiles)
    asked, share = [], reading.share_out
    monkeypatch.setattr(reading, "CHUNK", 10)
    monkeypatch.setattr(
        reading, "share_out", lambda workers, *work: asked.append(workers) or share(2, *work)
    )
    two, failures_of_two, _ = read_molecules(smiles, workers=16)
    assert asked == [3]  # of eleven pieces, one for each three
    assert failures == failures_of_two
    assert len(failures) == 34
    check_equal(two, one)
    assert two.is_symmetric


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no process groups of this kind")
def test_an_interrupt_of_the_whole_process_group_ends_it_quietly(tmp_path) -> None:  # type: ignore[no-untyped-def]
    script = tmp_path / "read.py"
    script.write_text(
        "from grant_fast.data.smiles import read_molecules\n"
        "if __name__ == '__main__':\n"
        "    print('ready', flush=True)\n"
        "    try:\n"
        f"        read_molecules([{ASPIRIN!r}] * 100_000, workers=2)\n"
        "    except KeyboardInterrupt:\n"
        "        print('interrupted')\n"
    )
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.5)  # the workers are importing, or at work
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=60)
    assert said == ("interrupted\n", "")


def test_ogb_starts_no_network_check_and_rdkit_stays_out_until_needed() -> None:
    code = (
        "import sys, threading, grant_fast.data.smiles as smiles\n"
        "assert 'rdkit' not in sys.modules and 'ogb' not in sys.modules\n"
        "smiles.read_molecules(['C'])\n"
        "assert 'ogb' in sys.modules and 'outdated' not in sys.modules\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ogb.utils.features", None)
    with pytest.raises(MissingExtraError, match=r'pip install "grant_fast\[smiles\]"'):
        read_molecules(["C"])


@pytest.mark.parametrize("value", [None, 3.5, b"C"])
def test_what_is_no_string_is_named(value: object) -> None:
    with pytest.raises(InputError, match=r"smiles\[1\] is .* not a string"):
        read_molecules(["C", value])  # type: ignore[list-item]


def test_what_is_no_smiles_is_named_by_its_place_in_the_list() -> None:
    with pytest.raises(InputError, match=r"smiles\[1\] 'C1CC' is not a valid SMILES \(1 in all"):
        PackedGraphs.from_smiles(["CCO", "C1CC"])
    with pytest.warns(UserWarning, match=r"1 left out; the first is smiles\[1\] 'C1CC'"):
        PackedGraphs.from_smiles(["CCO", "C1CC"], strict=False)


def test_gaps_of_a_table_are_left_out_where_that_is_asked_for() -> None:
    column: list[Any] = ["CCO", None, float("nan"), "C"]
    with pytest.warns(UserWarning, match=r"2 left out; the first is smiles\[1\] ''") as warned:
        graphs = PackedGraphs.from_smiles(column, [1.0, 2.0, 3.0, 4.0], strict=False)
    assert [Path(warning.filename).name for warning in warned] == [Path(__file__).name]
    assert graphs.ids.tolist() == [0, 3] and graphs.y.tolist() == [[1.0], [4.0]]


def test_a_bare_string_is_not_taken_for_its_letters() -> None:
    with pytest.raises(InputError, match=r"smiles is one string, 'CCO': give a list, \['CCO'\]"):
        PackedGraphs.from_smiles("CCO")


def test_no_molecules_make_no_data_set() -> None:
    with pytest.raises(InputError, match="the list of SMILES is empty: give one or more"):
        PackedGraphs.from_smiles([])


def test_what_has_no_order_or_only_names_is_refused() -> None:
    table = SimpleNamespace(columns=["smiles"], __iter__=["smiles"].__iter__)
    for given, kind in (
        ({"CCO"}, "set"),
        ({"a": "C"}, "dict"),
        (None, "NoneType"),
        (b"C", "bytes"),
    ):
        with pytest.raises(InputError, match=rf"smiles is a {kind}\w*: give a list of strings"):
            PackedGraphs.from_smiles(given)
    with pytest.raises(InputError, match="or one column of a table"):
        PackedGraphs.from_smiles(table)


@pytest.mark.filterwarnings("ignore:1 left out")
def test_a_subclass_reads_its_own() -> None:
    class Mine(PackedGraphs):
        pass

    graphs = Mine.from_smiles(["C1", "CC", "C"], [1.0, 2.0, 3.0], strict=False)
    assert type(graphs) is Mine and graphs.meta == {"encoder": "atom"}
    assert graphs.ids.tolist() == [1, 2] and graphs.y is not None and graphs.y_level == "graph"
    assert graphs.y.tolist() == [[2.0], [3.0]]


def test_smiles_may_come_one_by_one() -> None:
    graphs = PackedGraphs.from_smiles(("C" * n for n in range(1, 4)), np.arange(3.0))
    assert graphs.num_nodes_per_graph.tolist() == [1, 2, 3]
    with pytest.raises(InputError, match="there are 1 SMILES but 2 rows of y"):
        PackedGraphs.from_smiles(iter(["C"]), [1.0, 2.0])


@pytest.mark.parametrize("workers", [1, 2])
def test_something_else_is_found_of_each_molecule_on_the_way(workers: int) -> None:
    smiles = [ASPIRIN, "C1", "CCO"] * 4000
    graphs, failures, found = read_molecules(smiles, scaffold_of, workers)
    assert (graphs.num_graphs, len(failures)) == (8000, 4000)
    assert found == ["c1ccccc1", ""] * 4000


def test_workers_below_one_are_refused() -> None:
    with pytest.raises(InputError, match="workers=0: give a whole number of at least 1"):
        read_molecules(["C"], workers=0)


def test_real_molecules_stay_within_the_cardinalities(shared_data) -> None:  # type: ignore[no-untyped-def]
    rows = (shared_data / "esol.csv").read_text().splitlines()[1:]
    graphs, failures, _ = read_molecules([row.split(",")[0] for row in rows])
    assert failures == []
    assert graphs.num_graphs == 1128
    assert bool((graphs.x.max(0).values < torch.tensor(ATOM_CARDINALITIES)).all())
    sizes = graphs.num_nodes_per_graph
    assert sizes.min() == 1  # methane
