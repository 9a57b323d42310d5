"""Files are written whole or not at all."""

import csv
import errno
import gzip
import os
import subprocess
import sys
from functools import partial
from unittest.mock import Mock

import pytest
import torch

from grant_fast import PackedGraphs, load_dataset, load_predictor
from grant_fast.errors import InputError, MissingExtraError, in_a_command, option, require, typed
from grant_fast.files import (
    alone_in,
    atomic_path,
    atomic_write_csv,
    atomic_write_text,
    check_name,
    check_writable,
)
from grant_fast.training.folder import check_free


def test_text_is_written_with_ordinary_permissions(tmp_path):
    atomic_write_text(tmp_path / "a.txt", "κ")
    (tmp_path / "b.txt").write_text("")
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "κ"
    assert (tmp_path / "a.txt").stat().st_mode == (tmp_path / "b.txt").stat().st_mode


@pytest.mark.skipif(sys.platform == "win32", reason="has other permissions")
def test_who_may_read_a_file_may_read_what_replaces_it(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("")
    for mode in (0o600, 0o666):
        path.chmod(mode)
        atomic_write_text(path, "new")
        assert path.stat().st_mode & 0o777 == mode
    monkeypatch.setattr(os, "chmod", Mock(side_effect=PermissionError))
    atomic_write_text(path, "newer")
    assert path.read_text() == "newer"


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, MemoryError])
def test_an_interruption_leaves_what_was_there(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(error), atomic_path(path) as temporary:
        temporary.write_text("half")
        raise error
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_an_interruption_as_soon_as_there_is_a_file_leaves_none(tmp_path, monkeypatch):
    def interrupt(_handle):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "close", interrupt)
        atomic_write_text(tmp_path / "a.txt", "")
    assert os.listdir(tmp_path) == []


def test_a_share_of_the_disk_that_is_used_up_is_one_of_space(tmp_path, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    for function in ("os.fsync", "pathlib.Path.touch"):
        with monkeypatch.context() as patch:
            patch.setattr(function, refuse)
            with pytest.raises(InputError, match="quota exceeded; free some space"):
                atomic_write_text(tmp_path / "a.txt", "")


def test_a_name_that_is_too_long_is_named(tmp_path):
    with pytest.raises(InputError, match=r"cannot write .*a\.txt: .*; give a shorter name"):
        atomic_write_text(tmp_path / ("a" * 245 + "a.txt"), "")


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(
        InputError, match=r"cannot write .*nowhere/a\.txt: .*nowhere does not exist: make it first"
    ):
        atomic_write_text(tmp_path / "nowhere" / "a.txt", "")


def test_a_missing_package_names_the_extra():
    assert require("json", "smiles").__name__ == "json"
    with pytest.raises(
        MissingExtraError, match=r'no_such_thing .*pip install "grant_fast\[smiles\]"'
    ):
        require("no_such_thing.mol", "smiles")


def test_a_package_that_is_there_and_broken_is_not_called_missing(tmp_path, monkeypatch):
    (tmp_path / "broken_thing.py").write_text("raise ImportError('libXrender.so.1 is not there')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtraError, match=r"cannot be imported: libXrender") as found:
        require("broken_thing", "smiles")
    assert "pip install" not in str(found.value)


def test_a_link_stays_a_link_to_the_new_content(tmp_path):
    (tmp_path / "target.csv").write_text("old")
    (tmp_path / "link.csv").symlink_to(tmp_path / "target.csv")
    atomic_write_text(tmp_path / "link.csv", "new")
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "target.csv").read_text() == "new"


def test_a_pipe_or_device_is_never_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe: it is not an ordinary file"):
        atomic_write_text(tmp_path / "pipe", "")
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.skipif(sys.platform == "win32", reason="folders cannot be locked there")
def test_a_folder_belongs_to_one_at_a_time(tmp_path):
    taken = pytest.raises(InputError, match=r"another process is writing to .*: wait until it ends")
    with alone_in(tmp_path):
        with taken, alone_in(tmp_path):
            pass
        with alone_in(tmp_path.parent):
            pass
    with pytest.raises(KeyError), alone_in(tmp_path):
        raise KeyError
    with alone_in(tmp_path):
        assert not list(tmp_path.iterdir())


def killed_with(path, text):
    """What a process leaves that was killed when it had written so much of a file."""
    code = (
        "import os, sys\n"
        "from grant_fast.files import atomic_path\n"
        "with atomic_path(sys.argv[1]) as temporary:\n"
        "    temporary.write_text(sys.argv[2])\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, path, text], check=False)
    (left,) = path.parent.iterdir()
    return left


@pytest.mark.skipif(sys.platform == "win32", reason="files cannot be locked there")
def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path):
    path = tmp_path / "a[1].csv"
    left = killed_with(path, "half")
    assert left.read_text() == "half"
    others = [tmp_path / f"{name}.0123abcd" for name in (".a1.csv", ".b.csv", "a[1].csv")]
    others += [tmp_path / ".a[1].csv.notes", tmp_path / ".a[1].csv.0123abcd0"]
    others += [tmp_path / ".a[1].csv.0123abcd"]  # another process made it, and will lock it next
    for other in others:
        other.touch()
    with atomic_path(path) as temporary:
        assert not left.exists()
        temporary.write_text("first")
        atomic_write_text(path, "second")  # meanwhile, as another process may
        assert temporary.read_text() == "first"
    assert path.read_text() == "first"
    assert sorted(tmp_path.iterdir()) == sorted([path, *others])


@pytest.mark.skipif(sys.platform == "win32", reason="files cannot be locked there")
def test_what_was_killed_before_it_wrote_a_byte_is_removed_a_minute_later(tmp_path):
    path = tmp_path / "run.png"  # drawn for a second before it is written
    left = killed_with(path, "")
    assert left.stat().st_size == 0
    os.utime(left, (0, 0))
    with atomic_path(path) as temporary:  # empty too, and locked
        os.utime(temporary, (0, 0))
        atomic_write_text(path, "other")
        assert temporary.exists() and not left.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="files cannot be locked there")
