"""What a thread does alone."""

import operator
from collections.abc import Callable

import numpy as np

from .machine import TYPES, Machine, Step, operation
from .memory import UNSIGNED
from .parse import Statement, names

HALVES = ("f16", "bf16", "f16x2", "bf16x2")


def to_float32(bits: np.ndarray, kind: str) -> np.ndarray:
    """Numbers of half precision, "f16" or "bf16", of their bits."""
    if kind == "f16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)


def from_float32(values: np.ndarray, kind: str) -> np.ndarray:
    """The bits of numbers rounded to the nearest of half precision."""
    if kind == "f16":
        return values.astype(np.float16).view(np.uint16)
    bits = values.view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), 0x7FFF, bits).astype(np.uint16)


def unpack(bits: np.ndarray, kind: str) -> list[np.ndarray]:
    """float32 of a number of half precision, or of the low and the high one of two."""
    if not kind.endswith("x2"):
        return [to_float32(bits, kind)]
    low, high = bits.astype(np.uint16), (bits >> 16).astype(np.uint16)
    return [to_float32(half, kind[:-2]) for half in (low, high)]


def elementwise(compute: Callable[..., np.ndarray]) -> Callable[[Machine, Statement], Step]:
    """An operation on numbers all of one type, the last modifier."""

    def build(machine: Machine, statement: Statement) -> Step:
        kind = statement.modifiers[-1]
        assert kind not in HALVES, statement
        target, *operands = statement.operands
        sources = [machine.source(operand, kind) for operand in operands]
        return lambda mask: machine.put(target, compute(*sources), mask)

    return build


def _divide(a, b):
    assert a.dtype.kind == "f", "integers are divided by nobody yet"
    return a / b


operation("add")(elementwise(np.add))
operation("sub")(elementwise(np.subtract))
operation("div")(elementwise(_divide))
operation("neg")(elementwise(np.negative))
operation("sqrt")(elementwise(np.sqrt))
operation("ex2")(elementwise(np.exp2))
operation("min")(elementwise(np.fmin))  # of a number and a NaN: the number, as PTX's
operation("max")(elementwise(np.fmax))
operation("and")(elementwise(np.bitwise_and))  # of truth values, too
operation("or")(elementwise(np.bitwise_or))
operation("xor")(elementwise(np.bitwise_xor))
operation("not")(elementwise(np.invert))
operation("popc")(elementwise(lambda a: np.bitwise_count(a).astype(np.uint32)))
operation("fma")(elementwise(lambda a, b, c: (a.astype(float) * b + c).astype(a.dtype)))


@operation("abs")
def magnitude(machine: Machine, statement: Statement) -> Step:
    kind = statement.modifiers[-1]
    if kind not in HALVES:
        return elementwise(np.abs)(machine, statement)
    target, operand = statement.operands
    a = machine.source(operand, kind)
    but_signs = a.dtype.type(0x7FFF7FFF if kind.endswith("x2") else 0x7FFF)
    return lambda mask: machine.put(target, a & but_signs, mask)


@operation("mul", "mad")
def multiply(machine: Machine, statement: Statement) -> Step:
    *modifiers, kind = statement.modifiers
    wide = f"{kind[0]}{2 * int(kind[1:])}" if "wide" in modifiers else kind
    assert "hi" not in modifiers, statement
    target, *operands = statement.operands
    a, b = (machine.source(operand, kind) for operand in operands[:2])
    if statement.name == "mul":
        return lambda mask: machine.put(target, a.astype(TYPES[wide]) * b, mask)
    c = machine.source(operands[2], wide)
    return lambda mask: machine.put(target, a.astype(TYPES[wide]) * b + c, mask)


@operation("shl", "shr")
def shift(machine: Machine, statement: Statement) -> Step:
    """By more than there are bits: all are gone, or become the sign's."""
    target, *operands = statement.operands
    a, by = machine.source(operands[0], statement.modifiers[-1]), machine.source(operands[1], "u32")
    move = operator.lshift if statement.name == "shl" else operator.rshift
    bits = 8 * a.itemsize

    def step(mask):
        moved = move(a, np.minimum(by, bits - 1).astype(a.dtype))
        if a.dtype.kind == "u":
            moved = np.where(by < bits, moved, 0).astype(a.dtype)
        machine.put(target, moved, mask)

    return step


@operation("bfe")
def extract_bits(machine: Machine, statement: Statement) -> Step:
    """`length` bits from `start` on, the last of them the sign where the type has one."""
    target, *operands = statement.operands
    kind = statement.modifiers[-1]
    a = machine.source(operands[0], kind)
    start, length = (int(machine.source(operand, "u32").item()) for operand in operands[1:])
    assert start + length <= 8 * a.itemsize and length < 64, statement

    def step(mask):
        bits = a.view(f"u{a.itemsize}").astype(np.uint64) >> np.uint64(start)
        bits = (bits & np.uint64((1 << length) - 1)).view(np.int64)
        if kind[0] == "s":
            bits = bits - (bits >> length - 1 << length)
        machine.put(target, bits.astype(a.dtype), mask)

    return step


