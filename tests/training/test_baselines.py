"""The paper's cheap baselines against their equations."""

import pytest
import torch

from grant_fast.errors import InputError
from grant_fast.nn import FlexGCN
from grant_fast.training.baselines import VirtualNodeGCN, tie_orders
from grant_fast.training.trainer import Trainer
from tests.cases import to_dense
from tests.rings import make_dataset


def dense(batch):
    """Â of a batch, [n, n], and ρ for summing, [B, n]; float64."""
    adjacency = to_dense(*batch.adjacency(True).csr, batch.num_nodes)
    rho = torch.nn.functional.one_hot(batch.batch, batch.num_graphs).T.double()
    return adjacency, rho


@pytest.mark.parametrize("orders", [[1, 1], [4, 2], [3, 5]])
def test_the_plain_gcn_is_its_equation(orders):
    batch = make_dataset().graphs.to(dtype=torch.float64).batch(slice(None))
    model = FlexGCN(3, 5, 2, orders=orders, act="tanh")
    tie_orders(model)
    model.double()
    adjacency, rho = dense(batch)
    loops = adjacency + torch.eye(len(adjacency))
    w1, w2 = (
        conv.parametrizations.weight.original[0] / 2 ** (conv.order - 1) for conv in model.convs
    )
    h = torch.linalg.matrix_power(loops, orders[0] - 1) @ batch.x @ w1 + model.convs[0].bias
    y = torch.linalg.matrix_power(loops, orders[1] - 1) @ h.tanh() @ w2 + model.convs[1].bias
    torch.testing.assert_close(model(batch), rho @ y / rho.sum(1, keepdim=True))
    assert sum(p.numel() for p in model.parameters()) == 3 * 5 + 5 + 5 * 2 + 2


def test_the_plain_gcn_begins_as_a_linear_layer_does():
    model = FlexGCN(25, 40, 1, orders=[4, 2])
    tie_orders(model)
    weight = model.convs[0].parametrizations.weight.original
    bound = 25**-0.5
    assert -bound < weight.min() < -0.9 * bound and 0.9 * bound < weight.max() < bound


def test_the_plain_gcn_reaches_as_far_as_an_order_may_be():
    model = FlexGCN(2, 2, 1, orders=[1000, 70])
    tie_orders(model)
    for conv in model.convs:
        binomial = conv.parametrizations.weight[0].coefficients.flatten()
        assert binomial.sum().item() == pytest.approx(1) and binomial.argmax() in (499, 34)


@pytest.mark.parametrize("norm", [None, "batch_norm"])
@pytest.mark.parametrize("pool", ["mean", None])
def test_the_virtual_node_hears_all_nodes_and_is_heard_by_them(pool, norm):
    batch = make_dataset().graphs.to(dtype=torch.float64).batch(range(9))
    settings = {"act": "tanh", "pool": pool, "norm": norm, "dropout": 0.5}
    model = VirtualNodeGCN(3, [5, 4], 2, orders=[2, 3, 2], **settings).double()
    torch.nn.init.normal_(model.virtual)
    model.eval()  # so that the norm of a new network is known
    adjacency, rho = dense(batch)
    v = model.virtual.expand(9, -1)
    h = batch.x
    for layer in range(2):
        h = h + rho.T @ v
        v = (v + rho @ h) @ model.updates[layer][0].weight.T + model.updates[layer][0].bias
        v = (v / (1 + model.updates[layer][1].eps) ** 0.5).tanh()
        conv = model.convs[layer]
        powers = (torch.linalg.matrix_power(adjacency, k) for k in range(conv.order))
        h = sum(p @ h @ w for p, w in zip(powers, conv.weight, strict=True)) + conv.bias
        h = (h / (1 + model.norms[layer].eps) ** 0.5 if norm else h).tanh()
    h = h + rho.T @ v
    last = model.convs[2]
    y = h @ last.weight[0] + adjacency @ h @ last.weight[1] + last.bias
    expected = y if pool is None else rho @ y / rho.sum(1, keepdim=True)
    torch.testing.assert_close(model(batch), expected)
    model.dropouts.train()
    assert not model(batch).equal(model(batch))


def test_a_constant_feature_keeps_its_size_in_the_plain_gcn():
    """On a ring, of which Â has the eigenvalue 1, and with W the identity."""
    ring = torch.arange(8)
    edges = torch.cat([torch.stack([ring, ring.roll(1)]), torch.stack([ring.roll(1), ring])], dim=1)
    model = FlexGCN(2, 2, 2, orders=[5, 1], pool=None)
    tie_orders(model)
    torch.nn.init.constant_(model.convs[0].bias, 0)
    model.convs[0].parametrizations.weight.original.data = torch.eye(2)[None]
    x = torch.tensor([[1.0, -3.0]]).repeat(8, 1)
    torch.testing.assert_close(model.convs[0](x, edges), x)


def test_a_virtual_node_needs_whole_graphs():
    batch = make_dataset().graphs.batch(range(3))
    model = VirtualNodeGCN(3, 4, 1, orders=[2, 2])
    for given, named in (
        ((batch.x, batch.edge_index), {}),
        ((batch, batch.edge_index), {}),
        ((batch,), {"edge_weight": torch.ones(batch.num_edges)}),
    ):
        with pytest.raises(InputError, match="takes a GraphBatch alone"):
            model(*given, **named)


@pytest.mark.parametrize("level", ["graph", "node"])
@pytest.mark.parametrize("network", ["gcn", "gcn-virtual-node"])
def test_a_run_with_a_baseline_learns_and_resumes(tmp_path, config, network, level):
    settings = {"network": network, "norm": "batch_norm", "init": "kaiming", "lr": 0.03}
    chosen = config(arm="full", epochs=20, hidden_channels=(16,), **settings)
    trainer = Trainer(make_dataset(level=level), chosen, tmp_path)
    trainer.fit()
    losses = [record.loss for record in trainer.history]
    assert losses[-1] < 0.6 * losses[0]
    again = Trainer(make_dataset(level=level), chosen, tmp_path, resume=True)
    assert again.epoch == 20
    pairs = zip(again.model.parameters(), trainer.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
