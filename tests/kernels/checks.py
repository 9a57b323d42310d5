"""What every kernel is held to, in Triton's interpreter, on the emulated GPU and on a device."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from grant_fast import PackedGraphs, ops, reference
from grant_fast.kernels import layer
from grant_fast.ops.tiled import kernel_graphs
from tests import emulator
from tests.cases import dense_graphs, to_dense

Allocate = Callable[..., Tensor]

#: Of the largest entry. Matrix units cut what they add up; the interpreter's sums are rounded.
DEVICE_TOLERANCE = 2e-5
TOLERANCE = DEVICE_TOLERANCE if emulator.TARGET else 4e-6

SIZES = (0, 1, 2, 15, 16, 17, 0, 31, 32, 33, 63, 64, 65, 128, 0)
SMALL_SIZES = (0, 1, 15, 16, 17, 2, 32, 33, 0, 0)


def check_layer(
    graphs: PackedGraphs,
    order: int,
    h_out: int,
    normalize: bool = True,
    relu: bool = False,
    positions: list[int] | slice = slice(None),
    dtype: torch.dtype = torch.float32,
    tolerance: float = TOLERANCE,
    device: str = "cpu",
) -> None:
    """Y, dX, dW and db of the kernels equal those of the definition in float64.

    Args:
        positions: the graphs of the batch.
        dtype: of X, W and b.
        tolerance: of an error, beside the largest entry.
        device: "cpu" is Triton's interpreter, or the emulated GPU.
    """
    batch = graphs.to(device).batch(positions)
    adjacency = batch.adjacency(normalize)
    weight = torch.randn(order, graphs.num_features, h_out) / (order * h_out) ** 0.5
    inputs = [t.to(device, dtype) for t in (batch.x, weight, torch.randn(h_out))]
    exact = [t.cpu().double().requires_grad_() for t in inputs]
    mine = [t.clone().requires_grad_() for t in inputs]
    dense = to_dense(*(t.cpu() for t in adjacency.csr), batch.num_nodes).double()
    before = reference.dense_flex_conv(*exact, dense)
    want = before.relu() if relu else before
    got = ops.flex_conv(*mine, adjacency, relu=relu, backend="triton")
    close(got, want, tolerance)
    # An expanded, strided gradient: what a sum over a transposed output sends back.
    grad = torch.randn(h_out, 1).to(dtype).expand(h_out, batch.num_nodes).T
    if relu:  # where rounding decides on which side of 0 a value falls, no gradient can agree
        grad = grad * (before.detach().abs() > 1e-3 * (dtype == torch.float32))
        same = (got.detach().cpu() > 0).eq(want.detach() > 0)
        grad = grad if dtype == torch.float32 else grad * same
    got_grads = torch.autograd.grad(got, mine, grad.to(device))
    want_grads = torch.autograd.grad(want, exact, grad.double())
    for g, w in zip(got_grads, want_grads, strict=True):
        close(g, w, tolerance)


def check_repeats(graphs: PackedGraphs, order: int, h_out: int, device: str = "cpu") -> None:
    """Two runs of a layer, forward and backward, give the same bits."""
    batch = graphs.to(device).batch(slice(None))
    weight = torch.randn(order, graphs.num_features, h_out, device=device)

    def run() -> tuple[Tensor, ...]:
        leaves = [batch.x.clone().requires_grad_(), weight.clone().requires_grad_()]
        out = ops.flex_conv(*leaves, None, batch.adjacency(True), relu=True, backend="triton")
        return out, *torch.autograd.grad(out.square().sum(), leaves)

    assert all(map(torch.equal, run(), run()))


def check_long_sum(tiles: int, device: str = "cpu") -> None:
    """What one program sums over so many tiles is as exact as a sum of float32 is elsewhere.

    All terms are positive: numbers cut instead of rounded would each make the sum smaller.
    """
    graphs = dense_graphs((20,), 9).to(device)
    batch = graphs.batch([0] * tiles)
    x, dy = batch.x.abs(), torch.rand(batch.num_nodes, 7, device=device)
    got, _ = weight_grad(x, dy, None, 2, kernel_graphs(batch, True), dataset_x=False)
    dense = to_dense(*(t.cpu() for t in graphs.batch([0]).adjacency(True).csr), 20).double()
    terms, given = dy.cpu().double().unflatten(0, (tiles, 20)), x[:20].cpu().double()
    want = torch.stack([given.T @ terms.sum(0), given.T @ dense.T @ terms.sum(0)])
    close(got, want, 2e-6)


def with_repeated_edges(graphs: PackedGraphs) -> PackedGraphs:
    """These graphs, and behind them one of two nodes and repeated edges, which bits cannot hold."""
    edges = torch.tensor([[0, 0, 1], [1, 1, 0]])
    x = torch.randn(2, graphs.num_features)
    return PackedGraphs.concat([graphs, PackedGraphs.from_arrays(x, edges, [0, 0], num_graphs=1)])


def check_far_offsets(size: int, dataset_x: bool, allocate: Allocate, device: str = "cpu") -> None:
    """Rows 2^25 of matrices of 64 columns, beyond 2^31 elements, are computed as rows 0 are.

    Args:
        size: nodes of the one graph.
        dataset_x: X is read by the graph's place in the dataset.
        allocate: makes a tensor of zeros of a dtype and shape.
    """
    far = 1 << 25
    graphs = dense_graphs((size,), 64).to(device)
    near = kernel_graphs(graphs.batch(slice(None)), normalize=True)
    scale = allocate(torch.float32, far + size)
    bits = allocate(torch.int64, near.bits.shape[0], far + size)
    x, dy, y, dx = (allocate(torch.float32, far + size, 64) for _ in range(4))
    scale[far:], bits[:, far:], x[far:] = graphs.scale, near.bits, graphs.x
    there = moved(near, far)
    there = there._replace(scale=scale, bits=bits, ptr=near.ptr + far, node=near.node + far)
    weight = torch.randn(2, 64, 64, device=device)
    want = layer.forward(graphs.x, weight, None, near, graphs.x.clone(), relu=True, dataset_x=False)
    layer.forward(x, weight, None, there, y, relu=True, dataset_x=dataset_x)
    assert torch.equal(y[far:], want)
    dy[far:] = torch.randn(size, 64, device=device)
    want = input_grad(dy[far:], y[far:], weight, near, graphs.x.clone())
    assert torch.equal(input_grad(dy, y, weight, there, dx)[far:], want)
    got = weight_grad(x, dy, y, 2, there, dataset_x=dataset_x)
    want = weight_grad(graphs.x, dy[far:], y[far:], 2, near, dataset_x=False)
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])


def input_grad(
    dy: Tensor, y: Tensor | None, weight: Tensor, graphs: layer.Graphs, dx: Tensor
) -> Tensor:
    """dX alone, into `dx`."""
    layer.backward(dy, y, dy, weight, graphs, dx, needs_dw=False, dataset_x=False)
    return dx


def weight_grad(
    x: Tensor, dy: Tensor, y: Tensor | None, order: int, graphs: layer.Graphs, **place: Any
) -> tuple[Tensor, Tensor]:
    """dW and db alone."""
    weight = x.new_empty(order, x.shape[1], dy.shape[1])
    pair = layer.backward(dy, y, x, weight, graphs, None, needs_dw=True, **place)
    assert pair is not None
    return pair


def moved(graphs: layer.Graphs, far: int) -> layer.Graphs:
    """The same graphs, `far` rows further down in the batch."""
    row = torch.where(graphs.row >= 0, graphs.row + far, -1)
    further = torch.tensor([[0], [far]], device=row.device)
    names = "one_plane", "two_planes", "three_planes", "four_planes"
    larger = {name: getattr(graphs, name) + further for name in names}
    return graphs._replace(row=row, **larger)


def close(got: Tensor, want: Tensor, tolerance: float) -> None:
    """`got` is within `tolerance` of `want`, beside its largest entry."""
    assert got.shape == want.shape
    scale = want.abs().max().item() if want.numel() else 1.0
    torch.testing.assert_close(got.cpu().double(), want, rtol=0, atol=tolerance * max(scale, 1e-3))
