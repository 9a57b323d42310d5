"""Parts of a FlexGCN that are not those it was made with: the user's own, or changed."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from grant_fast import AtomEncoder, FlexGCN, PackedGraphs
from grant_fast.nn.modules import BatchNorm
from tests.cases import Case


def segment_mean(x, batch):
    return torch.stack([part.mean(0) for part in x.split(batch.sizes.tolist())])


def test_a_norm_that_a_user_changed_is_what_it_says():
    """As test-time adaptation does it: statistics of the batch in evaluation mode, no factors."""
    batch = Case().graphs.batch(slice(None))
    model = FlexGCN(5, [4, 4], 2, orders=[2, 2, 2], norm="batch_norm").eval()
    for norm in model.norms:
        norm.track_running_stats, norm.running_mean, norm.running_var = False, None, None
    plain = FlexGCN(5, [4, 4], 2, orders=[2, 2, 2], norm="batch_norm").train()
    plain.load_state_dict(model.state_dict(), strict=False)
    torch.testing.assert_close(model(batch), plain(batch))
    model.norms[0] = BatchNorm(4, affine=False)
    assert model(batch).isfinite().all()


class Squared(nn.ReLU):
    def forward(self, x):
        return super().forward(x).square()


class Doubled(nn.Dropout):
    def forward(self, x):
        return 2 * x


class Shifted(nn.Identity):
    def forward(self, x):
        return x + 1


class Centred(BatchNorm):
    def forward(self, x):
        return super().forward(x) - 1


class Averaged(AtomEncoder):
    def forward(self, x):
        out = super().forward(x)
        return out - out.mean(0)


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("part", ["act", "dropout", "norm", "own batch norm", "encoder"])
def test_modules_that_inherit_from_ours_or_from_pytorchs_do_their_own(part, training, backend):
    case = Case(symmetric=True, weighted=False)
    x = torch.arange(case.num_nodes)[:, None] % 7 // 3
    graphs = PackedGraphs.from_arrays(x, case.edge_index, case.batch, num_graphs=12)
    encoder = (Averaged if part == "encoder" else AtomEncoder)(4, [3])
    act = Squared() if part == "act" else "relu"
    model = FlexGCN(4, 5, 2, [2, 2], act=act, encoder=encoder, backend=backend)
    if part == "dropout":
        model.dropouts[0] = Doubled(0.0)
    if "norm" in part:
        model.norms[0] = Centred(5) if part == "own batch norm" else Shifted()
    model.train(training)
    batch = graphs.batch([1, 3, 6, 9, 10])
    h = model.convs[0](model.encoder(batch.x), batch)
    h = model.dropouts[0](model.act(model.norms[0](h)))
    expected = segment_mean(model.convs[1](h, batch), batch)
    torch.testing.assert_close(model(batch), expected)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("part", ["encoder", "norm"])
def test_weights_that_a_hook_makes_are_made_for_every_call(part, training):
    case = Case(symmetric=True, weighted=False)
    x = torch.arange(case.num_nodes)[:, None] % 7 // 3
    batch = PackedGraphs.from_arrays(x, case.edge_index, case.batch, num_graphs=12).batch([3, 6, 9])
    model = FlexGCN(4, 5, 2, [2, 2], norm="batch_norm", encoder=AtomEncoder(4, [3]))
    pruned = model.encoder if part == "encoder" else model.norms[0]
    model.train(training)
    prune.random_unstructured(pruned, "weight", amount=0.5)
    for _ in range(2):
        model.zero_grad()
        model(batch).sum().backward()
        assert pruned.weight_orig.grad is not None
        with torch.no_grad():
            pruned.weight_orig.mul_(2)
    found = model(batch)
    prune.remove(pruned, "weight")
    torch.testing.assert_close(found, model(batch))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm", [None, "batch_norm", "layer_norm"])
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_a_part_whose_forward_pass_is_the_users_own_is_called(backend, norm, training):
    batch = Case().graphs.batch([3, 6, 9])
    model = FlexGCN(5, 4, 2, orders=[3, 2], norm=norm, backend=backend).train(training)
    want, called = model(batch), []
    for part in (model.act, model.norms[0], model.dropouts[0]):
        forward = part.forward
        part.forward = lambda x, forward=forward: called.append(x) or forward(x)
        torch.testing.assert_close(model(batch), want)
        assert called
        called.clear()
        del part.forward


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_a_batch_norm_may_be_told_to_keep_its_statistics(backend):
    model = FlexGCN(5, 4, 2, orders=[3, 2], norm="batch_norm", backend=backend)
    model.norms[0].track_running_stats = False
    before = copy.deepcopy(model.state_dict())
    model(Case().graphs.batch(slice(None))).sum().backward()
    torch.testing.assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)


def test_a_norm_may_need_what_it_gave_for_its_gradient():
    case = Case()
    model = FlexGCN(5, [4], 1, orders=[2, 2])
    model.norms[0] = nn.Softmax(dim=1)  # an activation in place would change its output
    model(case.graphs.batch(slice(None))).square().sum().backward()
    assert model.convs[0].weight.grad.isfinite().all()
