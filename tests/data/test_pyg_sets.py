"""QM9 through PyG, from fabricated data sets of PyG's own making."""

import pytest
import torch

from grant_fast.data import pyg_sets
from grant_fast.data.load import load_dataset
from grant_fast.data.pyg import from_dataset
from grant_fast.data.pyg_sets import from_collated, load_pyg
from grant_fast.errors import InputError, MissingExtraError


@pytest.fixture(scope="module")
def small():
    """Eight graphs of one to five nodes with two targets, as PyG keeps them in memory."""
    data = pytest.importorskip("torch_geometric.data")
    draw = torch.Generator().manual_seed(0)

    class Small(data.InMemoryDataset):
        def __init__(self):
            super().__init__()
            graphs = []
            for size in (3, 1, 5, 2, 4, 1, 2, 3):
                edges = torch.randint(size, (2, 2 * size - 2), generator=draw)
                x = torch.randint(1, 6, (size, 3), generator=draw).float()
                y = torch.randn(1, 2, generator=draw)
                graphs.append(data.Data(x=x, edge_index=edges, y=y))
            self.data, self.slices = self.collate(graphs)

    return Small()


def test_flat_tensors_give_what_the_graphs_give_one_by_one(small):
    flat, single = from_collated(small, target=1), from_dataset(small)
    for name in ("x", "edge_index", "batch"):
        assert torch.equal(getattr(flat, name), getattr(single, name))
    assert torch.equal(flat.y, single.y[:, 1:]) and flat.num_graphs == 8


@pytest.fixture
def offered(small, monkeypatch):
    """PyG's classes replaced by the small set, and the sizes by its."""

    def make(_root, **_):
        return small

    import torch_geometric.datasets

    monkeypatch.setattr(torch_geometric.datasets, "QM9", make)
    monkeypatch.setattr(pyg_sets, "QM9_SPLIT", (4, 2, 2))


def test_qm9_is_the_dipole_moment_with_rows_that_sum_to_one(small, offered):
    found = load_pyg("QM9")
    assert torch.equal(found.graphs.y, from_collated(small, 0).y)
    torch.testing.assert_close(found.graphs.x.sum(1), torch.ones(21))
    assert [len(ids) for ids in found.split.values()] == [4, 2, 2]
    dataset = load_dataset("QM9")
    assert (dataset.task.kind, dataset.metric, dataset.encoder) == ("regression", "mae", None)
    assert dataset.task.names == ("dipole moment (D)",)


def test_zinc_is_refused_because_its_files_are_pickles(tmp_path):
    with pytest.raises(InputError, match=r"may execute code.*\*\.smi file"):
        load_pyg("ZINC", tmp_path)


def test_another_number_of_graphs_is_refused(small, offered, monkeypatch):
    monkeypatch.setattr(pyg_sets, "QM9_SPLIT", (4, 2, 3))
    with pytest.raises(InputError, match=r"dataset/QM9 holds 8 graphs where 9 belong"):
        load_pyg("QM9")


def test_a_damaged_raw_file_is_named_by_its_digest(tmp_path):
    raw = tmp_path / "QM9" / "raw"
    raw.mkdir(parents=True)
    (raw / "uncharacterized.txt").write_text("not the list")
    with pytest.raises(InputError, match=r"uncharacterized\.txt is damaged.*3aa5115d540b"):
        load_pyg("QM9", tmp_path)


@pytest.mark.parametrize(("name", "files"), [("QM9", "gdb9.sdf and gdb9.sdf.csv")])
def test_without_a_network_it_says_which_files_to_put_where(tmp_path, monkeypatch, name, files):
    datasets = pytest.importorskip("torch_geometric.datasets")

    def refuse(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr(getattr(datasets, name), "download", refuse)
    with pytest.raises(InputError) as caught:
        load_pyg(name, tmp_path)
    message = str(caught.value)
    assert message.startswith(f"cannot make {name} (no route to host): without a network, fetch")
    assert files in message and message.endswith(f"into {tmp_path / name / 'raw'}")


def test_without_pyg_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch_geometric.datasets", None)
    with pytest.raises(MissingExtraError, match=r"grant_fast\[pyg\]"):
        load_pyg("QM9")
    with pytest.raises(InputError, match="unknown PyG set 'QM8'"):
        load_pyg("QM8")
