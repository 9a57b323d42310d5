"""Ctrl-C, and a scheduler's SIGTERM, at any moment of a command."""

import signal
import subprocess
import sys
import threading
import time
from importlib import import_module

import pytest
import torch

from grant_fast import cli
from grant_fast.cli import terminal
from grant_fast.training.checkpoints import load_checkpoint
from grant_fast.training.records import read_run
from tests.cli.runs import ENVIRONMENT, SMALL, run, succeeds

NOTHING_YET = "interrupted before training began: run the command again"


def interrupt(*_args, **_kwargs):
    raise KeyboardInterrupt


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_process_leaves_a_run_that_resumes_to_the_same_result(tmp_path, sent):
    words = ["train", *SMALL, "--epochs", "120", "--eval-every", "40", "--arm", "grant-s"]
    program = [sys.executable, "-m", "grant_fast", *words]
    # Checkpoints are seconds apart: what is on disk then is what the interrupt wrote.
    broken = subprocess.Popen(
        [*program, "-o", str(tmp_path / "broken")],
        env={**ENVIRONMENT, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "broken" / "config.json").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.15)
    broken.send_signal(sent)
    _, said = broken.communicate(timeout=60)
    assert broken.returncode == 130, said
    assert "Traceback" not in said
    assert said.strip().splitlines()[-1].startswith("interrupted; continue with: grant-fast train")
    assert not (tmp_path / "broken" / "result.json").exists()
    state = load_checkpoint(tmp_path / "broken" / "last.pt")
    assert state["totals"]["epoch"] == len(state["history"]) < 120

    succeeds("train", "--resume", "-o", tmp_path / "broken")
    succeeds(*words, "-o", tmp_path / "whole")
    resumed, whole = (load_checkpoint(tmp_path / name / "last.pt") for name in ("broken", "whole"))
    assert resumed["model"].keys() == whole["model"].keys()
    assert all(torch.equal(resumed["model"][k], whole["model"][k]) for k in whole["model"])
    results = [read_run(tmp_path / name).result for name in ("broken", "whole")]
    assert results[0].test_metric == results[1].test_metric


@pytest.fixture
def ends(monkeypatch):
    """Checks that what is done as the command line ends by an interrupt, within seconds."""

    def check(work):
        def command(**_):
            work()
            for _ in range(2000):
                time.sleep(0.01)

        monkeypatch.setattr(cli.entry, "app", command)
        began = time.monotonic()
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert end.value.code == 130 and time.monotonic() - began < 10

    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield check
    for number, handler in handlers.items():
        signal.signal(number, handler)


class Deaf:
    """Its instances are interrupted where nobody hears it."""

    def __del__(self):
        raise KeyboardInterrupt


@pytest.mark.parametrize("ignored", [False, True])
def test_an_interrupt_that_a_callback_drops_comes_again(ends, ignored):
    if ignored:  # as in a shell's background jobs
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    ends(Deaf)
    assert (signal.getsignal(signal.SIGINT) is signal.SIG_IGN) == ignored


