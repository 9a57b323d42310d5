"""Hooks on the parts of a FlexGCN: all of them run, whoever computes."""

import pytest
import torch

from grant_fast import FlexGCN, Task, explain, ops, score_graphs
from grant_fast.training.baselines import VirtualNodeGCN
from tests.cases import Case

BACKENDS = ["auto", "torch", "reference"]


def inputs(case, packed, model):
    batch = case.graphs.to(model.convs[0].weight.dtype).batch(slice(None))
    return (batch,) if packed else (batch.x, batch.edge_index, batch.edge_weight, batch.batch)


def dtype_of(backend):
    """The CPU kernels take float32 alone."""
    return torch.float32 if backend == "auto" else torch.float64


def close(found, want):
    """Within rounding of the largest entry: sums of large terms cancel, differently on each CPU."""
    for a, b in zip(found, want, strict=True) if isinstance(want, tuple) else [(found, want)]:
        torch.testing.assert_close(a, b, rtol=0, atol=5e-5 * b.abs().max().item())


@pytest.mark.parametrize("norm", ["batch_norm", None])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pool", ["mean", "sum", "max", None])
def test_hooks_that_look_on_change_nothing_and_see_what_each_layer_gives(
    pool, backend, packed, training, norm
):
    case, seen, gradients = Case(), [], []
    # Without biases: before a batch norm their gradients are 0 but for rounding.
    model = FlexGCN(5, 4, 2, [3, 2, 2], norm=norm, bias=False, pool=pool, backend=backend)
    model.to(dtype_of(backend)).train(training)
    given = inputs(case, packed, model)
    for part in model.norms:  # so that two calls in training mode are alike
        part.momentum = 0.0
    want = model(*given)
    grads = torch.autograd.grad(want.tanh().sum(), tuple(model.parameters()))
    layers = [*model.convs, model.norms[1]]
    for part in layers:
        part.register_forward_hook(lambda *of: seen.append((*of, of[2].clone())))
    for part in layers[1:]:  # the first one's input has no gradient
        part.register_full_backward_hook(lambda part, into, out: gradients.append((part, out[0])))
    out = model(*given)
    close(out, want)
    found = torch.autograd.grad(out.tanh().sum(), tuple(model.parameters()))
    close(found, grads)
    assert [part for part, *_ in seen] == [model.convs[0], model.convs[1], layers[3], layers[2]]
    for part, args, kept, shown in seen:
        assert torch.equal(kept, shown)  # nobody has written into it since
        assert kept.shape == (case.num_nodes, 2 if part is layers[2] else 4)
        if part is not layers[3]:
            with torch.no_grad():
                close(shown, type(part).forward(part, *args))
    assert [part for part, _ in gradients] == [layers[2], layers[3], layers[1]]


@pytest.mark.parametrize("norm", ["batch_norm", "layer_norm", None])
@pytest.mark.parametrize("only_act", [True, False])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_hooked_activation_is_shown_stays_as_it_was(backend, packed, only_act, norm):
    case, seen, gradients = Case(), [], []
    model = FlexGCN(5, 4, 2, [3, 2], norm=norm, bias=False, backend=backend)
    model.to(dtype_of(backend))
    given = inputs(case, packed, model)
    want = model(*given)
    grads = torch.autograd.grad(want.tanh().sum(), tuple(model.parameters()))
    for part in [model.act] if only_act else [p for p in model.modules() if p is not model]:
        part.register_forward_hook(lambda *of: seen.append((*of, of[1][0].clone(), of[2].clone())))
    model.act.register_full_backward_hook(lambda part, into, out: gradients.append(into[0]))
    out = model(*given)
    close(out, want)
    close(torch.autograd.grad(out.tanh().sum(), tuple(model.parameters())), grads)
    for _, (first, *_), kept, before, after in seen:
        assert torch.equal(first, before) and torch.equal(kept, after)
    (shown,) = [first for part, (first, *_), *_ in seen if part is model.act]
    assert (shown < 0).any() and gradients[0].shape == shown.shape


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pool", ["mean", None])
def test_a_hook_that_changes_an_output_does_so_once(pool, backend, packed, layer):
    case = Case()
    model = FlexGCN(5, 4, 4, [3, 2], act=None, pool=pool, backend=backend)
    model.to(dtype_of(backend))
    given = inputs(case, packed, model)

    def once(module, args, out):
        handle.remove()  # from then on the layer is computed with its neighbours again
        return 3 * out

    before = model(*given)
    handle = model.convs[layer].register_forward_hook(once)
    changed = model(*given)
    close(model(*given), before)
    with torch.no_grad():
        model.convs[layer].weight *= 3
        model.convs[layer].bias *= 3
    close(changed, model(*given))


def test_the_teacher_and_explain_see_hooked_layers():
    graphs, task = Case().graphs, Task("regression")
    graphs.y = torch.zeros(len(graphs), 1)
    model = FlexGCN(5, 4, 1, [2, 2], backend="torch").eval()
    batch = graphs.batch(slice(None))
    assert "pooled first" in explain(model, batch)[1]
    model.convs[1].register_forward_hook(lambda module, args, out: torch.ones_like(out))
    assert "pooled first" not in explain(model, batch)[1]
    close(score_graphs(model, graphs, task), (batch.sizes > 0).float())


def test_hooks_on_all_modules_see_every_layer():
    case, seen = Case(), []
    model = FlexGCN(5, 4, 2, [3, 2], norm="batch_norm")
    batch = case.graphs.to(torch.float32).batch(slice(None))
    want = model(batch)
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *of: seen.append(of[0]))
    try:
        close(model(batch), want)
    finally:
        handle.remove()
    order = [model.convs[0], model.norms[0], model.act, model.dropouts[0], model.convs[1], model]
    assert seen == order


@pytest.mark.parametrize("kind", ["hook on a norm", "own forward", "plain"])
def test_explain_tells_of_the_first_layer_what_is_run(kind, monkeypatch):
    called, first = [], ops.first_flex_conv
    monkeypatch.setattr(ops, "first_flex_conv", lambda *of: called.append(of[0]) or first(*of))
    graphs = Case().graphs.to(torch.float32)
    make = VirtualNodeGCN if kind == "own forward" else FlexGCN
    model = make(5, [4, 4], 1, orders=[3, 3, 3], norm="batch_norm", backend="torch")
    if kind == "hook on a norm":
        model.norms[0].register_forward_hook(lambda *of: None)
    batch = graphs.batch(slice(None))
    told = explain(model, batch)[0]
    model(batch)
    assert (called == ["hops"]) == ("the dataset's cached" in told) == (kind == "plain")
