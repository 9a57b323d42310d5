"""The penalised logP, and molecules from a *.smi file."""

import pytest
import torch

from grant_fast.data.load import load_dataset
from grant_fast.data.logp import penalized_logp
from grant_fast.data.table import read_smi
from grant_fast.errors import InputError

pytest.importorskip("rdkit")


def test_it_is_logp_less_accessibility_less_long_rings():
    from rdkit.Chem import Crippen, MolFromSmiles

    smiles = ["CCO", "C1CCCCC1", "C1CCCCCC1", "C1CCCCCC1CCC1CCCCCCC1"]
    molecules = [MolFromSmiles(text) for text in smiles]
    found = torch.tensor([penalized_logp(molecule) for molecule in molecules])
    logp = torch.tensor([Crippen.MolLogP(molecule) for molecule in molecules])
    # SA lies between 1 (easy) and 10; what remains after it is the count of rings of 7 and 8.
    rest = logp - found
    cycles = torch.tensor([0, 0, 1, 2])
    assert ((rest - cycles >= 1) & (rest - cycles < 10)).all()
    assert float(rest[2] - 1) == pytest.approx(float(rest[1]), abs=0.6)  # as easy but for the ring


def test_a_known_molecule_keeps_its_published_accessibility():
    """RDKit's own test of its Contrib folder gives 1.9808 for ethanol and 1.0 for benzene."""
    from rdkit.Chem import Crippen, MolFromSmiles

    for smiles, accessibility in (("CCO", 1.9808), ("c1ccccc1", 1.0)):
        molecule = MolFromSmiles(smiles)
        found = Crippen.MolLogP(molecule) - penalized_logp(molecule)
        assert found == pytest.approx(accessibility, abs=1e-3)


def test_a_smi_file_is_a_regression_of_it(tmp_path):
    from rdkit.Chem import MolFromSmiles

    path = tmp_path / "zinc.smi"
    chains = "\n".join("C" * n for n in range(1, 20))
    path.write_text(f"CCO ethanol\nc1ccccc1\nC(,1\n{chains}\n\n")
    dataset = load_dataset(path, progress=False)
    assert dataset.skipped == [(3, "C(,1")]
    assert (dataset.task.kind, dataset.metric, dataset.encoder) == ("regression", "mae", "atom")
    assert dataset.graphs.num_graphs == 21
    want = torch.tensor([penalized_logp(MolFromSmiles(text)) for text in ("CCO", "c1ccccc1")])
    torch.testing.assert_close(dataset.graphs.y[:2, 0], want)
    with pytest.raises(InputError, match=r"line 3: 'C\(,1' is not a valid SMILES"):
        load_dataset(path, strict=True, progress=False)
    assert load_dataset(path, num_graphs=10, progress=False).graphs.num_graphs == 9
    few = r"zinc\.smi: 2 graphs cannot be split .* \(1 without a label or a valid SMILES are left"
    with pytest.raises(InputError, match=few):
        load_dataset(path, num_graphs=3, split="scaffold", progress=False)


def test_blank_lines_leave_gaps_in_the_ids(tmp_path):
    (path := tmp_path / "zinc.smi").write_text("CCO\n\nC(,1\nCC\nC1CC1\nC\n")
    dataset = load_dataset(path, progress=False)
    assert dataset.graphs.ids.tolist() == [1, 4, 5, 6]
    assert dataset.skipped == [(3, "C(,1")]


def test_numbers_behind_the_smiles_are_no_names_unless_of_a_catalogue(tmp_path):
    path, chains = tmp_path / "esol.smi", ["C" * n for n in range(1, 11)]
    refused = pytest.raises(InputError, match=r"esol\.smi: behind .* numbers, .* logP: .* a CSV")
    for label in ("{}.5", "-{}", "{}e-3", "mol{} .5", "1.0\t2.{}", "{}\nC 0.5"):
        lines = (f"{chain} " + label.format(n) for n, chain in enumerate(chains))
        path.write_text("SMILES logS\n" + "\n".join(lines))
        with refused:
            load_dataset(path, progress=False)
        assert len(read_smi(path)) > 10  # to predict for them
    for name in ("{}", "mol-{}", "1.{}-dione", "CHEMBL{}", ""):
        lines = (f"{chain} " + name.format(n) for n, chain in enumerate(chains))
        path.write_text("O\n" + "\n".join(lines))
        assert load_dataset(path, progress=False).graphs.num_graphs == 11
    path.write_text("O 1.5\n" + "\n".join(chains))  # a name that happens to be a number
    assert load_dataset(path, progress=False).graphs.num_graphs == 11


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty"), (b"\n \n", "is empty"), (b"C\n\xff\xfe\n", "not UTF-8")],
)
def test_a_damaged_smi_file_is_named(tmp_path, content, message):
    path = tmp_path / "bad.smi"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_smi(path)
    with pytest.raises(InputError, match=r"there is no file .*check the path"):
        read_smi(tmp_path / "none.smi")
