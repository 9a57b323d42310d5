"""What FlexConv and FlexGCN refuse, and that the message names it."""

import re

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from grant_fast import FlexConv, FlexGCN, InputError, native
from grant_fast.adjacency import Adjacency, inverse_sqrt
from grant_fast.nn import AtomEncoder, BatchNorm
from tests.cases import Case


def test_nonsense_arguments_name_themselves():
    cases = [
        ({"hidden_channels": [4]}, "hidden_channels has 1 entry for 3 hidden layers \\("),
        (
            {"hidden_channels": [4, 4], "orders": [2, 2]},
            "hidden_channels has 2 entries for 1 hidden layer \\(",
        ),
        ({"hidden_channels": 0}, "hidden_channels=0: give a whole number of at least 1"),
        ({"hidden_channels": None}, "hidden_channels=None: give a number, or one for each"),
        ({"orders": []}, "orders must be a list"),
        ({"orders": [2, 0, 2, 2]}, "orders=0: give a whole number"),
        ({"act": "swoosh"}, "unknown act 'swoosh': choose one of relu"),
        ({"act": ["relu"]}, r"unknown act \['relu'\]: choose one of relu"),
        ({"norm": "graph"}, "unknown norm 'graph': choose one of batch_norm"),
        ({"pool": "median"}, "unknown pool 'median'"),
        ({"dropout": 1.5}, "dropout is 1.5"),
        ({"dropout": "0.5"}, "dropout='0.5': give a number, or one for each hidden layer"),
        ({"encoder": "bond"}, "unknown encoder 'bond'"),
        ({"orders": 3}, "orders must be a list"),
        ({"orders": None}, "orders must be a list"),
        ({"normalize": "sym"}, "normalize='sym': give True or False"),
        ({"in_channels": 0, "encoder": "atom"}, "in_channels=0: give a whole number of at least 1"),
    ]
    for arguments, message in cases:
        with pytest.raises(InputError, match=message):
            FlexGCN(**{"in_channels": 5, "hidden_channels": 4, "out_channels": 1, **arguments})
    for name in ("normalize", "bias"):
        with pytest.raises(InputError, match=f"{name}='sym': give True or False"):
            FlexConv(5, 4, **{name: "sym"})


def test_what_a_last_layer_takes_is_of_packed_graphs():
    with pytest.raises(InputError, match="hidden takes a GraphBatch of packed graphs, not a Tens"):
        FlexGCN(5, 4, 1, orders=[2, 2]).hidden(torch.ones(3, 5))


def test_numpys_numbers_are_numbers():
    two = np.array([2, 3])
    model = FlexGCN(np.int64(5), np.int64(4), 1, orders=two, dropout=np.float32(0.5))
    assert [conv.order for conv in model.convs] == [2, 3] and type(model.convs[0].order) is int
    conv = FlexConv(5, 4, normalize=np.bool_(False), bias=np.bool_(False))
    assert conv.normalize is False and conv.bias is None


def test_orders_may_come_one_by_one():
    model = FlexGCN(5, 4, 1, orders=(order for order in (2, 3)))
    assert [conv.order for conv in model.convs] == [2, 3]


def test_what_a_network_would_never_call_is_refused():
    class Own(FlexConv):
        def forward(self, x, edge_index, edge_weight=None):
            return x

    batch = Case().graphs.batch(slice(None))
    model = FlexGCN(5, 4, 1, orders=[2, 2])
    nn.utils.parametrizations.spectral_norm(model.convs[1], "weight")
    model(batch).sum().backward()
    assert model.convs[1].parametrizations.weight.original.grad is not None
    model.convs[0] = Own(5, 4)
    with pytest.raises(InputError, match=r"convs\.0 has its own forward pass"):
        model(batch)
    model.convs[0] = FlexConv(5, 4)
    model.convs[0].forward = lambda x, *_: x
    with pytest.raises(InputError, match=r"convs\.0 has its own forward pass"):
        model(batch)


def test_a_layer_that_normalises_otherwise_than_its_network_is_refused():
    batch, model = Case().graphs.batch(slice(None)), FlexGCN(5, 4, 1, orders=[2, 2])
    model.convs[1] = FlexConv(4, 1, order=2, normalize=False)
    with pytest.raises(InputError, match=r"convs\.1 has normalize=False in a FlexGCN with"):
        model(batch)


