"""What a warp, or four of them, do together: shuffles, and matrices.

A fragment is how a warp's lanes share out a matrix among them: lane l is in group g = l div 4, at
place t = l mod 4 of it, and holds, of a matrix of 16-bit numbers, two neighbours a register:

    A [16, k]    row g + 8 (r mod 2), columns 2t, 2t + 1 (+ 8 (r div 2))        register r
    B [k, 8]     column g, rows 2t, 2t + 1 (+ 8 r)
    C [16, 8]    row g + 8 (r div 2), column 2t + r mod 2, one float32 a register

and of 32-bit ones one a register, at t + 4 (r div 2) or t + 4 r (PTX's manual, "Warp-level Matrix
Instructions" and "Asynchronous Warpgroup Level Matrix Instructions").
"""

import re
from itertools import product

import numpy as np

from .arithmetic import to_float32
from .machine import WARP, Machine, Step, operation
from .memory import Fault
from .parse import Statement, names

GROUP, PLACE = np.divmod(np.arange(WARP), 4)


@operation("shfl")
def shuffle(machine: Machine, statement: Statement) -> Step:
    """Each lane takes what another has, or keeps its own where that is out of its segment."""
    how = statement.modifiers[1]
    target, *operands = statement.operands
    value, by = machine.source(operands[0], "b32"), machine.source(operands[1], "u32")
    limits = int(operands[2])
    segment, clamp = limits >> 8, limits & 31
    lane = machine.lane
    first = lane & segment
    last = first | (clamp & ~segment)

    def step(mask):
        shift = by.astype(int) & 31
        other = {"bfly": lane ^ shift, "idx": first | shift & ~segment, "up": lane - shift}[how]
        there = other >= last if how == "up" else other <= last
        other = machine.first_lane + np.where(there, other, lane)
        if mask is not None and not mask[other[mask]].all():
            raise Fault("some lanes shuffle with one that is elsewhere")
        machine.put(target, np.broadcast_to(value, machine.lanes)[other], mask)

    return step


@operation("redux")
def reduce(machine: Machine, statement: Statement) -> Step:
    target, operand, _ = statement.operands
    value = machine.source(operand, statement.modifiers[-1])
    over = {"max": np.max, "min": np.min, "add": np.sum}[statement.modifiers[1]]

    def step(mask):
        machine.whole(mask, WARP, "a warp that reduces")
        result = over(value.reshape(-1, WARP), axis=1).astype(value.dtype)
        machine.put(target, np.repeat(result, WARP), mask)

    return step


@operation("ldmatrix", "stmatrix")
def move_matrices(machine: Machine, statement: Statement) -> Step:
    """8x8 matrices of 16 bits: lanes 8i to 8i + 7 say where the rows of the i-th are."""
    count = int(statement.modifiers[3][1])
    transposed, loads = "trans" in statement.modifiers, statement.name == "ldmatrix"
    fragments, place = statement.operands if loads else statement.operands[::-1]
    fragments = [machine.register(name).reshape(-1, WARP) for name in names(fragments)]
    address = machine.address(place)
    shared = machine.memory["shared"]

    def step(mask):
        warps = machine.whole(mask, WARP, "a warp that moves matrices")
        for i, fragment in zip(range(count), fragments, strict=True):
            lanes = (warps[:, None] * WARP + np.arange(8 * i, 8 * i + 8)).ravel()
            access = machine.access("shared", lanes, address(lanes), 16)
            if loads:
                matrices = shared.load(access, 2).reshape(-1, 8, 8)
                matrices = matrices.transpose(0, 2, 1) if transposed else matrices
                fragment[warps] = np.ascontiguousarray(matrices).view(np.uint32).reshape(-1, WARP)
            else:
                matrices = fragment[warps].view(np.uint16).reshape(-1, 8, 8)
                matrices = matrices.transpose(0, 2, 1) if transposed else matrices
                shared.store(access, np.ascontiguousarray(matrices).reshape(-1, 8))

    return step


def decode(bits: np.ndarray, kind: str) -> np.ndarray:
    """[..., n] numbers of 32 bits: "tf32", or two "bf16" or "f16"; in float64, [..., n, 1 or 2]."""
    if kind == "tf32":  # the last bits are not looked at
        return (bits & np.uint32(0xFFFFE000)).view(np.float32).astype(float)[..., None]
    halves = np.ascontiguousarray(bits)[..., None].view(np.uint16)
    return to_float32(halves, kind).astype(float)


def registers(machine: Machine, operand: str, warps: np.ndarray) -> np.ndarray:
    """[warps, lanes, registers] of these warps."""
    each = [machine.register(name).reshape(-1, WARP)[warps] for name in names(operand)]
    return np.stack(each, 2)


