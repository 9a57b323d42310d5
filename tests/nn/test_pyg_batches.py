"""PyG's `Data` and `Batch`, as a FlexGCN takes them."""

import pytest
import torch

from grant_fast import FlexGCN, GraNTSampler, InputError, Task
from tests.cases import Case


def test_pygs_batches_are_taken_whole():
    pyg = pytest.importorskip("torch_geometric.data")
    graphs = [
        pyg.Data(
            x=torch.randn(n, 5),
            edge_index=torch.randint(n, (2, 3 * n)),
            edge_weight=torch.rand(3 * n),
            y=torch.randn(1, 1),
        )
        for n in (3, 8, 1)
    ]
    model = FlexGCN(5, 4, 1, orders=[3, 2])
    batch = pyg.Batch.from_data_list(graphs)
    want = model(batch.x, batch.edge_index, batch.edge_weight, batch=batch.batch)
    torch.testing.assert_close(model(batch), want, rtol=0, atol=0)
    torch.testing.assert_close(model(graphs[1])[0], want[1])
    transposed = pyg.Data(x=graphs[1].x, adj_t=_sparse(graphs[1]))
    torch.testing.assert_close(model(transposed)[0], want[1])
    sampler = GraNTSampler(graphs, Task("regression"), 2, epochs=9, mode="global")
    assert sampler.select(model, 0)  # which needs no predict
    torch.testing.assert_close(sampler.scores, (want - batch.y).abs()[:, 0].detach())
    graphs.append(pyg.Data(x=torch.empty(0, 5), edge_index=torch.empty(2, 0).long()))
    graphs[-1].edge_weight, graphs[-1].y = torch.empty(0), torch.zeros(1, 1)
    assert model(pyg.Batch.from_data_list(graphs)).shape == (4, 1)  # the last one without nodes
    by_hand = pyg.Data(x=batch.x, edge_index=batch.edge_index, batch=batch.batch)
    by_hand.edge_weight = batch.edge_weight
    torch.testing.assert_close(model(by_hand), want)
    with pytest.raises(InputError, match="give a DataBatch alone: it has its own edges"):
        model(batch, batch=batch.batch)
    dataset = pytest.importorskip("torch_geometric.datasets").FakeDataset(num_graphs=2)
    for whole, remedy in ((dataset, "those of a DataLoader"), (Case().graphs, r"graphs\.batch\(")):
        with pytest.raises(
            InputError, match=f"is a whole data set: give batches of it, as {remedy}"
        ):
            model(whole)
    for wrong, missing in ((pyg.Data(x=batch.x), "edge_index"), (pyg.Data(edge_index=0), "x")):
        with pytest.raises(InputError, match=f"the Data has no {missing}: give it one"):
            model(wrong)


def _sparse(data):
    """The transposed adjacency of a graph: row = target."""
    size = (len(data.x), len(data.x))
    adjacency = torch.sparse_coo_tensor(
        data.edge_index.flip(0), data.edge_weight, size, check_invariants=True
    )
    return adjacency.coalesce()
