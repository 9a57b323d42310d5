"""Data sets that PyG holds in memory are packed as their graphs, one by one, would be."""

import copy
import warnings
from typing import Any

import pytest
import torch
from torch.utils.data import Subset

from grant_fast import PackedGraphs
from grant_fast.data.pyg import from_data_list, from_dataset
from grant_fast.data.pyg_stored import stored_rows
from grant_fast.errors import InputError

data = pytest.importorskip("torch_geometric.data")
SIZES = (3, 1, 0, 5, 2)


class InMemory(data.InMemoryDataset):  # type: ignore[name-defined, misc]
    def __init__(self, graphs: list[Any], transform: Any = None) -> None:
        super().__init__(None, transform)
        self.data, self.slices = self.collate(graphs)


def graphs(**changes: Any) -> list[Any]:
    """Graphs of `SIZES` nodes; `changes` make what each has of its number of nodes and edges."""
    draw, out = torch.Generator().manual_seed(0), []
    for nodes in SIZES:
        edges = 2 * nodes
        made = {name: make(nodes, edges) for name, make in changes.items()}
        edge_index = torch.randint(max(nodes, 1), (2, edges), generator=draw)
        given = {"x": torch.randn(nodes, 3, generator=draw), "edge_index": edge_index, **made}
        out.append(data.Data(**given))
    return out


def assert_same(dataset: Any) -> None:
    assert stored_rows(dataset) is not None
    found = from_dataset(dataset)
    one_by_one = from_data_list([dataset[i] for i in range(len(dataset))])
    for name, expected in vars(one_by_one).items():
        value = getattr(found, name)
        if isinstance(expected, torch.Tensor):
            assert value.dtype == expected.dtype, name
            torch.testing.assert_close(value, expected, rtol=0, atol=0, equal_nan=True)
        else:
            assert value == expected, name


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"x": lambda n, _: torch.arange(2 * n).reshape(n, 2)},
        {"x": lambda n, _: torch.ones(n, 1, dtype=torch.float64)},
        {"edge_index": lambda n, e: torch.zeros(2, e if n else 0, dtype=torch.int32)},
        {"y": lambda *_: torch.rand(1)},
        {"y": lambda *_: torch.rand(1, 4)},
        {"y": lambda *_: torch.tensor([[float("nan"), 1.0]])},
        {"y": lambda n, _: torch.tensor(n)},
        {"y": lambda n, _: torch.tensor([n])},
        {"y": lambda n, _: torch.tensor([[n, 2]])},
        {"y": lambda n, _: n},
        {"y": lambda n, _: torch.arange(n)},
        {"y": lambda n, _: torch.ones(n, 2)},
        {"edge_weight": lambda _, e: torch.rand(e)},
        {"edge_attr": lambda _, e: torch.rand(e, 2), "edge_weight": lambda _, e: torch.rand(e)},
        {"edge_attr": lambda _, e: torch.arange(e)},
        {"edge_weight": lambda _, e: torch.arange(e)[:, None]},
        {"num_nodes": lambda n, _: n},
        {"pos": lambda n, _: torch.rand(n, 3), "name": lambda n, _: f"graph of {n}"},
    ],
)
def test_packed_as_its_graphs_are(changes: dict[str, Any]) -> None:
    assert_same(InMemory(graphs(**changes)))


def test_parts_keep_their_order() -> None:
    dataset = InMemory(graphs(y=lambda n, _: torch.tensor([n])))
    for part in (dataset[1:4], dataset[[3, 0, 3]], dataset[torch.tensor([4, 1])]):
        assert_same(part)
        assert_same(Subset(part, [1, 0, -1]))
        assert_same(Subset(Subset(part, [1, 0]), [1, 1]))


def test_no_graph_is_made() -> None:
    dataset = InMemory(graphs())
    from_dataset(dataset)
    assert dataset._data_list is None


