"""The molecule sets of OGB, from a fabricated folder in its raw format."""

import hashlib
import shutil
import zipfile
from collections.abc import Callable
from http.client import BadStatusLine, IncompleteRead
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from grant_fast.data import ogb
from grant_fast.data.fetching import check_sha256
from grant_fast.data.ogb import SETS, load_ogb
from grant_fast.data.pyg_sets import load_pyg
from grant_fast.errors import InputError

pandas = pytest.importorskip("pandas")


@pytest.fixture
def molhiv(tmp_path: Path, write_ogb_folder: Callable[..., Path], no_network: None) -> Path:
    return write_ogb_folder(tmp_path / "ogbg_molhiv")


@pytest.fixture
def serve(
    tmp_path: Path, write_ogb_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], None]:
    """Puts an archive of a set where sets are fetched from; its content is in server/NAME."""

    def archive(name: str) -> None:
        write_ogb_folder(tmp_path / "server" / name)
        shutil.make_archive(str(tmp_path / name), "zip", tmp_path / "server")
        monkeypatch.setattr(ogb, "URL", tmp_path.as_uri() + "/{}.zip")

    return archive


def test_sets_are_ogbs_own() -> None:
    package = pytest.importorskip("ogb")
    master = pandas.read_csv(
        Path(package.__file__).parent / "graphproppred" / "master.csv",
        index_col=0,
        keep_default_na=False,
    )
    assert set(SETS) == {name for name in master if name.startswith("ogbg-mol")}
    for name, (archive, metric) in SETS.items():
        facts = master[name]
        assert facts["url"] == ogb.URL.format(archive)
        assert facts["download_name"] == archive
        assert facts["eval metric"] == metric.replace("_", "")
        assert (facts["split"], facts["add_inverse_edge"]) == ("scaffold", "True")
        assert (facts["task type"] == "regression") == (metric == "rmse")


def test_raw_files_become_flat_tensors(molhiv: Path) -> None:
    loaded = load_ogb("ogbg-molhiv", molhiv.parent)
    graphs = loaded.graphs
    assert graphs.num_graphs == 4
    assert graphs.batch.tolist() == [0, 0, 0, 1, 2, 2, 3]
    assert graphs.edge_index.tolist() == [[0, 1, 1, 2, 4, 5], [1, 0, 2, 1, 5, 4]]
    assert graphs.x.dtype == torch.uint8
    assert graphs.x[:, 0].tolist() == [5, 7, 6, 5, 5, 5, 6]
    assert graphs.y is not None
    assert graphs.y.tolist() == [[0.0], [1.0], [0.0], [1.0]]
    split = {part: ids.tolist() for part, ids in loaded.split.items()}
    assert split == {"train": [0, 1], "valid": [3], "test": [2]}
    assert loaded.metric == "roc_auc"


def test_graphs_are_those_of_ogbs_own_reader(molhiv: Path) -> None:
    reader = pytest.importorskip("ogb.io.read_graph_raw")
    graphs = load_ogb("ogbg-molhiv", molhiv.parent).graphs
    start = 0
    for i, expected in enumerate(reader.read_csv_graph_raw(molhiv / "raw", add_inverse_edge=True)):
        mine = graphs.edge_index[:, graphs.batch[graphs.edge_index[0]] == i] - start
        assert mine.tolist() == expected["edge_index"].tolist()
        nodes = graphs.x[graphs.batch == i]
        assert nodes.tolist() == expected["node_feat"].tolist()
        start += len(nodes)


def test_missing_labels_are_nan(tmp_path: Path, write_ogb_folder: Callable[..., Path]) -> None:
    write_ogb_folder(tmp_path / "ogbg_moltox21", **{"raw/graph-label": "0,\n1,1\n,0\n1,1\n"})
    y = load_ogb("ogbg-moltox21", tmp_path).graphs.y
    assert y is not None
    assert y.nan_to_num(-9).tolist() == [[0, -9], [1, 1], [-9, 0], [1, 1]]


def test_molecules_without_any_bond(tmp_path: Path, write_ogb_folder: Callable[..., Path]) -> None:
    write_ogb_folder(
        tmp_path / "ogbg_molhiv", **{"raw/edge": "", "raw/num-edge-list": "0\n0\n0\n0\n"}
    )
    assert load_ogb("ogbg-molhiv", tmp_path).graphs.edge_index.shape == (2, 0)


@pytest.mark.parametrize("progress", [False, True])
def test_download_is_unpacked_once(
    tmp_path: Path, serve: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, progress: bool
) -> None:
    serve("hiv")
    monkeypatch.delitem(ogb.SHA256, "hiv")
    root = tmp_path / "not" / "there yet"
    first = load_ogb("ogbg-molhiv", root, progress=progress)
    assert [path.name for path in root.iterdir()] == ["ogbg_molhiv"]
    monkeypatch.setattr(ogb, "URL", "file:///gone/{}.zip")
    assert torch.equal(load_ogb("ogbg-molhiv", root).graphs.x, first.graphs.x)