def test_a_layer_that_was_added_or_taken_away_is_not_passed_over():
    batch, model = Case().graphs.batch(slice(None)), FlexGCN(5, 4, 4, orders=[2, 2])
    model.convs.append(FlexConv(4, 4, order=2))
    with pytest.raises(InputError, match="has 3 convs, 1 norms and 1 dropouts, where one of each"):
        model(batch)
    model.norms.append(nn.Identity())
    model.dropouts.append(nn.Dropout(0))
    model(batch)
    del model.convs[1:]
    with pytest.raises(InputError, match="has 1 convs, 2 norms and 2 dropouts"):
        model(batch.x, batch.edge_index, batch=batch.batch)


def test_weights_on_another_device_are_refused_before_a_kernel_reads_them():
    case = Case(sizes=(3, 2))
    model = FlexGCN(5, 4, 1, orders=[2, 2]).to("meta")
    with pytest.raises(InputError, match="the graphs are on cpu but the weights are on meta"):
        model(case.graphs[[0, 1]].batch([0, 1]))
    with pytest.raises(InputError, match="x is on cpu but the weights are on meta: move one"):
        model(case.x, case.edge_index)
    with FakeTensorMode():
        fake = FlexGCN(5, 4, 1, orders=[2, 2])
    with pytest.raises(AssertionError, match="FakeTensor"):
        fake(case.graphs[0])


def misfit(part: str) -> FlexGCN:
    """A network of width 8 one part of which is of another."""
    norm = {"norm": "batch_norm", "average": "batch_norm"}.get(part, "layer_norm")
    pool = None if part == "last" else "mean"
    model = FlexGCN(5, 8, 1, orders=[2, 2, 2], norm=norm, pool=pool)
    if part in ("conv", "last"):
        layer = 1 if part == "conv" else 2
        model.convs[layer] = FlexConv(64, model.convs[layer].out_channels, order=2)
    elif part == "norm":
        model.norms[0] = BatchNorm(2)
    elif part == "average":
        model.norms[0].running_mean = torch.zeros(2)
    elif part == "layer norm":
        model.norms[0] = nn.LayerNorm(4)
    else:
        setattr(model.norms[0], part, nn.Parameter(torch.ones(4)))
    return model


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "part", ["conv", "last", "norm", "average", "layer norm", "weight", "bias"]
)
def test_parts_of_other_widths_are_refused_before_a_kernel_reads_them(part, training, backend):
    model, batch = misfit(part).train(training), Case().graphs.batch(slice(None))
    model.backend = backend
    with torch.set_grad_enabled(training), pytest.raises((InputError, RuntimeError)) as caught:
        model(batch)
    words = r"takes \[num_nodes, 64\]" if part in ("conv", "last") else "2|4"
    assert re.search(words, str(caught.value))


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("pool", ["mean", "max", None])
@pytest.mark.parametrize("orders", [[2], [2, 2]])
def test_an_encoder_gives_a_row_for_every_node(orders, pool, backend):
    class Mean(nn.Module):
        def forward(self, x):
            return x.mean(0, keepdim=True)

    case = Case(sizes=(3, 2))
    model = FlexGCN(5, 4, 1, orders=orders, encoder=Mean(), pool=pool, backend=backend)
    for given in ((case.graphs.batch([0, 1]),), (case.x, case.edge_index, None, case.batch)):
        with pytest.raises(InputError, match=r"x has 1 nodes, but the (adjacency|batch) has 5"):
            model(*given)


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("pool", ["mean", "max", None])
def test_hidden_layers_of_a_subclass_give_a_row_for_every_node(pool, backend):
    class First(FlexGCN):
        def hidden(self, graphs):
            return super().hidden(graphs)[:1]

    model = First(5, 4, 1, orders=[2, 2], pool=pool, backend=backend)
    with pytest.raises(InputError, match=r"x has 1 nodes, but the (adjacency|batch) has 5"):
        model(Case(sizes=(3, 2)).graphs.batch([0, 1]))


