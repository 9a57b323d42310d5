"""Programs of a grid, a lane a thread, many at once.

Every register is an array of a number a lane. Lanes that part at a branch go on in groups, the one
that is furthest behind first, and meet where they come to the same statement: for programs without
gotos that is what a GPU does, too.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .memory import UNSIGNED, Access, Fault, Global, Shared
from .parse import Program, Statement, names, parse

if TYPE_CHECKING:
    from .profile import Profile

#: PTX's types as NumPy's; those of half precision as the bits they are.
TYPES = {
    "pred": np.bool_,
    **{f"{sign}{bits}": np.dtype(f"{kind}{bits // 8}") for bits in (8, 16, 32, 64)
       for sign, kind in (("b", "u"), ("u", "u"), ("s", "i"))},
    "f32": np.dtype("f4"),
    "f64": np.dtype("f8"),
    "f16": np.dtype("u2"),
    "bf16": np.dtype("u2"),
    "f16x2": np.dtype("u4"),
    "bf16x2": np.dtype("u4"),
}  # fmt: skip
WARP = 32
#: Lanes that go together: more are no faster.
LANES = 8192

#: What a statement does to the lanes of a mask, or to all (None). It returns nothing, or where
#: lanes go: `Jump`.
Step = Callable[..., "Jump | None"]


class Jump(NamedTuple):
    """target: a statement, or None for the end.   lanes: which go, or None for all."""

    target: int | None
    lanes: np.ndarray | None


#: By the name of a statement, what makes a step of it.
OPERATIONS: dict[str, Callable[["Machine", Statement], Step]] = {}


def operation(*names: str):
    """Enter a function into OPERATIONS."""

    def enter(build):
        OPERATIONS.update(dict.fromkeys(names, build))
        return build

    return enter


def run(
    ptx: str,
    grid: Sequence[int],
    arguments: Sequence[int],
    spans: Iterable[tuple[int, int]],
    shared: int,
    hazards: Counter,
) -> None:
    """Run a kernel.

    Args:
        arguments: addresses and numbers, in the order of the parameters; those left out are 0.
        spans: first and last byte (exclusive) of what may be touched.
        shared: bytes of shared memory of a program.
        hazards: what was noticed is counted here, by its text.

    Raises:
        Fault: what a GPU would stop at.
    """
    program = parse(ptx)
    memory = Global(spans, program.threads // WARP, hazards)
    total, each = math.prod(grid), max(1, LANES // program.threads)
    with np.errstate(all="ignore"):
        for first in range(0, total, each):
            some = np.arange(first, min(first + each, total))
            Machine(program, grid, some, arguments, memory, shared, hazards).run()


class Machine:
    """Some programs of a grid, numbered with x running fastest.

    profile: who counts what they do, if anybody.
    """

    profile: "Profile | None" = None

    def __init__(
        self,
        program: Program,
        grid: Sequence[int],
        programs: np.ndarray,
        arguments: Sequence[int],
        memory: Global,
        shared: int,
        hazards: Counter,
    ) -> None:
        self.text = program
        self.num_programs = len(programs)
        self.lanes = self.num_programs * program.threads
        thread = np.tile(np.arange(program.threads, dtype=np.uint32), self.num_programs)
        self.program = np.repeat(np.arange(self.num_programs), program.threads)
        self.lane = (thread % WARP).astype(np.int64)
        self.first_lane = np.arange(self.lanes) - self.lane
        warps = program.threads // WARP
        self.owner = programs[self.program] * warps + thread // WARP + 1
        self.epoch = np.ones(self.num_programs, int)
        self.memory = {"global": memory}
        self.memory["shared"] = Shared(shared, self.num_programs, warps, hazards)
        self.registers = {"%tid.x": thread}
        for axis, size in zip("xyz", grid, strict=True):
            programs, place = np.divmod(programs, size)
            self.registers[f"%ctaid.{axis}"] = place[self.program].astype(np.uint32)
            self.registers[f"%nctaid.{axis}"] = np.full(self.lanes, size, np.uint32)
        arguments = [*arguments, *[0] * (len(program.parameters) - len(arguments))]
        self.parameters = dict(zip(program.parameters, arguments, strict=True))
        self.steps = [self._step(statement) for statement in program.statements]

    def run(self) -> None:
        """From the first statement to the last return."""
        waiting = {0: np.ones(self.lanes, bool)}
        while waiting:
            at = min(waiting)
            lanes = waiting.pop(at)
            mask = None if lanes.all() else lanes
            until = min(waiting, default=-1)
            jump = None
            while jump is None and at != until:
                self.place = self.text.statements[at].place
                if self.profile is not None:
                    self.profile.step(self, mask)
                try:
                    jump = self.steps[at](mask)
                except Fault as fault:
                    raise Fault(f"{self.text.name}: {self.text.statements[at]}: {fault}") from None
                at += 1
            if jump is not None:
                going = lanes if jump.lanes is None else lanes & jump.lanes
                lanes = lanes & ~going
                if jump.target is not None:
                    _join(waiting, jump.target, going)
            _join(waiting, at, lanes)

    def _step(self, statement: Statement) -> Step:
        if statement.name not in OPERATIONS:
            raise Fault(f"{self.text.name}: no such operation: {statement}")
        step = OPERATIONS[statement.name](self, statement)
        if not statement.guard:
            return step
        guard = self.register(statement.guard.lstrip("!"))
        negated = statement.guard.startswith("!")

        def guarded(mask):
            on = ~guard if negated else guard.copy()
            if statement.name in ("bra", "ret"):
                return step(mask)._replace(lanes=on)
            on = on if mask is None else on & mask
            return step(None if on.all() else on) if on.any() else None

        return guarded

    # Operands ------------------------------------------------------------------------------------

    def register(self, name: str) -> np.ndarray:
        """[lanes] numbers without sign."""
        if name not in self.registers:
            kind = TYPES[self.text.kinds[re.match("%[a-z]+", name)[0]]]
            # What nothing has set shows, as NaN does.
            fill = False if kind == np.bool_ else np.iinfo(kind).max
            self.registers[name] = np.full(self.lanes, fill, kind)
        return self.registers[name]

    def source(self, operand: str, kind: str) -> np.ndarray:
        """[lanes], or [1] of a constant, of NumPy's type for `kind`: a view, if it can be."""
        dtype = np.dtype(TYPES[kind])
        if operand == "global_smem":  # where shared memory begins
            return np.zeros(1, dtype)
        if operand.startswith("%"):
            return self.register(operand).view(dtype)
        if number := re.fullmatch("0[fd]([0-9A-Fa-f]+)", operand):
            bits = int(number[1], 16)
        else:
            bits = int(operand.rstrip("U"), 0) & (256**dtype.itemsize - 1)
        if kind == "pred":
            return np.array([bits != 0])
        return np.array([bits], UNSIGNED[dtype.itemsize]).view(dtype)

    def put(self, name: str, values, mask) -> None:
        """Set a register of these lanes, which may be wider than the values: their sign is kept."""
        if name == "_":
            return
        register = self.register(name)
        if values.itemsize < register.itemsize:
            kind = "i" if values.dtype.kind == "i" else "u"
            values = values.astype(f"{kind}{register.itemsize}")
        values = values if values.dtype == np.bool_ else values.view(register.dtype)
        np.copyto(register, values, where=True if mask is None else mask)

    def address(self, operand: str) -> Callable[[np.ndarray], np.ndarray]:
        """The bytes that lanes mean by "[%rd1 + 16]"."""
        base, offset = re.fullmatch(r"\[\s*([%\w]+)\s*(?:\+\s*(-?\d+))?\s*\]", operand).groups()
        register = self.source(base, "b64" if base.startswith("%rd") else "b32")
        register, offset = np.broadcast_to(register, self.lanes), int(offset or 0)
        return lambda lanes: register[lanes].astype(int) + offset

    # Lanes ---------------------------------------------------------------------------------------

    def which(self, mask) -> np.ndarray:
        """The lanes of a mask."""
        return np.arange(self.lanes) if mask is None else np.flatnonzero(mask)

    def whole(self, mask, lanes: int, what: str) -> np.ndarray:
        """Which groups of so many lanes take part, none of them in part."""
        if mask is None:
            return np.arange(self.lanes // lanes)
        groups = mask.reshape(-1, lanes)
        if (groups.any(1) != groups.all(1)).any():
            raise Fault(f"some lanes of {what} are elsewhere")
        return np.flatnonzero(groups.any(1))

    def access(self, space: str, lanes, address, size: int) -> Access:
        """A request of these lanes for `size` bytes each."""
        if self.profile is not None:
            self.profile.access(self, space, lanes, address, size)
        return self.touch(space, lanes, address, size)

    def touch(self, space: str, lanes, address, size: int) -> Access:
        """The same without a request, as a matrix unit touches memory."""
        if space == "shared":
            address = self.memory["shared"].locate(address, size, self.program[lanes])
        epoch = self.epoch[self.program[lanes]]
        return Access(address, size, self.owner[lanes], epoch, self.place)


def _join(waiting: dict[int, np.ndarray], at: int, lanes: np.ndarray) -> None:
    if lanes.any():
        waiting[at] = waiting[at] | lanes if at in waiting else lanes


@operation("bra")
def branch(machine: Machine, statement: Statement) -> Step:
    jump = Jump(machine.text.labels[statement.operands[0]], None)
    return lambda mask: jump


@operation("ret")
def leave(machine: Machine, statement: Statement) -> Step:
    return lambda mask: Jump(None, None)


@operation("bar")
def barrier(machine: Machine, statement: Statement) -> Step:
    def of_a_warp(mask):
        machine.whole(mask, WARP, "a warp at its barrier")

    def of_a_program(mask):
        machine.epoch[machine.whole(mask, machine.text.threads, "a program at a barrier")] += 1

    return of_a_warp if statement.modifiers[0] == "warp" else of_a_program


@operation("fence")
def fence(machine: Machine, statement: Statement) -> Step:
    return lambda mask: None


@operation("ld")
def load(machine: Machine, statement: Statement) -> Step:
    target, place = statement.operands
    kind = np.dtype(TYPES[statement.modifiers[-1]])
    if statement.modifiers[0] == "param":
        number = machine.parameters[place.strip("[]")] & (256**kind.itemsize - 1)
        value = np.array([number], UNSIGNED[kind.itemsize])
        return lambda mask: machine.put(target, value, mask)
    space, targets, address = statement.modifiers[0], names(target), machine.address(place)
    registers = [machine.register(name) for name in targets]

    def step(mask):
        lanes = machine.which(mask)
        access = machine.access(space, lanes, address(lanes), kind.itemsize * len(targets))
        values = machine.memory[space].load(access, kind.itemsize).view(kind)
        for register, value in zip(registers, values.T, strict=True):
            wide = np.dtype(f"{'i' if kind.kind == 'i' else 'u'}{register.itemsize}")
            register[lanes] = value.astype(wide).view(register.dtype)

    return step


@operation("st")
def store(machine: Machine, statement: Statement) -> Step:
    place, source = statement.operands
    space, kind = statement.modifiers[0], statement.modifiers[-1]

    def constant(operand):
        return np.broadcast_to(machine.source(operand, kind), machine.lanes)

    values = [
        machine.register(name) if name.startswith("%") else constant(name) for name in names(source)
    ]
    address, dtype = machine.address(place), TYPES[kind]

    def step(mask):
        lanes = machine.which(mask)
        access = machine.access(space, lanes, address(lanes), dtype.itemsize * len(values))
        machine.memory[space].store(access, np.stack([v[lanes].astype(dtype) for v in values], 1))

    return step


@operation("atom", "red")
def atomic_add(machine: Machine, statement: Statement) -> Step:
    """What was there before is not given back: no kernel asks for it."""
    *_, place, source = statement.operands
    space, kind = statement.modifiers[0], statement.modifiers[-1]
    address, addend = machine.address(place), machine.source(source, kind)

    def step(mask):
        lanes = machine.which(mask)
        access = machine.access(space, lanes, address(lanes), addend.itemsize)
        machine.memory[space].add(access, np.broadcast_to(addend, machine.lanes)[lanes])

    return step