def test_what_another_process_fetched_meanwhile_is_taken(
    tmp_path: Path, serve: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("hiv")
    monkeypatch.delitem(ogb.SHA256, "hiv")
    fetch, root = ogb.download, tmp_path / "root"

    def slowly(*arguments: Any) -> None:
        fetch(*arguments)
        shutil.copytree(tmp_path / "server" / "hiv", root / "ogbg_molhiv")

    monkeypatch.setattr(ogb, "download", slowly)
    assert load_ogb("ogbg-molhiv", root).graphs.num_graphs > 0
    assert [path.name for path in root.iterdir()] == ["ogbg_molhiv"]


def test_a_split_ascends_whatever_the_order_in_its_file(
    tmp_path: Path, write_ogb_folder: Callable[..., Path]
) -> None:
    write_ogb_folder(tmp_path / "ogbg_molhiv", **{"split/scaffold/train": "1\n0\n"})
    assert load_ogb("ogbg-molhiv", tmp_path).split["train"].tolist() == [0, 1]


def test_a_file_of_more_than_a_block_is_compared_whole(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(content := bytes(range(256)) * 8192)  # 2 MiB
    check_sha256(path, hashlib.sha256(content).hexdigest())
    with pytest.raises(InputError, match="damaged or is another file"):
        check_sha256(path, hashlib.sha256(content[: 1 << 20]).hexdigest())


def test_without_network_the_message_says_what_to_put_where(
    tmp_path: Path, no_network: None
) -> None:
    message = (
        r"cannot download http.*/hiv.zip \(no route to host\): fetch it elsewhere, unpack it, "
        r"and rename its folder hiv to .*ogbg_molhiv"
    )
    with pytest.raises(InputError, match=message):
        load_ogb("ogbg-molhiv", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [BadStatusLine("<html>"), IncompleteRead(b"")])
def test_an_answer_that_is_none_or_breaks_off_is_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr("urllib.request.urlopen", Mock(side_effect=error))
    for load, name in ((load_ogb, "ogbg-molhiv"), (load_pyg, "ZINC")):
        with pytest.raises(InputError, match=r"cannot download http.*: fetch it elsewhere"):
            load(name, tmp_path)


def test_a_broken_archive_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hiv.zip").write_bytes(b"<html>503</html>")
    monkeypatch.setattr(ogb, "URL", tmp_path.as_uri() + "/{}.zip")
    monkeypatch.delitem(ogb.SHA256, "hiv")
    with pytest.raises(InputError, match=r"cannot download .*not a zip file"):
        load_ogb("ogbg-molhiv", tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


def test_an_archive_that_promises_more_than_it_holds_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(tmp_path / "hiv.zip", "w") as archive:
        archive.writestr("hiv/a", b"1234")
    content = (tmp_path / "hiv.zip").read_bytes()
    longer = content.replace((4).to_bytes(4, "little") * 2, (4000).to_bytes(4, "little") * 2)
    (tmp_path / "hiv.zip").write_bytes(longer)
    monkeypatch.setattr(ogb, "URL", tmp_path.as_uri() + "/{}.zip")
    monkeypatch.delitem(ogb.SHA256, "hiv")
    with pytest.raises(InputError, match=r"cannot download .*: fetch it elsewhere"):
        load_ogb("ogbg-molhiv", tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


def test_an_archive_of_other_content_is_refused_and_leaves_nothing_behind(
    tmp_path: Path, serve: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("pcba")
    with pytest.raises(InputError, match=r"pcba\.zip is damaged.*instead of 0bb12da2f3ec"):
        load_ogb("ogbg-molpcba", tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []
    digest = hashlib.sha256((tmp_path / "pcba.zip").read_bytes()).hexdigest()
    monkeypatch.setitem(ogb.SHA256, "pcba", digest)
    assert load_ogb("ogbg-molpcba", tmp_path / "data").metric == "ap"


def test_an_unknown_set_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"unknown OGB set 'ogbg-molhvi'.*ogbg-molhiv"):
        load_ogb("ogbg-molhvi", tmp_path)


@pytest.mark.parametrize(
    ("changes", "culprit"),
    [
        ({"raw/edge": None}, r"edge.csv.gz is missing"),
        ({"split/scaffold/test": None}, r"test.csv.gz is missing"),
        ({"raw/edge": "0,1\n"}, r"edge.csv.gz has 1 rows instead of 3: delete .*ogbg_molhiv"),
        ({"raw/graph-label": "0\n"}, r"graph-label.csv.gz has 1 rows instead of 4"),
        ({"raw/node-feat": "1,2\n" * 7}, r"node-feat.csv.gz does not hold OGB's nine"),
        ({"raw/node-feat": "999,0,0,0,0,0,0,0,0\n" * 7}, r"node-feat.csv.gz does not hold"),
        ({"raw/num-node-list": "3,1,2,1\n"}, r"num-node-list.*4 columns where 1 belong"),
        ({"raw/edge": "a,b\n" * 3}, r"edge.csv.gz cannot be read \(a cell is not a number\)"),
        ({"split/scaffold/test": "4\n"}, r"test.csv.gz names a graph outside 0…3"),
    ],
)
def test_damaged_files_are_named(
    molhiv: Path,
    write_ogb_folder: Callable[..., Path],
    changes: dict[str, str | None],
    culprit: str,
) -> None:
    shutil.rmtree(molhiv)
    write_ogb_folder(molhiv, **changes)
    with pytest.raises(InputError, match=culprit):
        load_ogb("ogbg-molhiv", molhiv.parent)


def test_a_truncated_file_is_named(molhiv: Path) -> None:
    path = molhiv / "raw" / "edge.csv.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"edge.csv.gz cannot be read .*delete .*ogbg_molhiv"):
        load_ogb("ogbg-molhiv", molhiv.parent)


def test_no_other_byte_ends_in_a_traceback(molhiv: Path) -> None:
    path = molhiv / "raw" / "node-feat.csv.gz"
    whole = path.read_bytes()
    refused = 0
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 65]) + whole[place + 1 :])
        try:
            load_ogb("ogbg-molhiv", molhiv.parent)
        except InputError:
            refused += 1
    assert refused > 0.8 * len(whole)  # but for the name and the time in its head