def test_a_hook_may_not_leave_out_nodes_before_they_are_pooled():
    model = FlexGCN(5, 4, 1, orders=[2, 2])
    model.convs[-1].register_forward_hook(lambda module, inputs, out: out[:1])
    with pytest.raises(InputError, match="x has 1 nodes, but the matrix is for 5"):
        model(Case(sizes=(3, 2)).graphs.batch([0, 1]))


@pytest.mark.parametrize("backend", ["auto", "torch", "reference"])
@pytest.mark.parametrize("packed", [True, False])
def test_a_bias_that_does_not_fit_the_weights_is_refused(packed, backend):
    case = Case(sizes=(3, 2))
    batch = case.graphs.batch([0, 1])
    conv = FlexConv(5, 8, order=2, backend=backend)
    model = FlexGCN(5, 8, 1, orders=[2, 2], backend=backend)
    edges = batch if packed else case.edge_index
    whole = (batch,) if packed else (case.x, case.edge_index)
    for dtype in (torch.float64, torch.bfloat16, torch.int64):
        ones = torch.ones(8, dtype=dtype)
        conv.bias = model.convs[0].bias = nn.Parameter(ones, requires_grad=False)
        for call in (lambda: conv(case.x, edges), lambda: model(*whole)):
            with pytest.raises(InputError, match=f"the bias is {dtype} but the weights are"):
                call()
    conv.bias = model.convs[0].bias = nn.Parameter(torch.zeros(2))
    for call in (lambda: conv(case.x, edges), lambda: model(*whole)):
        with pytest.raises(InputError, match=r"the bias has shape \(2,\), .* needs \[8\]: give"):
            call()


def test_a_bias_of_another_class_of_tensor_is_left_to_torch(monkeypatch):
    class Own(torch.Tensor):
        pass

    case, conv = Case(), FlexConv(5, 8, order=2)
    conv.bias = nn.Parameter(torch.ones(8).as_subclass(Own))
    monkeypatch.setattr(native, "flex_conv", lambda *_, **__: pytest.fail("it was read"))
    got = conv(case.x, case.edge_index)
    conv.backend = "torch"
    torch.testing.assert_close(got, conv(case.x, case.edge_index))


def test_a_batch_comes_alone_and_as_it_was():
    batch, model = Case().graphs.batch(slice(None)), FlexGCN(5, 4, 1, orders=[2, 2])
    with pytest.raises(InputError, match="give a GraphBatch alone"):
        model(batch, batch.edge_index)
    batch.x.requires_grad_()
    with pytest.raises(InputError, match=r"read-only.*reads x from"):
        model(batch)


def test_hidden_layers_alone_refuse_and_forget_what_the_network_does():
    case = Case(sizes=(30, 20))
    case.graphs.x = torch.arange(250).view(50, 5) // 100
    model = FlexGCN(5, 4, 1, orders=[2, 2], encoder=AtomEncoder(5, [3] * 5))
    batch = case.graphs.batch([0, 1])
    before = model.hidden(batch)
    case.graphs.x[:] = case.graphs.x.flip(0)
    torch.testing.assert_close(model.hidden(batch), model.hidden(case.graphs[[0, 1]].batch([0, 1])))
    assert not torch.equal(model.hidden(batch), before)
    batch.edge_index[:] = 0
    with pytest.raises(InputError, match=r"read-only.*reads edge_index from"):
        model.hidden(batch)
    model.convs[0] = FlexConv(5, 4, order=2, normalize=False)
    with pytest.raises(InputError, match=r"convs\.0 has normalize=False in a FlexGCN with"):
        model.hidden(case.graphs.batch([0, 1]))


