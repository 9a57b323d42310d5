"""QM9 and ZINC from fabricated files in the form of the published ones."""

import hashlib
import shutil

import pytest
import torch

from grant_fast.data import qm9, zinc
from grant_fast.data.fetching import Source
from grant_fast.data.load import load_dataset
from grant_fast.data.pyg import from_dataset
from grant_fast.data.pyg_sets import load_pyg
from grant_fast.errors import InputError, MissingExtraError

SMILES = ["C", "O", "C#N", "C1CC1", "c1cc[nH]c1", "FC(F)F", "NC=O"]
DIPOLES = [0.0, 1.85, 2.9, 0.1, 1.7, 1.6, 3.7]


@pytest.fixture
def qm9_root(tmp_path, monkeypatch):
    """A folder with QM9/raw as PyG lays it out: seven molecules, the third uncharacterized."""
    chem = pytest.importorskip("rdkit.Chem")
    depict = pytest.importorskip("rdkit.Chem.rdDepictor")
    raw = tmp_path / "QM9" / "raw"
    raw.mkdir(parents=True)
    writer = chem.SDWriter(str(raw / "gdb9.sdf"))
    writer.SetKekulize(True)
    for number, text in enumerate(SMILES, 1):
        molecule = chem.AddHs(chem.MolFromSmiles(text))
        depict.Compute2DCoords(molecule)
        molecule.SetProp("_Name", f"gdb_{number}")
        writer.write(molecule)
    writer.close()
    head = "mol_id,A,B,C,mu," + ",".join(f"p{k}" for k in range(15))
    rows = [f"gdb_{k},1,2,3,{mu}," + ",".join(["9"] * 15) for k, mu in enumerate(DIPOLES, 1)]
    (raw / "gdb9.sdf.csv").write_text("\n".join([head, *rows]) + "\n")
    lines = ["header"] * 9 + ["    3   C#N   other"] + ["-----"]
    (raw / "uncharacterized.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(qm9, "SPLIT", (3, 1, 2))
    for name in qm9.SHA256:
        digest = hashlib.sha256((raw / name).read_bytes()).hexdigest()
        monkeypatch.setitem(qm9.SHA256, name, digest)
    return tmp_path


def test_qm9_is_what_pyg_makes_of_the_same_files(qm9_root):
    datasets = pytest.importorskip("torch_geometric.datasets")
    transforms = pytest.importorskip("torch_geometric.transforms")
    found = load_pyg("QM9", qm9_root).graphs
    shutil.copytree(qm9_root / "QM9", qm9_root / "theirs")
    theirs = from_dataset(
        datasets.QM9(str(qm9_root / "theirs"), transform=transforms.NormalizeFeatures())
    )
    torch.testing.assert_close(found.x, theirs.x)
    assert torch.equal(found.batch, theirs.batch)
    assert torch.equal(found.y, theirs.y[:, :1])
    ours, pairs = (
        edges[:, (edges[0] * len(found.x) + edges[1]).argsort()]
        for edges in (found.edge_index, theirs.edge_index)
    )
    assert torch.equal(ours, pairs)


def test_qm9_is_the_dipole_moment_with_rows_that_sum_to_one(qm9_root, monkeypatch):
    found = load_pyg("QM9", qm9_root)
    assert found.graphs.y[:, 0].tolist() == pytest.approx(DIPOLES[:2] + DIPOLES[3:])
    assert found.graphs.x.shape[1] == 11
    torch.testing.assert_close(found.graphs.x.sum(1), torch.ones(len(found.graphs.x)))
    assert [len(ids) for ids in found.split.values()] == [3, 1, 2]
    (qm9_root / "dataset").symlink_to(qm9_root)
    monkeypatch.chdir(qm9_root)
    dataset = load_dataset("QM9", progress=False)
    assert (dataset.task.kind, dataset.metric, dataset.encoder) == ("regression", "mae", None)
    assert dataset.task.names == ("dipole moment (D)",)


def test_another_number_of_graphs_is_refused(qm9_root, monkeypatch):
    monkeypatch.setattr(qm9, "SPLIT", (4, 1, 2))
    with pytest.raises(InputError, match=r"QM9/raw holds 6 graphs instead of 7"):
        load_pyg("QM9", qm9_root)


@pytest.mark.parametrize("name", ["gdb9.sdf", "gdb9.sdf.csv", "uncharacterized.txt"])
def test_a_file_of_other_content_is_named_by_its_digest(qm9_root, name):
    path = qm9_root / "QM9" / "raw" / name
    path.write_text(path.read_text() + " ")
    with pytest.raises(InputError, match=rf"{name} is damaged.*instead of {qm9.SHA256[name][:12]}"):
        load_pyg("QM9", qm9_root)


def test_structures_and_targets_that_do_not_belong_together_are_refused(qm9_root, monkeypatch):
    path = qm9_root / "QM9" / "raw" / "gdb9.sdf.csv"
    for old, new, culprit in (
        ("gdb_5,", "gdb_15,", r"molecule 5 is not gdb_15"),
        ("gdb_7,", "#", r"has 7 molecules and gdb9.sdf.csv 6 rows"),
    ):
        text = path.read_text()
        changed = text.replace(old, new) if new != "#" else text[: text.index(old)]
        path.write_text(changed)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        monkeypatch.setitem(qm9.SHA256, path.name, digest)
        with pytest.raises(InputError, match=culprit):
            load_pyg("QM9", qm9_root)
        path.write_text(text)


def test_qm9s_archive_is_fetched_compared_and_unpacked(qm9_root, tmp_path_factory, monkeypatch):
    raw, home = qm9_root / "QM9" / "raw", tmp_path_factory.mktemp("home")
    server = tmp_path_factory.mktemp("server")
    (server / "packed").mkdir()
    for name in ("gdb9.sdf", "gdb9.sdf.csv"):
        shutil.copy(raw / name, server / "packed" / name)
    shutil.make_archive(str(server / "qm9"), "zip", server / "packed")
    shutil.copy(raw / "uncharacterized.txt", server / "3195404")
    archive, single = qm9.SOURCES
    digest = hashlib.sha256((server / "qm9.zip").read_bytes()).hexdigest()
    local = (
        Source((server / "qm9.zip").as_uri(), archive.members, digest),
        Source((server / "3195404").as_uri(), single.members),
    )
    monkeypatch.setattr(qm9, "SOURCES", local)
    found = load_pyg("QM9", home)
    assert torch.equal(found.graphs.x, load_pyg("QM9", qm9_root).graphs.x)
    files = sorted(path.name for path in (home / "QM9" / "raw").iterdir())
    assert files == ["gdb9.sdf", "gdb9.sdf.csv", "uncharacterized.txt"]

    wrong = (Source(local[0].url, archive.members, "0" * 64), local[1])
    monkeypatch.setattr(qm9, "SOURCES", wrong)
    with pytest.raises(InputError, match=r"qm9\.zip is damaged.*instead of 000000000000"):
        load_pyg("QM9", tmp_path_factory.mktemp("other"))


def test_without_rdkit_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "rdkit.Chem", None)
    with pytest.raises(MissingExtraError, match=r"grant_fast\[smiles\]"):
        load_pyg("QM9", tmp_path)
    with pytest.raises(InputError, match="unknown PyG set 'QM8'"):
        load_pyg("QM8")


