"""A crash, a hang or a lost device costs one case and never the rest."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from threading import Thread
from types import SimpleNamespace

import pytest
import torch

from benchmarks import device, machine, runner, test_suite
from benchmarks.cases import CHECK, RUN, Case, suite
from benchmarks.conftest import Records, claim
from benchmarks.device import Options, Writer
from benchmarks.runner import Outcome, Workers

FAKE = """
import argparse, json, os, sys, time
parser = argparse.ArgumentParser()
for name in ("--only", "--records", "--claims", "--until"):
    parser.add_argument(name)
parser.add_argument("--no-kernels", action="store_true")
given = parser.parse_args()
records = open(given.records, "a")
def write(event, **values):
    records.write(json.dumps({"event": event, "at": time.time(), **values}) + "\\n")
    records.flush()
names = open(given.only).read().splitlines()
if names == ["never begins"]:
    time.sleep(60)
write("ceilings", values={"copy bytes/s": 1e10})
for name in names:
    if time.time() > float(given.until):
        sys.exit(87)
    try:
        open(os.path.join(given.claims, name + ".begun"), "x")
    except FileExistsError:
        continue
    write("begin", name=name)
    if name == "dies":
        os._exit(139)
    if name == "hangs" or name == "slow kernel" and not given.no_kernels:
        time.sleep(60)
    if name == "long":
        time.sleep(3)
    if name == "kernel" and not given.no_kernels:
        error = "AcceleratorError: CUDA error: an illegal memory access"
        write("end", name=name, error=error, trace="in a kernel")
        os._exit(86)
    write("end", name=name, result={"value": 1})
if name == "never ends":
    time.sleep(60)
