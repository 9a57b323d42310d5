"""In a program with threads, forks and other libraries: what is of all of it is left alone."""

import os
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from grant_fast import GraNTSampler, Task, load_predictor, score_graphs, train
from grant_fast.data import parsing
from grant_fast.devices import usual_tensors
from grant_fast.files import alone_in
from grant_fast.nn.evaluating import evaluating
from grant_fast.training.checkpoints import load_checkpoint
from grant_fast.training.model import RANDOM
from grant_fast.training.observers import Observer
from grant_fast.workers import share_out
from tests.rings import make_dataset
from tests.training.runs import TINY

FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked there")


@pytest.fixture
def trained(tmp_path):
    dataset = make_dataset("regression")
    train(dataset, tmp_path / "run", **TINY)
    return tmp_path / "run", dataset


def test_predictions_leave_the_random_numbers_of_other_threads_alone(trained):
    folder, dataset = trained
    predict, graphs, draws = load_predictor(folder), dataset.graphs, []
    state = torch.get_rng_state()

    class Draws(torch.nn.Identity):
        def forward(self, x):
            draws.append(int(torch.randint(2**62, ())))
            return x

    ours = predict.model
    with evaluating(ours, alone=True):  # another thread does, meanwhile
        draws.append(int(torch.randint(2**62, ())))
    predict(graphs), predict.score(graphs)
    draws.append(int(torch.randint(2**62, ())))
    torch.set_rng_state(state)
    assert draws == [int(torch.randint(2**62, ())) for _ in range(2)]
    torch.set_rng_state(state)
    task = Task("regression", num_outputs=2)
    score_graphs(torch.nn.Sequential(ours, Draws()), graphs, task)
    assert torch.equal(torch.get_rng_state(), state)  # a model that draws still leaves no trace
    score_graphs(ours, graphs, task, predict=lambda model, batch: Draws()(model(batch)))
    assert torch.equal(torch.get_rng_state(), state)  # nor does a function
    ours.register_forward_hook(lambda *_: draws.append(float(torch.rand(()))))
    predict(graphs)
    assert torch.equal(torch.get_rng_state(), state)


def test_an_interrupt_at_the_start_of_scoring_leaves_no_module_in_evaluation_mode():
    class Interrupted(torch.nn.Linear):
        def train(self, mode=True):
            super().train(mode)
            if not mode:
                raise KeyboardInterrupt
            return self

    model = torch.nn.Sequential(torch.nn.Dropout(), Interrupted(2, 2))
    with pytest.raises(KeyboardInterrupt), evaluating(model):
        pass
    assert all(module.training for module in model.modules())


def test_numpys_strings_are_settings_too(tmp_path):
    dataset, word = make_dataset("regression"), np.str_
    settings = {"act": word("elu"), "arm": word("grant-s"), "norm": word("batch_norm")}
    train(dataset, tmp_path / "run", **TINY, **settings)
    assert load_predictor(tmp_path / "run").config.act == "elu"
    assert load_checkpoint(tmp_path / "run" / "last.pt")
    task = Task(word("regression"), word("graph"), 2)
    assert type(task.kind) is type(task.level) is str
    sampler = GraNTSampler(
        dataset.graphs, task, 4, epochs=3, mode=word("global"), residual=word("raw"),
        ratio_schedule=word("linear"), interval=word("curriculum"),
    )  # fmt: skip
    torch.save(sampler.state_dict(), tmp_path / "state.pt")
    sampler.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert len(dataset.folds(np.int64(3), np.int64(1))) == 3


def test_strings_of_an_enumeration_are_their_values():
    class Word(str, Enum):
        KIND = "regression"
        MODE = "global"
        SHARE = "linear"

    task = Task(Word.KIND, num_outputs=2)
    assert task == Task("regression", num_outputs=2) and task.kind == "regression"
    graphs = make_dataset("regression").graphs
    schedule = {"epochs": 3, "ratio_schedule": Word.SHARE}
    sampler = GraNTSampler(graphs, task, 4, mode=Word.MODE, **schedule)
    assert sampler.state_dict()["settings"]["mode"] == "global"
    assert sampler.state_dict()["settings"]["ratio_schedule"] == "linear"