def molecule(types, bonds, target):
    """A molecule as ZINC's files hold it: dense bonds, tensors, and a key that nobody needs."""
    size = len(types)
    matrix = torch.zeros(size, size, dtype=torch.int64)
    for i, j, kind in bonds:
        matrix[i, j] = matrix[j, i] = kind
    atoms = torch.tensor(types, dtype=torch.int64)
    return {
        "num_atom": size,
        "atom_type": atoms,
        "bond_type": matrix,
        "logP_SA_cycle_normalized": torch.tensor([target]),
    }


@pytest.fixture
def zinc_root(tmp_path, monkeypatch, write_pickle):
    """A folder with ZINC/raw as PyG lays it out: three, one and two molecules."""
    raw = tmp_path / "ZINC" / "raw"
    raw.mkdir(parents=True)
    draw = [
        molecule([0, 2, 27], [(0, 1, 1), (1, 2, 3)], 0.5),
        molecule([5], [], -1.25),
        molecule([1, 1], [(0, 1, 2)], 3.0),
    ]
    for name, part in zip(zinc.FILES, (draw, draw[:1], draw[1:]), strict=True):
        write_pickle(raw / name, part)
    for name in ("train", "val", "test"):  # of the smaller set; PyG wants them there
        (raw / f"{name}.index").write_text("0\n")
    monkeypatch.setattr(zinc, "SPLIT", (3, 1, 2))
    return tmp_path


