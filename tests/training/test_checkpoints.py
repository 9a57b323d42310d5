"""Checkpoints: round trip, and every way in which a file can be wrong."""

import os
import zipfile

import pytest
import torch
from torch import nn

from grant_fast.errors import InputError
from grant_fast.training.checkpoints import (
    load_checkpoint,
    load_weights,
    save_checkpoint,
    taken_from,
)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "last.pt"
    torch.manual_seed(0)
    save_checkpoint(path, {"model": nn.Linear(3, 2).state_dict(), "epoch": 7, "rows": [[1, None]]})
    return path


def test_what_is_saved_comes_back(saved):
    state = load_checkpoint(saved)
    torch.manual_seed(0)
    assert torch.equal(state["model"]["weight"], nn.Linear(3, 2).weight)
    assert (state["epoch"], state["rows"]) == (7, [[1, None]])


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_truncated_file_is_named(saved, share):
    content = saved.read_bytes()
    saved.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(InputError, match=r"last\.pt: truncated.*train again"):
        load_checkpoint(saved)


def test_no_other_byte_is_taken_for_what_was_saved(saved):
    content, refused = saved.read_bytes(), 0
    original = load_checkpoint(saved)["model"]["weight"]
    for place in range(0, len(content), 7):
        saved.write_bytes(content[:place] + bytes([content[place] ^ 65]) + content[place + 1 :])
        try:
            found = load_checkpoint(saved)
        except InputError as error:
            assert "last.pt: " in str(error) and "train again" in str(error)
            refused += 1
        else:  # a byte between the members, say
            assert torch.equal(found["model"]["weight"], original) and found["epoch"] == 7
    assert refused > 50


def test_a_member_marked_as_a_folder_is_refused(saved):
    """Torch reads nothing of such a member, and gives what its memory held before."""
    content = bytearray(saved.read_bytes())
    with zipfile.ZipFile(saved) as archive:
        place, members = archive.start_dir, archive.infolist()
    for info in members:
        attributes = place + 38
        content[attributes] ^= 0x10
        saved.write_bytes(content)
        with pytest.raises(InputError, match=r"last\.pt: damaged"):
            load_checkpoint(saved)
        content[attributes] ^= 0x10
        place += zipfile.sizeCentralDir + len(info.filename) + len(info.extra)
    saved.write_bytes(content)
    assert load_checkpoint(saved)["epoch"] == 7


def test_a_foreign_file_is_named(saved):
    saved.write_text("smiles,y\nC,1\n")
    with pytest.raises(InputError, match=r"last\.pt: truncated, or not a checkpoint"):
        load_checkpoint(saved)
    torch.save({"weights": torch.zeros(2)}, saved)
    with pytest.raises(InputError, match=r"last\.pt: not a checkpoint of grant-fast"):
        load_checkpoint(saved)


def test_a_pickle_with_code_is_refused_and_not_run(saved):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(saved.parent / "sprung"),)

    torch.save({"format": "grant_fast checkpoint", "version": 1, "trap": Trap()}, saved)
    with pytest.raises(InputError, match=r"last\.pt: damaged, or not a checkpoint"):
        load_checkpoint(saved)
    assert not (saved.parent / "sprung").exists()


def test_a_missing_file_and_a_newer_version_are_named(saved):
    with pytest.raises(InputError, match=r"best\.pt: there is no such file"):
        load_checkpoint(saved.with_name("best.pt"))
    with pytest.raises(InputError, match=r"cannot be read \(Is a directory\)"):
        load_checkpoint(saved.parent)
    save_checkpoint(saved, {"version": 99})
    with pytest.raises(
        InputError, match="checkpoint version 99, but this grant_fast reads 1; upgrade"
    ):
        load_checkpoint(saved)


def test_weights_of_another_model_name_the_first_difference_and_change_nothing(saved):
    weights = load_checkpoint(saved)["model"]
    model = nn.Linear(4, 2)
    before = model.weight.clone()
    with pytest.raises(InputError, match=r"last\.pt: .*weight is \(2, 3\) in .*file and \(2, 4\)"):
        load_weights(model, weights, saved)
    with pytest.raises(InputError, match=r"bias is \(2,\) in the file and absent"):
        load_weights(nn.Linear(3, 2, bias=False), weights, saved)
    with pytest.raises(InputError, match=r"0\.weight is absent in the file"):
        load_weights(nn.Sequential(nn.Linear(3, 2)), weights, saved)
    assert torch.equal(model.weight, before)


def test_a_full_disk_leaves_the_old_file_and_no_rest(saved, full_disk):
    before = saved.read_bytes()
    full_disk()
    with pytest.raises(InputError, match=r"cannot write .*last\.pt: No space left on device"):
        save_checkpoint(saved, {"epoch": 8})
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


@pytest.mark.parametrize("room", [0, 64, 500])
def test_whatever_the_system_says_of_a_write_is_passed_on(saved, room):
    resource = pytest.importorskip("resource")
    before = saved.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with pytest.raises(InputError, match=r"cannot write .*last\.pt: File too large"):
            save_checkpoint(saved, {"model": torch.zeros(1000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_an_unwritable_place_is_named(tmp_path):
    with pytest.raises(
        InputError,
        match=r"cannot write .*nowhere/last\.pt: .*nowhere does not exist: make it first",
    ):
        save_checkpoint(tmp_path / "nowhere" / "last.pt", {})


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA out of memory")])
def test_a_machine_without_memory_is_no_damage_to_a_file(tmp_path, error):
    with pytest.raises(type(error)) as raised, taken_from(tmp_path / "last.pt"):
        raise error
    assert raised.value is error
