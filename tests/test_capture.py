"""A CUDA graph can record a step once its batch is gathered: proven with no GPU.

What a recording forbids is waiting for the device, shapes that depend on values, and copies from or
to the host. The meta device stands in for an accelerator, as in `test_devices.py`; what the
registered operators run inside is looked at in `kernels/test_operators.py`, and on a device
`kernels/test_cuda.py` records.
"""

import pytest
import torch

from grant_fast import FlexConv, FlexGCN, Task
from grant_fast.teaching import loss
from tests.cases import Case
from tests.recording import Recording


@pytest.fixture
def no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor is made of numbers: no mode sees that copy from the host on the meta device."""

    def refuse(*args, **kwargs):
        raise AssertionError("a tensor is made of numbers")

    for name in ("tensor", "as_tensor", "from_numpy"):
        monkeypatch.setattr(torch, name, refuse)


def test_the_mode_refuses_what_a_graph_cannot_record():
    x, mask = torch.ones(3), torch.tensor([True, False, True])
    for wait in (x[0].item, x.nonzero, lambda: x[mask], x.unique, lambda: torch.equal(x, x)):
        with Recording(), pytest.raises(AssertionError, match="depends on values"):
            wait()
    for copy in (lambda: x.to("meta"), lambda: torch.empty(3, device="meta").copy_(x)):
        with Recording(), pytest.raises(AssertionError, match="goes between"):
            copy()


@pytest.mark.parametrize("where", [[3, 1, 8], range(2, 9)], ids=["list", "range"])
@pytest.mark.parametrize("pool", ["mean", "sum", "max", None])
@pytest.mark.parametrize("encoder", [None, torch.nn.Identity()], ids=["cached", "convolved"])
def test_a_training_step_on_a_gathered_batch_records(encoder, pool, where, request):
    level = "graph" if pool else "node"
    graphs = Case(symmetric=False, y_level=level).graphs.to("meta")
    options = {"norm": "batch_norm", "dropout": 0.2, "pool": pool, "encoder": encoder}
    model = FlexGCN(5, [8, 4], 2, orders=[3, 2, 2], **options).to("meta")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batch = graphs.batch(where)

    def step() -> None:
        value = loss(model(batch), batch.y, Task("regression", level, 2))
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        optimizer.step()

    with pytest.raises(AssertionError, match=r"depends on|goes between"), Recording():
        step()  # gathers: the host knows the batch, and tells the device
    step()
    request.getfixturevalue("no_numbers")
    with Recording():
        step()


def test_a_layer_on_pyg_tensors_records(request):
    batch = Case().graphs.to("meta").batch([3, 1, 8])
    x, edges, weight = batch.x.requires_grad_(), batch.edge_index, batch.edge_weight
    conv = FlexConv(5, 4, order=3).to("meta")
    request.getfixturevalue("no_numbers")
    with Recording():
        conv(x, edges, weight.requires_grad_()).sum().backward()
    assert conv.weight.grad is not None and weight.grad is not None
