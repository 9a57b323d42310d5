"""One file for a dataset: the same after a round trip, mapped, and refused when it is not whole."""

import json
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from grant_fast import InputError, PackedGraphs, load_dataset
from grant_fast.data.graphon import generate_parts
from grant_fast.data.stream import save_parts
from grant_fast.graphs.storage import content
from tests.cases import Case, check_equal


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("y_level", ["graph", "node"])
def test_a_round_trip_changes_nothing(tmp_path, symmetric, y_level):
    graphs = Case(symmetric=symmetric, y_level=y_level).graphs
    graphs.meta = {"task": "regression", "names": ["a", "ü"]}
    graphs.save(tmp_path / "set.gfast")
    again = PackedGraphs.load(tmp_path / "set.gfast")
    assert (again.y_level, again.is_symmetric) == (y_level, symmetric)
    check_equal(again, graphs)
    assert torch.equal(again.scale, graphs.scale)
    assert [p.name for p in tmp_path.iterdir()] == ["set.gfast"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_dtypes_are_kept(tmp_path, dtype):
    graphs = Case().graphs.to(dtype=dtype)
    graphs.save(tmp_path / "set.gfast")
    again = PackedGraphs.load(tmp_path / "set.gfast")
    assert again.x.dtype == again.adj.weight.dtype == dtype and torch.equal(again.x, graphs.x)


def test_without_targets_and_weights(tmp_path):
    case = Case(weighted=False)
    graphs = PackedGraphs.from_arrays(case.x, case.edge_index, case.batch, num_graphs=12)
    graphs.save(tmp_path / "set.gfast")
    again = PackedGraphs.load(tmp_path / "set.gfast")
    assert again.y is None and again.adj.weight is None and len(again) == 12


@pytest.mark.parametrize("nodes", [0, 1])
def test_few_values_are_saved_however_they_are_strided(tmp_path, nodes):
    """Of none or one any strides count as contiguous: NumPy's are 0 without nodes."""
    x = np.zeros((0, 3)) if nodes == 0 else torch.tensor(1.5).expand(1, 3)[:, :1]
    graphs = PackedGraphs.from_arrays(x, torch.empty(2, 0), torch.zeros(nodes).long(), num_graphs=1)
    graphs.save(tmp_path / "set.gfast")
    assert torch.equal(PackedGraphs.load(tmp_path / "set.gfast").x, graphs.x)


def test_what_was_loaded_without_edges_can_be_saved_by_torch(tmp_path):
    x, batch = torch.randint(5, (4, 3)), torch.tensor([0, 0, 1, 1])
    graphs = PackedGraphs.from_arrays(x, torch.empty(2, 0), batch, torch.randn(2, 1))
    graphs.save(tmp_path / "set.gfast")
    again = PackedGraphs.load(tmp_path / "set.gfast")
    torch.save(again, tmp_path / "set.pt")  # refuses tensors of two dtypes in one memory
    check_equal(again, graphs)


def test_a_subset_saves_its_own_rows_only(tmp_path):
    graphs = Case().graphs
    graphs.save(tmp_path / "all.gfast")
    graphs[3:4].save(tmp_path / "one.gfast")
    assert PackedGraphs.load(tmp_path / "one.gfast").ids.tolist() == [3]
    small, large = ((tmp_path / f"{n}.gfast").stat().st_size for n in ("one", "all"))
    assert small < large / 2


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_loading_maps_the_file_instead_of_reading_it(tmp_path):
    x = torch.zeros(1 << 22, 8)  # 128 MiB
    batch = torch.zeros(1 << 22).long()
    PackedGraphs.from_arrays(x, torch.empty(2, 0), batch).save(tmp_path / "big.gfast")
    again = PackedGraphs.load(tmp_path / "big.gfast")
    maps = Path("/proc/self/smaps").read_text().splitlines()
    at = next((i for i, line in enumerate(maps) if "big.gfast" in line), None)
    assert at is not None, "the file is not mapped into memory"
    resident = next(int(line.split()[1]) for line in maps[at:] if line.startswith("Rss:"))
    assert resident < 96 * 1024  # KiB: x itself was not touched
    assert again.x.sum() == 0


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_a_truncated_file_is_refused(tmp_path, keep):
    path = tmp_path / "cut.gfast"
    Case().graphs.save(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputError, match=r"cut\.gfast is not a packed dataset, or is truncated"):
        PackedGraphs.load(path)


@pytest.mark.parametrize("spooled", [True, False])
def test_no_other_byte_of_the_content_is_taken_where_it_is_verified(tmp_path, spooled):
    path, graphs = tmp_path / "set.gfast", Case(sizes=(3, 0, 5)).graphs
    if spooled:
        save_parts(generate_parts("gen-reg", 3), path)
    else:
        graphs.save(path)
    content = path.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    assert len(PackedGraphs.load(path, verify=True)) == 3
    for place in range(begin, len(content), max(1, (len(content) - begin) // 97)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 65]) + content[place + 1 :])
        with pytest.raises(InputError, match=r"is damaged .* is not what was written.*: pack it"):
            PackedGraphs.load(path, verify=True)
        with pytest.raises(InputError, match="is damaged"):
            load_dataset(path)


def test_no_other_description_is_taken_where_it_is_verified(tmp_path):
    path, graphs = tmp_path / "set.gfast", Case(sizes=(3, 0, 5)).graphs
    graphs.meta = {"name": "mine", "split": "tttve"}
    graphs.save(path)
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    for place in range(8, 8 + length):
        path.write_bytes(content[:place] + bytes([content[place] ^ 2]) + content[place + 1 :])
        with pytest.raises(InputError):
            PackedGraphs.load(path, verify=True)


def test_each_tensor_begins_where_it_can_be_mapped(tmp_path):
    graphs = Case(sizes=(3, 0, 2), num_features=1).graphs
    graphs.x = graphs.x.to(torch.uint8)
    graphs.save(tmp_path / "set.gfast")
    content = (tmp_path / "set.gfast").read_bytes()
    length = int.from_bytes(content[:8], "little")
    widths = {"F64": 8, "F32": 4, "I64": 8, "I32": 4, "U8": 1}
    header = json.loads(content[8 : 8 + length])
    del header["__metadata__"]
    assert length % 8 == 0
    assert all(t["data_offsets"][0] % widths[t["dtype"]] == 0 for t in header.values())


def test_a_foreign_file_is_refused(tmp_path):
    (tmp_path / "text.gfast").write_text("smiles,y\nCCO,1\n" * 50)
    with pytest.raises(InputError, match=r"text\.gfast is not a packed dataset"):
        PackedGraphs.load(tmp_path / "text.gfast")
    save_file({"a": torch.ones(2)}, tmp_path / "weights.safetensors")
    with pytest.raises(InputError, match=r"weights\.safetensors is not a packed dataset"):
        PackedGraphs.load(tmp_path / "weights.safetensors")


def test_a_file_that_is_not_there_is_named_in_a_sentence(tmp_path):
    path = tmp_path / "nowhere.gfast"
    says = f"there is no packed file {path}, such as `grant-fast pack` makes: {tmp_path} has no"
    with pytest.raises(InputError, match=rf"{says} \*\.gfast at all; check the path$"):
        PackedGraphs.load(path)
    with pytest.raises(InputError, match="is a folder: give a packed file in it"):
        PackedGraphs.load(tmp_path)


def test_a_file_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    def refuse(path, mode):
        raise PermissionError(13, "Permission denied", path)

    path = tmp_path / "set.gfast"
    Case().graphs.save(path)
    monkeypatch.setattr("grant_fast.graphs.storage.open", refuse, raising=False)
    with pytest.raises(InputError, match=r"cannot read .*set\.gfast: Permission denied; check its"):
        PackedGraphs.load(path)


def test_another_version_is_refused(tmp_path):
    metadata = {"format": "grant_fast.PackedGraphs", "version": "99"}
    save_file({"x": torch.ones(1)}, tmp_path / "new.gfast", metadata=metadata)
    with pytest.raises(InputError, match="format version 99, but this grant_fast reads 1"):
        PackedGraphs.load(tmp_path / "new.gfast")


def contents(path):
    """Copies of a file's tensors, to be written anew, and what it says of them."""
    with safe_open(path, framework="pt") as file:
        tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118
        return tensors, file.metadata()


def write_anew(path, tensors, metadata):
    """A file of these, with a checksum of what it says of them."""
    save_file(tensors, path, metadata=metadata)
    file = path.read_bytes()
    begin = 8 + int.from_bytes(file[:8], "little")
    header = json.loads(file[8:begin])
    del header["__metadata__"]["header_crc32"]
    header["__metadata__"]["header_crc32"] = str(zlib.crc32(json.dumps(header).encode()))
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + file[begin:])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("adj.col", lambda t: t + 1000, "points outside its graph"),
        ("adj.col", lambda t: torch.cat([t[:-1], t[-1:] + 1000]), "points outside its graph"),
        ("adj_t.col", lambda t: t - 1, "points outside its graph"),
        ("adj.weight", lambda t: t[:1].clone(), "adj.weight does not fit its edges"),
        ("adj.col", lambda t: t.index_fill(0, torch.tensor(0), 1), "points outside its graph"),
        ("adj.col", lambda t: t.long(), "points outside its graph"),
        ("adj.col", lambda t: t[:, None], "adj.col is no list"),
        ("adj_t.col", lambda t: t[:, None], "adj_t.col is no list"),
        ("ptr", lambda t: t.flip(0), "ptr does not cover"),
        ("ptr", lambda t: t.int(), "ptr does not cover"),
        ("ptr", lambda t: t.clamp(min=1), "ptr does not cover"),
        ("ptr", lambda t: t.index_fill(0, torch.tensor(-1), 10**6), "ptr does not cover"),
        ("ptr", lambda t: t.index_fill(0, torch.tensor(5), 0), "ptr does not cover"),
        ("ptr", lambda t: t[:, None], "ptr does not cover"),
        ("adj.rowptr", lambda t: t[:, None], "rowptr does not cover"),
        ("ids", lambda t: t[1:].clone(), "y or ids do not fit"),
        ("ids", lambda t: -1 - t, "ids are not whole numbers from 0 on"),
        ("ids", lambda t: t.float(), "ids are not whole numbers from 0 on"),
        ("x", lambda t: t[:, 0].clone(), "x is no matrix"),
        ("x", lambda t: t[..., None], "x is no matrix"),
        ("x", lambda t: t.to(torch.complex64), "x is torch.complex64"),
        ("y", lambda t: t.flatten()[: len(t)].clone(), "y holds neither"),
        ("y", lambda t: t.bool(), "y holds neither"),
        ("adj.weight", lambda t: t.long(), "adj.weight is not of floating point"),
        ("adj.weight", lambda t: t.half(), "weights and scale are of different dtypes"),
        ("adj_t.weight", lambda t: t.half(), "weights and scale are of different dtypes"),
        ("scale", lambda t: t.float(), "weights and scale are of different dtypes"),
        ("edge_attr", lambda t: t[1:].clone(), "edge_attr does not fit the edges"),
        ("adj.rowptr", lambda t: t + 1, "does not cover"),
        ("y", lambda t: t[1:].clone(), "y or ids do not fit"),
        ("scale", lambda t: t[1:].clone(), "scale does not fit the nodes"),
        ("scale", lambda t: t.long(), "scale does not fit the nodes"),
        ("adj_t.rowptr", lambda t: t.index_fill(0, torch.arange(1, len(t) - 1), 0), "adj_t"),
        ("adj_t.weight", None, "adj_t is not the transpose of adj"),
        ("x", None, "'x'"),
    ],
)
def test_a_damaged_file_is_refused_before_it_can_read_foreign_memory(
    tmp_path, name, value, message
):
    path = tmp_path / "set.gfast"
    graphs = Case().graphs
    graphs.x = graphs.x.long()
    graphs.edge_attr = torch.ones(graphs.num_edges, 2)
    graphs.to(torch.float64).save(path)
    tensors, metadata = contents(path)
    if value is None:
        del tensors[name]
    else:
        tensors[name] = value(tensors[name])
    save_file(tensors, path, metadata=metadata)
    with pytest.raises(InputError, match=f"damaged.*{message}"):
        PackedGraphs.load(path)


