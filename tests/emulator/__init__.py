"""An NVIDIA GPU made of NumPy: it runs the PTX that Triton's compiler makes of the kernels.

Triton's interpreter checks what a kernel says; this checks what the compiler made of it, without a
GPU: layouts, conversions through shared memory, matrix instructions, predicates, barriers. And it
watches what no result shows: accesses out of bounds or unaligned, reads of shared memory that
nothing wrote, barriers that some threads miss, and races, between warps, between programs, and
between threads that store different numbers to one place. It does not see what becomes of the PTX
on a device, and is no measure of time.

    pytest --emulate sm_90 tests/kernels

runs every kernel of the tests so, on CPU tensors. From the text to the launch:

    parse.py        PTX as statements
    memory.py       what a program may touch, and who touched it last
    machine.py      programs of a grid, a lane a thread, many at once
    arithmetic.py   what a thread does alone
    warps.py        what a warp, or four of them, do together: shuffles, matrices
    device.py       Triton's driver, which launches on the machine
    profile.py      what the warps issue, line by line
"""

#: The GPU that is emulated, by its architecture: None where kernels are interpreted, or run.
TARGET: str | None = None
