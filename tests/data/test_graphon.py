"""gen-reg and gen-cls: the graphons, the graphs drawn from them, and their labels."""

from math import exp, log, sqrt

import numpy as np
import pytest
import torch

from grant_fast.data import graphon
from grant_fast.data.graphon import FAMILIES, LabelNetwork, chunks_of, generate
from grant_fast.errors import InputError

# w at the grid's first point and at (row 0, column 2) of a grid of four points:
# ¼, ½, ¾, 1 upwards, or 1, ¾, ½, ¼ where the family is reversed.
HAND_COMPUTED = {
    0: (1.0, 0.5),
    1: (exp(-2 * 0.25**0.7), exp(-(0.25**0.7 + 0.75**0.7))),
    2: (1.0, (1 + 0.25 + 1 + sqrt(0.5)) / 4),
    3: (1.0, 0.75),
    4: (1 / (1 + exp(-4)), 1 / (1 + exp(-2.5))),
    5: (1 / (1 + exp(-2)), 1 / (1 + exp(-(1 + 0.5**4)))),
    6: (exp(-(0.25**0.75)), exp(-(0.75**0.75))),
    7: (exp(-(0.25 + 0.5 + 0.5) / 2), exp(-(0.25 + 0.5 + sqrt(0.75)) / 2)),
    8: (log(1.5), log(1.5)),
    9: (0.0, 0.5),
    10: (1.0, 0.5),
    11: (0.8, 0.0),
    12: (0.0, 0.8),
}


@pytest.mark.parametrize("family", range(len(FAMILIES)))
def test_family_follows_its_formula(family: int) -> None:
    table = FAMILIES[family].tabulated(4)
    assert (table[0, 0], table[0, 2]) == pytest.approx(HAND_COMPUTED[family])
    np.testing.assert_array_equal(table, table.T)


@pytest.mark.parametrize("resolution", [1, 17, 1000])
@pytest.mark.parametrize("family", range(13))
def test_family_is_a_probability(family: int, resolution: int) -> None:
    table = FAMILIES[family].tabulated(resolution)
    assert table.shape == (resolution, resolution)
    assert table.min() >= 0
    assert table.max() <= 1


def test_statistics_are_the_papers() -> None:
    graphs = generate("gen-reg", 700, seed=3)
    sizes = torch.bincount(graphs.batch, minlength=700).double()
    assert sizes.min() >= 50
    assert sizes.max() <= 149
    assert sizes.mean().item() == pytest.approx(99.5, abs=3.5)  # 3 standard errors
    pairs = sizes.square().sum().item()
    assert graphs.edge_index.shape[1] / pairs == pytest.approx(0.25, abs=0.01)
    source, target = graphs.edge_index
    loops = (source == target).double().mean().item() * graphs.edge_index.shape[1] / len(graphs.x)
    assert loops == pytest.approx(1 / 3, abs=0.01)  # ∫u² du: a pair (i, i) has both axes equal
    assert graphs.x.shape == (len(graphs.batch), 40)
    assert graphs.x.mean().item() == pytest.approx(0.5, abs=0.005)
    assert graphs.x.min() >= 0
    assert graphs.x.max() < 1


def test_edges_are_directed_within_graphs_and_never_repeated() -> None:
    graphs = generate("gen-cls", 5)
    source, target = graphs.edge_index
    assert torch.equal(graphs.batch[source], graphs.batch[target])
    key = target * len(graphs.x) + source
    assert bool((key.diff() > 0).all())  # sorted by target, then source, each pair once
    reverse = set((source * len(graphs.x) + target).tolist())
    both_ways = sum(k in reverse for k in key.tolist())
    assert 0 < both_ways < len(key)


def test_edges_follow_the_graphon_in_the_right_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    # A graphon that is not symmetric: edges leave only nodes of the lower half of the axis.
    lower_half = graphon.Family(lambda u, v: np.where(u <= 0.5, 1.0, 0.0) + 0 * v)
    monkeypatch.setattr(graphon, "FAMILIES", (lower_half,))
    graphs = generate("gen-reg", 1)
    nodes = len(graphs.x)
    senders = graphs.edge_index[0].unique()
    assert 0 < len(senders) < nodes
    assert graphs.edge_index.shape[1] == len(senders) * nodes


