"""FlexConv in the place of PyG's TAGConv: its function, its weights, what it saved."""

import pytest
import torch
from torch import nn

from grant_fast import FlexConv, InputError
from tests.cases import Case


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_from_tag_conv_agrees_in_value_and_every_gradient(bias, normalize, weighted):
    tag_conv = pytest.importorskip("torch_geometric.nn").TAGConv
    case = Case(weighted=weighted)
    tag = tag_conv(5, 4, K=3, bias=bias, normalize=normalize)
    flex = FlexConv.from_tag_conv(tag)
    assert (flex.order, flex.normalize, flex.bias is not None) == (4, normalize, bias)
    inputs = []
    for _ in range(2):
        weight = case.edge_weight
        inputs.append(
            (case.x.clone().requires_grad_(), weight if weight is None else weight.clone())
        )
        if weight is not None:
            inputs[-1][1].requires_grad_()
    want = tag(inputs[0][0], case.edge_index, inputs[0][1])
    got = flex(inputs[1][0], case.edge_index, inputs[1][1])
    size = want.abs().max()  # unnormalised powers grow: compare relative to the largest
    torch.testing.assert_close(got / size, want / size)
    grad = torch.randn_like(want) / size
    want.backward(grad)
    got.backward(grad)
    pairs = [(inputs[1][0].grad, inputs[0][0].grad)]
    pairs += [(flex.weight.grad[k], lin.weight.grad.T) for k, lin in enumerate(tag.lins)]
    if bias:
        pairs.append((flex.bias.grad, tag.bias.grad))
    if weighted:
        pairs.append((inputs[1][1].grad, inputs[0][1].grad))
    for got_grad, want_grad in pairs:
        size = want_grad.abs().max()
        torch.testing.assert_close(got_grad / size, want_grad / size, rtol=2e-5, atol=2e-6)


def test_arguments_by_place_mean_what_they_mean_there():
    tag_conv = pytest.importorskip("torch_geometric.nn").TAGConv
    flex, tag = FlexConv(5, 4, 3, False), tag_conv(5, 4, 2, False)
    assert flex.bias is None and tag.bias is None and flex.normalize and tag.normalize


@pytest.mark.parametrize("backend", ["auto", "torch", "reference"])
@pytest.mark.parametrize("learned", [True, False])
def test_a_weight_that_is_no_number_spoils_what_it_spoils_there(learned, backend):
    tag = pytest.importorskip("torch_geometric.nn").TAGConv(5, 2, K=1)
    flex, ring = FlexConv.from_tag_conv(tag), torch.arange(6)
    flex.backend = backend
    weight = torch.ones(6)
    weight[0] = torch.nan
    given = torch.randn(6, 5), torch.stack([ring, ring.roll(-1)]), weight.requires_grad_(learned)
    assert flex(*given).isnan().equal(tag(*given).isnan())
    assert flex(*given).isnan().any(1).tolist() == [False, True, True, False, False, False]


def test_from_tag_conv_refuses_another_layer():
    with pytest.raises(InputError, match="not a Linear"):
        FlexConv.from_tag_conv(torch.nn.Linear(2, 2))
    tag_conv = pytest.importorskip("torch_geometric.nn").TAGConv
    for changed in ({"aggr": "mean"}, {"flow": "target_to_source"}):
        with pytest.raises(InputError, match=f"has {next(iter(changed))}="):
            FlexConv.from_tag_conv(tag_conv(5, 4, K=2, **changed))
    with pytest.raises(InputError, match="call it once"):
        FlexConv.from_tag_conv(tag_conv(-1, 4))

    class Mine(tag_conv):
        pass

    with pytest.raises(InputError, match="not a Mine"):
        FlexConv.from_tag_conv(Mine(5, 4))


def test_a_frozen_tag_conv_stays_frozen():
    tag = pytest.importorskip("torch_geometric.nn").TAGConv(5, 4, K=2)
    for frozen in (True, False):
        flex = FlexConv.from_tag_conv(tag.requires_grad_(not frozen).train(not frozen))
        assert [p.requires_grad for p in flex.parameters()] == [not frozen] * 2
        assert flex.training != frozen


@pytest.mark.parametrize("bias", [True, False])
def test_what_a_tag_conv_saved_is_loaded(bias):
    tag_conv = pytest.importorskip("torch_geometric.nn").TAGConv
    saved = nn.ModuleDict({"conv": tag_conv(5, 4, K=2, bias=bias)})
    state = saved.state_dict()
    names = list(state)
    loaded = nn.ModuleDict({"conv": FlexConv(5, 4, order=3, bias=bias)})
    loaded.load_state_dict(state)
    assert list(state) == names
    case = Case()
    want = saved["conv"](case.x, case.edge_index)
    torch.testing.assert_close(loaded["conv"](case.x, case.edge_index), want)
    other = FlexConv(5, 4, order=2, bias=bias)  # of another order nothing is taken in part
    before = other.weight.detach().clone()
    for strict in (True, False):
        with pytest.raises(RuntimeError, match="a TAGConv with K=2 needs order=3"):
            nn.ModuleDict({"conv": other}).load_state_dict(state, strict=strict)
        assert torch.equal(other.weight, before)
    del state["conv.lins.1.weight"]  # is none of a TAGConv
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"conv\.lins\.2\.weight"'):
        nn.ModuleDict({"conv": other}).load_state_dict(state)