@operation("prmt")
def permute_bytes(machine: Machine, statement: Statement) -> Step:
    """Four of eight bytes; those chosen with an 8 give all eight bits their highest."""
    target, *operands = statement.operands
    a, b, chosen = (machine.source(operand, "b32") for operand in operands)
    places = np.arange(0, 16, 4, dtype=np.uint32)

    def step(mask):
        *both, choice = np.broadcast_arrays(a, b, chosen, np.empty(machine.lanes))[:3]
        of_all = np.stack(both, 1).view(np.uint8)
        of_all = np.concatenate([of_all, np.where(of_all > 127, 255, 0).astype(np.uint8)], 1)
        four = np.take_along_axis(of_all, (choice[:, None] >> places & 15).astype(int), 1)
        machine.put(target, four.view(np.uint32)[:, 0], mask)

    return step


@operation("selp")
def select(machine: Machine, statement: Statement) -> Step:
    target, *operands = statement.operands
    a, b = (machine.source(operand, statement.modifiers[-1]) for operand in operands[:2])
    chooses = machine.source(operands[2], "pred")
    return lambda mask: machine.put(target, np.where(chooses, a, b), mask)


#: Of ordered numbers: false where one is NaN.
COMPARISONS = {
    "eq": np.equal,
    "ne": lambda a, b: (a < b) | (a > b),
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "num": lambda a, b: (a == a) & (b == b),
    "nan": lambda a, b: (a != a) | (b != b),
}


@operation("setp")
def compare(machine: Machine, statement: Statement) -> Step:
    """One predicate, or two of two halves. "ltu" holds where a number is NaN, too."""
    how, kind = statement.modifiers
    targets = statement.operands[0].split("|")
    sources = [machine.source(operand, kind) for operand in statement.operands[1:]]
    unordered = how not in COMPARISONS
    holds = COMPARISONS[how[:-1] if unordered else how]

    def step(mask):
        pairs = zip(*(unpack(s, kind) if kind in HALVES else [s] for s in sources), strict=True)
        for target, (a, b) in zip(targets, pairs, strict=True):
            result = holds(a, b) | COMPARISONS["nan"](a, b) if unordered else holds(a, b)
            machine.put(target, result, mask)

    return step


@operation("mov")
def move(machine: Machine, statement: Statement) -> Step:
    """Also of several registers into a wide one, and back."""
    target, source = statement.operands
    kind = statement.modifiers[-1]
    if source.startswith("{"):
        parts = [machine.register(name) for name in names(source)]

        def join(mask):
            whole = np.stack(parts, 1).view(TYPES[kind])  # the lowest bits first
            machine.put(target, whole[:, 0], mask)

        return join
    value = machine.source(source, kind)
    if not target.startswith("{"):
        return lambda mask: machine.put(target, value, mask)
    targets = names(target)

    def separate(mask):
        parts = np.ascontiguousarray(np.broadcast_to(value, machine.lanes))[:, None]
        parts = parts.view(UNSIGNED[value.itemsize // len(targets)])
        for name, part in zip(targets, parts.T, strict=True):
            machine.put(name, part, mask)

    return separate


@operation("cvt")
def convert(machine: Machine, statement: Statement) -> Step:
    *modes, to, source_kind = statement.modifiers
    target, *operands = statement.operands
    if to in ("f16x2", "bf16x2"):  # the first is the high one
        high, low = (machine.source(operand, "f32") for operand in operands)

        def pack(mask):
            bits = [from_float32(half, to[:-2]).astype(np.uint32) for half in (low, high)]
            machine.put(target, bits[0] | bits[1] << np.uint32(16), mask)

        return pack
    register = machine.register(operands[0])
    dtype = np.dtype(TYPES[source_kind])

    def step(mask):
        values = register.astype(UNSIGNED[dtype.itemsize]).view(dtype)  # the low bits, or all
        values = to_float32(values, source_kind) if source_kind in HALVES else values
        if to == "tf32":  # half of what is left out, away from 0
            bits = values.view(np.uint32)
            rounded = (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
            return machine.put(target, np.where(np.isfinite(values), rounded, bits), mask)
        if to in HALVES:
            return machine.put(target, from_float32(values.astype(np.float32), to), mask)
        if "rzi" in modes:
            limits = np.iinfo(TYPES[to])
            values = np.nan_to_num(values.astype(float), nan=0)
            values = np.clip(np.trunc(values), limits.min, limits.max)
        return machine.put(target, values.astype(TYPES[to]), mask)

    return step
