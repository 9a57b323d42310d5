"""A `GraphBatch`: what may be written to it, what stays, and how it moves."""

import copy
import pickle

import numpy as np
import pytest
import torch

from grant_fast import FlexGCN, GraphBatch, InputError, PackedGraphs
from tests.cases import Case


def test_a_batch_is_read_only_and_a_dataset_constant():
    case = Case()
    batch = case.graphs.batch([1, 2])
    with pytest.raises(InputError, match=r"read-only: keep other targets in a variable"):
        batch.y = batch.y - 1
    with pytest.raises(InputError, match=r"keeps its dtype: give the PackedGraphs \.to\(torch\.f"):
        batch.to(torch.float64)
    with pytest.raises(InputError, match="concat joins PackedGraphs, not a GraphBatch"):
        PackedGraphs.concat([batch])
    with pytest.raises(InputError, match=r"uint8 is a mask or positions: give mask\.bool"):
        case.graphs.batch(torch.ones(2, dtype=torch.uint8))
    for name in ("x", "edge_index", "num_graphs", "sizes"):
        with pytest.raises(InputError, match=rf"read-only.*reads {name} from.*model\(x, "):
            setattr(batch, name, getattr(batch, name))
    for name in ("edge_index", "edge_weight"):
        with pytest.raises(InputError, match=f"has no {name}, and its batches would not get it"):
            setattr(case.graphs, name, getattr(batch, name))
    model = FlexGCN(5, 4, 1, orders=[3, 2])
    for ids in ([1, 2], [2, 1], 1):  # views of the dataset, and gathered
        batch = case.graphs.batch(ids)
        model(batch), batch.x.sum(), model(batch)
        batch.x[:, 0] = 0
        with pytest.raises(InputError, match=r"read-only.*reads x from"):
            model(batch)
        with torch.inference_mode():
            batch = case.graphs.batch(ids)
            assert batch.x.shape[1] == 5 and model(batch).isfinite().all()
    with pytest.raises(InputError, match=r"x requires a gradient.*x\.detach\(\)"):
        PackedGraphs.from_arrays(case.x.clone().requires_grad_(), case.edge_index, case.batch)


@pytest.mark.parametrize("ids", [[1, 2], [2, 1]])
@pytest.mark.parametrize("how", ["copy", "deepcopy", "pickle"])
def test_a_copied_batch_is_changed_where_the_batch_was(ids, how):
    def twin(batch):
        return pickle.loads(pickle.dumps(batch)) if how == "pickle" else getattr(copy, how)(batch)

    model, batch = FlexGCN(5, 4, 1, orders=[3, 2]), Case().graphs.batch(ids)
    x = batch.x.clone()
    again = twin(batch)
    assert torch.equal(again.x, x) and torch.equal(model(again), model(batch))
    batch.x[:, 0] = 0
    with pytest.raises(InputError, match=r"read-only.*reads x from"):
        model(twin(batch))


def test_a_shallow_copy_shares_what_was_gathered():
    batch = Case().graphs.batch([2, 1])
    for name in ("x", "edge_index", "ptr"):
        assert getattr(batch, name) is getattr(copy.copy(batch), name)


@pytest.mark.parametrize("name", ["ptr", "sizes", "batch", "positions"])
@pytest.mark.parametrize("ids", [[1, 2], [2, 1]])
def test_tables_of_a_batch_are_read_only(ids, name):
    """The CPU's kernels read the first of them by address."""
    model, batch = FlexGCN(5, 4, 1, orders=[3, 2]), Case().graphs.batch(ids)
    want, table = model(batch), getattr(batch, name)
    twin = copy.deepcopy(batch)
    gradients = torch.autograd.grad(want.sum(), list(model.parameters()), retain_graph=True)
    table += 1000
    again = torch.autograd.grad(want.sum(), list(model.parameters()))
    assert all(map(torch.equal, again, gradients))
    for changed in (batch, copy.deepcopy(batch)):
        with pytest.raises(InputError, match=f"read-only.*reads {name} from"):
            model(changed)
    assert torch.equal(model(twin), want)


def test_a_batch_of_a_class_of_ones_own_may_have_more():
    class Tagged(GraphBatch):
        tag = None

    batch = Tagged(Case().graphs, torch.tensor([1, 2]))
    batch.tag = "mine"
    assert batch.tag == "mine" and len(batch) == 2


def test_ids_of_neighbours_are_no_view_of_the_dataset():
    graphs = Case().graphs
    batch = graphs.batch(slice(1, 3))
    batch.ids.zero_()
    assert graphs.ids.tolist() == list(range(len(graphs)))


@pytest.mark.parametrize("where", [slice(None), 3, [1, 2], [2, 1]])
def test_what_a_model_writes_into_a_batch_stays_there(where):
    case = Case()
    x, y, weight = (t.clone() for t in (case.graphs.x, case.graphs.y, case.graphs.adj.weight))
    batch = case.graphs.batch(where)
    batch.x.div_(7)
    batch.y.fill_(0)
    batch.edge_weight.zero_()  # as a dropout of edges does
    assert torch.equal(case.graphs.x, x) and torch.equal(case.graphs.y, y)
    assert torch.equal(case.graphs.adj.weight, weight)


@pytest.mark.parametrize("where", [np.array([5, 2, 9]), torch.tensor([5, 2, 9])])
def test_a_batch_stays_what_it_was_where_its_positions_are_written_over(where):
    graphs = Case().graphs
    batch, other = graphs.batch(where), graphs.batch([5, 2, 9])
    where[:] = 0
    assert batch.ids.tolist() == [5, 2, 9] and torch.equal(batch.x, other.x)


def test_a_mistake_within_an_attribute_of_a_batch_is_not_hidden(monkeypatch):
    def fail(self):
        return self.graphs.nowhere

    monkeypatch.setattr(GraphBatch, "sizes", property(fail))
    with pytest.raises(AttributeError, match="a PackedGraphs has no 'nowhere'"):
        _ = Case().graphs.batch([0]).sizes
    monkeypatch.setattr(PackedGraphs, "max_nodes", property(lambda self: self.meta.nowhere))
    with pytest.raises(AttributeError, match="'dict' object has no attribute 'nowhere'"):
        _ = Case().graphs.max_nodes


def test_edges_are_numbered_in_int64_as_pygs():
    batch = Case().graphs.batch([3, 4, 5])
    assert batch.edge_index.dtype == batch.batch.dtype == batch.ptr.dtype == torch.int64


def test_targets_of_a_batch_may_be_written_to():
    graphs, model = Case().graphs, FlexGCN(5, 4, 2, [2, 2])
    batch = graphs.batch([3, 4, 5])
    before = model(batch)
    batch.y.zero_()
    assert model(batch).equal(before) and not graphs.y[3:6].eq(0).any()


def test_what_its_edges_are_counted_in_is_a_copy():
    batch = Case().graphs.batch([5, 3])
    batch.edge_counts.copy_(batch.edge_counts.flip(0))
    assert torch.equal(batch.edge_index, Case().graphs.batch([5, 3]).edge_index)


def test_a_batch_moves_alone():
    batch = Case().graphs.batch([3, 5])
    assert batch.to("meta").num_graphs == 2
    assert batch.to(None) is batch  # as PyTorch's own