def test_on_a_full_disk_what_was_abandoned_makes_room(tmp_path, monkeypatch):
    left, opened = killed_with(tmp_path / "a.txt", "half"), open

    def full(path, mode="r", *rest, **named):
        if "buffering" in named:
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(path, mode, *rest, **named)

    monkeypatch.setattr("builtins.open", full)
    atomic_write_text(tmp_path / "a.txt", "new")
    assert not left.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="folders cannot be locked there")
def test_a_drive_without_locks_is_used_without(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with alone_in(tmp_path):
        (tmp_path / "a").touch()


@pytest.mark.parametrize("name", ["a.csv", "a.tsv.gz"])
def test_a_csv_is_written_row_by_row_and_whole_or_not_at_all(tmp_path, name):
    path, seen = tmp_path / name, []

    def rows(fails):
        for number in range(20_000):
            if number == 19_000:
                (temporary,) = (p for p in tmp_path.iterdir() if p != path)
                seen.append(temporary.stat().st_size)
                if fails:
                    raise KeyError("a row")
            yield number, "é, ü" * (number % 3)

    atomic_write_csv(path, ["n", "text"], rows(False))
    whole = path.read_bytes()
    assert seen[0] > len(whole) / 2  # most of it, before it was all there
    text = gzip.decompress(whole) if name.endswith(".gz") else whole
    assert b"\r" not in text
    assert text == whole or whole[4:8] == bytes(4)  # no time of day
    mark = "\t" if ".tsv" in name else ","
    lines = list(csv.reader(text.decode().splitlines(), delimiter=mark))
    assert lines[0] == ["n", "text"] and lines[3] == ["2", "é, üé, ü"] and len(lines) == 20_001
    with pytest.raises(KeyError):
        atomic_write_csv(path, ["n", "text"], rows(True))
    assert path.read_bytes() == whole and list(tmp_path.iterdir()) == [path]


def test_a_carriage_return_in_a_cell_ends_no_row(tmp_path):
    rows = [["a\rb", "1"], ["x,y", "2"], ["c\r\nd", 'a "b"'], ["plain", "3"]]
    atomic_write_csv(tmp_path / "t.csv", ["n\r", "text"], rows)
    with open(tmp_path / "t.csv", newline="") as file:
        assert list(csv.reader(file)) == [["n\r", "text"], *rows]
    assert (tmp_path / "t.csv").read_bytes().endswith(b"\nplain,3\n")


@pytest.mark.skipif(sys.platform == "win32", reason="files cannot be locked there")
def test_on_a_drive_whose_locks_shut_out_all_other_handles_files_are_written(tmp_path, monkeypatch):
    """As on Windows' shares, mounted by Linux; nothing says there which files are abandoned."""
    import fcntl

    locked, flock, close, opened = set(), fcntl.flock, os.close, open

    def lock(handle, kind):
        flock(handle, kind)
        locked.add(handle)

    def unlock(handle):
        locked.discard(handle)
        close(handle)

    def refusing(path, mode="r", *rest, **named):
        if locked and mode != "r":
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, mode, *rest, **named)

    (other := tmp_path / ".a.txt.0123abcd").write_text("another process writes to it")
    monkeypatch.setattr(fcntl, "flock", lock)
    monkeypatch.setattr(os, "close", unlock)
    monkeypatch.setattr("builtins.open", refusing)
    atomic_write_text(tmp_path / "a.txt", "new")
    monkeypatch.undo()
    assert (tmp_path / "a.txt").read_text() == "new"
    assert sorted(tmp_path.iterdir()) == [other, tmp_path / "a.txt"]


