"""Generated sets are kept, found again, and never stand in the way."""

import errno
import os
import sys
from pathlib import Path

import pytest
import torch

from grant_fast.data import cache
from grant_fast.data.cache import cache_folder, cached_graphs
from grant_fast.data.load import load_dataset
from grant_fast.errors import InputError
from tests.cases import check_equal


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A cache folder of this test's own, in which small sets are kept, too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cache, "SMALLEST", 10)
    return tmp_path / "grant_fast"


def refuse():
    raise AssertionError("drawn although it is in the cache")


def test_a_generated_set_is_drawn_once_and_is_the_same_from_the_file(folder):
    first = load_dataset("gen-cls", num_graphs=12, seed=3, progress=False)
    assert [path.name for path in folder.iterdir()] == ["gen-cls-12-seed3-v1.gfast"]
    again = cached_graphs("gen-cls", 12, 3, refuse)
    check_equal(again, first.graphs)
    other = load_dataset("gen-cls", num_graphs=12, seed=4, progress=False)
    assert not torch.equal(other.graphs.x[:9], first.graphs.x[:9])
    assert len(list(folder.iterdir())) == 2


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch):
    def unknown():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", unknown)
    with pytest.raises(InputError, match="there is no home folder: set XDG_CACHE_HOME to a folder"):
        cache_folder()


def test_small_sets_are_not_kept(folder):
    load_dataset("gen-reg", num_graphs=9, progress=False)
    assert not folder.exists()


def test_a_damaged_file_is_drawn_again(folder):
    first = load_dataset("gen-reg", num_graphs=10, progress=False)
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    path.unlink()  # what is mapped stays
    path.write_bytes(whole[:100])
    again = load_dataset("gen-reg", num_graphs=10, progress=False)
    assert torch.equal(again.graphs.x, first.graphs.x)
    assert cached_graphs("gen-reg", 10, 0, refuse).num_graphs == 10


def test_a_folder_that_cannot_be_made_costs_a_warning_and_no_result(folder):
    folder.write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="gen-reg could not be kept for next time"):
        dataset = load_dataset("gen-reg", num_graphs=10, progress=False)
    assert dataset.graphs.num_graphs == 10


def test_what_cannot_be_drawn_is_not_drawn_again(folder):
    def draw():
        raise InputError("one of 2 processes was killed")
        yield

    with pytest.raises(InputError, match="killed"):
        cached_graphs("gen-reg", 10, 0, draw)
    assert list(folder.iterdir()) == []


def test_a_folder_of_another_user_costs_a_warning_and_no_result(folder, monkeypatch):
    stat = os.stat

    def refuse_within(path, *args, **kwargs):
        if str(path).startswith(str(folder)):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", refuse_within)
    monkeypatch.setattr(Path, "stat", refuse_within)  # Python 3.10's pathlib keeps an os.stat
    with pytest.warns(UserWarning, match="gen-reg could not be kept for next time"):
        dataset = load_dataset("gen-reg", num_graphs=10, progress=False)
    assert dataset.graphs.num_graphs == 10


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {"XDG_CACHE_HOME": "/x/c"}, "/x/c/grant_fast"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/grant_fast"),
        ("linux", {}, "/home/me/.cache/grant_fast"),
        ("darwin", {}, "/home/me/Library/Caches/grant_fast"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/grant_fast"),
    ],
)
def test_the_folder_is_the_users_own(monkeypatch, platform, variables, expected):
    monkeypatch.setattr(sys, "platform", platform)
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(Path, "home", lambda: Path("/home/me"))
    assert cache_folder().as_posix() == expected