@pytest.mark.parametrize("out_channels", [1, 10])
def test_labels_are_those_of_pygs_gcn(out_channels: int) -> None:
    conv = pytest.importorskip("torch_geometric.nn").GCNConv
    graphs = generate("gen-reg", 15, seed=1)
    network = LabelNetwork.draw(np.random.default_rng(5), out_channels)
    x, edge_index = graphs.x, graphs.edge_index
    for weight in (network.weight1, network.weight2):
        layer = conv(*weight.shape)
        layer.lin.weight.data = weight.T.contiguous()
        layer.bias.data.zero_()
        x = layer.double()(x.double(), edge_index).relu()
    expected = x @ network.weight3.double() + network.bias3
    torch.testing.assert_close(network(graphs).double(), expected, rtol=1e-5, atol=1e-5)


def test_random_network_has_normal_matrices_and_a_default_bias() -> None:
    networks = [LabelNetwork.draw(np.random.default_rng(seed), 10) for seed in range(30)]
    for name in ("weight1", "weight2", "weight3"):
        weights = torch.stack([getattr(network, name) for network in networks])
        assert weights.mean().item() == pytest.approx(0, abs=0.1)
        assert weights.std().item() == pytest.approx(1, abs=0.05)
    bias = torch.stack([network.bias3 for network in networks])
    assert bias.abs().max() <= 10**-0.5
    assert bias.std().item() == pytest.approx(10**-0.5 / 3**0.5, abs=0.02)


def test_gen_reg_labels_have_norm_one_in_each_graph() -> None:
    graphs = generate("gen-reg", 20, seed=2)
    assert graphs.y is not None
    assert graphs.y_level == "node"
    assert graphs.y.shape == (len(graphs.x), 1)
    norms = torch.zeros(20).index_add_(0, graphs.batch, graphs.y[:, 0].square()).sqrt()
    torch.testing.assert_close(norms, torch.ones(20), rtol=1e-4, atol=1e-4)


def test_gen_cls_labels_are_ten_classes() -> None:
    graphs = generate("gen-cls", 64)
    assert graphs.y is not None
    assert graphs.y.dtype == torch.int64
    assert graphs.y.shape == (len(graphs.x),)
    assert graphs.y.min() >= 0
    assert 2 <= len(graphs.y.unique()) <= 10


@pytest.mark.parametrize("few", [1, 63, 256])
def test_first_graphs_do_not_depend_on_how_many_follow(few: int) -> None:
    few_graphs, many = generate("gen-reg", few, seed=4), generate("gen-reg", 300, seed=4)
    prefix = many.first(few)
    assert many.num_graphs == 300
    assert few_graphs.num_graphs == few
    for name in ("x", "edge_index", "batch", "y"):
        assert torch.equal(getattr(few_graphs, name), getattr(prefix, name))


def test_both_sets_share_their_graphs_and_differ_in_labels() -> None:
    regression, classes = generate("gen-reg", 3), generate("gen-cls", 3)
    assert torch.equal(regression.edge_index, classes.edge_index)


def test_chunks_join_to_the_whole(capfd: pytest.CaptureFixture[str]) -> None:
    parts = [chunk.draw() for chunk in reversed(chunks_of("gen-reg", 260))]
    assert [part.num_graphs for part in parts] == [4, 256]
    whole = generate("gen-reg", 260, progress=True)
    assert torch.equal(torch.cat([part.x for part in reversed(parts)]), whole.x)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("name", graphon.NAMES)
def test_labels_do_not_depend_on_how_many_threads_torch_has(name: str) -> None:
    (chunk,) = chunks_of(name, 40)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(chunk.draw().y)
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        ({"name": "gen-rag"}, "unknown generated data set 'gen-rag'.*gen-reg or gen-cls"),
        ({"num_graphs": 0}, "num_graphs=0"),
        ({"num_graphs": -5}, "num_graphs=-5"),
        ({"seed": -1}, "seed=-1"),
        ({"family": 13}, "unknown graphon family 13: choose 0 to 12"),
        ({"family": -1}, "unknown graphon family -1"),
        ({"resolution": 0}, "resolution=0"),
    ],
)
def test_bad_arguments_are_named(arguments: dict, culprit: str) -> None:
    with pytest.raises(InputError, match=culprit):
        generate(**{"name": "gen-reg", **arguments})
