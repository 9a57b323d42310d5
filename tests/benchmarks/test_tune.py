"""Other ways to launch a kernel: tried out, and timed where they are right."""

import json
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import pieces, tune, ways
from benchmarks.cases import CHECK
from benchmarks.data import Store
from benchmarks.measure import WrongAnswer
from grant_fast import kernels
from grant_fast.ops.dispatch import is_interpreting

PIECE = "a big graph of width 64"
CPU = torch.device("cpu")


@pytest.fixture
def store(tmp_path):
    pieces._kept.clear()
    pieces.write_sets(tmp_path, "cpu")
    yield Store(tmp_path, "tiny", CPU)
    pieces._kept.clear()


def test_ways_are_tried_out_and_timed(tmp_path, capsys):
    chosen = "spmm_shape ROWS×2|layer.tile_shape BO=64"
    arguments = ["--out", str(tmp_path), "--device", "cpu", "--only", PIECE, "--ways", chosen]
    assert tune.main(arguments) == 0
    document = json.loads((tmp_path / "tuning.json").read_text())
    cases = document["cases"]
    assert not document["left out"] and not any("error" in case for case in cases.values())
    assert cases[f"try/{PIECE}/ours"]["result"] == {"error": 0.0}
    result = cases[f"time/{PIECE}/csr.spmm_shape ROWS×2"]["result"]
    assert {launch["kernel"] for launch in result["launches"]} == {"spmm_rows"}
    assert all(min(pair) > 0 for pair in (*result["us"], result["whole"]))
    result = cases[f"time/{PIECE}/layer.tile_shape BO=64"]["result"]  # launches nothing here
    assert set(result["us"]) == {None} and result["whole"] is None
    page = (tmp_path / "tuning.md").read_text()
    assert f"| {PIECE} | spmm_rows | WIDTH=64 | 4 |" in page and f"| {PIECE} | the whole |" in page
    assert page.rstrip() in capsys.readouterr().out


def test_what_fails_or_is_wrong_is_not_timed(monkeypatch):
    done = []

    class Some:
        until = 10.0

        def run(self, cases, outcome, jobs=1):
            assert all(case.group == CHECK for case in cases)
            done.append([case.name for case in cases])
            for case in cases:
                outcome.cases[case.name] = {"error" if "4 warps" in case.name else "result": {}}

    monkeypatch.setattr(tune, "replace", lambda some, until: some)
    names = [(PIECE, way) for way in (ways.OURS, "2 warps", "4 warps")]
    tune.tune(names, Some(), tune.Outcome(lambda: None), 1)
    assert done == [
        [f"try/{PIECE}/ours"],
        [f"try/{PIECE}/2 warps", f"try/{PIECE}/4 warps"],
        [f"time/{PIECE}/2 warps"],
    ]


def test_a_wrong_result_is_named(store, monkeypatch):
    assert pieces.try_out(PIECE, "2 warps", store)["error"] == 0
    monkeypatch.setattr(pieces._piece(PIECE, store), "answer", [torch.ones(1)])
    with pytest.raises(WrongAnswer):
        pieces.try_out(PIECE, "2 warps", store)


def test_what_a_worker_does_is_noted(store, tmp_path, monkeypatch):
    def refused(shape):
        raise ValueError("no such block")

    way = ways.Way("4 warps", {}, "csr.spmm_shape", refused)
    monkeypatch.setitem(ways.WAYS, "4 warps", way)
    names = [f"try/{PIECE}/{way}" for way in ("2 warps", "4 warps")] + [f"time/{PIECE}/2 warps"]
    (tmp_path / "names").write_text("\n".join(names))
    (tmp_path / "claims").mkdir()

    def work(until):
        options = {"only": "names", "records": "records", "claims": "claims", "sets": "."}
        paths = [f"--{name}={tmp_path / path}" for name, path in options.items()]
        return tune.work([*paths, "--on=cpu", f"--until={until}"])

    assert work(0.0) == tune.EXIT_LATE
    assert work(1e12) == 0 and work(1e12) == 0  # the second finds everything claimed
    lines = list(map(json.loads, (tmp_path / "records").read_text().splitlines()))
    ends = [line for line in lines if line["event"] == "end"]
    assert [line["name"] for line in ends] == names
    assert ends[0]["result"] == {"error": 0.0} and ends[1]["error"] == "ValueError: no such block"
    assert len(ends[2]["result"]["us"]) == 4