def test_zinc_is_what_pyg_makes_of_the_same_files(zinc_root):
    datasets = pytest.importorskip("torch_geometric.datasets")
    found = load_pyg("ZINC", zinc_root)
    parts = []
    shutil.copytree(zinc_root / "ZINC", zinc_root / "theirs")
    for split in ("train", "val", "test"):
        parts += list(datasets.ZINC(str(zinc_root / "theirs"), split=split))
    theirs = from_dataset(parts)
    for name in ("edge_index", "batch"):
        assert torch.equal(getattr(found.graphs, name), getattr(theirs, name))
    assert torch.equal(found.graphs.x, theirs.x.float())
    assert torch.equal(found.graphs.y[:, 0], theirs.y.reshape(-1))
    assert found.graphs.x.dtype == torch.float32 and found.targets == ("penalised logP",)
    assert [ids.tolist() for ids in found.split.values()] == [[0, 1, 2], [3], [4, 5]]


def test_zinc_is_a_data_set_to_train_on(zinc_root, monkeypatch):
    (zinc_root / "dataset").symlink_to(zinc_root)
    monkeypatch.chdir(zinc_root)
    dataset = load_dataset("ZINC", progress=False)
    assert (dataset.task.kind, dataset.metric, dataset.encoder) == ("regression", "mae", None)
    assert dataset.graphs.x.shape == (12, 1) and dataset.graphs.is_symmetric


@pytest.mark.parametrize(
    ("num_graphs", "ids"), [(3, [0, 3, 4]), (5, [0, 1, 2, 3, 4]), (9, [*range(6)])]
)
def test_fewer_graphs_are_the_first_of_each_part(zinc_root, monkeypatch, num_graphs, ids):
    (zinc_root / "dataset").symlink_to(zinc_root)
    monkeypatch.chdir(zinc_root)
    dataset = load_dataset("ZINC", num_graphs=num_graphs, progress=False)
    assert dataset.graphs.ids.tolist() == ids
    found = {part: dataset.graphs.ids[p].tolist() for part, p in dataset.split.items()}
    whole = {"train": [0, 1, 2], "valid": [3], "test": [4, 5]}
    assert found == {part: [i for i in all_ids if i in ids] for part, all_ids in whole.items()}


@pytest.mark.parametrize(
    ("content", "culprit"),
    [
        ({"a": 1}, r"does not hold a list of 1 molecules"),
        ([], r"does not hold a list of 1 molecules"),
        ([{"atom_type": torch.tensor([1])}], r"molecule 0 is not in the form of ZINC .*bond_type"),
        ([7], r"molecule 0 is not in the form of ZINC"),
        ([torch.zeros(2)], r"molecule 0 is not in the form of ZINC"),
        ([{**molecule([1], [], 0.0), "atom_type": ["C"]}], r"molecule 0 is not in the form of"),
        (
            [{**molecule([1], [], 0.0), "logP_SA_cycle_normalized": 10**400}],
            r"molecule 0 is not in",
        ),
        (
            [{**molecule([1, 2], [], 0.0), "atom_type": torch.tensor([1])}],
            r"molecule 0 is not in the form of ZINC \(shapes",
        ),
    ],
)
def test_another_content_is_named(zinc_root, write_pickle, content, culprit):
    write_pickle(zinc_root / "ZINC" / "raw" / "val.pickle", content)
    with pytest.raises(InputError, match=rf"val\.pickle.*{culprit}"):
        load_pyg("ZINC", zinc_root)


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("QM9", "its gdb9.sdf as gdb9.sdf and its gdb9.sdf.csv as gdb9.sdf.csv into "),
        ("ZINC", "its molecules/train.pickle as train.pickle and its molecules/val.pickle as "),
    ],
)
def test_without_a_network_it_says_which_files_to_put_where(tmp_path, no_network, name, files):
    with pytest.raises(InputError) as caught:
        load_pyg(name, tmp_path)
    message = str(caught.value)
    assert message.startswith("cannot download https://")
    assert "(no route to host): fetch it elsewhere, and put" in message
    assert files in message and message.endswith(f"into {tmp_path / name / 'raw'}")
