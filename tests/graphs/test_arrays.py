"""The flat form of many graphs."""

import pytest
import torch

from grant_fast.graphs.arrays import GraphArrays, batch_vector, concatenate


def example(y_level: str = "graph") -> GraphArrays:
    """Graphs of 2, 0, 1 and 0 nodes."""
    rows = 4 if y_level == "graph" else 3
    return GraphArrays(
        x=torch.arange(6.0).reshape(3, 2),
        edge_index=torch.tensor([[0, 1, 2, 0], [1, 0, 2, 1]]),
        batch=torch.tensor([0, 0, 2]),
        num_graphs=4,
        y=torch.arange(float(rows))[:, None],
        y_level=y_level,  # type: ignore[arg-type]
        edge_weight=torch.tensor([1.0, 2.0, 3.0, 4.0]),
        edge_attr=torch.tensor([5, 6, 7, 8]),
    )


def test_batch_vector_skips_graphs_without_nodes() -> None:
    sizes = torch.tensor([2, 0, 3, 0]).numpy()
    assert batch_vector(sizes).tolist() == [0, 0, 2, 2, 2]


@pytest.mark.parametrize(("y_level", "rows"), [("graph", 2), ("node", 2)])
def test_first_keeps_whole_graphs_and_their_targets(y_level: str, rows: int) -> None:
    part = example(y_level).first(2)
    assert part.num_graphs == 2
    assert part.x.tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert part.edge_index.tolist() == [[0, 1, 0], [1, 0, 1]]
    assert part.edge_weight is not None and part.edge_attr is not None
    assert part.edge_weight.tolist() == [1.0, 2.0, 4.0]
    assert part.edge_attr.tolist() == [5, 6, 8]
    assert part.y is not None
    assert len(part.y) == rows


def test_first_of_more_than_there_are_is_everything() -> None:
    graphs = example()
    assert graphs.first(9) is graphs


def test_concatenate_renumbers_nodes_and_graphs() -> None:
    joined = concatenate([example(), example()])
    assert joined.num_graphs == 8
    assert joined.batch.tolist() == [0, 0, 2, 4, 4, 6]
    assert joined.edge_index.dtype == torch.int64
    assert joined.edge_index.tolist() == [[0, 1, 2, 0, 3, 4, 5, 3], [1, 0, 2, 1, 4, 3, 5, 4]]
    assert joined.y is not None
    assert joined.y[:, 0].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert joined.edge_weight is not None and joined.edge_attr is not None
    assert joined.edge_weight.tolist() == [1.0, 2.0, 3.0, 4.0] * 2
    assert joined.edge_attr.tolist() == [5, 6, 7, 8] * 2


def test_concatenate_wants_parts_that_match() -> None:
    bare = GraphArrays(torch.ones(1, 2), torch.empty(2, 0, dtype=torch.int64), torch.zeros(1), 1)
    with pytest.raises(ValueError, match="only some of the parts"):
        concatenate([example(), bare])
    with pytest.raises(ValueError, match="nothing to concatenate"):
        concatenate([])