"""


POPEN = subprocess.Popen


@pytest.fixture
def workers(tmp_path, monkeypatch):
    fake = tmp_path / "fake.py"
    fake.write_text(FAKE)
    monkeypatch.setattr(runner, "LEAST_PATIENCE", 1.0)
    return lambda until: Workers((), tmp_path, until, (sys.executable, str(fake)))


def cases(*names: str) -> list[Case]:
    return [Case(name, "layer", lambda store: None, seconds=0.01) for name in names]


def test_what_dies_or_hangs_is_noted_and_the_rest_goes_on(workers):
    saved = []
    outcome = Outcome(lambda: saved.append(len(outcome.cases)))
    workers(time.time() + 60).run(cases("a", "dies", "b", "hangs", "c"), outcome)
    assert [name for name, case in outcome.cases.items() if "result" in case] == ["a", "b", "c"]
    assert "exit code 139" in outcome.cases["dies"]["error"]
    assert "stopped after" in outcome.cases["hangs"]["error"]
    assert saved == [1, 2, 3, 4, 5]
    assert outcome.ceilings == {"copy bytes/s": 1e10}


def test_a_check_that_compiles_is_waited_for(workers, monkeypatch):
    (hangs,) = cases("hangs")
    monkeypatch.setattr(runner, "CHECK_PATIENCE", 3.0)
    waited = []
    for group in ("layer", CHECK):
        outcome = Outcome(lambda: None)
        workers(time.time() + 60).run([replace(hangs, group=group)], outcome)
        assert "stopped after" in outcome.cases["hangs"]["error"]
        waited.append(outcome.cases["hangs"]["took"])
    assert waited[1] >= 3 > waited[0] >= 1


def test_a_worker_that_hangs_between_its_cases_is_stopped(workers, monkeypatch):
    monkeypatch.setattr(runner, "SILENCE", 2.0)
    monkeypatch.setattr(runner, "LEAST_SILENCE", 0.5)
    outcome, began = Outcome(lambda: None), time.time()
    for name in ("never begins", "never ends"):
        workers(time.time() + 60).run(cases(name), outcome)
    assert time.time() - began < 30
    assert "could be started: no word for 2 s" in outcome.cases["never begins"]["error"]
    assert outcome.cases["never ends"]["result"] == {"value": 1}


def test_side_by_side_none_is_lost_either(workers):
    outcome = Outcome(lambda: None)
    workers(time.time() + 60).run(cases("a", "dies", "b", "c"), outcome, jobs=3)
    assert set(outcome.cases) == {"a", "dies", "b", "c"}


def test_side_by_side_each_takes_the_next_that_is_left(workers, monkeypatch):
    monkeypatch.setattr(runner, "LEAST_PATIENCE", 30.0)
    saved = []
    outcome = Outcome(lambda: saved.append(1))
    names = ["long", *"abcd"]
    workers(time.time() + 60).run(cases(*names), outcome, jobs=2)
    assert list(outcome.cases) == [*"abcd", "long"] and len(saved) == len(names)
    assert all("result" in case for case in outcome.cases.values())


def test_a_case_is_begun_by_one_process_only(tmp_path):
    first, second = Records(None, tmp_path), Records(None, tmp_path)
    assert first.begin("check/triton 9→9 κ=3") and not second.begin("check/triton 9→9 κ=3")
    assert second.begin("check/another") and not first.begin("check/another")
    assert claim(tmp_path, "check/another").exists() and not claim(tmp_path, "check").exists()


def test_the_command_names_the_package_that_it_lacks(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(device, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        device.main(["--out", str(tmp_path / "out")])
    assert "pip install pytest-benchmark" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("only", "says"),
    [
        (
            "layers/",
            "--only 'layers/' is in no case's name: names begin with their group, one of ",
        ),
        ("layer(", "--only 'layer(' is no regular expression: "),
    ],
)
def test_a_choice_of_no_case_is_refused_before_any_work(tmp_path, capsys, only, says):
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as end:
        device.main(["--out", str(out), "--device", "cpu", "--only", only])
    said = capsys.readouterr().err
    assert end.value.code == 2 and says in said and not out.exists()
    if "one of" in says:
        groups = said.strip().rsplit("one of ", 1)[1].split(", ")
        assert set(groups) == {case.group for case in suite("cpu")}


def test_a_check_that_no_time_is_left_for_is_passed_over_but_a_race_ends_all(tmp_path):
    options = SimpleNamespace(getoption={"until": time.time() + 9}.get)
    (case,) = cases("a")
    for group, ending in ((CHECK, pytest.skip.Exception), ("layer", pytest.exit.Exception)):
        late = replace(case, group=group, seconds=60)
        with pytest.raises(ending, match="time"):
            test_suite.test_case(late, None, Records(None), options, None)


def test_what_lost_the_device_is_tried_again_at_once_without_the_kernels(workers):
    outcome = Outcome(lambda: None)
    team = replace(workers(time.time() + 60), kernels=True)
    team.run(cases("kernel", "a", "slow kernel", "b"), outcome)
    assert list(outcome.cases) == ["kernel", "a", "slow kernel", "b"]  # as they were added first
    assert all(case["result"] == {"value": 1} for case in outcome.cases.values())
    assert "illegal memory access" in outcome.cases["kernel"]["with the kernels"]
    assert outcome.cases["kernel"]["trace"] == "in a kernel"
    assert "stopped after" in outcome.cases["slow kernel"]["with the kernels"]


@pytest.mark.parametrize(("group", "kernels"), [(RUN, True), ("layer", False)])
def test_without_other_sides_nothing_is_tried_again(workers, group, kernels):
    outcome, (case,) = Outcome(lambda: None), cases("dies")
    team = replace(workers(time.time() + 60), kernels=kernels)
    team.run([replace(case, group=group)], outcome)
    assert "error" in outcome.cases["dies"] and "with the kernels" not in outcome.cases["dies"]


def test_without_time_nothing_is_tried_again(workers, monkeypatch):
    now = time.time
    outcome = Outcome(lambda: monkeypatch.setattr(time, "time", lambda: now() + 60))  # once lost
    replace(workers(time.time() + 60), kernels=True).run(cases("dies"), outcome)
    assert "error" in outcome.cases["dies"] and "with the kernels" not in outcome.cases["dies"]


@pytest.mark.parametrize(
    "error", ["HIP error: …", "Triton Error [CUDA]: …", "the process died", "stopped after 75 s"]
)
def test_who_took_the_device_down_is_known_by_the_error(error):
    outcome = Outcome(lambda: None, {"a": {"error": error}, "b": {"error": "WrongAnswer: off"}})
    assert outcome.lost("a") and not outcome.lost("b") and not outcome.lost("c")


def test_a_command_out_of_time_ends_with_all_that_it_started():
    command = ["sh", "-c", "echo begun; sleep 60 & wait"]
    began = time.monotonic()
    assert machine.output(command, 0.5) == (None, "begun\n")
    assert time.monotonic() - began < 20  # the child, which holds the pipe, is gone, too
    assert machine.output(["sh", "-c", "echo done; exit 3"], 20) == (3, "done\n")


def test_an_interrupt_ends_all_and_keeps_what_was_done(workers, tmp_path, monkeypatch):
    """SIGTERM, twice, while one case hangs; it reaches the command alone."""
    plan = [replace(case, group=CHECK) for case in cases("a", "hangs", "b")]
    team = workers(time.time() + 600)
    begun: list[subprocess.Popen] = []

    def started(*args, **kwargs):
        begun.append(POPEN(*args, **kwargs))
        return begun[-1]

    def soon():
        while not any(tmp_path.glob("*/hangs.begun")):
            time.sleep(0.05)
        for pause in (0, 0.02):  # the second comes while the first is obeyed
            time.sleep(pause)
            if signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:  # which would end pytest
                os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", started)
    monkeypatch.setattr(device, "suite", lambda scale: plan)
    monkeypatch.setattr(device, "Workers", lambda *args, **kwargs: team)
    thread, began = Thread(target=soon, daemon=True), time.time()
    thread.start()
    out = tmp_path / "out"
    assert device.main(["--out", str(out), "--device", "cpu", "--scale", "tiny"]) == 130
    thread.join()
    assert time.time() - began < 40 and begun and all(p.poll() is not None for p in begun)
    document = json.loads((out / "results.json").read_text())
    assert list(document["cases"]) == ["a"] and document["dropped"] == ["hangs", "b"]
    assert "- hangs" in (out / "table.md").read_text()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_what_there_is_no_time_for_is_left(workers):
    outcome = Outcome(lambda: None)
    workers(time.time() - 1).run(cases("a", "b"), outcome)
    assert outcome.cases == {}


@pytest.fixture
def writer(tmp_path):
    """Starts the writing of a set that takes so long and ends so; what is begun ends with it."""
    begun = []

    def start(name: str, seconds: float, code: int = 0) -> Writer:
        program = f"import sys, time; time.sleep({seconds}); open(sys.argv[1], 'w')"
        program += f"; print('no room'); sys.exit({code})"
        file = tmp_path / f"{name}.gfast"
        with file.with_suffix(".log").open("w") as log:
            begun.append(subprocess.Popen([sys.executable, "-c", program, file], stdout=log))
        return Writer(name, file, begun[-1], time.time())

    yield start
    for process in begun:
        process.kill()
        process.wait()


def with_sets(*sets: tuple[str, ...]) -> list[Case]:
    return [Case(f"{i}{names}", "layer", lambda store: None, names) for i, names in enumerate(sets)]


def test_cases_run_in_order_as_soon_as_their_data_are_written(writer):
    writers = {"a": writer("a", 0), "late": writer("late", 4), "never": writer("never", 60)}
    writers["a"].process.wait()
    plan = with_sets(("a",), (), ("late",), ("never",), *5 * [("a",)], ("late", "a"))
    shares = device._as_written(plan, writers, time.time() + 9)
    assert next(shares) == plan[:2]
    assert next(shares) == plan[4:7]  # meanwhile; no more, for what waits is more important
    writers["late"].process.wait()
    assert next(shares) == plan[2:3]
    assert next(shares) == plan[7:]
    assert list(shares) == []  # the time is up
    told = {name: writer.told for name, writer in writers.items()}
    assert told["never"] == "not ready in time"
    seconds = [int(re.match(r"ready after (\d+) s", told[name])[1]) for name in ("a", "late")]
    assert seconds[0] < 4 <= seconds[1]


def test_a_set_that_cannot_be_written_is_the_error_of_its_cases(workers, writer):
    writers = {"good": writer("good", 0), "bad": writer("bad", 0, 3)}
    outcome, until = Outcome(lambda: None), time.time() + 60
    plan = with_sets(("bad", "good"), ("good",))
    for share in device._as_written(plan, writers, until):
        device._run_share(share, workers(until), outcome, writers)
    first, second = (outcome.cases[case.name] for case in plan)
    assert first["error"] == "bad could not be written, exit code 3: no room"
    assert second["result"] == {"value": 1}


def test_checks_that_hang_leave_time_for_the_races_and_the_sanitizer(workers, monkeypatch):
    monkeypatch.setattr(device.os, "cpu_count", lambda: 2)  # one check at a time
    monkeypatch.setattr(machine, "sanitizer", lambda: "compute-sanitizer")
    limits = []
    monkeypatch.setattr(machine, "sanitize", lambda limit: limits.append(limit) or {"found": True})
    light, heavy, race = cases("light", "hangs", "a")
    light, heavy = (replace(c, group=CHECK) for c in (light, replace(heavy, seconds=0.02)))
    outcome, began = Outcome(lambda: None), time.time()
    found = device._on_gpu([light, heavy, race], workers(began + 10), outcome, {})
    assert list(outcome.cases) == ["hangs", "a"]  # the heaviest check first, for half of the time
    assert "stopped after" in outcome.cases["hangs"]["error"] and "result" in outcome.cases["a"]
    assert limits and 1 < limits[0] < 5 and found["compute-sanitizer"] == {"found": True}


def test_no_data_are_written_any_more_once_the_command_ends(tmp_path, monkeypatch):
    popen, begun = subprocess.Popen, []

    def sleeping(command, **_):
        begun.append(popen([sys.executable, "-c", "import time; time.sleep(60)"]))
        return begun[-1]

    monkeypatch.setattr(subprocess, "Popen", sleeping)
    options = Options(tmp_path, device="cpu", scale="gpu")
    plan = [Case("a", "layer", lambda store: None, ("one", "two"))]
    with pytest.raises(KeyError), device._preparing(plan, options, tmp_path) as writers:
        assert [*writers] == ["one", "two"] and all(p.poll() is None for p in begun)
        raise KeyError
    assert len(begun) == 2 and all(process.poll() is not None for process in begun)


def test_a_worker_that_cannot_start_says_why(tmp_path):
    broken = Workers((), tmp_path, time.time() + 60, (sys.executable, "-c", "raise OSError('no')"))
    outcome = Outcome(lambda: None)
    broken.run(cases("a"), outcome, jobs=2)
    assert "no worker could be started" in outcome.cases["a"]["error"]
    assert "OSError: no" in outcome.cases["a"]["error"]


def test_the_whole_command_tiny_on_the_cpu(tmp_path, capsys):
    pytest.importorskip("torch_geometric")
    out = tmp_path / "out"
    arguments = ["--out", str(out), "--device", "cpu", "--scale", "tiny", "--minutes", "30"]
    assert device.main(arguments) == 0
    document = json.loads((out / "results.json").read_text())
    assert list(document["cases"]) == [case.name for case in suite("tiny")]
    found = {name: case["result"] for name, case in document["cases"].items()}
    races = [r for name, r in found.items() if not name.startswith(("check/", "run/"))]
    for race in races:
        assert all(side["error"] < 1e-5 and side["rounds"] >= 3 for side in race["sides"].values())
    layer = found["layer/molecules/27/3/forward+backward"]
    assert layer["ours"] == "auto"
    assert layer["bytes"] > 0 and layer["fraction of copy bandwidth"] > 0
    assert layer["sides"]["auto"]["held bytes"] == layer["facts"]["bytes of x"]  # one copy of X
    assert layer["ratios"]["vendor SpMM"] > 0
    run = found["run/ogbg-molhiv (B)"]
    parts = [run[f"{part} seconds"] for part in ("selection", "validation")]
    assert 1 <= run["epochs"] <= run["of"] == 600 and min(parts) > 0 and sum(parts) < run["seconds"]
    assert document["dropped"] == [] and document["ceilings"]["copy bytes/s"] > 0
    page = capsys.readouterr().out
    assert page.strip() == (out / "table.md").read_text().strip()
    assert "0 wrong" in page and (out / "ratio.png").exists()
    assert str(tmp_path) not in (out / "results.json").read_text()


def test_figures_without_the_kernels_say_so(monkeypatch, capsys):
    monkeypatch.setattr(machine.native, "build", lambda: None)
    machine.warn_without_kernels()
    assert "warning: ours runs without the CPU kernels: not compiled" in capsys.readouterr().err
    described = machine.describe(torch.device("cpu"))
    assert described["name"].endswith(", without the compiled kernels")
    monkeypatch.setattr(machine.native, "build", lambda: "_cpu_v4")
    machine.warn_without_kernels()
    assert not capsys.readouterr().err
    assert machine.describe(torch.device("cpu"))["cpu kernels"] == "_cpu_v4"
