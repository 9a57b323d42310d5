"""What the kernels become on each target: registers, spills and shared memory, with no GPU.

Triton compiles for any target that its back ends know; NVIDIA's `cuobjdump`, which comes with
Triton, and AMD's assembly say what the result uses.

`python -m grant_fast.kernels.inspect` prints the table.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from . import blocks, fused, launch, layer

#: The targets that are held to their limits, and the bytes of shared memory a program may have.
TARGETS: dict[str, tuple[GPUTarget, int]] = {
    "sm_80": (GPUTarget("cuda", 80, 32), 163 << 10),
    "sm_90": (GPUTarget("cuda", 90, 32), 227 << 10),
    "gfx90a": (GPUTarget("hip", "gfx90a", 64), 64 << 10),
    "gfx942": (GPUTarget("hip", "gfx942", 64), 64 << 10),
}

#: Layers (κ, h_in, h_out) of the default table: the block shapes that widths to 64 can take, at the
#: lowest order, a usual one and the highest.
LAYERS = tuple(
    (order, *widths)
    for order in (1, 3, 5)
    for widths in ((9, 9), (9, 27), (27, 18), (64, 16), (64, 64))
)
REPRESENTATIVE = ((3, 27, 18), (5, 64, 64))

_INTEGERS = {"p_ptr": "*i64", "p_bits": "*i64", "p_tile": "*i32"}
_INTEGERS |= dict.fromkeys(("p_graph", "p_row"), "*i64")
_WORKSPACES = ("p_scale", "p_partial", "p_scratch")  # float32 whatever the features are


@dataclass(frozen=True)
class Compiled:
    """One kernel in one configuration on one target; `spills` in bytes, `shared` in bytes."""

    kernel: str
    configuration: str
    target: str
    registers: int
    spills: int
    shared: int

    @property
    def fits(self) -> bool:
        """Whether nothing spills and the shared memory is there."""
        return not self.spills and self.shared <= TARGETS[self.target][1]


def configurations(order: int, h_in: int, h_out: int) -> Iterator[tuple[Any, str, dict[str, Any]]]:
    """(kernel, role, constants) of everything a normalised layer with a ReLU launches."""
    forward = {"ORDER": order, "H_IN": h_in, "H_OUT": h_out, "BIAS": True, "RELU": True}
    forward |= {"TRANSPOSE": False, "RELU_IN": False}
    backward = {"ORDER": order, "H_IN": h_out, "H_OUT": h_in, "BIAS": False, "RELU": False}
    backward |= {"TRANSPOSE": True, "RELU_IN": True}
    gradient = {"ORDER": order, "H_IN": h_in, "H_OUT": h_out, "RELU": True}
    yield fused.flex_conv_tiles, "Y", forward | layer.tile_shape(h_in, h_out)
    yield fused.flex_conv_tiles, "dX", backward | layer.tile_shape(h_out, h_in)
    yield fused.weight_grad_tiles, "dW", gradient | layer.tile_grad_shape(h_out)
    yield blocks.flex_conv_blocks, "Y", forward | layer.block_shape(h_in, h_out)
    yield blocks.flex_conv_blocks, "dX", backward | layer.block_shape(h_out, h_in)
    yield blocks.weight_grad_blocks, "dW", gradient | layer.block_grad_shape(h_out)


def compile_table(
    layers: Iterable[tuple[int, int, int]] = LAYERS,
    targets: Iterable[str] = tuple(TARGETS),
    dtypes: Iterable[str] = ("fp32",),
) -> Iterator[Compiled]:
    """Compile the kernels of these layers for these targets, one row at a time.

    Args:
        layers: (κ, h_in, h_out) of each.
        targets: names in `TARGETS`.
        dtypes: of the features, as Triton calls them: "fp32", "bf16", "fp16".
    """
    for sizes, dtype, target in product(list(layers), list(dtypes), list(targets)):
        for kernel, role, constants in configurations(*sizes):
            name = f"{role} κ={sizes[0]} {sizes[1]}→{sizes[2]} {dtype}"
            yield _compile(kernel, name, target, dtype, constants)


def _compile(
    kernel: Any, name: str, target: str, dtype: str, constants: dict[str, Any]
) -> Compiled:
    gpu, _ = TARGETS[target]
    accurate = "tf32x3" if dtype == "fp32" else "tf32"
    constants = constants | {"NORMALIZE": True, "DATASET_X": False}
    constants["PRECISION"] = accurate if gpu.backend == "cuda" else "ieee"
    signature = {arg: _type(arg, dtype, constants) for arg in kernel.arg_names}
    aligned = [["tt.divisibility", 16]]
    attrs = {(i,): aligned for i, arg in enumerate(kernel.arg_names) if arg.startswith("p_")}
    title = kernel.fn.__name__
    out = triton.compile(
        ASTSource(kernel, signature, constants, attrs),
        target=gpu,
        options=launch.options(title, gpu.backend == "hip"),
    )
    registers, spills = _usage(gpu.backend, out.asm)
    return Compiled(title, name, target, registers, spills, out.metadata.shared)


def _type(arg: str, dtype: str, constants: dict[str, Any]) -> str:
    if arg in constants:
        return "constexpr"
    if not arg.startswith("p_"):
        return "i32"
    return _INTEGERS.get(arg) or ("*fp32" if arg in _WORKSPACES else f"*{dtype}")


def _usage(backend: str, asm: dict[str, Any]) -> tuple[int, int]:
    """(registers a thread, bytes spilled a thread)."""
    if backend == "hip":
        text = asm["amdgcn"]
        registers = _number(r"\.vgpr_count:\s+(\d+)", text)
        return registers, 4 * _number(r"\.vgpr_spill_count:\s+(\d+)", text)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(asm["cubin"])
        command = [os.fspath(tool), "-res-usage", os.fspath(file)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return _number(r"REG:(\d+)", text), _number(r"STACK:(\d+)", text)


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise RuntimeError(f"no {pattern} in what the compiler printed")
    return int(found[1])


def main(layers: Iterable[tuple[int, int, int]]) -> int:
    """Print the table as it grows; 1 if anything spills or needs more memory than there is."""
    print(f"{'kernel':20} {'configuration':26} {'target':7} registers spills shared")
    wrong = 0
    for row in compile_table(layers):
        wrong += not row.fits
        numbers = f"{row.registers:9} {row.spills:6} {row.shared:6}"
        mark = "" if row.fits else "  too much"
        print(f"{row.kernel:20} {row.configuration:26} {row.target:7} {numbers}{mark}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(REPRESENTATIVE if sys.argv[1:] == ["--representative"] else LAYERS))
