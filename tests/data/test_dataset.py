"""What a data set holds of molecules, and how it is printed."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from grant_fast.data.dataset import first_of_each_part
from grant_fast.data.load import load_dataset
from grant_fast.errors import InputError
from grant_fast.graphs import PackedGraphs
from tests.rings import make_dataset

SMILES = ["C=C1CC1", "C=C", "C=O"] * 4


@pytest.fixture
def table(tmp_path: Path) -> Path:
    pytest.importorskip("rdkit")
    pytest.importorskip("ogb")
    path = tmp_path / "table.csv"
    path.write_text("smiles,y\n" + "\n".join(f"{smiles},{i}.5" for i, smiles in enumerate(SMILES)))
    return path


def test_features_of_bonds_are_kept_where_asked_for(table: Path) -> None:
    assert load_dataset(table, split="random", progress=False).graphs.edge_attr is None
    data = load_dataset(table, edge_attr=True, split="random", progress=False)
    theirs = PackedGraphs.from_smiles(SMILES, edge_attr=True)
    assert torch.equal(data.graphs.edge_attr, theirs.edge_attr)  # type: ignore[arg-type]
    assert PackedGraphs.from_smiles(SMILES).edge_attr is None
    with pytest.raises(InputError, match="edge_attr=True is for files of molecules, not for"):
        load_dataset("gen-reg", edge_attr=True)


def test_it_is_printed_in_a_few_words(table: Path) -> None:
    text = repr(load_dataset(table, split="random", progress=False))
    assert "split={'train': 9, 'valid': 1, 'test': 2}, metric='mae')" in text
    assert len(text) < 400


def test_folds_test_each_graph_once_and_share_none(table: Path) -> None:
    data = load_dataset(table, split="random", progress=False)
    folds = data.folds(5, seed=1)
    tested = torch.cat([fold.split["test"] for fold in folds])
    assert tested.sort().values.tolist() == list(range(12))
    for fold in folds:
        together = torch.cat(list(fold.split.values()))
        assert together.sort().values.tolist() == list(range(12))
        assert all(torch.equal(ids, ids.sort().values) for ids in fold.split.values())
        assert fold.graphs is data.graphs and min(fold.sizes) >= 2
    assert torch.equal(folds[0].split["valid"], folds[-1].split["test"])
    assert not torch.equal(data.folds(5)[0].split["test"], folds[0].split["test"])
    for count, message in ((2, "count=2: give a whole number of at least 3"), (13, "12 graphs")):
        with pytest.raises(InputError, match=message):
            data.folds(count)


def test_folds_need_no_graph_in_each_part(table: Path) -> None:
    data = load_dataset(table, split="random", progress=False)
    none = torch.tensor([], dtype=torch.int64)
    data.split = {"train": torch.arange(9), "valid": none, "test": none}
    assert [sum(fold.sizes) for fold in data.folds(3)] == [9, 9, 9]


def test_nothing_is_made_of_a_split_that_is_none(table: Path, tmp_path: Path) -> None:
    data = load_dataset(table, split="random", progress=False)
    data.split["test"] = data.split["train"][:2]
    save = partial(data.save, tmp_path / "a.gfast")
    for make in (data.folds, data.grouped, save):
        with pytest.raises(InputError, match="is in two parts of the split"):
            make()
    del data.split["valid"]
    with pytest.raises(InputError, match="has no int64 tensor of positions as 'valid'"):
        save()
    data.graphs = data.graphs.subset([])
    with pytest.raises(InputError, match="table holds no graphs: give some"):
        save()
    assert not (tmp_path / "a.gfast").exists()


def test_notes_of_ones_own_are_saved_beside_the_task(tmp_path: Path) -> None:
    data = load_dataset("gen-reg", num_graphs=9, progress=False)
    data.graphs.meta = {"mine": 1}
    data.save(tmp_path / "a.gfast")
    assert PackedGraphs.load(tmp_path / "a.gfast").meta["mine"] == 1


def test_a_checksum_is_one_of_the_bytes_whatever_the_dtype() -> None:
    data = load_dataset("gen-reg", num_graphs=9, progress=False)
    found = set()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        found.add(replace(data, graphs=data.graphs.to(dtype)).checksum)
    assert len(found) == 3 and data.checksum == replace(data, graphs=data.graphs.to("cpu")).checksum


def test_as_many_graphs_are_kept_of_the_parts_as_were_asked_for():
    parts = dict(zip(("train", "valid", "test"), torch.arange(20).split([16, 2, 2]), strict=True))
    dataset = replace(make_dataset(), split=parts)
    dataset = replace(dataset, graphs=dataset.graphs.subset(slice(0, 20)))
    for count in range(3, 21):
        sizes = first_of_each_part(dataset, count).sizes
        assert sum(sizes) == count and min(sizes) >= 1