def test_on_a_device_two_take_turns(monkeypatch):
    done = []

    def record(work, device):
        return SimpleNamespace(replay=work), work()

    def seconds(run, device):  # one for each thing that is done
        before = len(done)
        run()
        return float(len(done) - before)

    monkeypatch.setattr(pieces, "record", record)
    monkeypatch.setattr(pieces, "seconds", seconds)
    runs = [lambda: done.append("ours"), lambda: done.extend(["other", "other"])]
    assert pieces.in_turns(runs, 3, SimpleNamespace(type="cuda")) == [1e6, 2e6]
    turns = done[9:]  # after both were recorded
    assert turns[:18] == (["ours"] * 3 + ["other"] * 6) * 2


def test_the_table_begins_where_most_is_gained():
    launches = [{"kernel": kernel, "sizes": ""} for kernel in "aba"]

    def race(us, whole):
        return {"result": {"launches": launches, "us": us, "whole": whole}}

    cases = {
        "time/job/slower": race([[10.0, 30.0], [5.0, 4.0], [10.0, 30.0]], [40.0, 60.0]),
        "time/job/faster": race([[10.0, 4.0], None, [12.0, 4.0]], [40.0, 39.0]),
        "time/job/partly": race([[10.0, 1.0], None, None], None),
        "time/job/lost": {"error": "why"},
        "try/job/faster": {"result": {}},
    }
    assert tune.best(cases) == [
        ("job", "a", "", 2, 22.0, "faster", 8.0),
        ("job", "b", "", 1, 5.0, "slower", 4.0),
        ("job", "the whole", "", 1, 40.0, "", 40.0),  # 39 of 40 may be noise
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_a_gpu_that_is_not_there_is_said(tmp_path, capsys):
    with pytest.raises(SystemExit):
        tune.main(["--out", str(tmp_path)])
    assert "there is no GPU: --device cpu tries the command" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--only", "no such"], "nothing is left of: molhiv, a step;"),
        (["--ways", "no such"], "with: ours; 1 warps;"),
        (["--ways", "("], "no regular expression: "),
    ],
)
def test_what_is_not_there_is_said(tmp_path, capsys, arguments, says):
    with pytest.raises(SystemExit):
        tune.main(["--out", str(tmp_path), "--device", "cpu", *arguments])
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("way", ways.WAYS)
def test_every_way_changes_what_is_there(way):
    """That no name in `WAYS` is out of date."""
    _, options, place, change = ways.WAYS[way]
    assert options.keys() <= {"num_warps", "num_stages", "maxnreg"}
    if not place:
        assert options or way == ways.OURS
        return
    module, name = place.split(".")
    there = import_module(f"{kernels.__name__}.{module}")
    before = getattr(there, name)
    with ways.launched(ways.WAYS[way], CPU):
        after = getattr(there, name)
    if isinstance(before, int):
        assert after == int(way.partition("=")[2])
        return
    sizes = {
        "layer.tile_shape": (27, 18),
        "layer.tile_grad_shape": (27, 18, 3),
        "layer.block_shape": (27, 18, 2, True),
        "layer.block_grad_shape": (27, 18, 2, True),
        "kinds.sum_shape": (9, 374),
        "wide.tile_shape": (27,),
        "wide.block_shape": (27, 2, True),
    }.get(place, (64,) * (2 if module == "tail" else 1))
    assert after(*sizes).keys() == before(*sizes).keys()
    assert isinstance(change, partial)


def test_the_modules_that_launch_are_known():
    folder = Path(kernels.__path__[0])
    names = {path.stem for path in folder.glob("*.py")} - {"inspect", "configurations", "launch"}
    launching = {n for n in names if hasattr(import_module(f"{kernels.__name__}.{n}"), "launch")}
    # What selects, and what lays out tiles, is launched by no piece.
    assert launching == {*ways.LAUNCHERS, "select", "tables"}


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that PyTorch can use")
@pytest.mark.skipif(is_interpreting(), reason="kernels are interpreted, but by `pytest -m cuda`")
def test_a_piece_is_timed_on_a_gpu(tmp_path):
    pieces.write_sets(tmp_path, "cpu")
    store = Store(tmp_path, "tiny", torch.device("cuda:0"))
    result = pieces.timed(PIECE, "2 warps", store)
    assert len(result["us"]) == 4 and all(min(pair) > 0 for pair in result["us"])
    assert min(result["whole"]) > 0
