"""Scaffolds of large molecules, for which RDKit takes long: the same as RDKit's."""

import random

import pytest

from grant_fast.data import scaffolds

pytest.importorskip("rdkit")

#: By what is particular: chirality, nitrogen and charges where something falls away, double bonds
#: to what hangs on, links, cages, salts, and what has no ring.
AWKWARD = {
    "chiral": "C[C@@H]1CCCC[C@@H]1C",
    "chiral chain": "C[C@H](Nc1nc(Nc2cc(C)[nH]n2)c(C)nc1C#N)c3ccc(F)cn3",
    "nitrogen": "Cn1cccc1C",
    "charged": "C1CC[S+2](C1)([O-])[O-]",
    "ketene": "O=C=C1CCCC1",
    "double bonds": "CC(=C)C1CC(=O)C(=CC)C1=NO",
    "linked": "O=C(NCCc1ccc(OCCc2ccccn2)cc1)c1ccccc1",
    "triple bond": "CS(=O)(=O)c1ccc(cc1)C#C[C@]3(O)CN4CCC3CC4",
    "cage": "C1=C[C@@H]([C@@H]2[C@H]1[C@@]3(C(=C([C@]2(C3(Cl)Cl)Cl)Cl)Cl)Cl)Cl",
    "salt": "[Na+].[O-]C(=O)c1ccccc1.CCO.C1CC1CC1CC1",
    "hydrogen": "[2H]C1CC1([3H])[H]",
    "metal": "C1CCN(CC1)[Pt](Cl)(Cl)N1CCCCC1",
}


def by_rdkit(molecule) -> str:
    from rdkit.Chem.Scaffolds.MurckoScaffold import MurckoScaffoldSmiles

    return MurckoScaffoldSmiles(mol=molecule, includeChirality=False)


@pytest.mark.parametrize("smiles", AWKWARD.values(), ids=AWKWARD)
def test_the_scaffold_is_rdkits(smiles) -> None:
    from rdkit import Chem

    molecule = Chem.MolFromSmiles(smiles)
    before = Chem.MolToSmiles(molecule)
    assert scaffolds._pruned(molecule) == by_rdkit(molecule)
    assert Chem.MolToSmiles(molecule) == before


@pytest.mark.parametrize("kind", [0, 2, 6], ids=["peptides", "RNA", "DNA"])
def test_scaffolds_of_large_molecules_are_rdkits(kind, monkeypatch) -> None:
    from rdkit import Chem

    letters, draw = "ACDEFGHIKLMNPQRSTVWY" if kind == 0 else "ACGU" if kind == 2 else "ACGT", random
    draw.seed(0)
    for length in range(8, 20, 3):
        sequence = "".join(draw.choices(letters, k=length))
        molecule = Chem.MolFromSequence(sequence, flavor=kind)
        molecule = Chem.MolFromSmiles(Chem.MolToSmiles(molecule))
        right = by_rdkit(molecule)
        with monkeypatch.context() as patch:
            if molecule.GetNumAtoms() > 100:
                patch.setattr("rdkit.Chem.MurckoDecompose", None)
            assert scaffolds.scaffold_of(molecule) == right


@pytest.mark.parametrize(
    "smiles",
    [
        "C" * 100 + "[c+]1cccccc1",
        "C" * 100 + "C1CC1CN1->[Pt](Cl)(Cl)<-NCC1",
        "C" * 100 + "c1ccc(CP2(C)CCP(C)(C)->[Pd](Cl)(Cl)<-2)cc1",
    ],
    ids=["a charged aromatic carbon", "a chelate", "another"],
)
def test_what_rdkit_treats_as_a_case_of_its_own_is_left_to_it(smiles) -> None:
    from rdkit import Chem

    molecule = Chem.MolFromSmiles(smiles)
    right = by_rdkit(molecule)
    assert scaffolds.scaffold_of(molecule) == right != scaffolds._pruned(molecule)


@pytest.mark.parametrize("chain", ["", "C" * 100])
@pytest.mark.parametrize("ring", ["[Cu]o1cccc1", "C1=CC=CO1->[Cu]", "[Fe]n12cccc1cccc2"])
def test_what_rdkit_cannot_prune_is_a_scaffold_of_its_own(ring, chain) -> None:
    from rdkit import Chem

    molecule = Chem.MolFromSmiles(f"{ring}.{chain}" if chain else ring)
    assert scaffolds.scaffold_of(molecule) == Chem.MolToSmiles(molecule)
