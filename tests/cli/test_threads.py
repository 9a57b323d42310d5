"""How many threads a command takes, and how they wait."""

import pytest
import torch

from grant_fast import PackedGraphs
from grant_fast.cli import runs, terminal
from grant_fast.training.config import RunConfig


@pytest.mark.parametrize(
    ("chosen", "count"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "5"}, "5"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)],
)
def test_threads_spin_briefly_unless_the_user_chose(chosen, count, monkeypatch):
    environment = dict(chosen)
    monkeypatch.setattr("os.environ", environment)
    terminal.wait_briefly()
    assert environment.get("GOMP_SPINCOUNT") == count


@pytest.mark.parametrize(
    ("width", "chosen", "cores", "threads", "settings", "nodes"),
    [
        (32, "", 2, 1, {}, None),
        (32, "", 1, 1, {}, None),
        (32, "", 6, 3, {}, None),
        (32, "", 64, 4, {}, None),
        (33, "", 2, 2, {}, None),
        (8, "2", 2, 2, {}, None),
        (640, "", 64, 4, {"batch_size": 3}, 10),
        (640, "", 64, 64, {"batch_size": 3}, 667),
        (640, "", 64, 64, {"batch_size": 3, "step_every": "epoch"}, 10),
        (640, "16", 64, 64, {"batch_size": 3}, 10),
    ],
)
def test_short_kernels_take_few_threads_unless_the_user_chose(
    width, chosen, cores, threads, settings, nodes, monkeypatch
):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if chosen:
        monkeypatch.setenv("OMP_NUM_THREADS", chosen)
    before = torch.get_num_threads()
    torch.set_num_threads(cores)
    try:
        graphs = None
        if nodes is not None:
            x, no_edges = torch.ones(2 * nodes, 1), torch.empty(2, 0)
            graphs = PackedGraphs.from_arrays(x, no_edges, torch.arange(2 * nodes) // nodes)
        runs.use_fitting_threads(RunConfig(hidden_channels=(width,), **settings), graphs)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
