"""A CUDA graph can record a step once its batch is gathered: proven with no GPU.

What a recording forbids is waiting for the device, shapes that depend on values, and copies from or
to the host. The meta device stands in for an accelerator, as in `test_devices.py`; what the
registered operators run inside is looked at on the CPU. On a device, `test_cuda.py` records.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from grant_fast import FlexConv, FlexGCN, Task, ops, reference
from grant_fast.teaching import loss
from tests.cases import Case, dense_graphs

READS_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class Recording(TorchDispatchMode):
    """Refuses whatever operator a CUDA graph could not record."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if READS_VALUES & set(func.tags) and not _knows_its_size(func, args, kwargs):
            raise AssertionError(f"{func} depends on values")
        out = func(*args, **kwargs)
        leaves = [t for t in tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor)]
        devices = {t.device.type for t in leaves}
        if len(devices) > 1:
            raise AssertionError(f"{func} goes between {devices}")
        return out


def _knows_its_size(func, args, kwargs) -> bool:
    """Whether an operator whose result may depend on values does not do so as it is called."""
    if func is torch.ops.aten.repeat_interleave.Tensor:
        return kwargs.get("output_size") is not None
    if func is torch.ops.aten.index.Tensor:
        return not any(i is not None and i.dtype == torch.bool for i in args[1])
    return False


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
    for copy in (
        lambda: x.to("meta"),
        lambda: torch.empty(3, device="meta").copy_(x),
    ):
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


@pytest.mark.parametrize("widths", [(5, 8), (8, 5)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_the_sparse_operators_run_inside_records(widths, dtype):
    adjacency = Case().graphs.batch(slice(None)).adjacency(True)
    csr, csr_t = adjacency.csr, adjacency.transposed
    x = torch.randn(adjacency.num_nodes, widths[0], dtype=dtype)
    weight = torch.randn(3, *widths, dtype=dtype)
    grad = torch.randn(adjacency.num_nodes, widths[1], dtype=dtype)
    reference.spmm(*csr, x)  # builds the first sparse tensor of this process
    with Recording():
        reference.flex_conv(x, weight, None, *csr)
        for needs_dx in (True, False):
            reference.flex_conv_backward(grad, x, weight, *csr, *csr_t, needs_dx=needs_dx)
        reference.flex_conv_value_grad(grad, x, weight, *csr, *csr_t)
        reference.spmm(*csr_t, grad)


@pytest.mark.parametrize("widths", [(5, 8), (8, 5)], ids=str)
def test_what_the_kernels_operators_run_inside_records(widths, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    batch = dense_graphs((3, 40, 0, 9, 17), widths[0]).batch([4, 1, 2, 3, 0])
    adjacency = batch.adjacency(True)
    x, weight = batch.x.requires_grad_(), torch.randn(3, *widths, requires_grad=True)
    seen = []

    class Inside(Recording):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return super().__torch_dispatch__(func, types, args, kwargs)

    def recorded(implementation):
        def run(*given, **named):
            with Inside():
                return implementation(*given, **named)

        return run

    from grant_fast.kernels import layer

    for name in ("forward", "input_grad", "weight_grad"):
        monkeypatch.setattr(layer, name, recorded(getattr(layer, name)))
    ops.flex_conv(x, weight, None, adjacency, relu=True, backend="triton").sum().backward()
    assert len(seen) > 10
