"""Recorded epochs are the epochs that they record: on the CPU, where a tape is the CUDA graph."""

import pytest
import torch
from rings import make_dataset
from test_trainer import InterruptAt, same, untimed

from grant_fast import dispatch
from grant_fast.training import recording
from grant_fast.training.recording import Recorder
from grant_fast.training.trainer import Trainer
from tests.recording import Tape


@pytest.fixture(autouse=True)
def by_torch(monkeypatch):
    """The compiled CPU kernels are no operators, so that a tape would not see them."""
    monkeypatch.setenv("GRANT_FAST_BACKEND", "torch")


@pytest.fixture
def tapes(monkeypatch):
    """All that is recorded from here on, on the CPU."""
    out = []

    def record(work, device):
        out.append(tape := Tape())
        with tape:
            result = work()
        return tape, result

    def on_this_device(model):
        return model.convs[0].weight.device

    monkeypatch.setattr(recording, "record", record)
    monkeypatch.setattr("grant_fast.training.trainer.recording_device", on_this_device)
    return out


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


def test_an_interrupted_recorded_run_resumes_to_the_same_result(tmp_path, config, tapes):
    settings = {"step_every": "epoch", "interval": 4, "norm": "batch_norm", "dropout": (0.3,)}
    chosen = config(**settings, pass_size=1000, epochs=9)
    whole = Trainer(make_dataset(), chosen, tmp_path / "whole")
    whole.fit()
    for epoch in (3, 6):
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


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that PyTorch can use")
@pytest.mark.skipif(dispatch.is_interpreting(), reason="kernels are interpreted here")
@pytest.mark.filterwarnings("default")  # a driver's remarks are no failure of ours
def test_on_a_gpu_a_recorded_run_equals_a_plain_one(tmp_path, config, monkeypatch):
    monkeypatch.setenv("GRANT_FAST_BACKEND", "triton")
    settings = {"step_every": "epoch", "interval": 4, "norm": "batch_norm", "dropout": (0.3,)}
    chosen = config(**settings, pass_size=1000, epochs=11, device="cuda")
    recorded = Trainer(make_dataset(), chosen, tmp_path / "recorded")
    recorded.fit()
    assert recorded._recorder._recorded is not None
    monkeypatch.setattr("grant_fast.training.trainer.recording_device", lambda model: None)
    plain = Trainer(make_dataset(), chosen, tmp_path / "plain")
    plain.fit()
    assert same(plain.model.state_dict(), recorded.model.state_dict())
    assert untimed(plain.history) == untimed(recorded.history)
