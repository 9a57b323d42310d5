"""What the machine refuses the command line, in one line that names the culprit and the remedy."""

import errno
import gc
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from grant_fast.cli import terminal
from tests.cli.runs import ENVIRONMENT, SMALL, fails


def test_unwritable_outputs_are_named(tmp_path):
    (tmp_path / "file").write_text("")
    line = fails("train", *SMALL, "--epochs", 1, "-o", tmp_path / "file" / "run")
    assert "file is a file: give a folder with -o" in line
    (tmp_path / "link").symlink_to("nowhere")
    for out in (tmp_path / "link", tmp_path / "link" / "run"):
        line = fails("train", *SMALL, "--epochs", 1, "-o", out)
        assert f"{tmp_path / 'link'} is a broken link; give another folder" in line
    # said before the 50,000 graphs are drawn
    line = fails("pack", "gen-reg", "-o", tmp_path / "nowhere" / "d.gfast")
    assert "nowhere does not exist: make it first, or give another one" in line
    line = fails("pack", "gen-reg", "-o", tmp_path / "file" / "d.gfast")
    assert "file is not a folder; give another one" in line
    assert "give a name that ends in .gfast" in fails("pack", "gen-reg", "-o", tmp_path / "d.bin")


def test_a_deleted_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "grant_fast.cli.commands.train.load", lambda *_: (tmp_path.rmdir(), os.getcwd())
    )
    for _ in ("meanwhile", "before"):
        assert "the current folder was deleted: go to another one" in fails("train", *SMALL)


def test_a_missing_folder_for_temporary_files_is_not_taken_for_a_deleted_one(monkeypatch):
    def missing(*_):
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr("grant_fast.cli.commands.train.load", missing)
    assert "error: [Errno 2] No usable temporary directory found in" in fails("train", *SMALL)


@pytest.mark.parametrize(
    ("function", "file"), [("pathlib.Path.write_bytes", "last.pt"), ("os.fsync", "config.json")]
)
def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(
    tmp_path, full_disk, function, file
):
    full_disk(function)
    line = fails("train", *SMALL, "--epochs", 1, "-o", tmp_path / "run")
    assert f"cannot write {tmp_path / 'run' / file}: No space left on device" in line
    assert {path.name for path in (tmp_path / "run").iterdir()} <= {"config.json"}


def test_a_full_disk_under_tensorboard_is_one_line(tmp_path, full_disk):
    pytest.importorskip("tensorboard")
    full_disk("torch.utils.tensorboard.SummaryWriter.flush")
    line = fails("train", *SMALL, "--epochs", 1, "--tensorboard", "-o", tmp_path / "run")
    assert "cannot write TensorBoard's events: No space left on device; free some space" in line


def test_a_folder_that_nobody_may_enter_is_named(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    line = fails("compare", *SMALL, "-o", tmp_path / "run")
    assert f"{tmp_path / 'run'}: Permission denied; check its folder's permissions" in line


def test_an_error_without_a_file_is_said_as_it_is(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "is_file", refuse)
    line = fails("compare", *SMALL, "-o", tmp_path / "run")
    assert line == "error: [Errno 1] Operation not permitted"


def test_a_name_that_is_too_long_is_named(tmp_path):
    out = tmp_path / ("a" * 480)
    line = fails("train", *SMALL, "-o", out)
    assert (
        line.startswith("error: 'aaa") and "is too long for a file's name: give a shorter" in line
    )


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 9 PiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB"),
    ],
    ids=["numpy", "cpu", "gpu"],
)
def test_too_little_memory_is_one_line(tmp_path, monkeypatch, error):
    def full(*_args, **_kwargs):
        raise error

    monkeypatch.setattr("grant_fast.training.trainer.build_model", full)
    assert "out of memory" in fails("train", *SMALL, "-o", tmp_path / "run")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["--help"], ["pack", "gen-reg", "--graphs", "3", "-o"]])
def test_a_full_disk_behind_the_output_is_one_line(tmp_path, words, unbuffered):
    out = [tmp_path / "d.gfast"] * ("-o" in words)
    program = [sys.executable, "-m", "grant_fast", *words, *out]
    environment = {**ENVIRONMENT, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            program, env=environment, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr.startswith("error: cannot write the output: No space left")
    assert done.stderr.count("\n") == 1
    assert all(path.exists() for path in out)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EPIPE, errno.EIO])
def test_output_that_cannot_be_written_is_told_from_files(code):
    assert terminal._is_of_output(OSError(code, "said"))
    assert not terminal._is_of_output(OSError(code, "said", "a file"))


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_ends_nothing(tmp_path, closed):
    words = ["train", *SMALL, "--epochs", "1", "-o", tmp_path / "run"]
    command = shlex.join(map(str, [sys.executable, "-m", "grant_fast", *words]))
    assert subprocess.run(f"{command} {closed}", shell=True, env=ENVIRONMENT).returncode == 0
    assert (tmp_path / "run" / "split.csv").exists()


@pytest.mark.parametrize("collects", [True, False])
def test_no_garbage_is_searched_for_while_a_command_imports_nor_in_what_it_imported(collects):
    before = gc.isenabled()
    try:
        (gc.enable if collects else gc.disable)()
        with pytest.raises(ImportError), terminal.uncollected():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() == collects and gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
        (gc.enable if before else gc.disable)()
