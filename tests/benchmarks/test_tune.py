"""Other ways to launch a kernel: tried out, and timed where they are right."""

import json
import time

import pytest
import torch

from benchmarks import tune
from grant_fast import kernels
from grant_fast.errors import InputError

PIECE = "a big graph of width 64"


def refused(shape):
    raise ValueError("no such block")


#: One that changes how every kernel is compiled, one that changes a shape, one for other kernels,
#: and one that fails.
SOME = ("2 warps", "csr.spmm_shape ROWS×2", "layer.tile_shape BO=64", "refused")


@pytest.fixture
def ways(monkeypatch):
    ways = tune.WAYS | {"refused": tune.Way("refused", {}, "csr.spmm_shape", refused)}
    monkeypatch.setattr(tune, "WAYS", {name: ways[name] for name in SOME})
    for kept in (tune._piece, tune._store, tune._answer):
        kept.cache_clear()


def test_every_way_is_timed_or_says_why_not(ways, tmp_path, capsys):
    assert tune.main(["--out", str(tmp_path), "--only", PIECE]) == 0
    document = json.loads((tmp_path / "tuning.json").read_text())
    found = document["pieces"][PIECE]
    launches = len(found["launches"])
    assert {each["kernel"] for each in found["launches"]} == {"spmm_rows"}
    assert all(each["us"] > 0 for each in found["launches"])
    for way in SOME[:2]:
        assert len(found["ways"][way]["us"]) == launches and min(found["ways"][way]["us"]) > 0
    assert SOME[2] not in found["ways"]  # nothing here is launched by tiles
    assert found["ways"]["refused"] == {"failed": "ValueError: no such block"}
    page = (tmp_path / "tuning.md").read_text()
    assert page.rstrip() in capsys.readouterr().out
    assert f"- Not timed, {PIECE}: ValueError: no such block: refused." in page


def test_a_wrong_way_is_not_timed(ways, monkeypatch, tmp_path):
    options = tune.Options(tmp_path, "tiny", "cpu", (PIECE,))
    assert tune.try_out(options, PIECE, "2 warps") == ""
    right = tune._answer(options, PIECE)
    monkeypatch.setattr(tune, "_answer", lambda *_: [2 * t for t in right])
    assert tune.try_out(options, PIECE, "2 warps").startswith("off by 5.0e-01")


def test_what_is_passed_over_is_said(ways, monkeypatch, tmp_path):
    options = tune.Options(tmp_path, "tiny", "cpu", (PIECE,))
    plan = [(PIECE, way) for way in SOME]

    def died(*_):
        raise InputError("a process was killed")
        yield

    monkeypatch.setattr(tune, "share_out", died)
    told = dict(tune._tried_out(options, plan, 1, float("inf")))
    assert told == dict.fromkeys(plan, "a process died that may have been at this")
    assert list(tune._tried_out(options, plan, 1, 0.0)) == []


def test_what_does_not_work_at_all_is_said(ways, monkeypatch, tmp_path):
    def broken(store):
        def run():
            raise RuntimeError("no such kernel")

        return run

    monkeypatch.setattr(tune, "PIECES", {"first": broken, PIECE: tune.PIECES[PIECE]})
    options = tune.Options(tmp_path, "tiny", "cpu", ("first", PIECE))
    saved = []
    tune.tune(options, 1, time.time() + 60, lambda found: saved.append(dict(found)))
    first = {"launches": [], "ways": {"ours": {"failed": "RuntimeError: no such kernel"}}}
    assert saved[0] == {"first": first} and list(saved[1]) == ["first", PIECE]
    assert saved[1][PIECE]["launches"]
    saved.clear()
    tune.tune(options, 1, 0.0, saved.append)
    late = {"launches": [], "ways": {"ours": {"failed": "no time"}}}
    assert saved[-1] == {"first": late, PIECE: late}


def test_the_table_begins_where_most_is_gained():
    launches = [
        {"kernel": "a", "sizes": "", "us": 10.0},
        {"kernel": "b", "sizes": "", "us": 5.0},
        {"kernel": "a", "sizes": "", "us": 10.0},
    ]
    slower, faster = {"us": [30.0, 4.0, 30.0]}, {"us": [4.0, None, 4.0]}
    partly = {"us": [1.0, None, None]}
    ways = {"slower": slower, "faster": faster, "partly": partly, "lost": {"failed": "why"}}
    document = {"pieces": {"work": {"launches": launches, "ways": ways}}}
    assert tune.best(document) == [
        ("work", "a", "", "2", "20.0", "faster", "8.0"),
        ("work", "b", "", "1", "5.0", "slower", "4.0"),
    ]
    del ways["slower"]
    assert tune.best(document)[1] == ("work", "b", "", "1", "5.0", "", "")


def test_pieces_are_chosen_by_name(tmp_path, capsys):
    with pytest.raises(SystemExit):
        tune.main(["--out", str(tmp_path), "--only", "no such"])
    assert "is in none of: molhiv, a step;" in capsys.readouterr().err


@pytest.mark.parametrize("way", tune.WAYS)
def test_every_way_changes_what_is_there(way):
    """That no name in `WAYS` is out of date."""
    place = tune.WAYS[way].place
    if place:
        with tune.launched(tune.WAYS[way], torch.device("cpu")):
            module, name = place.split(".")
            changed = getattr(getattr(kernels, module), name)
        assert changed is not getattr(getattr(kernels, module), name)
    else:
        assert tune.WAYS[way].options
