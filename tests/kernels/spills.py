"""Whether layers that the table of registers does not hold spill: some, drawn at random.

    python -m tests.kernels.spills --kernel weight_grad_tiles --target sm_90 --layers 70 --seed 1

The table (`kernels/layer_configurations.py`) holds layers that stand for all others. Whether they
do is worth a look after a change to a kernel, to the blocks it takes, or to
`launch.most_registers`. Some hundred rows take minutes.
"""

import argparse
import os
import random

from grant_fast.kernels.inspect import TARGETS, compile_one, exists_on
from grant_fast.kernels.kernel import Configuration
from grant_fast.kernels.layer_configurations import Layer, of_layers
from grant_fast.workers import share_out

USUAL = (9, 16, 18, 27, 32, 33, 48, 63, 64)
KERNELS = ("flex_conv_tiles", "weight_grad_tiles", "flex_conv_blocks", "weight_grad_blocks")


def draw(choose: random.Random) -> Layer:
    dtype = choose.choice(("fp32", "fp32", "fp32", "bf16", "fp16"))
    return Layer(
        order=choose.randint(1, 5),
        h_in=choose.choice((choose.randint(1, 64), choose.choice(USUAL))),
        h_out=choose.choice((choose.randint(1, 64), choose.choice(USUAL))),
        dtype=dtype,
        plain=choose.random() < 0.2,
        place=choose.choice(("", "", "in place", "kinds")),
        tf32=dtype == "fp32" and choose.random() < 0.15,
    )


def drawn(kernel: str, layers: int, seed: int) -> tuple[Configuration, ...]:
    """The configurations of a kernel for so many layers, each once."""
    choose = random.Random(seed)
    some = tuple(dict.fromkeys(draw(choose) for _ in range(layers)))
    return of_layers(some, some, dict.fromkeys((1, 2, 3, 4), some))[kernel]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kernel", default=KERNELS[0], choices=KERNELS)
    parser.add_argument("--target", default="sm_90", choices=TARGETS)
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    rows = [
        row for row in drawn(asked.kernel, asked.layers, asked.seed) if exists_on(asked.target, row)
    ]
    many = len(rows)
    columns = [asked.kernel] * many, rows, [asked.target] * many
    failed = 0
    for row in share_out(os.cpu_count() or 1, compile_one, *columns):
        if row.verdict != "pass":
            failed += 1
            print(f"{row.configuration:45}{row.registers:5}{row.spills:5}  {row.verdict}")
    print(f"{many} configurations of {asked.kernel} for {asked.target}, {failed} do not pass")


if __name__ == "__main__":
    main()
