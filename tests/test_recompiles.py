"""`torch.compile(fullgraph=True, dynamic=True)` compiles once, whatever batches come after."""

from collections.abc import Iterator

import pytest
import torch
from torch._dynamo.utils import counters

from grant_fast import FlexConv, FlexGCN
from tests.cases import Case
from tests.interpreter import TRITON, needs_triton

CASE = Case(sizes=(5, 3, 9, 4, 7, 1, 0, 12, 1))
#: First graph and number of graphs of each batch: nodes, edges and graphs all differ.
BATCHES = ((0, 4), (2, 5), (3, 6), (1, 2))

ONCE = torch._dynamo.config.patch(error_on_recompile=True)


@pytest.fixture(autouse=True)
def dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def inputs(first: int, count: int, weighted: bool = True) -> tuple[torch.Tensor | int | None, ...]:
    """PyG's tensors for the graphs first … first + count - 1."""
    batch = CASE.graphs.batch(range(first, first + count))
    weight = batch.edge_weight if weighted else None
    return batch.x, batch.edge_index.contiguous(), weight, batch.batch, count


def step(model: torch.nn.Module, arguments: tuple) -> list[torch.Tensor]:
    """The output and the gradients of all parameters, and of what else is learned."""
    out = model(*arguments)
    given = [each for each in arguments if isinstance(each, torch.Tensor) and each.requires_grad]
    return [out, *torch.autograd.grad(out.square().sum(), [*model.parameters(), *given])]


def compiled(model: torch.nn.Module) -> torch.nn.Module:
    return torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)


@ONCE
@pytest.mark.parametrize("backend", ["auto", TRITON, "reference"])
@pytest.mark.parametrize("weighted", [True, False])
def test_a_layer_compiles_once(weighted, backend):
    conv = FlexConv(5, 6, order=3, backend=backend)
    fast = compiled(conv)
    for place in BATCHES:
        arguments = x, _, weight = inputs(*place, weighted)[:3]
        if weighted:
            x.requires_grad_(), weight.requires_grad_()
        for got, want in zip(step(fast, arguments), step(conv, arguments), strict=True):
            torch.testing.assert_close(got, want)


@ONCE
@pytest.mark.parametrize(
    "options",
    [
        {"norm": "batch_norm", "dropout": 0.2, "pool": "sum"},
        {"norm": "layer_norm", "pool": "max"},
        pytest.param({"backend": "triton"}, marks=needs_triton),
    ],
    ids=str,
)
def test_a_network_compiles_once_in_training(options):
    model = FlexGCN(5, 6, 2, orders=[3, 2, 2], **options)
    fast = compiled(model)
    for place in BATCHES:
        arguments = inputs(*place)
        got = step(fast, arguments)
        if "dropout" not in options:
            for ours, want in zip(got, step(model, arguments), strict=True):
                torch.testing.assert_close(ours, want)


def test_sizes_of_0_and_1_compile_once_more_each():
    model = FlexGCN(5, 6, 2, orders=[3, 2])
    fast = compiled(model)
    for count in (4, 3, 4):
        fast(*inputs(0, count))
    assert counters["stats"]["unique_graphs"] == 1
    # One graph; one node and then two, without edges between; no node; and all of it again.
    for number, place in enumerate([(0, 1), (1, 1), (5, 1), (6, 1)] * 2):
        arguments = inputs(*place)
        torch.testing.assert_close(fast(*arguments), model(*arguments))
        assert counters["stats"]["unique_graphs"] <= (4 if number > 2 else number + 2)
    fast(*inputs(2, 5))
    assert counters["stats"]["unique_graphs"] <= 4


def test_sizes_that_are_equal_by_chance_compile_once_more():
    fast = compiled(conv := FlexConv(5, 6, order=2))
    for count in (1, 2, 3, 4):  # five nodes of five features, then more
        arguments = inputs(0, count)[:3]
        torch.testing.assert_close(fast(*arguments), conv(*arguments))
    assert counters["stats"]["unique_graphs"] == 2


@ONCE
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_ever_new_batches_of_a_dataset_break_once_and_never_recompile(backend):
    options = {"norm": "batch_norm", "backend": backend}
    model = FlexGCN(5, 6, 2, orders=[3, 2, 2], **options)
    fast = torch.compile(model, backend="aot_eager", dynamic=True)
    case = Case(sizes=(5, 3, 9, 4, 7, 1, 0, 12, 1) * 2)
    for count in range(1, 19):
        batch = case.graphs.batch(torch.randperm(18)[:count])
        for got, want in zip(step(fast, (batch,)), step(model, (batch,)), strict=True):
            torch.testing.assert_close(got, want)
    assert list(counters["graph_break"].values()) == [1]
    assert not counters["stats"]["unique_graphs"]


@ONCE
def test_the_test_sees_a_recompilation():
    conv = FlexConv(5, 6, order=3)
    fast = compiled(conv)
    fast(*inputs(0, 4)[:3])
    with pytest.raises(torch._dynamo.exc.RecompileError):
        fast(*inputs(0, 4, weighted=False)[:3])