def test_wrong_inputs_name_themselves():
    case = Case(sizes=(3, 2))
    model = FlexGCN(5, 4, 1, orders=[2, 2])
    with pytest.raises(InputError, match="give a batch of graphs alone, or x and edge_index"):
        model(case.x)
    with pytest.raises(InputError, match=r"x has 5 features, but in_channels=6"):
        FlexGCN(6, 4, 1, orders=[2, 2])(case.graphs[0])
    atoms = torch.zeros(5, 9).long()
    with pytest.raises(InputError, match=r'9 columns of integers, and this .* encoder="atom"'):
        FlexGCN(6, 4, 1, orders=[2, 2])(atoms, case.edge_index, batch=case.batch)
    with pytest.raises(InputError, match=r"edge 1 is 0 → 5, but nodes run from 0 to 4"):
        model(case.x, torch.tensor([[0, 0], [1, 5]]), batch=case.batch)
    with pytest.raises(InputError, match=r"edge_index is torch\.float32"):
        model(case.x, torch.zeros(2, 3), batch=case.batch)
    with pytest.raises(InputError, match=r"edge_index has shape \(3, 2\)"):
        model(case.x, torch.zeros(3, 2).long(), batch=case.batch)
    with pytest.raises(InputError, match=r"shape \(3, 2\).*edge features \(edge_attr\) are not"):
        FlexGCN(5, 4, 1, orders=[2, 2])(
            torch.ones(4, 5), torch.zeros(2, 3).long(), torch.ones(3, 2)
        )
    with pytest.raises(InputError, match="edge_weight has shape"):
        model(case.x, case.edge_index, torch.ones(3), case.batch)
    with pytest.raises(InputError, match="edge_weight is a list: give a tensor"):
        model(case.x, case.edge_index, [1.0, 2.0], case.batch)
    with pytest.raises(InputError, match="batch has shape"):
        model(case.x, case.edge_index, batch=torch.zeros(2).long())
    with pytest.raises(InputError, match="batch names graph -1, but graphs run from 0 to 1"):
        model(case.x, case.edge_index, None, case.batch - 1, 2)
    with pytest.raises(InputError, match="batch names graph 1, but graphs run from 0 to 0"):
        model(case.x, case.edge_index, None, case.batch, 1)
    with pytest.raises(InputError, match="batch_size is -2"):
        model(case.x, case.edge_index, None, case.batch, -2)
    for size in (2.0, "2"):
        with pytest.raises(InputError, match=f"batch_size is {size!r}: give the number of graphs"):
            model(case.x, case.edge_index, None, case.batch, size)
    assert len(model(case.x, case.edge_index, None, case.batch, np.int64(2))) == 2
    with pytest.raises(InputError, match=r"batch_size is a tensor, .* did you mean batch=…"):
        model(case.x, case.edge_index, None, None, case.batch)
    with pytest.raises(InputError, match="batch is a list: give a tensor"):
        model(case.x, case.edge_index, None, case.batch.tolist())
    with pytest.raises(InputError, match=r"x is a tuple: give a tensor \(of two sets of nodes"):
        model((case.x, case.x), case.edge_index)
    with pytest.raises(InputError, match="x is a ndarray: give a tensor"):
        model(case.x.numpy(), case.edge_index)
    with pytest.raises(InputError, match=r"x is torch\.float64 but the weights are torch\.float32"):
        model(case.x.double(), case.edge_index, None, case.batch)
    with pytest.raises(InputError, match=r"x is torch\.complex64: cast it to float"):
        model(case.x.cfloat(), case.edge_index, None, case.batch)
    with pytest.raises(InputError, match="edge_index is a list"):
        model(case.x, [[0], [1]])


def test_a_batch_in_place_of_the_edges_has_its_own_weights_and_as_many_nodes():
    case = Case()
    conv, batch = FlexConv(case.x.shape[1], 4), case.graphs.batch(slice(None))
    weight = torch.ones(batch.num_edges)
    with pytest.raises(InputError, match="the GraphBatch has its own"):
        conv(case.x, batch, weight)
    for takes in (conv, FlexGCN(case.x.shape[1], 4, 1)):
        with pytest.raises(InputError, match="the Adjacency has its own"):
            takes(case.x, Adjacency(*batch.adjacency(True).csr, batch.num_nodes), weight)
    with pytest.raises(InputError, match=rf"{case.num_nodes - 1} .*{case.num_nodes}"):
        conv(case.x[1:], batch)


def test_a_layer_asks_for_features_and_edges():
    case, conv = Case(), FlexConv(5, 4)
    batch = case.graphs.batch(slice(None))
    for given in ((batch,), (batch, batch), (case.x,)):
        with pytest.raises(InputError, match=r"conv\(x, edge_index\) or conv\(batch.x, batch\)"):
            conv(*given)


