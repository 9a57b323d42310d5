"""What may not be packed: one case each, and the message names the culprit."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from grant_fast import FlexConv, InputError, PackedGraphs, native
from grant_fast.batches.layout import PackedCSR, places_of
from grant_fast.graphs.packing import all_finite

GOOD = {
    "x": torch.zeros(4, 2),
    "edge_index": torch.tensor([[0, 1], [1, 0]]),
    "batch": torch.tensor([0, 0, 1, 1]),
    "y": torch.zeros(2),
}


def pack(**changes) -> PackedGraphs:
    return PackedGraphs.from_arrays(**{**GOOD, **changes})


NAN_X = torch.zeros(4, 2)
NAN_X[2, 1] = float("nan")


def test_arrays_may_be_of_any_make():
    objects = np.array([1.5, 2], dtype=object)
    for y in (objects, objects[::-1][::-1], np.array([1.5, 2], dtype=">f4"), [1.5, 2]):
        graphs = pack(y=y)
        assert graphs.y.tolist() == [[1.5], [2]] and graphs.y.dtype == torch.float32
        graphs.y = y
        assert graphs.y.tolist() == [[1.5], [2]]
    edges = np.array([[0, 1], [1, 0]])
    for edge_index in (edges.astype(">i4"), edges[:, ::-1], edges.astype(object)):
        assert pack(edge_index=edge_index).adj.col.tolist() == [1, 0]


BAD = [
    ({"x": torch.zeros(2, 2, 2)}, r"x has shape \(2, 2, 2\)"),
    ({"x": NAN_X}, "x is nan at node 2, column 1"),
    ({"x": -1 / torch.zeros(4, 2)}, "x is -inf at node 0, column 0"),
    ({"x": torch.zeros(4, 2, dtype=torch.complex64)}, "x is complex"),
    ({"x": torch.zeros(4, 2).to_sparse()}, "x is a sparse tensor: give a dense one"),
    ({"x": "carbon"}, "x is not an array of numbers"),
    ({"x": [[1, 2], [3]]}, "x is not an array of numbers: .* inhomogeneous shape"),
    ({"y": [1.0, None]}, r"y is not an array of numbers: None is at \[1\]; give .* NaN for what"),
    ({"y": [["a", "b"], [1, 2]]}, r"y is not an array of numbers: 'a' is at \[0, 0\]"),
    ({"x": np.array([[2**63]] * 4, dtype=np.uint64)}, r"x has numbers of 2\^63 or more"),
    ({"y": torch.zeros(2, dtype=torch.complex64)}, "y is complex: give real numbers"),
    ({"edge_weight": np.array([3 + 4j, 1])}, "edge_weight is complex"),
    ({"edge_index": GOOD["edge_index"] + 0j}, "edge_index is complex"),
    ({"batch": GOOD["batch"] + 0j}, "batch is complex"),
    ({"y": torch.tensor([0, -100])}, "y is -100 at graph 1: .*pass missing_labels=True if -100"),
    ({"edge_index": torch.tensor([[0], [4]])}, "edge 0 is 0 → 4, but nodes run from 0 to 3"),
    ({"edge_index": torch.tensor([[0, -1], [1, 0]])}, "edge 1 is -1 → 0"),
    ({"edge_index": torch.zeros(3, 2).long()}, r"edge_index has shape \(3, 2\)"),
    ({"edge_index": torch.zeros(2, 2)}, r"edge_index is torch\.float32"),
    (
        {"edge_index": torch.tensor([[1], [2]])},
        "edge 0 joins node 1 of graph 0 to node 2 of graph 1",
    ),
    ({"batch": torch.zeros(3).long()}, r"batch has shape \(3,\)"),
    ({"batch": torch.zeros(4)}, r"batch .* torch\.float32"),
    ({"batch": torch.tensor([0, 1, 0, 1])}, "batch goes down from 1 to 0 at node 2"),
    ({"batch": torch.tensor([-1, 0, 0, 1])}, "batch names graph -1"),
    ({"num_graphs": -1}, "num_graphs=-1: give a whole number of at least 0"),
    ({"x": np.full((4, 2), 1e300)}, "x is inf at node 0, column 0"),  # it overflows float32
    ({"edge_weight": np.full(2, 1e300)}, "edge_weight is inf at edge 0"),
    ({"y_level": "edge"}, "unknown y_level 'edge'"),
    ({"num_graphs": 1, "y": torch.zeros(1)}, "batch names graph 1, but num_graphs is 1"),
    ({"y": torch.zeros(3)}, "y has shape .* one row for each of the 2 graphs"),
    ({"batch": range(4), "y": torch.zeros(5)}, "y has shape .* one row for each of the 4 graphs"),
    ({"y": torch.zeros(2, 1, 1)}, "y has shape"),
    ({"y": torch.tensor([0.0, float("nan")])}, "y is nan at graph 1, column 0.*missing_labels"),
    ({"y": torch.tensor([0.0, float("inf")])}, "y is inf at graph 1"),
    ({"y": torch.full((4, 1), -float("inf"))}, "y is -inf at node 0"),
    ({"y": torch.tensor([0, -2])}, "y is -2 at graph 1: classes count from 0"),
    ({"edge_weight": torch.ones(3)}, r"edge_weight has shape \(3,\) for 2 edges"),
    ({"edge_weight": torch.tensor([1.0, float("nan")])}, "edge_weight is nan at edge 1"),
]


@pytest.mark.parametrize(("changes", "message"), BAD, ids=[m for _, m in BAD])
def test_bad_input_names_the_culprit(changes, message):
    with pytest.raises(InputError, match=message):
        pack(**changes)


def test_missing_labels_must_be_meant():
    y = torch.tensor([[1.0, float("nan")], [0.0, 1.0]])
    assert torch.isnan(pack(y=y, missing_labels=True).y[0, 1])
    with pytest.raises(InputError, match="no label at all"):
        pack(y=torch.full((2, 1), float("nan")), missing_labels=True)
    with pytest.raises(InputError, match="inf at graph 0"):
        pack(y=1 / torch.zeros(2), missing_labels=True)


def test_weights_that_differ_with_the_direction_are_kept_for_both():
    x, edges, weight = torch.randn(2, 3), torch.tensor([[0, 1], [1, 0]]), torch.tensor([5.0, 2.0])
    graphs = PackedGraphs.from_arrays(x, edges, [0, 0], edge_weight=weight)
    assert not graphs.is_symmetric
    conv = FlexConv(3, 4, order=3, normalize=False)
    grads = []
    for given in ((edges, weight), (graphs.batch([0]).adjacency(False),)):
        leaf = x.clone().requires_grad_()
        out = conv(leaf, *given) * torch.arange(8.0).view(2, 4)
        grads += torch.autograd.grad(out.sum(), leaf)
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("compiled", [True, False])
def test_repeated_edges_have_one_order_however_they_are_listed(compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(native, "sort_edges", lambda *_: None)
    source, target = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2, 2], [1, 1, 1, 0, 0, 3, 3, 2, 2]])
    weight = torch.tensor([3.0, 1, 2, 5, 4, 1, 0, 7, 6])
    edges = torch.stack([torch.cat([source, target]), torch.cat([target, source])])
    weight = torch.cat([weight, weight])
    for _ in range(5):
        order = torch.randperm(len(weight))
        packed = pack(edge_index=edges[:, order], edge_weight=weight[order])
        assert packed.is_symmetric
        assert packed.adj.rowptr.tolist() == [0, 5, 10, 16, 18]
        assert packed.adj.col.tolist() == [1] * 5 + [0] * 5 + [0] * 4 + [1] * 2 + [0] * 2
        assert packed.adj.weight.tolist() == [1, 2, 3, 4, 5] * 2 + [6, 6, 7, 7, 0, 1, 0, 1]


@pytest.mark.skipif(native.why_not(torch.zeros(1, 1)) is not None, reason="no CPU kernels")
def test_weights_of_edges_that_are_listed_once_are_not_sorted(monkeypatch):
    for sort in ("argsort", "lexsort", "sort"):
        monkeypatch.setattr(np, sort, None)
    packed = pack(edge_weight=torch.tensor([2.0, 1.0]))
    assert packed.adj.weight.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_found_wherever_it_is(size, value):
    x = torch.rand(size, 3)
    assert all_finite(x) and all_finite(x[:0])
    for place in {0, size // 3, size - 1}:
        broken = x.clone()
        broken[place, 1] = value
        assert not all_finite(broken)


def test_level_is_inferred_or_asked_for():
    assert pack(y=torch.zeros(4)).y_level == "node"
    assert pack().y_level == "graph"
    single = {"batch": torch.arange(4), "edge_index": torch.empty(2, 0), "y": torch.zeros(4)}
    with pytest.raises(InputError, match="both graphs and nodes"):
        pack(**single)
    assert pack(**single, y_level="node").y_level == "node"


@pytest.mark.parametrize(
    ("y", "dtype", "shape"),
    [
        (torch.zeros(2), torch.float32, (2, 1)),
        (torch.zeros(2, 3, dtype=torch.float64), torch.float32, (2, 3)),
        (np.zeros(2), torch.float32, (2, 1)),
        ([0, 1], torch.int64, (2,)),
        (torch.tensor([[0], [1]]), torch.float32, (2, 1)),
        (torch.zeros(2, 3).long(), torch.float32, (2, 3)),
        (torch.tensor([True, False]), torch.float32, (2, 1)),
    ],
)
def test_targets_have_one_dtype_a_meaning(y, dtype, shape):
    packed = pack(y=y).y
    assert (packed.dtype, tuple(packed.shape)) == (dtype, shape)


@pytest.mark.parametrize(
    ("x", "dtype"),
    [
        (np.zeros((4, 2)), torch.float32),
        (torch.tensor([0, 1, 2, 255]), torch.uint8),
        (torch.tensor([-1, 0, 0, 127]), torch.int8),
        (torch.tensor([0, 256, 0, 0]), torch.int16),
        (torch.tensor([0, 1 << 20, 0, 0]), torch.int32),
        (torch.tensor([0, 1 << 40, 0, 0]), torch.int64),
        (torch.tensor([True, False, True, True]), torch.uint8),
        (np.array([0, 1, 2, 60000], dtype=np.uint16), torch.int32),
        (np.array([0, 1, 2, 1 << 31], dtype=np.uint32), torch.int64),
        (np.array([0, 1, 2, 3], dtype=np.uint64), torch.uint8),
        (np.arange(8.0).reshape(4, 2)[::-1], torch.float32),
    ],
)
def test_features_take_the_narrowest_dtype(x, dtype):
    packed = pack(x=x).x
    assert packed.dtype == dtype
    assert packed.dim() == 2
    assert np.array_equal(packed.double().numpy(), np.asarray(x, dtype=float).reshape(4, -1))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_numbers_without_a_sign_are_taken_everywhere(dtype):
    given = {"edge_index": [[0, 1, 2], [1, 0, 3]], "batch": [0, 0, 1, 1], "y": [1, 0]}
    plain, other = pack(**given), pack(**{name: np.array(a, dtype) for name, a in given.items()})
    assert torch.equal(other.ptr, plain.ptr) and torch.equal(other.y, plain.y)
    assert other.adj.col.tolist() == plain.adj.col.tolist() == [1, 0, 0]  # within each graph


def test_only_100_below_zero_is_a_missing_class():
    y = torch.tensor([-100, 1])
    assert torch.equal(pack(y=y, missing_labels=True).y, y)
    with pytest.raises(InputError, match="y is -5 at graph 1"):
        pack(y=torch.tensor([-100, -5]), missing_labels=True)


def test_100_below_zero_is_a_missing_label_of_two_classes_and_else_a_number():
    y = torch.tensor([[0, -100], [1, 0]])
    labels = pack(y=y, missing_labels=True).y
    assert labels.isnan().tolist() == [[False, True], [False, False]] and labels[1, 0] == 1
    for dtype, low in ((torch.int64, -100), (torch.uint8, 156)):
        degrees = torch.tensor([[low], [37]], dtype=dtype)
        assert torch.equal(pack(y=degrees, missing_labels=True).y, degrees.float())


@pytest.mark.parametrize("y", [torch.tensor([0.5, 2.0]), torch.tensor([0, 1])])
def test_what_is_written_outside_of_a_dataset_does_not_change_it(y):
    x = torch.arange(8.0).reshape(4, 2)
    graphs = pack(x=x, y=y)
    before = graphs.x.clone(), graphs.y.clone()
    x.zero_()
    y.zero_()
    graphs.batch([0, 1]).y.zero_()
    graphs[1].y.zero_()
    assert torch.equal(graphs.x, before[0]) and torch.equal(graphs.y, before[1])


def test_pygs_own_tensors_are_packed_as_what_they_hold():
    pyg = pytest.importorskip("torch_geometric")
    edges = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
    plain = pack(edge_index=edges)
    found = pack(
        edge_index=pyg.EdgeIndex(edges, sparse_size=(4, 4)),
        batch=pyg.Index([0, 0, 1, 1], dim_size=2, is_sorted=True),
    )
    assert torch.equal(found.adj.col, plain.adj.col) and torch.equal(found.ptr, plain.ptr)


def test_places_of_very_many_edges_are_not_negative():
    places = torch.tensor([2**31 - 1, -(2**31), 1 - 2**31], dtype=torch.int32)  # of 2^31, 2^31 + 1
    csr = PackedCSR(places, places, places.view(torch.float32))
    assert places_of(csr).tolist() == [2**31 - 1, 2**31, 2**31 + 1]


def test_nothing_at_all_can_be_packed():
    empty = PackedGraphs.from_arrays(torch.zeros(0, 3), torch.empty(2, 0), torch.empty(0).long())
    assert (len(empty), empty.num_nodes, empty.num_edges) == (0, 0, 0)
    only_empty = PackedGraphs.from_arrays(
        torch.zeros(0, 3), torch.empty(2, 0), torch.empty(0).long(), num_graphs=3
    )
    assert only_empty.num_nodes_per_graph.tolist() == [0, 0, 0]
    assert only_empty.batch([2, 0]).edge_index.shape == (2, 0)


@pytest.mark.parametrize("whole", [False, True])
def test_labels_that_float32_rounds_away_are_refused(whole):
    """However they are packed; of what is not measured nothing is said."""
    y = torch.tensor([[-272114.00, 1e9], [torch.nan, 2e9], [-272114.02, 3e9]], dtype=torch.float64)
    x, edges, batch = torch.ones(3, 2), torch.empty(2, 0, dtype=torch.long), torch.arange(3)
    if whole:
        y = torch.tensor([[10**9, 1], [10**9 + 7, 2], [10**9 + 9, 3]])
    graphs = [SimpleNamespace(x=x[:1], edge_index=edges, y=row[None]) for row in y.double()]
    settings = {"missing_labels": True, "y_level": "graph"}
    says = r"column 0 of y varies too little .* subtract its mean, some (-272114|1e\+09),"
    with pytest.raises(InputError, match=says):
        PackedGraphs.from_arrays(x, edges, batch, y, **settings)
    with pytest.raises(InputError, match=says):
        PackedGraphs.from_data_list(graphs, y_level="graph")
    found = PackedGraphs.from_arrays(x, edges, batch, y - y[0], **settings)
    assert found.y is not None and not found.y.nan_to_num(1)[1:].eq(0).any()
    single = y.float() if not whole else y[:, 1:].float()  # what was rounded before
    PackedGraphs.from_arrays(x, edges, batch, single, **settings)
