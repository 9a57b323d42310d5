"""Products with rows by the compiled CPU kernels, against PyTorch's in float64."""

from functools import partial

import pytest
import torch

from grant_fast import FlexConv, FlexGCN, InputError, PackedGraphs, explain, native, ops
from grant_fast.adjacency import Adjacency
from tests.cases import Case, to_dense
from tests.native.checks import close

pytestmark = pytest.mark.skipif(native.build() is None, reason="the kernels were not compiled")


def matrix(rows: int, columns: int, entries: int) -> Adjacency:
    """Entries anywhere, some of them repeated; half of the rows have none, and one has many."""
    row = torch.randint(max(1, rows // 2), (entries,)) * 2 % rows
    row[: entries // 8] = rows - 1
    row, col = row.sort().values, torch.randint(columns, (entries,))
    rowptr = torch.zeros(rows + 1, dtype=torch.int32)
    rowptr[1:] = row.bincount(minlength=rows).cumsum(0)
    return Adjacency(rowptr, col.int(), torch.randn(entries), columns)


@pytest.fixture
def always(monkeypatch):
    """The kernels multiply, even where PyTorch would be as fast."""
    monkeypatch.setattr(native.csr, "multiplies", lambda x: True)
    monkeypatch.setattr(native.dense, "takes_products", lambda *_: True)
    monkeypatch.setattr(native.dense, "LEAST_ROWS", 1)


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.usefixtures("build", "always")
@pytest.mark.parametrize("width", [*range(1, 20), 31, 32, 33, 64, 65, 127, 200])
def test_product(width):
    for rows, columns, entries in ((300, 200, 1000), (7, 900, 3), (40, 5, 0), (1, 1, 40)):
        a, x = matrix(rows, columns, entries), torch.randn(columns, width)
        rowptr, col, value = a.csr
        want = to_dense(rowptr, col, value.double(), columns) @ x.double()
        close(native.PRODUCTS.spmm(*a.csr, x), want)
        close(native.PRODUCTS.spmm(*a.csr, x.T.contiguous().T), want)  # in another order in memory
        begun = torch.randn(rows, width)
        close(native.PRODUCTS.spmm(*a.csr, x, begun.clone()), want + begun)


@pytest.mark.usefixtures("build", "always")
@pytest.mark.parametrize("width", [1, 9, 64, 70])
@pytest.mark.parametrize(("rows", "columns"), [(374, 9), (1500, 3), (1, 1), (0, 9), (5, 0)])
def test_sums_of_chosen_rows(rows, columns, width):
    chosen, table = torch.randint(20, (rows, columns)), torch.randn(20, width)
    table, grad = table.T.contiguous().T.requires_grad_(), torch.randn(width, rows).T
    want = table.double()[chosen].sum(1)
    got = native.sum_of_chosen(table, native.Choices.of(chosen, 20))
    close(got, want)
    (found,) = torch.autograd.grad(got, table, grad)
    (wanted,) = torch.autograd.grad(want, table, grad.double())
    close(found, wanted.double())
    again = native.sum_of_chosen(table, native.Choices.of(chosen, 20))
    with pytest.raises(InputError, match="differentiated only once"):
        torch.autograd.grad(again.square().sum(), table, create_graph=True)


@pytest.mark.usefixtures("build", "always")
@pytest.mark.parametrize("entries", [1023, 1024, 1025, 1_000_000])
def test_long_rows_keep_their_digits(entries):
    """As of the mean over a huge graph: a running sum of a million equal floats is off by 1%."""
    rowptr = torch.tensor([0, entries, entries + 1], dtype=torch.int32)
    value = torch.full((entries + 1,), 0.3)
    got = native.PRODUCTS.spmm(
        rowptr, torch.arange(entries + 1).int(), value, torch.ones(entries + 1, 17)
    )
    want = value[0].double() * torch.tensor([[entries], [1]])
    torch.testing.assert_close(got.double(), want.expand(2, 17), rtol=3e-5, atol=0)


@pytest.mark.usefixtures("build")
def test_results_do_not_depend_on_threads(threads):
    a, x = matrix(20_000, 20_000, 300_000), torch.randn(20_000, 40)
    threads(1)
    want = native.PRODUCTS.spmm(*a.csr, x)
    for many in (2, 3, 7):
        threads(many)
        assert torch.equal(native.PRODUCTS.spmm(*a.csr, x), want)


def wide(x):
    """The same values, in rows further apart."""
    return torch.nn.functional.pad(x, (0, 3))[:, :-3]


@pytest.mark.usefixtures("build", "always")
@pytest.mark.parametrize("h_in", [1, 5, 33, 511, 513, 1100])
@pytest.mark.parametrize("h_out", [1, 7, 8, 17, 64, 65, 200])
def test_products_with_a_small_matrix(h_in, h_out):
    for rows in (0, 1, 3, 127, 128, 129, 700):
        x, weight = torch.randn(rows, h_in), torch.randn(h_in, h_out)
        want, scale = x.double() @ weight.double(), torch.tensor(h_in**0.5)
        close(native.PRODUCTS.mm(x, weight), want, scale)
        close(native.PRODUCTS.mm(wide(x), wide(weight)), want, scale)
        close(native.PRODUCTS.mm(x, weight.T.contiguous().T), want, scale)
        bias, begun = torch.randn(h_out), torch.randn(rows, h_out)
        close(native.PRODUCTS.mm(x, weight, bias), want + bias, scale)
        given = begun.clone()
        close(native.PRODUCTS.mm(x, weight, given), want + begun, scale)
        y, out = torch.randn(rows, h_out), torch.full((h_in, h_out), torch.nan)
        native.PRODUCTS.mm_columns(x, y, out)
        close(out, x.double().T @ y.double(), torch.tensor(rows**0.5))
        native.PRODUCTS.mm_columns(wide(x), wide(y), out)
        close(out, x.double().T @ y.double(), torch.tensor(rows**0.5))


@pytest.mark.usefixtures("build", "always")
def test_products_do_not_depend_on_threads(threads):
    x, weight, y = torch.randn(20_001, 40), torch.randn(40, 31), torch.randn(20_001, 31)

    def products():
        out = torch.empty(40, 31)
        native.PRODUCTS.mm_columns(x, y, out)
        return native.PRODUCTS.mm(x, weight, y[0]), native.PRODUCTS.mm(x, weight, y.clone()), out

    threads(1)
    want = products()
    for many in (2, 3, 7):
        threads(many)
        for got, wanted in zip(products(), want, strict=True):
            assert torch.equal(got, wanted)


@pytest.mark.usefixtures("build", "always")
def test_a_million_rows_keep_their_digits():
    x, y, out = torch.full((1_000_000, 3), 0.3), torch.ones(1_000_000, 2), torch.empty(3, 2)
    native.PRODUCTS.mm_columns(x, y, out)
    torch.testing.assert_close(out, torch.full((3, 2), 3e5), rtol=3e-5, atol=0)


@pytest.mark.parametrize(
    ("mkl", "outruns", "most"), [(True, True, 512), (True, False, 128), (False, True, 128)]
)
def test_up_to_which_width_the_kernels_multiply(mkl, outruns, most, monkeypatch):
    monkeypatch.setattr(native.dense, "multiplies", lambda x: True)
    monkeypatch.setattr(native.dense, "call", lambda name: {"outruns_mkl": int(outruns)}[name])
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: mkl)
    takes = partial(native.takes_products, torch.ones(1), 512)
    assert takes(2, 9000) and takes(most, 9000) and takes(9000, most)
    assert not takes(most + 1, most + 1)
    assert not takes(1, 64) and not takes(64, 1)


def test_few_rows_are_left_to_pytorch(monkeypatch):
    called = []
    monkeypatch.setattr(native.dense, "multiplies", lambda x: True)
    monkeypatch.setattr(native.dense, "call", lambda name, *_: called.append(name))
    for rows, taken in ((511, []), (512, ["matmul", "matmul_columns"])):
        x, weight, out = torch.ones(rows, 3), torch.ones(3, 2), torch.zeros(2, 3)
        native.PRODUCTS.mm(x, weight)
        native.PRODUCTS.mm_columns(x, x[:, :2], out.T)  # not as the kernel writes it
        assert (out == rows).all()
        native.PRODUCTS.mm_columns(x, x[:, :2], out.view(3, 2))
        assert called == taken


@pytest.mark.skipif(not native.multiplies(torch.ones(1)), reason="the kernels need AVX to multiply")
def test_explain_says_that_few_rows_are_left_to_pytorch():
    model = FlexGCN(5, 8, 1, orders=[2, 2])
    for nodes, by_kernels in ((511, "hops"), (512, "hops and products")):
        x, batch = torch.randn(nodes, 5), torch.arange(nodes) % 2  # no runs, so no whole layers
        line = explain(model, x, torch.arange(nodes).expand(2, -1), batch=batch)[0]
        assert f"PyTorch ({by_kernels} by the CPU kernels): " in line


@pytest.mark.usefixtures("build")
def test_who_multiplies(monkeypatch):
    """The kernel float32 rows of int32 matrices; PyTorch all others."""
    called = []
    call = native.csr.call
    monkeypatch.setattr(
        native.csr, "call", lambda name, *args: called.append(name) or call(name, *args)
    )
    a = matrix(30, 30, 100)
    rowptr, col, value = a.csr
    taken = ["csr_matmul"] if native.loading.lanes() >= 8 else []

    def last(*args):
        called.clear()
        native.PRODUCTS.spmm(*args)
        return called[-1:]

    x = torch.randn(30, 16)
    for width in (16, 9, 1):
        assert last(*a.csr, x[:, :width]) == taken
    for other in (x.double(), x.half()):
        assert "csr_matmul" not in last(*a.csr, other)
    assert "csr_matmul" not in last(rowptr.long(), col.long(), value, x)
    for backend, expected in (("auto", taken), ("torch", [])):
        called.clear()
        ops.spmm(x, a, backend)
        assert called[-1:] == expected


def test_a_network_by_pytorch_is_by_pytorch(monkeypatch):
    monkeypatch.setattr(native.csr, "call", None)
    case = Case()
    graphs = PackedGraphs.from_arrays(torch.randn(case.num_nodes, 32), case.edge_index, case.batch)
    for pool in ("mean", "max", None):
        model = FlexGCN(32, 32, 24, [3, 2], pool=pool, backend="torch")
        model(graphs.batch(slice(None))).sum().backward()  # its first layer reads kept hops
        model(graphs.x, case.edge_index, batch=case.batch).sum().backward()


@pytest.mark.usefixtures("build")
@pytest.mark.parametrize("widths", [(16, 40), (40, 16), (33, 33), (2, 9), (330, 5)])
@pytest.mark.parametrize("learned", [True, False])
def test_gradients_on_a_graph_that_no_tile_holds(widths, learned):
    nodes = native.MAX_NODES + 1
    edge_index, weight = torch.randint(nodes, (2, 4 * nodes)), torch.rand(4 * nodes)
    conv = FlexConv(*widths, order=3)
    exact = FlexConv(*widths, order=3, backend="torch").double()
    exact.load_state_dict(conv.state_dict())
    gradients = []
    for layer, dtype in ((exact, torch.float64), (conv, torch.float32)):
        given = torch.linspace(-1, 1, nodes * widths[0], dtype=dtype).view(nodes, -1).sin()
        x, w = given.requires_grad_(), weight.detach().to(dtype).requires_grad_(learned)
        y = layer(x, edge_index, w)
        y.cos().sum().backward()
        gradients.append([y, x.grad, layer.weight.grad, layer.bias.grad] + [w.grad] * learned)
    for want, got in zip(*gradients, strict=True):
        close(got, want)