def test_what_is_packed_is_apart_from_the_data_set() -> None:
    dataset = InMemory(graphs(y=lambda *_: torch.ones(1, 1)))
    packed = PackedGraphs.from_dataset(dataset)
    before = copy.deepcopy((packed.x, packed.y))
    dataset._data.x.zero_()
    dataset._data.y.zero_()
    for found, expected in zip((packed.x, packed.y), before, strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("make", [PackedGraphs.from_data_list, PackedGraphs.from_dataset])
def test_a_data_set_is_a_list_of_graphs_and_says_what_it_leaves_out(make: Any) -> None:
    dataset = InMemory(graphs(train_mask=lambda n, _: torch.ones(n, dtype=torch.bool)))
    with pytest.warns(UserWarning, match="graph 0 has train_mask, which is left out") as caught:
        assert make(dataset).num_graphs == len(SIZES)
    assert [warning.filename for warning in caught] == [__file__]


def test_a_mask_beyond_which_nothing_is_labelled_is_obeyed_already() -> None:
    def half(n: int, _: Any) -> torch.Tensor:
        return torch.arange(n) % 2 == 0

    made = graphs(train_mask=half, y=lambda n, _: torch.where(half(n, _), 1.0, torch.nan)[:, None])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        packed = PackedGraphs.from_dataset(InMemory(made), y_level="node", missing_labels=True)
    assert packed.y is not None and packed.y.isnan().any()


def test_a_mask_is_looked_at_in_the_graphs_that_are_taken() -> None:
    def first(n: int, _: Any) -> torch.Tensor:
        return torch.arange(n) == 0

    made = graphs(train_mask=first, y=lambda n, _: torch.where(first(n, _), 0, -100))
    made[3].y[:] = 0  # alone has labels beyond its mask
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        part = InMemory(made)[[0, 4]]
        assert PackedGraphs.from_dataset(part, y_level="node", missing_labels=True).num_graphs == 2
    with pytest.warns(UserWarning, match="graph 1 has train_mask, which is left out"):
        PackedGraphs.from_dataset(InMemory(made)[2:], y_level="node", missing_labels=True)


class Shifted(InMemory):
    def get(self, idx: int) -> Any:
        out = super().get(idx)
        out.x = out.x + 1
        return out


def test_what_is_made_for_each_graph_is_asked_for_each() -> None:
    stored = from_dataset(InMemory(graphs())).x

    def shift(graph: Any) -> Any:
        graph.x = graph.x + 1
        return graph

    for dataset in (Shifted(graphs()), InMemory(graphs(), shift)):
        assert stored_rows(dataset) is None
        assert torch.equal(from_dataset(dataset).x, stored + 1)


def test_types_of_edges_are_looked_at_graph_by_graph() -> None:
    with pytest.warns(UserWarning, match="graph 1 has edge_type"):
        from_dataset(InMemory(graphs(edge_type=lambda n, e: torch.arange(e) * (n == 1))))


@pytest.mark.parametrize(
    ("changes", "culprit"),
    [
        ({"x": lambda n, _: None}, "graph 0 has no x"),
        ({"x": lambda n, _: torch.ones(n)}, "graph 0: x has shape"),
        (
            {"x": lambda n, _: torch.full((n, 1), float("nan" if n == 5 else n))},
            "graph 3: x is NaN",
        ),
        ({"edge_index": lambda n, e: torch.full((2, e), 3)}, "graph 0: edge_index names node 3 of"),
        ({"edge_weight": lambda n, e: torch.ones(max(e, 1))}, "graph 2: edge_weight has shape"),
        ({"num_nodes": lambda n, _: max(n, 1)}, "graph 2: x has 0 rows and num_nodes is 1"),
        ({"y": lambda n, _: torch.ones(n + 1)}, "graph 0: y has 4 rows"),
        ({"y": lambda n, _: torch.ones(1, 1, 1)}, "graph 0: y has shape"),
    ],
)
def test_a_bad_graph_is_named(changes: dict[str, Any], culprit: str) -> None:
    with pytest.raises(InputError, match=culprit):
        from_dataset(InMemory(graphs(**changes)))


def test_a_part_of_no_graphs_is_refused() -> None:
    with pytest.raises(InputError, match="the list of graphs is empty"):
        from_dataset(Subset(InMemory(graphs()), []))


def test_masks_of_numpy_are_no_error() -> None:
    made = graphs(train_mask=lambda n, _: torch.ones(n, dtype=torch.bool).numpy())
    with pytest.warns(UserWarning, match="has train_mask, which is left out"):
        assert PackedGraphs.from_dataset(InMemory(made)).num_graphs == len(SIZES)
