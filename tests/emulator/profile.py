"""Where a layer's kernels spend their work, by the lines of their source, without a GPU.

    python -m tests.emulator.profile --nodes 24 --widths 27 18 --order 3

prints, for each kernel and each graph of a batch of equal ones, what the warps issue: instructions
of PTX, 32-byte sectors of global memory, and passes over the banks of shared memory; beside these
two what they would be if no byte were touched twice in a request, and no two in one bank. A
multiprocessor issues some four instructions, or one pass, in the time of four sectors: it is no
measure of time, but a change that halves all of it is worth a try.
"""

import argparse
from collections import Counter, defaultdict

import numpy as np

from .machine import WARP, Machine

HEADER = ("", "instructions", "sectors", "at least", "passes", "at least")


class Profile:
    """Counts by kernel and line: [instructions, sectors, least, passes, least]."""

    def __init__(self) -> None:
        self.lines: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))

    def step(self, machine: Machine, mask) -> None:
        warps = machine.lanes // WARP if mask is None else mask.reshape(-1, WARP).any(1).sum()
        self._line(machine)["instructions"] += int(warps)

    def access(self, machine: Machine, space: str, lanes, address, size: int) -> None:
        """One request of each warp; `address` [lanes]."""
        warp = lanes // WARP
        unit = min(size, 4)
        unit_of = (address[:, None] + np.arange(0, size, unit)) // unit
        words = _distinct(warp, unit_of)
        if space == "global":
            sectors = _distinct(warp, (address[:, None] + np.arange(0, size, min(size, 32))) // 32)
            least = np.ceil(_by(words[:, 0]) * unit / 32).sum()
            self._add(machine, sectors=len(sectors), sectors_least=least)
            return
        # Lanes that read 8, or 16, bytes go in two, or four, phases.
        phase = warp * WARP + lanes % WARP // max(1, 128 // max(size, 4))
        banks = _distinct(phase, unit_of * unit // 4)
        passes = _by(banks[:, 0] * 32 + banks[:, 1] % 32, then=32).sum()
        self._add(machine, passes=passes, passes_least=np.ceil(_by(words[:, 0]) * unit / 128).sum())

    def _line(self, machine: Machine) -> Counter[str]:
        return self.lines[machine.text.name][machine.place]

    def _add(self, machine: Machine, **counts) -> None:
        self._line(machine).update({name: int(count) for name, count in counts.items()})


def _distinct(groups, places) -> np.ndarray:
    """The pairs of a group and one of its places [groups, n], each once: [pairs, 2]."""
    pairs = np.stack([np.repeat(groups, places.shape[1]), places.ravel()], 1)
    return np.unique(pairs, axis=0)


def _by(keys, then: int = 0) -> np.ndarray:
    """How often each key occurs; or, of those with the same key div `then`, the most."""
    keys, counts = np.unique(keys, return_counts=True)
    if not then:
        return counts
    _, first = np.unique(keys // then, return_index=True)
    return np.maximum.reduceat(counts, first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--target", default="sm_90", choices=["sm_80", "sm_90"])
    parser.add_argument("--nodes", type=int, default=24, help="of each graph")
    parser.add_argument("--widths", type=int, nargs=2, default=(27, 18), help="in and out")
    parser.add_argument("--order", type=int, default=3)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--lines", type=int, default=8, help="of each kernel")
    asked = parser.parse_args()
    from .device import emulate

    emulate(asked.target)
    profile = Machine.profile = Profile()
    graphs = _layer(asked.nodes, *asked.widths, asked.order, asked.dtype)
    for kernel, lines in profile.lines.items():
        total = sum(lines.values(), Counter())
        most = sorted(lines.items(), key=lambda line: -_weight(line[1]))[: asked.lines]
        print(f"\n{kernel:24}" + "".join(f"{word:>14}" for word in HEADER[1:]))
        for name, counts in (("all", total), *most):
            columns = ("instructions", "sectors", "sectors_least", "passes", "passes_least")
            print(f"{name:24}" + "".join(f"{counts[c] / graphs:14.1f}" for c in columns))


def _weight(counts: Counter[str]) -> float:
    return counts["instructions"] / 4 + counts["sectors"] / 4 + counts["passes"]


def _layer(nodes: int, h_in: int, h_out: int, order: int, dtype: str) -> int:
    """A layer forward and backward; how many graphs it was of."""
    import torch

    from grant_fast import ops
    from tests.cases import dense_graphs

    graphs = dense_graphs((nodes,) * max(1, 512 // nodes), h_in, True)
    batch, kind = graphs.batch(slice(None)), getattr(torch, dtype)
    x = batch.x.to(kind).requires_grad_()
    weight = torch.randn(order, h_in, h_out).to(kind).requires_grad_()
    bias, adjacency = torch.zeros(h_out, dtype=kind), batch.adjacency(True)
    y = ops.flex_conv(x, weight, bias, adjacency, relu=True, backend="triton")
    y.backward(torch.randn_like(y))
    return graphs.num_graphs


if __name__ == "__main__":
    main()
