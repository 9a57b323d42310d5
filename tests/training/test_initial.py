"""The paper's head and first weights."""

import pytest
import torch
import torch.nn.functional as F

from grant_fast.nn import FlexGCN
from grant_fast.tasks import Task
from grant_fast.training.config import RunConfig
from grant_fast.training.initial import draw_kaiming, factor_last_layer
from grant_fast.training.model import ModelSpec, build_model
from grant_fast.training.trainer import Trainer
from tests.rings import make_dataset


@pytest.mark.parametrize("pool", ["mean", None])
def test_the_head_is_two_linear_maps_after_pooling_in_value_and_gradients(pool):
    graphs = make_dataset().graphs.to(dtype=torch.float64)
    wide = FlexGCN(3, 5, 4, orders=[3, 2], pool=pool).double()
    factored = FlexGCN(3, 5, 4, orders=[3, 2], pool=pool)
    factor_last_layer(factored, 2)
    factored.double()
    head = factored.convs[-1].parametrizations
    second = head.bias[0]
    factored.convs[0].load_state_dict(wide.convs[0].state_dict())
    with torch.no_grad():
        head.weight.original.copy_(wide.convs[-1].weight)
        head.bias.original.copy_(wide.convs[-1].bias)
    batch = graphs.batch(slice(None))
    expected = F.linear(wide(batch), second.weight, second.bias)
    target = torch.randn_like(expected)
    plain = [wide.convs[-1].weight, wide.convs[-1].bias, second.weight, second.bias]
    ours = [head.weight.original, head.bias.original, second.weight, second.bias]
    want = torch.autograd.grad((expected * target).sum(), plain)
    found = factored(batch)
    torch.testing.assert_close(found, expected)
    for a, b in zip(torch.autograd.grad((found * target).sum(), ours), want, strict=True):
        torch.testing.assert_close(a, b)
    x, edges, of = batch.x, batch.edge_index, batch.batch
    torch.testing.assert_close(factored(x, edges, None, of, batch.num_graphs), expected)


def test_the_optimiser_sees_both_maps_and_a_run_with_them_goes_on_where_it_stopped(
    tmp_path, config
):
    chosen = config(head=7, init="kaiming", epochs=4, arm="full")
    whole = Trainer(make_dataset(), chosen, tmp_path / "whole")
    shapes = [tuple(p.shape) for p in whole.model.convs[-1].parameters()]
    assert sorted(shapes) == [(2,), (2, 4, 7), (2, 7), (7,)]
    before = [p.detach().clone() for p in whole.model.parameters()]
    whole.fit()
    moved = zip(whole.model.parameters(), before, strict=True)
    assert all(not torch.equal(now, then) for now, then in moved)
    again = Trainer(make_dataset(), chosen, tmp_path / "whole", resume=True)
    assert again.epoch == 4
    for a, b in zip(again.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_kaiming_bounds_follow_the_fan_of_each_matrix_and_leave_vectors(config):
    settings = config(init="kaiming", head=90, hidden_channels=(70,), orders=(4, 3), embedding=50)
    plain = config(head=90, hidden_channels=(70,), orders=(4, 3), embedding=50)
    spec = ModelSpec(9, "atom", make_dataset("binary").task, None)
    model, default = build_model(settings, spec), build_model(plain, spec)
    fans = {
        "encoder.weight": 50,
        "convs.0.weight": 4 * 50,
        "convs.1.parametrizations.weight.original": 3 * 70,
        "convs.1.parametrizations.weight.0.second.weight": 90,
    }
    found = dict(model.named_parameters())
    assert {name for name, p in found.items() if p.dim() > 1} == set(fans)
    for name, fan in fans.items():
        bound = (6 / fan) ** 0.5
        assert 0.95 * bound < found[name].abs().max() <= bound
        assert abs(found[name].mean()) < 0.1 * bound
    for name, p in default.named_parameters():
        assert torch.equal(p, found[name]) == (p.dim() == 1)


def test_kaiming_draws_for_a_linear_layer_what_torch_draws():
    ours, theirs = torch.nn.Linear(6, 4), torch.nn.Linear(6, 4)
    torch.manual_seed(3)
    draw_kaiming(ours)
    torch.manual_seed(3)
    torch.nn.init.kaiming_uniform_(theirs.weight, nonlinearity="relu")
    torch.testing.assert_close(ours.weight, theirs.weight)


def test_each_layer_is_as_the_config_has_it() -> None:
    chosen = {"hidden_channels": (27, 18, 9), "orders": (4, 3, 2, 2), "dropout": (0.3, 0.0, 0.1)}
    spec = ModelSpec(3, None, Task("regression"), None)
    model = build_model(RunConfig(**chosen, normalize=False), spec)
    assert [conv.out_channels for conv in model.convs] == [27, 18, 9, 1]
    assert [dropout.p for dropout in model.dropouts] == [0.3, 0.0, 0.1]
    assert not model.normalize