@pytest.mark.parametrize("name", ["x", "adj.weight", "adj_t.weight"])
def test_numbers_that_packing_refuses_are_refused_in_a_file_that_is_verified(tmp_path, name):
    path = tmp_path / "set.gfast"
    Case().graphs.save(path)
    tensors, metadata = contents(path)
    tensors[name].view(-1)[3] = torch.nan
    crcs = {key: zlib.crc32(content(values)) for key, values in tensors.items()}
    write_anew(path, tensors, metadata | {"crc32": json.dumps(crcs)})
    with pytest.raises(InputError, match=f"damaged .{name} holds NaN"):
        PackedGraphs.load(path, verify=True)


@pytest.mark.parametrize("told", [{"crc32": "[1]"}, {"crc32": "5"}, {"meta": "[1]"}, {"meta": "5"}])
def test_a_description_of_another_kind_is_refused(tmp_path, told):
    path = tmp_path / "set.gfast"
    Case().graphs.save(path)
    tensors, metadata = contents(path)
    write_anew(path, tensors, metadata | told)
    with pytest.raises(InputError, match=r"is damaged .(?!its description)"):
        PackedGraphs.load(path, verify=True)


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, full_disk):
    path = tmp_path / "set.gfast"
    Case().graphs.save(path)
    before = path.read_bytes()
    full_disk()
    with pytest.raises(InputError, match=r"cannot write .*left on device; free some space"):
        Case(seed=1).graphs.save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["set.gfast"]


def test_an_unwritable_place_is_named(tmp_path):
    with pytest.raises(InputError, match=r"cannot write .*missing does not exist: make it first"):
        Case().graphs.save(tmp_path / "missing" / "set.gfast")
    with pytest.raises(InputError, match="it is a folder"):
        Case().graphs.save(tmp_path)


def test_facts_that_a_file_cannot_hold_are_refused(tmp_path):
    graphs = Case().graphs
    graphs.meta = {"mean": torch.ones(1)}
    with pytest.raises(InputError, match=r"meta cannot be written \(Object of type Tensor"):
        graphs.save(tmp_path / "a.gfast")
    assert not list(tmp_path.iterdir())
