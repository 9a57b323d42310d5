"""Vectors for the categories of nodes."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

from grant_fast import AtomEncoder, FlexGCN, InputError, PackedGraphs, native
from grant_fast.nn import ATOM_CARDINALITIES


def test_the_atom_encoder_is_ogbs():
    encoders = pytest.importorskip("ogb.graphproppred.mol_encoder")
    theirs, ours = encoders.AtomEncoder(6), AtomEncoder(6)
    assert tuple(e.num_embeddings for e in theirs.atom_embedding_list) == ATOM_CARDINALITIES
    with torch.no_grad():
        ours.weight.copy_(torch.cat([e.weight for e in theirs.atom_embedding_list]))
    x = torch.stack([torch.randint(size, (20,)) for size in ATOM_CARDINALITIES], 1)
    torch.testing.assert_close(ours(x.to(torch.uint8)), theirs(x))


def test_encoder_checks_its_input():
    encoder = AtomEncoder(4, cardinalities=(3, 2))
    with pytest.raises(InputError, match="category 2 in column 1, which has 0 to 1"):
        encoder(torch.tensor([[0, 0], [2, 2]]))
    with pytest.raises(InputError, match=r"integers \[num_nodes, 2\], not torch.float32"):
        encoder(torch.zeros(3, 2))


@pytest.mark.parametrize("how", ["assigned", "loaded", "reset"])
def test_an_encoder_may_begin_without_memory(how):
    filled, x = AtomEncoder(4, (3, 2, 5)), torch.tensor([[2, 1, 4], [0, 0, 0]])
    with torch.device("meta"):
        empty = AtomEncoder(4, (3, 2, 5))
    if how != "assigned":
        empty.to_empty(device="cpu").offset.fill_(-7)
    if how == "reset":
        empty.reset_parameters()
        filled.load_state_dict(empty.state_dict())
    else:
        empty.load_state_dict(filled.state_dict(), assign=how == "assigned")
    assert torch.equal(empty(x), filled(x))


def test_an_encoder_made_for_inference_can_be_loaded():
    with torch.inference_mode():
        made = AtomEncoder(4, (3, 2))
    filled, x = AtomEncoder(4, (3, 2)), torch.tensor([[2, 1]])
    made.load_state_dict(filled.state_dict(), assign=True)
    assert torch.equal(made(x), filled(x))


def test_kinds_of_atoms_stand_for_the_atoms():
    x = torch.stack([torch.randint(min(size, 3), (400,)) for size in (3, 2)], 1)
    empty = torch.empty(2, 0)
    graphs = PackedGraphs.from_arrays(x, empty, torch.arange(400) // 40)
    kinds, code = graphs.kinds
    assert kinds.shape == (6, 2)
    assert torch.equal(kinds[code], graphs.x)
    model = FlexGCN(4, 3, 2, orders=[1, 1], encoder=AtomEncoder(4, (3, 2))).double()
    want = model(x, empty.long(), batch=torch.arange(400) // 40)
    got = model(graphs.to(dtype=torch.float64).batch(slice(None)))
    torch.testing.assert_close(got, want)
    grads = [torch.autograd.grad(out.square().sum(), [*model.parameters()]) for out in (got, want)]
    for g, w in zip(*grads, strict=True):
        torch.testing.assert_close(g, w)
    many = PackedGraphs.from_arrays(torch.arange(8).view(4, 2), empty, torch.zeros(4).long())
    assert many.kinds is None  # every row is its own kind: nothing to gain
    wide = torch.tensor([[2**40, -(2**40)] * 2, [0, 5] * 2] * 8)  # codes must not overflow
    kinds, code = PackedGraphs.from_arrays(wide, empty, torch.zeros(16).long()).kinds
    assert torch.equal(kinds[code], wide)


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("kinds", [3, 1500])
def test_kinds_of_nodes_are_embedded_as_their_rows_are(monkeypatch, backend, kinds):
    called = []
    chosen = native.sum_of_chosen
    monkeypatch.setattr(native, "sum_of_chosen", lambda *a: (called.append(1), chosen(*a))[1])
    known = torch.stack([torch.arange(kinds) % 119, torch.arange(kinds) // 119], 1)
    x, empty = known.repeat(4, 1), torch.empty(2, 0).long()
    graphs = PackedGraphs.from_arrays(x, empty, torch.arange(len(x)) // kinds)
    encoder, grads = AtomEncoder(4, (119, 13)), []
    for out in (encoder.of_kinds(graphs, backend), encoder(graphs.kinds[0])):
        torch.testing.assert_close(out, encoder(graphs.kinds[0]))
        grads.append(torch.autograd.grad(out.square().sum(), encoder.weight)[0])
    torch.testing.assert_close(*grads)
    by_kernels = backend == "auto" and native.multiplies(encoder.weight)
    assert len(called) == by_kernels
    largest = min(kinds, 119) - 1
    with pytest.raises(InputError, match=f"category {largest} in column 0, which has 0 to 1"):
        AtomEncoder(4, (2, 13)).of_kinds(graphs, backend)
    graphs.x[:] = 0  # these are other kinds
    graphs.forget_written()
    torch.testing.assert_close(encoder.of_kinds(graphs, backend), encoder(graphs.x[:1]))


@pytest.mark.parametrize("kinds", [1, 7, 300])
@pytest.mark.parametrize("nodes", [1, 255, 256, 1500])
def test_however_an_encoder_finds_its_rows_they_are_sums_of_its_tables(nodes, kinds):
    generator = torch.Generator().manual_seed(0)
    encoder = AtomEncoder(4, (119, 5, 12)).double()
    known = torch.stack([torch.randint(c, (kinds,), generator=generator) for c in (119, 5, 12)], 1)
    x = known[torch.randint(kinds, (nodes,), generator=generator)]
    tables, grad = encoder.weight.split((119, 5, 12)), torch.randn(nodes, 4).double()
    want = sum(table[column] for table, column in zip(tables, x.unbind(1), strict=True))
    wanted = torch.autograd.grad(want, encoder.weight, grad)
    for got in (encoder(x), encoder(x, smooth=True)):
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(torch.autograd.grad(got, encoder.weight, grad), wanted)
    with torch.no_grad():
        torch.testing.assert_close(encoder(x), want)
    broken = x.clone()
    broken[nodes // 2, 1] = 5
    with pytest.raises(InputError, match=r"x holds category 5 in column 1, which has 0 to 4$"):
        encoder(broken)
    with pytest.raises(InputError, match=r"has 0 to 5: give OGB's features, as PackedGraphs\.fr"):
        AtomEncoder(4)(torch.tensor([[0, 0, 0, 0, 0, 0, 6, 0, 0]]))


@pytest.mark.filterwarnings("ignore:.torch.jit.trace", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("nodes", [20, 300])
def test_an_encoder_can_be_traced(nodes):
    encoder = AtomEncoder(4, (3, 2))
    x, other = torch.randint(2, (2, nodes, 2))
    traced = torch.jit.trace(encoder, (x,))
    torch.testing.assert_close(traced(other), encoder(other))


@pytest.mark.parametrize("nodes", [20, 300])
def test_an_encoder_tells_shapes(nodes):
    with FakeTensorMode():
        out = AtomEncoder(4, (3, 2))(torch.zeros(nodes, 2, dtype=torch.int64))
    assert out.shape == (nodes, 4)


@pytest.mark.parametrize("packed", [True, False])
def test_hooks_see_the_nodes_not_their_kinds(packed):
    empty, x, seen = torch.empty(2, 0).long(), torch.zeros(400, 2).long(), []
    model = FlexGCN(4, 3, 2, orders=[1, 1], encoder=AtomEncoder(4, (3, 2)))
    model.encoder.register_forward_hook(lambda module, args, out: seen.append(out.shape))
    graphs = PackedGraphs.from_arrays(x, empty, torch.arange(400) // 40)
    model(graphs.batch(slice(None))) if packed else model(x, empty, batch=torch.arange(400) // 40)
    assert seen == [(400, 4)]


def test_the_reference_has_second_derivatives_of_an_encoder():
    x, edges = torch.arange(300).view(-1, 1), torch.empty(2, 0).long()
    model = FlexGCN(4, 3, 1, orders=[1, 1], encoder=AtomEncoder(4, (300,)), backend="reference")
    out = model(x, edges, batch=torch.arange(300) // 10).square().sum()
    (grad,) = torch.autograd.grad(out, model.encoder.weight, create_graph=True)
    (second,) = torch.autograd.grad(grad.square().sum(), model.encoder.weight)
    assert second.count_nonzero()