def left(machine: Machine, operand: str, kind: str, warps: np.ndarray) -> np.ndarray:
    """A of a warp each: [warps, 16, k]."""
    numbers = decode(registers(machine, operand, warps), kind)
    _, _, count, packed = numbers.shape
    a = np.empty((len(warps), 16, 4 * packed * count // 2))
    for r, i in product(range(count), range(packed)):
        columns = packed * PLACE + i + 4 * packed * (r // 2)
        a[:, GROUP + 8 * (r % 2), columns] = numbers[:, :, r, i]
    return a


def right(machine: Machine, operand: str, kind: str, warps: np.ndarray) -> np.ndarray:
    """B of a warp each: [warps, k, 8]."""
    numbers = decode(registers(machine, operand, warps), kind)
    _, _, count, packed = numbers.shape
    b = np.empty((len(warps), 4 * packed * count, 8))
    for r, i in product(range(count), range(packed)):
        b[:, packed * PLACE + i + 4 * packed * r, GROUP] = numbers[:, :, r, i]
    return b


def accumulators(values: np.ndarray) -> np.ndarray:
    """[warps, lanes, n / 2] numbers as C of a warp each, [warps, 16, n]."""
    c = np.empty((len(values), 16, values.shape[2] * 2))
    for r in range(values.shape[2]):
        c[:, GROUP + 8 * (r // 2 % 2), 8 * (r // 4) + 2 * PLACE + r % 2] = values[:, :, r]
    return c


def keep(machine: Machine, operand: str, c: np.ndarray, warps: np.ndarray) -> None:
    """Put C, [warps, 16, n], into its registers, cut to float32 as matrix units do."""
    rounded = c.astype(np.float32)
    larger = np.abs(rounded.astype(float)) > np.abs(c)
    c = np.where(larger & np.isfinite(rounded), np.nextafter(rounded, np.float32(0)), rounded)
    for r, name in enumerate(names(operand)):
        part = c[:, GROUP + 8 * (r // 2 % 2), 8 * (r // 4) + 2 * PLACE + r % 2]
        machine.register(name).reshape(-1, WARP)[warps] = part.view(np.uint32)


@operation("mma")
def multiply(machine: Machine, statement: Statement) -> Step:
    """D = A B + C of a warp."""
    *_, kind, to = statement.modifiers
    d, a, b, c = statement.operands
    assert to == "f32" and statement.modifiers[2].startswith("m16n8"), statement
    sources = [machine.source(operand, "f32") for operand in names(c)]  # some may be constants

    def step(mask):
        warps = machine.whole(mask, WARP, "a warp that multiplies")
        each = [np.broadcast_to(s, machine.lanes).reshape(-1, WARP)[warps] for s in sources]
        c = accumulators(np.stack(each, 2))
        ab = left(machine, a, kind, warps) @ right(machine, b, kind, warps)
        keep(machine, d, ab + c, warps)

    return step


@operation("wgmma")
def multiply_by_four_warps(machine: Machine, statement: Statement) -> Step:
    """D = A B + D of four warps, B and perhaps A in shared memory, done at once.

    What the warps wrote there they must have met at a barrier since.
    """
    if statement.modifiers[0] in ("fence", "commit_group", "wait_group"):
        return lambda mask: None
    d, a, b, adds, *options = statement.operands
    kind = statement.modifiers[-1]
    n, k = (int(x) for x in re.findall(r"m64n(\d+)k(\d+)", ".".join(statement.modifiers))[0])
    assert options[:2] == ["1", "1"], statement
    # Whether rows of Aᵀ, of B, are what lies together in shared memory: half precision can.
    *_, a_turned, b_turned = ("0", "0", *options[2:])
    adds = machine.source(adds, "pred")

    def step(mask):
        groups = machine.whole(mask, 4 * WARP, "four warps that multiply")
        warps = (groups[:, None] * 4 + np.arange(4)).ravel()
        if a.startswith("{"):
            rows = left(machine, a, kind, warps).reshape(len(groups), 64, k)
        else:
            rows = from_shared(machine, a, groups, (64, k), kind, a_turned == "1")
        columns = from_shared(machine, b, groups, (n, k), kind, b_turned == "1")
        added = np.broadcast_to(adds, machine.lanes).reshape(-1, WARP)[warps]
        c = registers(machine, d, warps).view(np.float32)
        c = accumulators(np.where(added[:, :, None], c, 0)).reshape(len(groups), 64, n)
        c += rows @ columns.transpose(0, 2, 1)
        keep(machine, d, c.reshape(-1, 16, n), warps)

    return step


def from_shared(
    machine: Machine, operand: str, groups: np.ndarray, shape: tuple, kind: str, turned: bool
) -> np.ndarray:  # fmt: skip
    """A matrix [groups, rows, k] where a descriptor says: of A, or of Bᵀ.

    It lies in blocks of 8 by `span` bytes, along k or (turned) along the rows, whose 16-byte pieces
    are swizzled within them by an exclusive or with the number of the line (PTX's manual, "Shared
    Memory Matrix Layout").
    """
    descriptor = machine.register(operand)[groups * 4 * WARP].astype(np.int64)
    fields = [(descriptor >> at & 0x3FFF) << 4 for at in (0, 16, 32)]
    start, leading, stride = (field[:, None, None] for field in fields)
    mode = int(descriptor[0] >> 62 & 3)
    if (descriptor >> 62 & 3 != mode).any() or (descriptor >> 49 & 7).any():
        raise Fault("a descriptor that is not understood")
    size, span = 4 if kind == "tf32" else 2, (16, 128, 64, 32)[mode]
    i, j = np.arange(shape[0])[:, None], np.arange(shape[1])
    line, along = (j, i) if turned else (i, j)
    lines, blocks = (leading, stride) if turned and mode == 0 else (stride, leading)
    at = line % 8 * span + along * size % span
    at = start + at + line // 8 * lines + along * size // span * blocks
    at = at ^ (at >> 7 & (0, 7, 3, 1)[mode]) << 4
    flat = at.reshape(len(groups), -1)
    for warp in range(4):  # each of which may have written some of it since the last barrier
        lanes = np.repeat((groups * 4 + warp) * WARP, flat.shape[1])
        access = machine.touch("shared", lanes, flat.ravel(), size)
        bits = machine.memory["shared"].load(access, size)
    bits = bits.reshape(len(groups), *shape)
    return decode(bits, kind)[..., 0] if kind == "tf32" else to_float32(bits, kind).astype(float)
