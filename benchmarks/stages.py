"""Where a training step on the CPU spends its time, and how far that is from its floor.

A stage's floor is what it must move over the measured bandwidth, or what it must multiply over the
measured rate of a large matrix product, whichever is longer. Bandwidth is measured on arrays of the
stage's own size, because a batch of molecules lives in the caches and one of dense graphs does not.
The product is PyTorch's own: a stage below its floor is one whose product is faster than that.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import nn

from grant_fast import FlexConv, FlexGCN, native
from grant_fast.batches import GraphBatch
from grant_fast.native.loading import padded


class Stage(NamedTuple):
    """Milliseconds a step, its floor, and why it is more than twice as much."""

    name: str
    ms: float
    floor_ms: float
    reason: str = ""


def reasons(model: FlexGCN, coded: bool) -> dict[str, str]:
    """A sentence for each kind of stage of this model.

    Args:
        coded: whether its first layer goes by kinds of nodes, whatever its input's width is.
    """
    convs = [conv for conv in model.convs if isinstance(conv, FlexConv)]
    convs = convs[: -1 if model.pool else None]
    inputs = {conv.in_channels for conv in convs[int(coded) :]}
    widths = sorted(inputs | {conv.out_channels for conv in convs})
    ragged = [width for width in widths if width != padded(width)]
    shares = [width / padded(width) for width in ragged]
    norm = any(not isinstance(norm, nn.Identity) for norm in model.norms)
    drops = any(dropout.p for dropout in model.dropouts)
    layer = [
        f"widths of {', '.join(map(str, ragged))} fill {min(shares):.0%} to {max(shares):.0%} of "
        "their registers" if ragged else "",
        "the first layer copies κ rows for each node, and adds up as many" if coded else "",
        "a hop adds rows that lie in cache, two loads a cycle, and moves no new byte",
        "random bits are made, ten operations for a vector, both ways" if drops else "",
        "the layer's input is normalised again for its own gradient" if norm else "",
    ]  # fmt: skip
    act = "" if isinstance(model.act, nn.Identity) else type(model.act).__name__
    before = ["the last norm" if norm else "", act, "dropout" if drops else ""]
    loss, cost = "the loss", "a cost a batch, not a node"
    if model.pool is None:
        loss, cost = "the loss of each node", "but for that loss a cost a batch"
    rest = ["Python", "autograd's bookkeeping", "the encoder" if model.encoder else "", loss]
    return {
        "layer": "; ".join(filter(None, layer)),
        "readout": f"{', '.join(filter(None, before))}; one miss a graph for its weights",
        "the rest": f"{', '.join(filter(None, rest))} and Adam: {cost}",
    }


def gemm_rate() -> float:
    """Operations a second of a large float32 product."""
    a = torch.randn(1024, 1024)
    return 2 * 1024**3 / _best(lambda: a @ a)


def bandwidth(num_bytes: int) -> float:
    """Bytes a second, read and written, of a copy that moves `num_bytes` in all."""
    source = torch.empty(max(1024, num_bytes // 8))
    target = torch.empty_like(source)
    return 8 * source.numel() / _best(lambda: target.copy_(source))


def _best(run: Callable[[], object]) -> float:
    times = []
    for _ in range(20):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def costs(model: FlexGCN, batch: GraphBatch) -> list[tuple[str, float, float]]:
    """Name, bytes that must be moved and operations that must be done of each pass over the graphs
    in a training step, in order: a pass forward or backward is a layer and the norm before it."""
    n, e = batch.num_nodes, batch.num_edges
    edges = (12.0 if e <= 4 * n else 4.0 + 2 * e / n) * n  # four neighbours, or every edge
    forward: list[tuple[str, float, float]] = []
    backward: list[tuple[str, float, float]] = []
    pooled = model.pool is not None
    convs = [conv for conv in model.convs if isinstance(conv, FlexConv)]
    for i, conv in enumerate(convs[: -1 if pooled else None]):
        k, a, b = conv.order, conv.in_channels, conv.out_channels
        last, constant = i == len(model.norms), i == 0 and model.encoder is None
        kinds = batch.graphs.kinds if i == 0 else None
        read = 4.0 * n * (a if kinds is None else 1)  # a kind of node, for what is computed of it
        moved, operations = edges if k > 1 else 0.0, 2.0 * (n * k * a * b + e * (k - 1) * min(a, b))
        products = 2.0 * n * k * a * b  # dX's
        if kinds is not None:  # whose own the products are, and the hops at the width of Y
            m = len(kinds[1][batch.nodes].unique())
            products = 2.0 * m * k * a * b
            operations = min(operations, products + 2.0 * e * (k - 1) * b)
        forward.append((f"layer {i + 1} forward", read + moved + 4.0 * n * b, operations))
        # dY of what the norm made; Y, for the norm's own gradient; X again; and dX.
        back = (
            4.0 * n * b * (1 if last else 2)
            + read
            + moved
            + (0 if constant or kinds is not None else 4.0 * n * a)
        )
        operations += 0 if constant else products
        backward.append((f"layer {i + 1} backward", back, operations))
    if pooled:
        readout = convs[-1]
        moved = 4.0 * n * (readout.in_channels + readout.order)
        forward.append(("readout forward", moved, 0.0))
        backward.append(("readout backward", moved + 4.0 * n * readout.in_channels, 0.0))
    return forward + backward[::-1]


def stages(model: FlexGCN, batch: GraphBatch, step: Callable[[], None], rounds: int) -> list[Stage]:
    """Medians over `rounds` steps; `batch` has the size of the batches that `step` takes."""
    work, call = costs(model, batch), native.network.call
    said = reasons(model, batch.graphs.kinds is not None)
    seconds = torch.zeros(len(work), dtype=torch.float64)

    def timed(name: str, *args: Any) -> None:
        args[-1]._obj.seconds = seconds.data_ptr()  # the kernels time their passes
        call(name, *args)

    seen = []
    with mock.patch.object(native.network, "call", timed):
        for _ in range(rounds):
            start = time.perf_counter()
            step()
            total = time.perf_counter() - start
            seen.append([*seconds.tolist(), total - float(seconds.sum())])
    medians = [1e3 * statistics.median(column) for column in zip(*seen, strict=True)]
    rate, out = gemm_rate(), []
    for (name, moved, operations), ms in zip(work, medians, strict=False):
        floor = 1e3 * max(moved / bandwidth(int(moved)), operations / rate)
        out.append(Stage(name, ms, floor))
    out.append(Stage("the rest", medians[-1], 0.0))
    far = [stage.ms > 2 * stage.floor_ms for stage in out]
    why = [next(text for kind, text in said.items() if s.name.startswith(kind)) for s in out]
    return [s._replace(reason=text * is_far) for s, text, is_far in zip(out, why, far, strict=True)]


def table(rows: list[Stage]) -> str:
    """The stages in Markdown, with a sentence for each kind that is far from its floor."""
    total = sum(row.ms for row in rows)
    lines = ["| stage | ms | share | floor, ms | times the floor |", "|---|---:|---:|---:|---:|"]
    for row in rows:
        times = f"{row.ms / row.floor_ms:.1f}" if row.floor_ms else "–"
        lines.append(
            f"| {row.name} | {row.ms:.2f} | {row.ms / total:.0%} | {row.floor_ms:.2f} | {times} |"
        )
    said = dict.fromkeys(row.reason for row in rows if row.reason)
    return "\n".join([*lines, "", *(f"- {reason}." for reason in said)])
