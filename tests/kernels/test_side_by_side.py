"""What touches different memory is recorded side by side."""

from contextlib import contextmanager
from functools import partial

import pytest
import torch

from grant_fast.kernels import launch, layer, wide
from grant_fast.ops.tiled import kernel_graphs
from tests.cases import dense_graphs

CUDA = torch.device("cuda:0")


@pytest.fixture
def done(monkeypatch):
    """What was done, and on which stream; as if it were recorded on stream 0."""
    out, current, made = [], [0], []

    class Stream:
        def __init__(self, device):
            made.append(self)
            self.name = len(made) - 1

        def wait_stream(self, other):
            out.append(f"{self.name} waits for {other.name}")

    @contextmanager
    def on(stream):
        current.append(stream.name)
        yield
        current.pop()

    main = Stream(CUDA)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: main)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    launch._streams.cache_clear()
    yield out, lambda name: out.append(f"{name} on {current[-1]}")
    launch._streams.cache_clear()


def test_each_piece_is_recorded_on_a_stream_of_its_own(done):
    out, do = done
    for _ in range(2):
        out.clear()
        launch.side_by_side(CUDA, [partial(do, name) for name in "abc"])
        assert out == [
            *("1 waits for 0", "a on 1", "2 waits for 0", "b on 2"),
            *("c on 0", "0 waits for 1", "0 waits for 2"),
        ]


@pytest.mark.parametrize("names", ["", "a"])
def test_one_piece_needs_no_other_stream(names, done):
    out, do = done
    launch.side_by_side(CUDA, [partial(do, name) for name in names])
    assert out == [f"{name} on 0" for name in names]


@pytest.mark.parametrize("device", [CUDA, torch.device("cpu")])
def test_what_is_not_recorded_comes_one_after_another(device, monkeypatch, done):
    out, do = done
    if device == CUDA:
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    launch.side_by_side(device, [partial(do, name) for name in "ab"])
    assert out == ["a on 0", "b on 0"]


def outputs(graphs, packed):
    """Of all that a layer, fused and wide, launches over a batch."""
    torch.manual_seed(0)
    weight, rows = torch.randn(2, 9, 12), graphs.num_nodes
    y, grad = torch.empty(rows, 12), torch.randn(rows, 12)
    layer.forward(graphs.x, weight, None, packed, y, relu=True, dataset_x=False)
    operands, dx = (grad, y, graphs.x, weight, packed), torch.empty(rows, 9)
    dw = layer.backward(*operands, dx, needs_dw=True, dataset_x=False)
    return y, dx, *dw, wide.powers(graphs.x, 2, packed, False)


def test_graphs_of_each_number_of_planes_are_pieces_that_do_not_meet(monkeypatch):
    graphs = dense_graphs((20, 50, 100, 150, 200, 40), 9)
    packed, many = kernel_graphs(graphs.batch(slice(None)), normalize=True), []

    def backwards(device, work):
        many.append(len(work))
        for each in reversed(work):
            each()

    want = outputs(graphs, packed)
    for module in (layer, wide):
        monkeypatch.setattr(module, "side_by_side", backwards)
    assert all(map(torch.equal, outputs(graphs, packed), want))
    assert many == [5, 10, 5]