def test_the_default_dtype_comes_back_whoever_leaves_last():
    first, second = threading.Event(), threading.Event()

    @usual_tensors
    def wait(begun: threading.Event, end: threading.Event) -> torch.dtype:
        begun.set()
        assert end.wait(10)
        return torch.ones(1).dtype

    torch.set_default_dtype(torch.float64)
    try:
        ends = threading.Event(), threading.Event()
        with ThreadPoolExecutor() as pool:
            one = pool.submit(wait, first, ends[0])
            assert first.wait(10)
            two = pool.submit(wait, second, ends[1])
            assert second.wait(10)
            ends[0].set()
            assert one.result() == torch.float32
            ends[1].set()
            assert two.result() == torch.float32
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_predictor_is_loaded_while_another_thread_trains(trained):
    folder, dataset = trained
    state = torch.get_rng_state()
    with ThreadPoolExecutor(1) as pool, RANDOM:  # as `train` has it
        predict = pool.submit(load_predictor, folder).result(timeout=30)
    assert torch.equal(torch.get_rng_state(), state)
    assert predict(dataset.graphs).isfinite().all()


@FORKS
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_waits_for_no_thread_that_it_has_not():
    taken, end = threading.Event(), threading.Event()

    def hold() -> None:
        with RANDOM:
            taken.set()
            end.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(10)
    child = os.fork()
    if not child:
        os._exit(0 if RANDOM.acquire(timeout=5) else 1)
    end.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


@FORKS
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_run_interrupted_beside_a_forked_child_can_be_taken_up(tmp_path):
    children = []

    class Forks(Observer):
        def epoch_done(self, record):
            if (child := os.fork()) == 0:
                time.sleep(30)
                os._exit(0)
            children.append(child)
            raise KeyboardInterrupt

    dataset = make_dataset("regression")
    try:
        with pytest.raises(KeyboardInterrupt):
            train(dataset, tmp_path / "run", observer=Forks(), **TINY)
        with alone_in(tmp_path / "run"):
            pass
        assert train(dataset, tmp_path / "run", resume=True, **TINY).epochs == 3
    finally:
        for child in children:
            os.kill(child, 9)
            os.waitpid(child, 0)


def test_training_needs_gradients_whatever_is_switched_off_around_it(tmp_path):
    for number, switch in enumerate((torch.no_grad, torch.inference_mode)):
        with switch():
            result = train(make_dataset("regression"), tmp_path / str(number), **TINY)
        assert result.test_metric is not None
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


def test_a_compiler_around_a_run_traces_nothing_of_it(tmp_path):
    dataset = make_dataset("regression")
    plain = train(dataset, tmp_path / "plain", **TINY)
    run = torch.compile(lambda: train(dataset, tmp_path / "compiled", **TINY), backend="eager")
    assert run().test_metrics == plain.test_metrics


def test_ogb_is_loaded_by_one_thread_at_a_time(monkeypatch):
    inside, most, before = [], [], sys.modules.get("outdated", "missing")

    def slow(*_):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.01 * random.random())
        inside.pop()
        raise LookupError

    monkeypatch.setattr(parsing, "require", slow)
    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(parsing.featurizers) for _ in range(8)]
    assert all(isinstance(each.exception(), LookupError) for each in found)
    assert max(most) == 1 and sys.modules.get("outdated", "missing") is before


def test_a_process_that_may_start_none_works_alone(monkeypatch):
    daemon = SimpleNamespace(daemon=True)
    monkeypatch.setattr("grant_fast.workers.current_process", lambda: daemon)
    assert list(share_out(4, abs, [-1, 2])) == [1, 2]


@pytest.mark.skipif(sys.platform != "linux", reason="asks for the copies of GNU's OpenMP")
def test_kernels_share_the_threads_that_serve_pytorch(tmp_path):
    """Where another package's copy of the library was there first, it serves PyTorch, too."""
    program = (
        "import ctypes, ctypes.util\n"
        "ctypes.CDLL('libgomp.so.1', mode=ctypes.RTLD_GLOBAL)\n"
        "import torch\n"
        "from grant_fast.native import loading\n"
        "serves = ctypes.CDLL(None)  # what all find that do not bring their own\n"
        "serves = ctypes.cast(serves.GOMP_parallel, ctypes.c_void_p).value\n"
        "ours = loading._openmp()\n"
        "print(ours.value == serves)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if "libgomp.so.1: cannot open" in done.stderr:
        pytest.skip("the system has no such library")
    assert done.stdout == "True\n", done.stderr