def test_on_windows_a_file_that_is_being_read_is_replaced_later(tmp_path, monkeypatch):
    tries, replace = [], os.replace

    def busy(*paths):
        tries.append(paths)
        if len(tries) < 3:
            raise PermissionError(errno.EACCES, "Permission denied")
        replace(*paths)

    monkeypatch.setattr("grant_fast.files.os.replace", busy)
    with pytest.raises(InputError, match=r"cannot write .*a\.txt: Permission denied$"):
        atomic_write_text(tmp_path / "a.txt", "new")
    monkeypatch.setattr("sys.platform", "win32")
    atomic_write_text(tmp_path / "a.txt", "new")
    assert len(tries) == 3 and os.listdir(tmp_path) == ["a.txt"]
    tries[:] = []
    monkeypatch.setattr("grant_fast.files._TO_SCAN", 0)
    with pytest.raises(InputError, match="Permission denied; close it in other programs"):
        atomic_write_text(tmp_path / "a.txt", "new")


@pytest.mark.skipif(sys.platform != "linux", reason="names are Unicode there")
def test_a_name_that_is_no_text_is_refused(tmp_path):
    for refuse in (check_writable, partial(check_free, resume=False, overwrite=False)):
        with pytest.raises(InputError, match=r"a\\udcff' is not UTF-8: rename the file or"):
            refuse(tmp_path / "a\udcff")


@pytest.mark.parametrize(
    ("name", "says"),
    [("smiles,y\n" + 60 * "CCO,1.5\n", "too long for a file's name: give"), ("a\0b.csv", "a NUL")],
)
def test_what_is_no_name_is_refused(name, says):
    graphs = PackedGraphs.from_arrays(torch.ones(1, 1), torch.zeros(2, 0).long(), [0])
    takers = load_dataset, load_predictor, PackedGraphs.load, graphs.save, check_writable
    for take in (*takers, partial(check_free, resume=False, overwrite=False)):
        with pytest.raises(InputError, match=says):
            take(name)
    check_name("a" * 255)  # which is one


def test_commands_are_typed_as_the_system_wants_them(monkeypatch):
    words = "grant-fast", "train", "C:\\my data\\a.csv", "-o", "runs\\a"
    assert typed(*words) == "grant-fast train 'C:\\my data\\a.csv' -o 'runs\\a'"
    monkeypatch.setattr("sys.platform", "win32")
    assert typed(*words) == 'grant-fast train "C:\\my data\\a.csv" -o runs\\a'
    assert typed("--target", "R&D") == '--target "R&D"'


def test_messages_name_options_as_they_were_given():
    assert option("split_column") == "split_column="
    assert option("target", "R&D") == option("target", ["R&D"]) == "target='R&D'"
    assert option("target", ["a", "b"]) == "target=['a', 'b']"
    assert option("strict", True) == "strict=True"
    with pytest.raises(InputError), in_a_command():
        assert option("split_column") == "--split-column"
        assert option("target", ["a", "b c"]) == f"--target a --target {typed('b c')}"
        assert (option("strict", True), option("strict", False)) == ("--strict", "--no-strict")
        assert option("out") == "-o"
        raise InputError("a command ends so")
    assert option("out") == "out="
