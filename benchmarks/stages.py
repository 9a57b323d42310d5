"""Where a training step on the CPU spends its time, and how far that is from its floor.

A stage's floor is what it must move over the measured bandwidth, or what it must multiply over the
measured rate of a large matrix product, whichever is longer. Bandwidth is measured on arrays of the
stage's own size, because a batch of molecules lives in the caches and one of dense graphs does not.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple
from unittest import mock

import torch

from grant_fast import FlexGCN, native
from grant_fast.batch import GraphBatch

#: Why a stage takes more than twice its floor.
REASONS = {
    "convolution": "atoms have two or three edges: a hop waits for addresses, not for bytes; "
    "widths of 9, 18 and 27 fill 56 to 84% of a register",
    "norm, ReLU, dropout": "random bits are made, not read: ten integer operations an element",
    "readout": "an atom's weights lie where its molecule lies in the dataset: one miss a molecule",
    "embedding": "rows of nine floats: an address and a masked store each",
    "the rest": "Python, autograd's bookkeeping, the loss and Adam: a cost a batch, not a node",
}


class Stage(NamedTuple):
    """Milliseconds a step, and the least they could be."""

    name: str
    ms: float
    floor_ms: float

    @property
    def reason(self) -> str:
        """A sentence, where the time is above twice the floor."""
        if self.ms <= 2 * self.floor_ms:
            return ""
        return next(text for kind, text in REASONS.items() if self.name.startswith(kind))


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


def costs(model: FlexGCN, batch: GraphBatch) -> dict[str, tuple[float, float]]:
    """Bytes that a training step must move and operations it must do, by stage, in order."""
    n, e = batch.num_nodes, batch.num_edges
    out: dict[str, tuple[float, float]] = {}
    edges = 4.0 * (3 if batch.graphs.edge_rows(False) is not None else 2) * e + 8 * n
    if model.encoder is not None:
        width = model.convs[0].in_channels
        out["embedding forward"] = 4.0 * n * (1 + width), 0.0
        out["embedding backward"] = 4.0 * n * (1 + width), 0.0
    pooled = model.pool is not None
    for i, conv in enumerate(list(model.convs)[: -1 if pooled else None]):
        k, a, b = conv.order, conv.in_channels, conv.out_channels
        constant = i == 0 and model.encoder is None  # [X, ÂX, …] is at hand, and needs no gradient
        hops = 0 if constant else k - 1
        read, products = (k * a if constant else a), 2.0 * n * k * a * b
        moved = edges if hops else 0.0
        hop = 2.0 * e * hops * min(a, b)
        out[f"convolution {i + 1} forward"] = 4.0 * n * (read + b) + moved, products + hop
        back = 4.0 * n * (read + b + (0 if constant else a)) + moved
        out[f"convolution {i + 1} backward"] = back, products * (1 if constant else 2) + 2 * hop
        if i < len(model.norms):
            # Its mean must be known before anything is written: y is read twice; so is dY.
            out[f"norm, ReLU, dropout {i + 1} forward"] = 12.0 * n * b, 0.0
            out[f"norm, ReLU, dropout {i + 1} backward"] = 24.0 * n * b, 0.0
    if pooled:
        last = model.convs[-1]
        moved = 4.0 * n * (last.in_channels + last.order)
        out["readout forward"] = out["readout backward"] = moved, 0.0
    return out


NAMES = {
    "embed_nodes": "embedding",
    "flex_conv": "convolution",
    "norm_relu_dropout": "norm, ReLU, dropout",
    "pool_nodes": "readout",
}


def stages(model: FlexGCN, batch: GraphBatch, step: Callable[[], None], rounds: int) -> list[Stage]:
    """Medians over `rounds` steps; `batch` has the size of the batches that `step` takes."""
    call = native._call
    one: dict[str, list[float]] = defaultdict(list)

    def timed(name: str, *args: object) -> None:
        start = time.perf_counter()
        call(name, *args)
        one[name].append(time.perf_counter() - start)

    seen: dict[str, list[float]] = defaultdict(list)
    with mock.patch.object(native, "_call", timed):
        for _ in range(rounds):
            one.clear()
            start = time.perf_counter()
            step()
            total = time.perf_counter() - start
            seen["the rest"].append(total - sum(map(sum, one.values())))
            for name, values in one.items():
                way = "backward" if name.endswith("_backward") else "forward"
                kind = NAMES[name.removesuffix("_backward").removesuffix("_forward")]
                numbered = kind.startswith(("conv", "norm"))
                # The backward pass meets the layers from the last to the first.
                for i, value in enumerate(values if way == "forward" else reversed(values)):
                    seen[f"{kind} {i + 1} {way}" if numbered else f"{kind} {way}"].append(value)
    rate, out = gemm_rate(), []
    for name, (moved, operations) in costs(model, batch).items():
        if name in seen:
            floor = max(moved / bandwidth(int(moved)), operations / rate)
            out.append(Stage(name, 1e3 * statistics.median(seen[name]), 1e3 * floor))
    return [*out, Stage("the rest", 1e3 * statistics.median(seen["the rest"]), 0.0)]


def table(rows: list[Stage]) -> str:
    """The stages in Markdown, with a sentence for each kind that is far from its floor."""
    total = sum(row.ms for row in rows)
    lines = ["| stage | ms | share | floor, ms | times the floor |", "|---|---:|---:|---:|---:|"]
    for row in rows:
        times = f"{row.ms / row.floor_ms:.1f}" if row.floor_ms else "–"
        lines.append(
            f"| {row.name} | {row.ms:.2f} | {row.ms / total:.0%} | {row.floor_ms:.2f} | {times} |"
        )
    kinds = {kind: text for kind, text in REASONS.items() if any(r.reason == text for r in rows)}
    return "\n".join([*lines, "", *(f"- {kind}: {text}." for kind, text in kinds.items())])