def test_features_are_refused_before_their_rows_are_compared_with_the_edges():
    case = Case()
    for layer in (FlexConv(5, 4), FlexGCN(5, 4, 1)):
        for strange in (case.x.to_sparse(), case.x.to_sparse_csr()):
            with pytest.raises(InputError, match=r"x is a sparse tensor: give x\.to_dense\(\)"):
                layer(strange, case.edge_index)
    with pytest.raises(InputError, match=r"x has shape \(2, .*takes \[num_nodes, 5\]"):
        FlexConv(5, 4)(torch.stack([case.x, case.x]), case.edge_index)
    with pytest.raises(InputError, match=r"x is torch\.int64: cast it to float"):
        FlexConv(5, 4)(case.x.long(), case.edge_index)


def test_another_pool_that_is_none_is_refused_when_it_is_used():
    model = FlexGCN(5, [4], 2, orders=[2, 2])
    model.pool = "median"
    with pytest.raises(InputError, match="unknown pool 'median': choose 'mean'"):
        model(Case().graphs.batch([0, 1]))


@pytest.mark.parametrize("num_edges", [5, 7])  # as many as there are nodes, and not
@pytest.mark.parametrize("sparse", [False, True])
def test_a_graph_vector_is_not_taken_for_edge_weights(num_edges, sparse):
    x, batch = torch.randn(5, 5), torch.tensor([0, 0, 0, 1, 1])
    edges = torch.zeros(2, num_edges, dtype=torch.long)
    if sparse:
        edges = torch.sparse_coo_tensor(edges, torch.ones(num_edges), (5, 5), check_invariants=True)
    for model in (FlexGCN(5, 4, 1, orders=[2, 2]), FlexConv(5, 4, order=1)):
        for dtype in (torch.int64, torch.int32, torch.bool):
            with pytest.raises(
                InputError, match=rf"edge_weight is {dtype}: .* if you meant batch=…"
            ):
                model(x, edges, batch.to(dtype))


def test_edges_that_are_none_are_refused_in_each_form():
    n, dtype = 4, torch.float32
    sparse = torch.eye(n).to_sparse()
    for edges, weight, says in (
        (torch.zeros(2, 3, 1).long(), None, r"edge_index has shape \(2, 3, 1\)"),
        (torch.zeros(2, 3).bool(), None, "edge_index is torch.bool: it must hold integers"),
        (torch.zeros(2, 3).to(torch.uint16), None, "is torch.uint16: it must hold .* as int64"),
        (sparse, torch.ones(n), "edge_weight goes only with edge_index"),
        (torch.ones(n, n + 1).to_sparse(), None, "the sparse adjacency is 4 x 5, but x has 4"),
    ):
        with pytest.raises(InputError, match=says):
            Adjacency.from_any(edges, weight, n, dtype)
    assert Adjacency.from_any(sparse.double(), None, n, dtype).csr[2].dtype == dtype


def test_a_matrix_has_indices_of_one_dtype():
    rowptr, col = torch.tensor([0, 1, 2], dtype=torch.int32), torch.tensor([1, 0])
    with pytest.raises(InputError, match=r"rowptr is torch.int32 but col is torch.int64: make"):
        Adjacency(rowptr, col, torch.ones(2), 2)
    both = (rowptr, col.int(), torch.ones(2))
    with pytest.raises(InputError, match=r"rowptr is torch.int32 but col is torch.int64: make"):
        Adjacency(*both, 2, (rowptr, col, torch.ones(2)))


def test_a_transpose_has_the_other_sides_and_a_root_of_nothing_a_finite_gradient():
    case = Case()
    pool = case.graphs.batch(slice(None)).pooling(mean=True)
    turned = pool.transpose()
    assert (pool.num_nodes, pool.num_cols) == (turned.num_cols, turned.num_nodes)
    assert turned.transpose().csr[1].equal(pool.csr[1])
    degree = torch.tensor([0.0, 4.0, -1.0], requires_grad=True)
    root = inverse_sqrt(degree)
    root.sum().backward()
    assert root.tolist() == [0.0, 0.5, 0.0] and degree.grad.tolist() == [0.0, -1 / 16, 0.0]


def test_graphs_of_several_types_are_named():
    hetero = pytest.importorskip("torch_geometric.data").HeteroData()
    with pytest.raises(InputError, match=r"a HeteroData has several types: give x\.to_homogeneous"):
        FlexGCN(5, 4, 1, [2, 2])(hetero)
