"""Recorded work is the work that it records: on the CPU, where a tape is the CUDA graph."""

import gc
import weakref
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch.autograd.graph import get_gradient_edge

from grant_fast import FlexGCN, PackedGraphs
from grant_fast.batches.padded import PaddedBatch
from grant_fast.ops import dispatch
from grant_fast.teaching import residuals
from grant_fast.training import recording
from grant_fast.training.optimizer import AdamW
from grant_fast.training.recording import Recorder, room_for
from grant_fast.training.trainer import Trainer
from tests.recording import Tape
from tests.rings import make_dataset
from tests.training.runs import InterruptAt, same, untimed


@pytest.fixture(autouse=True)
def by_torch(monkeypatch):
    """The compiled CPU kernels are no operators, so that a tape would not see them."""
    monkeypatch.setenv("GRANT_FAST_BACKEND", "torch")


SETTINGS = {
    "plain": {},
    "all at once": {"norm": "batch_norm", "dropout": (0.3,), "pass_size": 1000},
    "plateau": {"lr_schedule": "plateau", "lr_restart": 0.005, "clip": 1.0, "epochs": 40},
    "virtual node": {"network": "gcn-virtual-node", "pass_size": 1000},
    "max": {"pool": "max", "head": 3},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("kind", ["regression", "multilabel"])
def test_a_recorded_run_equals_a_plain_one(tmp_path, config, request, kind, settings):
    chosen = config(
        **{"step_every": "epoch", "interval": 4, "epochs": 11, "arm": "grant-b"} | settings
    )
    plain = Trainer(make_dataset(kind), chosen, tmp_path / "plain")
    expected = plain.fit()
    tapes = request.getfixturevalue("tapes")
    recorded = Trainer(make_dataset(kind), chosen, tmp_path / "recorded")
    result = recorded.fit()
    assert len(tapes) > 2
    assert same(plain.model.state_dict(), recorded.model.state_dict())
    assert untimed(plain.history) == untimed(recorded.history)
    assert result.test_metric == expected.test_metric


@pytest.mark.parametrize("settings", [{}, {"step_every": "epoch", "pass_size": 1000}], ids=str)
def test_a_replay_leaves_nothing_of_a_step_to_the_host(
    tmp_path, config, monkeypatch, tapes, settings
):
    called, step = [], AdamW.step
    monkeypatch.setenv("GRANT_FAST_BACKEND", "triton")
    monkeypatch.setattr(AdamW, "step", lambda self: (called.append(1), step(self)))
    chosen = config(arm="full", epochs=5, batch_size=8, **settings)
    Trainer(make_dataset(), chosen, tmp_path).fit()
    assert len(called) == 2  # as it comes, and while it is recorded


def test_an_epochs_shorter_last_batch_is_recorded_too(tmp_path, config, monkeypatch, request):
    called, step = [], AdamW.step
    monkeypatch.setenv("GRANT_FAST_BACKEND", "triton")
    monkeypatch.setattr(AdamW, "step", lambda self: (called.append(1), step(self)))
    chosen = config(arm="full", epochs=6, batch_size=10, clip=1.0)  # 10, 10 and 4 of 24 graphs
    plain = Trainer(make_dataset(), chosen, tmp_path / "plain")
    plain.fit()
    assert len(called) == 3 * 6
    tapes = request.getfixturevalue("tapes")
    recorded = Trainer(make_dataset(), chosen, tmp_path / "recorded")
    recorded.fit()
    assert len(called) == 3 * 6 + 2 * 2  # of each size as it comes, and while it is recorded
    assert len(tapes) == 4  # of both, of the validation, and of the test
    for name, value in plain.model.state_dict().items():
        torch.testing.assert_close(recorded.model.state_dict()[name], value, msg=name)


def test_the_last_sizes_keep_their_rooms():
    graphs, made, seen = make_dataset().graphs, [], []

    def make_room(size):
        made.append(size)
        return PaddedBatch(graphs, torch.arange(20), size)

    steps = recording.BatchRecorder(None, make_room(5), make_room)
    for size in (5, 3, 5, 2, 5, 3, 2, 5, 4, 5, 4, 2):
        batch = graphs.batch(torch.arange(4, 4 + size))
        steps(lambda batch: seen.append((type(batch), len(batch))), batch)
        assert seen[-1] == (PaddedBatch, size)
    assert made == [5, 3, 2, 4, 2]


EPOCHS = {"step_every": "epoch", "interval": 4, "pass_size": 1000, "epochs": 9}
BATCHES = {"interval": 1, "epochs": 3, "start_ratio": 0.5}


@pytest.mark.parametrize(
    ("backend", "settings", "stops"),
    [("torch", EPOCHS, (3, 6)), ("triton", BATCHES, (1,))],
    ids=["epochs", "batches"],
)
def test_an_interrupted_recorded_run_resumes_to_the_same_result(
    tmp_path, config, monkeypatch, tapes, backend, settings, stops
):
    monkeypatch.setenv("GRANT_FAST_BACKEND", backend)
    chosen = config(norm="batch_norm", dropout=(0.3,), **settings)
    whole = Trainer(make_dataset(), chosen, tmp_path / "whole")
    whole.fit()
    for epoch in stops:
        broken = Trainer(make_dataset(), chosen, tmp_path / "broken", resume=True)
        with pytest.raises(KeyboardInterrupt):
            broken.fit(InterruptAt(epoch))
    resumed = Trainer(make_dataset(), chosen, tmp_path / "broken", resume=True)
    resumed.fit()
    assert same(whole.model.state_dict(), resumed.model.state_dict())
    assert untimed(whole.history) == untimed(resumed.history)


@pytest.mark.parametrize("arm", ["infobatch", "grant-proportional"])
def test_an_epoch_whose_weights_come_from_the_host_is_not_recorded(tmp_path, config, tapes, arm):
    chosen = config(step_every="epoch", arm=arm, pass_size=1000)
    Trainer(make_dataset(), chosen, tmp_path).fit()
    assert len(tapes) == 2  # of the validation, and of the test


def test_work_is_recorded_when_it_is_asked_for_again(tapes):
    recorder, x, y = Recorder(torch.device("cpu")), torch.ones(2), torch.ones(3)
    double = lambda x: recorder(lambda: 2 * x, x)  # noqa: E731
    for times in (1, 2, 3):
        assert double(x.fill_(times)).tolist() == [2 * times] * 2
    assert len(tapes) == 1
    assert double(y).tolist() == [2] * 3
    assert len(tapes) == 1
    assert double(x).tolist() == [6] * 2  # anew: what was recorded of it is gone
    assert len(tapes) == 1


def test_a_tape_is_undone_and_replayed_with_new_values():
    x, total = torch.ones(2), torch.zeros(2)
    with Tape() as tape:
        y = x * 2
        total += y
        noise = torch.rand(1)
    assert total.tolist() == [0, 0] and y.isnan().all() and noise.isnan()
    x.fill_(3)
    tape.replay()
    first = noise.clone()
    tape.replay()
    assert total.tolist() == [12, 12] and y.tolist() == [6, 6] and noise != first


STEPS = {
    "regression": {"norm": "batch_norm", "dropout": (0.3,), "clip": 1.0},
    "binary": {"hidden_channels": (6, 4), "orders": (3, 2, 2), "act": "elu", "pool": "sum"},
}


@pytest.mark.parametrize(("kind", "settings"), STEPS.items(), ids=STEPS)
def test_recorded_steps_are_the_steps(tmp_path, config, monkeypatch, request, kind, settings):
    """Bit for bit as in the same room unrecorded, or to rounding as without a room."""
    monkeypatch.setenv("GRANT_FAST_BACKEND", "triton")
    chosen = config(**{"interval": 1, "epochs": 2, "start_ratio": 0.5} | settings)
    plain = Trainer(make_dataset(kind), chosen, tmp_path / "plain")
    plain.fit()
    assert plain._steps.room is None
    tapes = request.getfixturevalue("tapes")
    recorded = Trainer(make_dataset(kind), chosen, tmp_path / "recorded")
    recorded.fit()
    # Of steps (of the shorter batches, too, where both epochs have them), validation and test.
    recordings = {"regression": 4, "binary": 3}[kind]
    assert len(tapes) == recordings
    if "dropout" not in settings:  # of other numbers, since there are more rows
        for name, value in plain.model.state_dict().items():
            torch.testing.assert_close(recorded.model.state_dict()[name], value, msg=name)
        return
    monkeypatch.setattr(Recorder, "__call__", lambda self, work, *subjects: work())
    unrecorded = Trainer(make_dataset(kind), chosen, tmp_path / "unrecorded")
    unrecorded.fit()
    assert unrecorded._steps.room is not None and len(tapes) == recordings
    assert same(unrecorded.model.state_dict(), recorded.model.state_dict())
    assert untimed(unrecorded.history) == untimed(recorded.history)


def test_there_is_room_only_where_the_kernels_do_all_that_mixes_rows():
    graphs = make_dataset().graphs
    ids = torch.arange(20)

    def room(graphs: PackedGraphs = graphs, change=lambda _: None, **changes) -> PaddedBatch | None:
        settings = {"hidden_channels": 4, "orders": [3, 2]} | changes
        change(model := FlexGCN(3, out_channels=2, **settings))
        return room_for(model, graphs, ids, 5)

    def norm(**changes):
        return lambda model: [vars(model.norms[0]).update(changes)]

    def drop_rows(model):
        model.dropouts[0] = torch.nn.Dropout1d()

    assert room() is not None and room(norm="batch_norm", act="silu", pool="sum") is not None
    node = make_dataset(level="node").graphs
    weighted = PackedGraphs.from_arrays(
        graphs.x, graphs.batch(slice(None)).edge_index, graphs.batch(slice(None)).batch, graphs.y,
        torch.rand(graphs.num_edges), missing_labels=True,
    )  # fmt: skip
    refused = {
        "one layer": room(orders=[2], hidden_channels=[]),
        "wide": room(hidden_channels=65),
        "of high order": room(orders=[6, 2]),
        "max": room(pool="max"),
        "by node": room(node, pool=None),
        "layer norm": room(norm="layer_norm"),
        "encoded": room(encoder=torch.nn.Linear(3, 3)),
        "atoms without kinds": room(encoder="atom"),
        "another dtype": room(graphs.to(dtype=torch.float64)),
        "weighted": room(weighted),
        "a norm of no momentum": room(norm="batch_norm", change=norm(momentum=None)),
        "a norm of no weights": room(norm="batch_norm", change=norm(affine=False)),
        "a norm of halves": room(norm="batch_norm", change=lambda model: model.norms.half()),
        "an activation that learns": room(act=torch.nn.PReLU()),
        "another dropout": room(change=drop_rows),
    }
    assert set(refused.values()) == {None}, refused


@pytest.mark.parametrize(("ended", "whole"), [(False, False), (True, False), (True, True)], ids=str)
def test_after_a_failed_recording_torch_is_as_before(monkeypatch, ended, whole):
    done = []

    class Graph:
        def pool(self):
            if not whole:
                raise RuntimeError("without a preceding successful capture")

    @contextmanager
    def capture(graph, pool, stream, capture_error_mode):
        assert capture_error_mode == "thread_local" and not gc.isenabled()
        done.append("begin")
        yield

    def end(index, pool):
        if ended:  # by torch itself
            raise RuntimeError("not currently recording")
        done.append(("end", index, pool))

    class Generator:
        def graphsafe_set_state(self, state):
            done.append(("generator", state))

        def set_state(self, state):
            done.append(("random", state))

    stream = SimpleNamespace(device_index=0)
    fakes = {
        "CUDAGraph": Graph,
        "current_device": lambda: 3,
        "Stream": lambda device: None,
        "current_stream": lambda device: stream,
        "get_rng_state": lambda device: "as before",
        "graph_pool_handle": lambda: (0, 7),
        "device": lambda device: nullcontext(done.append(device) if device == 3 else None),
        "graph": capture,
        "set_stream": done.append,
        "default_generators": [Generator()],
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch, "Generator", lambda device: "new")
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end, raising=False)
    release = lambda index, pool: done.append(("release", index, pool))  # noqa: E731
    monkeypatch.setattr(torch._C, "_cuda_releasePool", release, raising=False)
    with pytest.raises(ZeroDivisionError):
        recording.record(lambda: 1 // 0, torch.device("cuda"))
    assert gc.isenabled()
    memory = [] if ended else [("end", 0, (0, 7))]
    memory += [] if whole else [("release", 0, (0, 7))]
    assert done == ["begin", 3, stream, *memory, ("generator", "new"), ("random", "as before")]


def failing(monkeypatch, times=1):
    """So many recordings fail, as a device says at their end; others do the work as it comes."""
    failures = iter(range(times))

    class Graph:
        def replay(self):
            pass

    def record(work, device):
        if next(failures, None) is None:
            return Graph(), work()
        try:
            work()
        finally:
            raise RuntimeError("not permitted")

    monkeypatch.setattr(recording, "record", record)


def test_a_recording_in_vain_keeps_nothing_of_its_work(monkeypatch):
    failing(monkeypatch)
    made, recorder, subject = [], Recorder(torch.device("cpu")), object()

    def work():
        assert not any(ref() is not None for ref in made)
        activations = torch.ones(3)
        made.append(weakref.ref(activations))
        if len(made) == 2:
            raise ValueError("the work's own")
        return activations.sum()

    recorder(work, subject)
    gc.disable()
    try:
        with pytest.warns(UserWarning, match="could not record a step"):
            assert recorder(work, subject) == 3
        assert recorder(work, subject) == 3 and len(made) == 4 and not recorder.is_replaying
    finally:
        gc.enable()
    assert isinstance(recorder.failure, RuntimeError) and recorder.failure.__traceback__ is None


def test_after_a_failure_others_of_random_numbers_are_recorded_anew(monkeypatch):
    graphs = make_dataset().graphs
    make_room = lambda size: PaddedBatch(graphs, torch.arange(20), size)  # noqa: E731
    steps = recording.BatchRecorder(torch.device("cpu"), make_room(5), make_room)

    def take(size):
        return steps(lambda batch: len(batch), graphs.batch(torch.arange(4, 4 + size)))

    failing(monkeypatch, 0)
    take(5), take(5)
    assert steps.usual.is_replaying
    failing(monkeypatch)
    take(3)
    with pytest.warns(UserWarning, match="could not record"):
        take(3)
    assert not steps.usual.is_replaying and steps.usual.device is not None
    take(5), take(5)
    assert steps.usual.is_replaying and take(3) == 3 and steps.usual.is_replaying
    take(2), take(2)
    assert steps._others[2].usual.is_replaying
    steps.usual.forget()
    failing(monkeypatch)
    take(5)
    with pytest.warns(UserWarning, match="could not record"):
        take(5)
    assert not steps._others and take(2) == 2


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that PyTorch can use")
@pytest.mark.skipif(dispatch.is_interpreting(), reason="kernels are interpreted here")
@pytest.mark.filterwarnings("default")  # a driver's remarks are no failure of ours
@pytest.mark.parametrize(
    "settings", [{"step_every": "epoch", "pass_size": 1000}, {}], ids=["epochs", "steps"]
)
def test_on_a_gpu_a_recorded_run_equals_a_plain_one(tmp_path, config, monkeypatch, settings):
    monkeypatch.setenv("GRANT_FAST_BACKEND", "triton")
    rate = {"lr_schedule": "plateau", "lr_restart": 0.005, "clip": 1.0}  # which moves in 40 epochs
    settings = {"interval": 4, "norm": "batch_norm", "dropout": (0.3,), "epochs": 40} | settings
    chosen = config(**settings, **rate, device="cuda")
    recorded = Trainer(make_dataset(), chosen, tmp_path / "recorded")
    recorded.fit()
    recorder = recorded._steps.usual if recorded._steps.room else recorded._epochs
    assert recorder._recorded is not None
    monkeypatch.setattr(Recorder, "__call__", lambda self, work, *subjects: work())
    plain = Trainer(make_dataset(), chosen, tmp_path / "plain")
    plain.fit()
    assert same(plain.model.state_dict(), recorded.model.state_dict())
    assert untimed(plain.history) == untimed(recorded.history)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("step_every", ["batch", "epoch"])
def test_nothing_that_autograd_made_outlives_a_step(
    tmp_path, config, monkeypatch, step_every, settings
):
    """A recording fails where a parameter's node is kept, with the stream of an earlier step."""
    settings = {**settings, "step_every": step_every, "epochs": 3}
    if step_every == "batch":
        settings.pop("pass_size", None)
    run = Trainer(make_dataset("regression"), config(**settings), tmp_path)
    name = "_batch_step" if step_every == "batch" else "_epoch_step"
    kept, step = [], getattr(Trainer, name)

    def nodes():
        return [get_gradient_edge(parameter).node for parameter in run.model.parameters()]

    def marked(*args, **kwargs):
        for node in nodes():
            node.metadata["of a step"] = True
        return residuals.summed_loss(*args, **kwargs)

    def stepped(self, *passes):
        out = step(self, *passes)
        kept.extend("of a step" in node.metadata for node in nodes())
        return out

    monkeypatch.setattr("grant_fast.training.trainer.summed_loss", marked)
    monkeypatch.setattr(Trainer, name, stepped)
    gc.disable()
    try:
        run.fit()
    finally:
        gc.enable()
    assert kept and not any(kept)


@pytest.mark.parametrize(("step_every", "backend"), [("epoch", "torch"), ("batch", "triton")])
def test_what_cannot_be_recorded_is_done_as_it_comes(
    tmp_path, config, monkeypatch, request, step_every, backend
):
    monkeypatch.setenv("GRANT_FAST_BACKEND", backend)
    chosen = config(arm="full", epochs=2, batch_size=10, step_every=step_every)
    plain = Trainer(make_dataset(), chosen, tmp_path / "plain")
    plain.fit()
    tapes, record = request.getfixturevalue("tapes"), recording.record

    def in_vain(work, device):
        record(work, device)  # which is undone, but for gradients that nobody filled
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(recording, "record", in_vain)
    trainer = Trainer(make_dataset(), chosen, tmp_path / "tried")
    says = r"could not record a step .* \(operation not permitted .* goes on without"
    with pytest.warns(UserWarning, match=says):
        trainer.fit()
    assert len(tapes) == 2  # steps and validation, each once
    for name, value in plain.model.state_dict().items():
        torch.testing.assert_close(trainer.model.state_dict()[name], value, msg=name)
