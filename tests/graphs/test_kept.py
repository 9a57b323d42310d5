"""What a data set computes once and keeps: for whom it serves, and for whom not."""

import warnings

import pytest
import torch

from grant_fast import FlexGCN, InputError, PackedGraphs
from grant_fast.nn import AtomEncoder
from tests.cases import Case


def test_what_inference_mode_read_first_still_serves_training():
    for pool, level in (("mean", "graph"), (None, "node")):
        graphs = Case(y_level=level).graphs
        model = FlexGCN(5, 4, 2, orders=[3, 2, 2], pool=pool)
        batch = graphs.batch([3, 1, 8])
        with torch.inference_mode():
            model(batch)
            model(graphs.batch(slice(None)))
        model(graphs.batch([3, 1])).sum().backward()
        model(batch).sum().backward()  # the very batch, too


def test_a_dataset_outlives_a_transform_of_torch_func():
    model, graphs = FlexGCN(5, 4, 2, orders=[3, 2, 2]), Case().graphs
    batch, weights = graphs.batch([3, 1, 8]), dict(model.named_parameters())
    with pytest.raises(InputError, match=r"torch\.func"):
        torch.func.grad(lambda w: torch.func.functional_call(model, w, (batch,)).sum())(weights)
    want = model(Case().graphs.batch([3, 1, 8]))
    assert torch.equal(model(batch), want) and torch.equal(model(graphs.batch([3, 1, 8])), want)


def test_an_encoder_keeps_nothing_of_a_transform():
    x, edges = torch.tensor([[0], [1]] * 8), torch.tensor([[0], [1]])
    graphs = PackedGraphs.from_arrays(x, edges, torch.arange(16) // 2)
    model = FlexGCN(3, 4, 2, orders=[2, 2], encoder=AtomEncoder(3, (2,)))
    batch, weights = graphs.batch([3, 0]), dict(model.named_parameters())
    weights = {name: torch.stack([w.detach(), -w.detach()]) for name, w in weights.items()}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of how slow it is
        out = torch.func.vmap(lambda w: torch.func.functional_call(model, w, (batch,)))(weights)
        torch.testing.assert_close(out[0], model(batch))


def test_what_another_thread_keeps_meanwhile_is_not_taken():
    class Raced(dict):
        def __setitem__(self, key, value):
            if key[0] == "hops":  # of a lower order, put in just after ours
                value = value[0][:, :5], value[1]
            super().__setitem__(key, value[:1] if key[0] == "pool" else value)

    graphs = Case().graphs
    graphs._cache = Raced()
    assert graphs.hops(3, True).shape == (graphs.num_nodes, 15)
    assert graphs.pool_weights(3, True, True).shape == (3, graphs.num_nodes)


@pytest.mark.parametrize("native", [True, False])
def test_what_is_kept_for_one_layer_serves_no_other(native, monkeypatch):
    if not native:
        monkeypatch.setattr("grant_fast.native.takes", lambda *_: False)
    kept = Case(symmetric=True).graphs
    for order, normalize, mean in [
        (2, True, True),
        (2, True, False),
        (2, False, True),
        (3, True, True),
    ]:
        anew = Case(symmetric=True).graphs
        assert kept.hops(order, normalize).equal(anew.hops(order, normalize))
        weights = kept.pool_weights(order, normalize, mean)
        assert weights.shape[0] == order
        assert weights.equal(anew.pool_weights(order, normalize, mean))
