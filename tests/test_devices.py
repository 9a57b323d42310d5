"""A step on a device: nothing waits for the host and nothing mixes with the host's tensors.

The meta device stands in for an accelerator. It has shapes but no values, so whatever would read a
value back (a host synchronisation) fails on it; a dispatch mode refuses operators that mix devices.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from grant_fast import FlexGCN, Task
from grant_fast.devices import one_thread
from grant_fast.graphs.flat import FlatGraphs
from grant_fast.teaching import loss
from tests.cases import Case

COPIES = {torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default}


class OneDevice(TorchDispatchMode):
    """Refuses any operator, copies aside, that reads tensors of two devices."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        tensors = [t for t in tree_leaves((args, kwargs or {})) if isinstance(t, torch.Tensor)]
        devices = {t.device.type for t in tensors if t.dim()}
        if len(devices) > 1 and func not in COPIES:
            raise AssertionError(f"{func} mixes {devices}")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("where", [[3, 1, 8], range(2, 9)], ids=["list", "range"])
@pytest.mark.parametrize("pool", ["mean", "sum", "max", None])
@pytest.mark.parametrize("symmetric", [True, False])
def test_a_training_step_neither_waits_nor_mixes(symmetric, pool, where):
    level = "graph" if pool else "node"
    graphs = Case(symmetric=symmetric, y_level=level).graphs.to("meta")
    options = {"norm": "batch_norm", "dropout": 0.2, "pool": pool}
    model = FlexGCN(5, [8, 4], 2, orders=[3, 2, 2], **options).to("meta")
    optimizer = torch.optim.AdamW(model.parameters())
    with OneDevice():
        batch = graphs.batch(where)
        value = loss(model(batch), batch.y, Task("regression", level, 2))
        value.backward()
        optimizer.step()
    assert value.device.type == "meta"
    for name in ("x", "ptr", "batch", "edge_index", "edge_weight", "ids"):
        assert getattr(batch, name).device.type == "meta", name


def test_pyg_tensors_step_neither_waits_nor_mixes():
    batch = Case().graphs.to("meta").batch([3, 1, 8])
    model = FlexGCN(5, [8, 4], 2, orders=[3, 2, 2]).to("meta")
    with OneDevice():
        out = model(batch.x, batch.edge_index, batch.edge_weight, batch.batch, batch_size=3)
        out.sum().backward()
    assert out.shape == (3, 2)


def test_the_mode_sees_a_mix_and_meta_sees_a_wait():
    meta = torch.ones(2, device="meta")
    with OneDevice(), pytest.raises(AssertionError, match="mixes"):
        torch.index_select(meta, 0, torch.tensor([0]))
    with pytest.raises(RuntimeError, match="meta"):
        meta.sum().item()


@pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("cuda")], ids=repr)
def test_what_is_on_the_current_gpu_is_not_copied_there(device, monkeypatch):
    """Tensors name their GPU with its index, and scripts leave that away."""
    graphs = Case().graphs
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(FlatGraphs, "device", torch.device("cuda", 1))
    batch = graphs.batch([3, 1, 8])
    assert graphs.to(device) is graphs and batch.to(device) is batch


def test_a_multiclass_loss_is_summed_by_all_of_a_device():
    """PyTorch's own sum of the rows, and its gradient, is one block's work on a GPU."""
    reductions = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.nll_loss_forward.default:
                reductions.append(args[3])
            return func(*args, **(kwargs or {}))

    pred = torch.empty(50, 7, device="meta", requires_grad=True)
    y, task = torch.empty(50, dtype=torch.int64, device="meta"), Task("multiclass", num_outputs=7)
    with Watch():
        loss(pred, y, task).backward()
        loss(pred, y, task, reduction="sum").backward()
    assert reductions == [0, 0]


def test_the_number_of_threads_comes_back():
    before = torch.get_num_threads()
    with pytest.raises(KeyboardInterrupt), one_thread():
        assert torch.get_num_threads() == 1
        raise KeyboardInterrupt
    assert torch.get_num_threads() == before
