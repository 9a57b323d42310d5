"""Graphs from PyG objects and their like."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from grant_fast import PackedGraphs
from grant_fast.data.pyg import from_data_list, from_dataset
from grant_fast.errors import InputError


def graph(nodes: int = 2, **changes: Any) -> SimpleNamespace:
    """A little graph in which every node points to the first one."""
    fields: dict[str, Any] = {
        "x": torch.arange(nodes * 3.0).reshape(nodes, 3),
        "edge_index": torch.stack((torch.arange(nodes), torch.zeros(nodes, dtype=torch.int64))),
        "y": torch.tensor([[float(nodes)]]),
        "num_nodes": nodes,
    }
    fields.update(changes)
    return SimpleNamespace(**{name: value for name, value in fields.items() if value is not None})


def test_graphs_are_numbered_through() -> None:
    packed = from_data_list([graph(2), graph(0), graph(1), graph(3)])
    assert packed.num_graphs == 4
    assert packed.batch.tolist() == [0, 0, 2, 3, 3, 3]
    assert packed.edge_index.tolist() == [[0, 1, 2, 3, 4, 5], [0, 0, 2, 3, 3, 3]]
    assert packed.y is not None
    assert packed.y.tolist() == [[2.0], [0.0], [1.0], [3.0]]
    assert (packed.y_level, packed.edge_weight) == ("graph", None)
    assert packed.x.dtype == torch.float32


def test_repeated_directed_and_weighted_edges_are_kept() -> None:
    edges = torch.tensor([[1, 1, 0], [0, 0, 0]], dtype=torch.int32)
    weights = torch.tensor([[0.5], [-2.0], [0.0]], dtype=torch.float64)
    packed = from_data_list([graph(2, edge_index=edges, edge_weight=weights)] * 2)
    assert packed.edge_index.tolist() == [[1, 1, 0, 3, 3, 2], [0, 0, 0, 2, 2, 2]]
    assert packed.edge_index.dtype == torch.int64
    assert packed.edge_weight is not None
    assert packed.edge_weight.tolist() == [0.5, -2.0, 0.0] * 2
    assert packed.edge_weight.dtype == torch.float32


def test_targets_of_nodes_are_recognised_by_their_rows() -> None:
    graphs = [graph(n, y=torch.arange(n * 2.0).reshape(n, 2)) for n in (1, 3, 0)]
    packed = from_data_list(graphs)
    assert packed.y_level == "node"
    assert packed.y is not None
    assert packed.y.shape == (4, 2)


def test_level_can_be_said_where_rows_do_not_tell() -> None:
    graphs = [graph(1), graph(1)]
    assert from_data_list(graphs).y_level == "graph"
    assert from_data_list(graphs, y_level="node").y_level == "node"


@pytest.mark.parametrize(
    ("y", "dtype", "shape"),
    [
        (2.5, torch.float32, (2, 1)),
        (torch.tensor([2.5], dtype=torch.float64), torch.float32, (2, 1)),
        (torch.tensor([3]), torch.int64, (2,)),
        (4, torch.int64, (2,)),
        (torch.tensor([[0, 1, 1]]), torch.float32, (2, 3)),
        (np.array([[1.0, np.nan]]), torch.float32, (2, 2)),
        (torch.tensor([True]), torch.float32, (2, 1)),
    ],
)
def test_forms_of_targets(y: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    packed = from_data_list([graph(2, y=y), graph(3, y=y)])
    assert packed.y is not None
    assert packed.y.dtype == dtype
    assert packed.y.shape == shape


def test_graphs_without_targets_have_none() -> None:
    assert from_data_list([graph(2, y=None)]).y is None


def test_numpy_arrays_and_dictionaries_will_do() -> None:
    as_dict = {"x": np.ones((2, 1)), "edge_index": np.array([[0], [1]])}
    packed = from_data_list([as_dict, as_dict])
    assert packed.edge_index.tolist() == [[0, 2], [1, 3]]


def test_a_dictionary_may_be_filled_anew_for_each_graph() -> None:
    def reused() -> Any:
        fields: dict[str, Any] = {}
        for i in range(3):
            fields.update(x=torch.full((1, 1), float(i)), edge_index=torch.zeros(2, 0).long())
            yield fields

    assert from_data_list(reused()).x.tolist() == [[0.0], [1.0], [2.0]]


def test_graphs_may_differ_in_how_their_numbers_are_stored() -> None:
    weights = (torch.tensor([2049, 1]), torch.tensor([0.5, 1.5], dtype=torch.float16))
    packed = from_data_list([graph(2, edge_weight=weight) for weight in weights])
    assert packed.edge_weight is not None
    assert packed.edge_weight.tolist() == [2049.0, 1.0, 0.5, 1.5]
    classes = (torch.tensor([3], dtype=torch.uint16), torch.tensor([2]))
    packed = from_data_list([graph(2, y=y) for y in classes])
    assert packed.y is not None and packed.y.tolist() == [3, 2]


def test_arrays_may_lie_backwards_or_in_another_byte_order() -> None:
    edges = np.array([[1, 0], [0, 1]])
    for array in (edges[::-1], edges.astype(">i8")):
        packed = from_data_list([{**vars(graph(2)), "edge_index": array}])
        assert packed.edge_index.tolist() == array.tolist()


def test_graph_without_edges_may_have_an_untyped_edge_index() -> None:
    assert from_data_list([graph(1, edge_index=torch.empty(2, 0))]).edge_index.shape == (2, 0)


def test_integer_features_stay_integers() -> None:
    packed = from_data_list([graph(2, x=torch.tensor([[1], [300]]))])
    assert packed.x.tolist() == [[1], [300]]
    assert not packed.x.is_floating_point()


def test_what_a_class_of_pygs_data_answers_itself_is_heeded() -> None:
    pyg = pytest.importorskip("torch_geometric.data")

    class Doubled(pyg.Data):
        @property
        def edge_weight(self) -> torch.Tensor:
            return 2 * torch.ones(self.edge_index.shape[1])

    plain = vars(graph(3))
    doubled = from_data_list([Doubled(**plain)] * 2)
    assert doubled.edge_weight is not None and doubled.edge_weight.tolist() == [2.0] * 6
    without = from_data_list([pyg.Data(**plain)] * 2)
    assert without.edge_weight is None and torch.equal(without.x, doubled.x)


def test_a_data_set_that_streams_is_a_list_of_graphs() -> None:
    class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            return iter([graph(2), graph(1)])

    assert from_data_list(Stream()).batch.tolist() == [0, 0, 1]


def test_graphs_of_several_types_are_made_homogeneous_first() -> None:
    data = pytest.importorskip("torch_geometric.data")
    mixed = data.HeteroData(y=torch.tensor([0.5]))
    mixed["atom"].x, mixed["ring"].x = torch.ones(2, 3), torch.zeros(1, 3)
    mixed["atom", "in", "ring"].edge_index = torch.tensor([[0, 1], [0, 0]])
    with pytest.raises(InputError, match=r"graph 0 is a HeteroData.*data\.to_homogeneous\(\)"):
        from_data_list([mixed])
    assert from_data_list([mixed.to_homogeneous()]).edge_index.tolist() == [[0, 1], [2, 2]]


def test_ogbs_pairs_of_graph_and_label() -> None:
    molecule = {
        "node_feat": np.array([[5, 0], [7, 1]]),
        "edge_index": np.array([[0, 1], [1, 0]]),
        "edge_feat": np.array([[0, 1, 0], [3, 0, 1]]),
        "num_nodes": 2,
    }
    packed = from_dataset([(molecule, np.array([1, 0])), (molecule, np.array([0, 1]))])
    assert packed.x.tolist() == [[5, 0], [7, 1]] * 2
    assert packed.y is not None and packed.edge_attr is not None
    assert packed.edge_attr.tolist() == [[0, 1, 0], [3, 0, 1]] * 2
    assert packed.y.tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_features_of_edges_are_those_of_all_graphs_and_each_edge() -> None:
    bonds = graph(2, edge_attr=torch.ones(2, 3))
    assert from_data_list([bonds, bonds]).edge_attr.tolist() == [[1.0] * 3] * 4  # type: ignore[union-attr]
    with pytest.raises(InputError, match="graph 1 has edge_attr, unlike graph 0"):
        from_data_list([graph(2), bonds])
    with pytest.raises(
        InputError, match=r"graph 1: edge_attr has shape \[3, 3\].* its 2 edges, or"
    ):
        from_data_list([bonds, graph(2, edge_attr=torch.ones(3, 3))])
    with pytest.raises(InputError, match="graph 1: edge_attr has 2 columns and graph 0 has 3"):
        from_data_list([bonds, graph(2, edge_attr=torch.ones(2, 2))])
    lone = graph(1, edge_index=torch.empty(2, 0, dtype=torch.long), edge_attr=torch.tensor([]))
    assert from_data_list([lone, bonds, lone]).edge_attr.shape == (2, 3)  # type: ignore[union-attr]
    flat, column = graph(2, edge_attr=torch.ones(2)), graph(2, edge_attr=torch.ones(2, 1))
    assert from_data_list([flat, column]).edge_attr.shape == (4,)  # type: ignore[union-attr]
    assert from_data_list([column, flat]).edge_attr.shape == (4, 1)  # type: ignore[union-attr]
    with pytest.raises(InputError, match=r"graph 1: edge_attr is NaN .* or set it to None"):
        from_data_list([bonds, graph(2, edge_attr=torch.full((2, 3), torch.nan))])


@pytest.mark.parametrize("make", [PackedGraphs.from_data_list, PackedGraphs.from_dataset])
def test_what_is_left_out_is_said_once_and_of_the_call(make: Any) -> None:
    masked = graph(2, y=torch.tensor([0, 1]), train_mask=torch.tensor([True, False]))
    plain = graph(2, y=torch.tensor([0, 1]))
    with pytest.warns(UserWarning, match="graph 1 has train_mask, which is left out") as caught:
        make([plain, masked, masked])
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("make", [PackedGraphs.from_data_list, PackedGraphs.from_dataset])
def test_a_mask_of_nodes_says_nothing_of_graphs_with_targets(make: Any) -> None:
    mask = torch.tensor([True, False, True])
    graphs = make([graph(3, y=torch.tensor([[1.0]]), train_mask=mask)] * 2)
    assert graphs.y_level == "graph"


def test_types_of_edges_are_left_out_with_a_warning() -> None:
    related = graph(2, edge_type=torch.tensor([0, 0]))
    from_data_list([related])  # of one type, nothing is lost
    related.edge_type[1] = 1
    with pytest.warns(
        UserWarning, match="graph 0 has edge_type, which is left out: if types matter"
    ):
        from_data_list([related])


def test_train_mask_is_left_out_with_a_warning_since_all_labels_would_be_trained_on() -> None:
    masked = graph(2, y=torch.tensor([0, 1]), train_mask=torch.tensor([True, False]))
    with pytest.warns(UserWarning, match=r"graph 0 has train_mask, .* missing_labels=True, or"):
        from_data_list([masked])
    y = masked.y.where(masked.train_mask, -100)  # as the warning says
    graphs = [graph(2, y=y, train_mask=masked.train_mask)]
    packed = PackedGraphs.from_data_list(graphs, y_level="node", missing_labels=True)
    assert packed.y is not None
    assert packed.y.tolist() == [0, -100]


@pytest.mark.parametrize(
    ("changes", "culprit"),
    [
        ({"x": None}, "graph 1 has no x"),
        ({"x": "text"}, "graph 1: x is a str"),
        ({"x": torch.ones(2)}, r"graph 1: x has shape \[2\]"),
        ({"x": torch.ones(2, 4)}, "graph 1: x has 4 columns and graph 0 has 3"),
        ({"x": torch.ones(2, 3).long()}, "graph 1: x is torch.int64 and graph 0 has torch.float32"),
        ({"x": torch.ones(2, 3) + 1j}, "graph 1: x is complex"),
        ({"x": torch.ones(2, 3).to_sparse()}, "graph 1: x is a sparse tensor: give a dense one"),
        ({"x": torch.tensor([[0.0] * 3, [0, float("nan"), 0]])}, "graph 1: x is NaN .* at node 1"),
        ({"x": torch.full((2, 3), 1e300, dtype=torch.float64)}, "graph 1: x is .* at node 0"),
        ({"num_nodes": 5}, "graph 1: x has 2 rows and num_nodes is 5"),
        ({"num_nodes": 1}, "graph 1: x has 2 rows and num_nodes is 1"),
        ({"edge_index": None}, "graph 1 has no edge_index"),
        ({"edge_index": torch.ones(3, 2).long()}, r"graph 1: edge_index has shape \[3, 2\]"),
        ({"edge_index": torch.zeros(2, 1)}, "graph 1: edge_index is torch.float32: give int64"),
        ({"edge_index": torch.tensor([[0], [2]])}, "graph 1: edge_index names node 2 of 2"),
        ({"edge_index": torch.tensor([[-1], [0]])}, "graph 1: edge_index names node -1 of 2"),
        ({"y": None}, "graph 1 lacks y, unlike graph 0"),
        ({"y": torch.ones(1, 2)}, "graph 1: y has 2 columns and graph 0 has 1"),
        ({"y": torch.tensor([[float("inf")]])}, "graph 1: y is infinite"),
        ({"y": torch.ones(1, 1, 1)}, r"graph 1: y has shape \[1, 1, 1\]"),
        ({"y": torch.tensor([1])}, "graph 1: y"),
        ({"edge_weight": torch.ones(2)}, "graph 1 has edge_weight, unlike graph 0"),
    ],
)
def test_a_bad_graph_is_named_with_its_attribute(changes: dict, culprit: str) -> None:
    with pytest.raises(InputError, match=culprit):
        from_data_list([graph(2), graph(2, **changes), graph(2)])


@pytest.mark.parametrize(
    ("weight", "culprit"),
    [
        (torch.ones(3), r"graph 0: edge_weight has shape \[3\]: give \[2\]"),
        (
            torch.tensor([1.0, float("nan")]),
            "graph 0: edge_weight is NaN or infinite, in float32, at edge 1",
        ),
    ],
)
def test_bad_edge_weights_are_named(weight: torch.Tensor, culprit: str) -> None:
    with pytest.raises(InputError, match=culprit):
        from_data_list([graph(2, edge_weight=weight)])


def test_rows_of_targets_must_fit_the_level() -> None:
    graphs = [graph(3, y=torch.ones(3, 1)), graph(3, y=torch.ones(2, 1))]
    with pytest.raises(InputError, match="graph 1: y has 2 rows where the node level needs 3"):
        from_data_list(graphs)
    with pytest.raises(InputError, match="graph 0: y has 3 rows where the graph level needs 1"):
        from_data_list(graphs, y_level="graph")


def test_the_odd_graph_among_many_is_the_one_named() -> None:
    graphs = [graph(3, y=torch.ones(rows, 1)) for rows in (1, 1, 2, 1)]
    with pytest.raises(InputError, match="graph 2: y has 2 rows where the graph level needs 1"):
        from_data_list(graphs)


@pytest.mark.parametrize("level", [None, "graph"])
def test_targets_of_a_graph_need_a_row(level: Any) -> None:
    graphs = [graph(n, y=torch.ones(3)) for n in (2, 4)]
    with pytest.raises(InputError, match=r"3 targets of a graph are y of shape \[1, 3\]"):
        from_data_list(graphs, y_level=level)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (None, "None is not a list of graphs: give PyG's Data"),
        ("MUTAG", "'MUTAG' is not a list of graphs"),
        ([graph(2), None], "graph 1 is None: give PyG's Data"),
        (["MUTAG"], "graph 0 is 'MUTAG': give PyG's Data"),
    ],
)
def test_what_is_no_list_of_graphs_is_named(wrong: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_data_list(wrong)


def test_one_graph_or_a_batch_is_no_list() -> None:
    graph = SimpleNamespace(x=torch.ones(2, 1), edge_index=torch.zeros(2, 0, dtype=torch.long))
    with pytest.raises(InputError, match=r"SimpleNamespace is not a list of graphs: give \[data\]"):
        from_data_list(graph)
    graph.to_data_list = list
    with pytest.raises(InputError, match=r"give a_batch\.to_data_list\(\)"):
        from_data_list(graph)


def test_integer_and_real_targets_side_by_side_are_named() -> None:
    edges = torch.zeros(2, 0, dtype=torch.long)
    graphs = [
        SimpleNamespace(x=torch.ones(1, 1), edge_index=edges, y=torch.tensor([y])) for y in (1, 0.5)
    ]
    with pytest.raises(InputError, match=r"graph 1: y is torch\.float32 and graph 0 .*int64"):
        from_data_list(graphs)


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(InputError, match="the list of graphs is empty"):
        from_data_list([])


def test_what_has_no_length_is_refused() -> None:
    with pytest.raises(InputError, match="a generator has no length"):
        from_dataset(graph(n) for n in range(3))
    with pytest.raises(InputError, match="a DataLoader has no positions: give a data set"):
        from_dataset(torch.utils.data.DataLoader([graph(n) for n in range(3)]))


def test_batches_are_not_taken_for_graphs() -> None:
    batch = SimpleNamespace(x=torch.ones(4, 1), edge_index=torch.zeros(2, 0).long(), num_graphs=3)
    with pytest.raises(InputError, match="graph 1 is a SimpleNamespace of 3 graphs: give the gra"):
        from_data_list([graph(2), batch])


def test_graphs_in_tuples_are_named() -> None:
    for strange in ((graph(2), 1.0), (graph(2), 0, 1)):
        with pytest.raises(InputError, match="graph 0 is a tuple: give only the Data, with its y"):
            from_data_list([strange])


def test_an_adjacency_of_pygs_is_named() -> None:
    sparse = SimpleNamespace(x=torch.ones(2, 1), adj_t=torch.eye(2))
    with pytest.raises(InputError, match=r"graph 0 has adj_t .*drop ToSparseTensor"):
        from_data_list([sparse])


def test_a_series_of_graphs_need_only_give_them_by_number() -> None:
    class Series:
        def __getitem__(self, index: int) -> Any:
            return [graph(2), graph(3)][index]

    assert PackedGraphs.from_data_list(Series()).num_nodes == 5
    for wrong in ("graphs", 3, None):
        with pytest.raises(InputError, match="is not a list of graphs: give PyG's Data objects"):
            PackedGraphs.from_data_list(wrong)
