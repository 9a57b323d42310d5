"""Where a batch's graphs lie, as the CPU finds it and as another device is told."""

import pytest
import torch

from grant_fast import FlexGCN, GraphBatch, Task
from grant_fast.batches import places
from grant_fast.teaching import loss
from tests.cases import Case
from tests.recording import Asked

BATCHES = {
    "empty ones among them": [0, 4, 3, 3, 11, 0, 7, 11],
    "neighbours": range(2, 9),
    "one without nodes": [4],
    "none": [],
}


def all_of(batch: GraphBatch) -> list[torch.Tensor]:
    """What is gathered of a batch, of both directions of its edges, and as others read it."""
    csrs = [t for transposed in (False, True) for t in batch.csr(transposed, normalize=True)]
    rhos = [t for rho in batch.readout(2, True, True) for t in (*rho.csr, *rho.transposed)]
    own = [batch.ptr, batch.sizes, batch.batch, batch.x, batch.y, batch.edge_index]
    return [*csrs, *rhos, *own, batch.edge_weight, *batch.local_csr(batch.graphs.adj)]


@pytest.mark.parametrize("huge", [False, True], ids=["int32", "int64"])
@pytest.mark.parametrize("where", BATCHES.values(), ids=BATCHES)
def test_what_a_device_is_told_says_what_the_cpu_finds(where, huge, monkeypatch):
    graphs = Case(symmetric=False).graphs
    wants = all_of(graphs.batch(where))
    if huge:  # numbers of rows of the dataset: the batch's own are as small as before
        monkeypatch.setattr(
            places, "index_dtype", lambda *sizes: torch.int64 if len(sizes) == 2 else torch.int32
        )
    for name in ("nodes", "edges"):
        told = property(lambda batch, name=name: getattr(batch._told, name))
        monkeypatch.setattr(GraphBatch, f"_placed_{name}", told)
    batch = graphs.batch(where)
    for got, want in zip(all_of(batch), wants, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, check_dtype=not huge)
    assert torch.equal(batch._told.positions.long(), batch.positions)


@pytest.mark.parametrize("where", BATCHES.values(), ids=BATCHES)
def test_a_batch_is_uploaded_in_one_copy(where):
    graphs = Case(symmetric=False).graphs.to("meta")
    all_of(graphs.batch([1, 0]))  # finds what is kept of a dataset
    with Asked() as asked:
        all_of(graphs.batch(where))
    assert asked.copies == 1


@pytest.mark.parametrize("pool", ["mean", "sum", "max"])
@pytest.mark.parametrize("encoder", [None, torch.nn.Identity()], ids=["cached", "convolved"])
def test_so_is_that_of_a_training_step(encoder, pool):
    graphs = Case(symmetric=False).graphs.to("meta")
    model = FlexGCN(5, [8, 4], 2, [3, 2, 2], norm="batch_norm", pool=pool, encoder=encoder)
    model.to("meta")
    task = Task("regression", num_outputs=2)

    def step() -> None:
        batch = graphs.batch([3, 1, 8])
        loss(model(batch), batch.y, task).backward()

    step()
    with Asked() as asked:
        step()
    assert asked.copies == 1


def test_gathering_takes_few_launches():
    """None more than these, of each of which a device does hardly anything but start it."""
    graphs = Case(symmetric=True, weighted=False).graphs.to("meta")
    all_of(graphs.batch([1, 0]))
    batch = graphs.batch([3, 1, 8])
    launches = {}
    for name, gather in {
        "told": lambda: batch._told,  # the numbers of all rows
        "nodes": lambda: batch.nodes,  # their graphs, how far these are shifted, and by that rows
        "edges": lambda: batch.edges,
        "csr": lambda: batch.csr(False, normalize=True),  # 4 for rowptr, 3 for columns, the values
        "transpose": lambda: batch.csr(True, normalize=True),
        "readout": lambda: batch.readout(2, True, True),  # a row of weights for each order
        "targets": lambda: batch.y,
    }.items():
        with Asked() as asked:
            gather()
        launches[name] = asked.launches
    assert launches == {
        "told": 1, "nodes": 3, "edges": 3, "csr": 8, "transpose": 0, "readout": 2, "targets": 1
    }  # fmt: skip