def test_an_interrupt_that_a_callback_drops_comes_again_on_a_busy_machine(ends):
    def dawdle(frame, event, _):  # as where many processes want the processor
        if event == "return" and frame.f_code is terminal._interrupt_again.__code__:
            time.sleep(0.1)

    sys.setprofile(dawdle)
    try:
        ends(Deaf)
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("sent", ["SIGINT", "SIGTERM"])
def test_an_interrupt_amid_an_import_waits_for_its_end(ends, monkeypatch, tmp_path, sent):
    module = f"import_amid_{sent}"
    (tmp_path / f"{module}.py").write_text(
        "import signal\n"
        "try:\n"
        f"    signal.raise_signal(signal.{sent})\n"
        "except KeyboardInterrupt:\n"
        "    raise ImportError('half of it is there')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    ends(lambda: import_module(module))
    del sys.modules[module]


def test_an_interrupt_amid_the_start_of_a_thread_waits_for_its_end(ends):
    """It was a RuntimeError, of a lock that the thread's own had not taken yet."""
    done = []

    class Started(threading.Event):
        def wait(self, timeout=None):
            signal.raise_signal(signal.SIGINT)
            done.append("waited")
            return super().wait(timeout)

    thread = threading.Thread(target=lambda: None)
    thread._started = Started()
    ends(thread.start)
    assert done == ["waited"]


@pytest.mark.parametrize(
    ("where", "begun"), [("trainer.build_model", False), ("trainer.Trainer._run_epoch", True)]
)
def test_an_interrupt_says_how_to_go_on_where_there_is_a_run(tmp_path, monkeypatch, where, begun):
    one, all_arms = tmp_path / "one", tmp_path / "all"
    succeeds("train", *SMALL, "--epochs", 1, "--lr", 0.5, "-o", one)
    monkeypatch.setattr(f"grant_fast.training.{where}", interrupt)
    monkeypatch.setattr("grant_fast.studies.compare._warm_up", lambda *_: None)
    for words in (
        ["train", *SMALL, "-o", one, "--overwrite"],  # what is there is another run
        ["train", *SMALL, "-o", tmp_path / "new"],
        ["compare", *SMALL, "-o", all_arms],
        ["compare", *SMALL, "-o", all_arms, "--resume"],
    ):
        result = run(*words)
        assert result.exit_code == 130
        said = result.stderr.splitlines()[-1]
        if begun or words[0] == "compare":  # whose folder says what is to be done
            assert said.startswith("interrupted; continue with: grant-fast")
        else:
            assert said == NOTHING_YET


@pytest.mark.parametrize(
    "words", [["train", *SMALL], ["compare", *SMALL], ["reproduce", "gen-reg"]]
)
def test_an_interrupt_while_data_are_read(tmp_path, monkeypatch, words):
    few = ["--graphs", 20, "--epochs", 1, "--device", "cpu", "-o", tmp_path / "x"]

    with monkeypatch.context() as patch:
        patch.setattr(f"grant_fast.cli.commands.{words[0]}.load", interrupt)
        result = run(*words, *few)
    assert (result.exit_code, result.stderr.splitlines()) == (130, [NOTHING_YET])
    succeeds(*words, *few)
    monkeypatch.setattr(f"grant_fast.cli.commands.{words[0]}.load", interrupt)
    result = run(*words, *few, "--resume")
    assert result.stderr.startswith("interrupted; continue with: grant-fast")


@pytest.mark.parametrize("words", [["compare", *SMALL], ["reproduce", "gen-reg", "--graphs", 20]])
def test_what_an_interrupted_overwrite_has_not_touched_is_not_to_be_gone_on_with(
    tmp_path, monkeypatch, words
):
    words = [*words, "--seeds", 1, "--device", "cpu", "-o", tmp_path]
    succeeds(*words, "--epochs", 1)

    monkeypatch.setattr("grant_fast.studies.compare._warm_up", interrupt)
    result = run(*words, "--epochs", 2, "--overwrite")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (130, NOTHING_YET)
    result = run(*words, "--epochs", 1, "--seeds", 2, "--resume")
    assert result.stderr.splitlines()[-1].startswith("interrupted; continue with: grant-fast")


def test_an_interrupt_amid_the_report_says_how_to_go_on(tmp_path, monkeypatch):
    few = ["--graphs", 20, "--epochs", 1, "--seeds", 1, "--device", "cpu", "-o", tmp_path / "x"]
    with monkeypatch.context() as patch:
        patch.setattr("grant_fast.studies.curves.draw_curves", interrupt)
        for words in (["compare", *SMALL, *few], ["reproduce", "gen-reg", *few, "--overwrite"]):
            result = run(*words)
            assert result.exit_code == 130
            assert "continue with: grant-fast" in result.stderr
    succeeds("reproduce", "gen-reg", *few, "--resume")
