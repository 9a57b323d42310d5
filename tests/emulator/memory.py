"""What a program may touch, and who touched it last."""

from collections import Counter
from typing import NamedTuple

import numpy as np

UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
#: Where the views of this process's memory begin: NumPy takes no array at 0.
BASE = 4096


class Fault(Exception):
    """What a GPU would stop at, or what this one does not know."""


class _Everything:
    def __init__(self, size: int) -> None:
        self.__array_interface__ = {
            "shape": (2**47 // size,),
            "typestr": f"<u{size}",
            "data": (BASE, False),
            "version": 3,
        }


EVERYTHING = {size: np.asarray(_Everything(size)) for size in UNSIGNED}


class Access(NamedTuple):
    """One access of some threads.

    at: [threads] the byte at which each begins; size: how many it takes.
    owner: [threads] the warp, numbered from 1 through all programs; epoch: how many barriers its
    program has passed.
    place: of the kernel's source.
    """

    at: np.ndarray
    size: int
    owner: np.ndarray
    epoch: np.ndarray
    place: str


#: Bytes of a tensor above which only its bounds are watched: a shadow takes 32 for each.
WATCHED = 1 << 26
#: Warps of more than one program.
SEVERAL = -(2**40)


class Shadow:
    """Who wrote and who read each byte last, and after how many barriers of its program.

    Warps are numbered from 1 through all programs, -1 - p stands for several of program p, 0 for
    none. What is of another program is never synchronised.
    """

    def __init__(self, size: int, warps: int, where: str, hazards: Counter) -> None:
        self.writer, self.written, self.reader, self.read = (np.zeros(size, int) for _ in range(4))
        self.warps, self.where, self.hazards = warps, where, hazards

    def load(self, access: Access) -> None:
        at, owner, epoch = self._bytes(access)
        if self._conflicts(self.writer[at], self.written[at], owner, epoch).any():
            self._report("reads what another wrote", access)
        shared = self._conflicts(self.reader[at], self.read[at], owner, epoch)
        reader = np.where(shared, self._both(self.reader[at], owner), owner)
        self.reader[at], self.read[at] = reader, epoch
        at_once = self.reader[at] != reader  # another lane of this access put itself there
        self.reader[at[at_once]] = self._both(self.reader[at], owner)[at_once]

    def store(self, access: Access, changes) -> None:
        """changes: [threads] whether what is there becomes another number."""
        at, owner, epoch = self._bytes(access)
        changes = np.repeat(changes, access.size)
        if (changes & self._conflicts(self.writer[at], self.written[at], owner, epoch)).any():
            self._report("overwrites what another wrote", access)
        if (changes & self._conflicts(self.reader[at], self.read[at], owner, epoch)).any():
            self._report("overwrites what another read", access)
        self.writer[at], self.written[at] = owner, epoch

    def _bytes(self, access: Access):
        at = (access.at[:, None] + np.arange(access.size)).ravel()
        return at, np.repeat(access.owner, access.size), np.repeat(access.epoch, access.size)

    def _program(self, who):
        return np.where(who > 0, (who - 1) // self.warps, -1 - who)

    def _both(self, who, owner):
        program = self._program(owner)
        return np.where(self._program(who) == program, -1 - program, SEVERAL)

    def _conflicts(self, who, when, owner, epoch):
        """Another warp, of this program since its last barrier, or of another program."""
        unordered = (when == epoch) | (self._program(who) != self._program(owner))
        return (who != 0) & (who != owner) & unordered

    def _report(self, what: str, access: Access) -> None:
        self.hazards[f"{access.place}: a warp {what} in {self.where} memory, unsynchronised"] += 1


class Shared:
    """The shared memory of several programs, one after another, full of what nobody wrote."""

    def __init__(self, size: int, programs: int, warps: int, hazards: Counter) -> None:
        self.size = max(size, 16)
        self.bytes = np.full(self.size * programs, 0xFF, np.uint8)
        self.shadow = Shadow(len(self.bytes), warps, "shared", hazards)
        self.hazards = hazards

    def locate(self, address, size: int, program):
        """Places of addresses, each in its program's memory."""
        if address.min() < 0 or address.max() + size > self.size:
            raise Fault(f"bytes {address.min()} to {address.max()} of {self.size} shared ones")
        if (address % size).any():
            raise Fault("unaligned access to shared memory")
        return program * self.size + address

    def load(self, access: Access, size: int):
        """[threads, access.size / size] numbers of `size` bytes."""
        at = access.at[:, None] + np.arange(0, access.size, size)
        if not self.shadow.writer[at].all():
            self.hazards[f"{access.place}: reads shared memory that nothing wrote"] += 1
        self.shadow.load(access)
        return self.bytes.view(UNSIGNED[size])[at // size]

    def store(self, access: Access, values) -> None:
        """values: [threads, n] numbers."""
        view = self.bytes.view(values.dtype)
        at = (access.at[:, None] + np.arange(0, access.size, values.itemsize)) // values.itemsize
        _put(view, at, values, access, self.shadow, self.hazards)


class Global:
    """The memory of this process, of which programs may touch some spans.

    spans: of each tensor, its first byte and the one after its last.
    """

    def __init__(self, spans, warps: int, hazards: Counter) -> None:
        merged = []
        for start, end in sorted(spans):
            if merged and start < merged[-1][1]:
                start, end = merged[-1][0], max(end, merged.pop()[1])
            merged.append((start, end))
        self.start, self.end = np.array(merged, int).reshape(-1, 2).T
        self.shadows, self.warps, self.hazards = {}, warps, hazards

    def load(self, access: Access, size: int):
        """[threads, access.size / size] numbers of `size` bytes."""
        for shadow, part, _ in self._by_span(access):
            if shadow is not None:
                shadow.load(part)
        at = access.at[:, None] + np.arange(0, access.size, size) - BASE
        return EVERYTHING[size][at // size]

    def store(self, access: Access, values) -> None:
        """values: [threads, n] numbers."""
        view, size = EVERYTHING[values.itemsize], values.itemsize
        for shadow, part, here in self._by_span(access):
            there = access.at[here][:, None] + np.arange(0, access.size, size) - BASE
            _put(view, there // size, values[here], part, shadow, self.hazards)

    def add(self, access: Access, values) -> None:
        """values: [threads], added one after another."""
        view = EVERYTHING[values.itemsize].view(values.dtype)
        for _, _, here in self._by_span(access):
            at = (access.at[here] - BASE) // access.size
            some = view[at.min() : at.max() + 1]  # of all of it NumPy would make a copy
            np.add.at(some, at - at.min(), values[here])

    def _by_span(self, access: Access):
        """(shadow or None, the access in it, which threads) for each tensor that is touched."""
        if (access.at % access.size).any():
            raise Fault("unaligned access to global memory")
        which = np.searchsorted(self.start, access.at, side="right") - 1
        outside = (which < 0) | (access.at + access.size > self.end[which])
        if outside.any():
            raise Fault(f"{outside.sum()} threads out of the bounds of every tensor")
        for i in np.unique(which):
            here = which == i
            size = int(self.end[i] - self.start[i])
            if i not in self.shadows and size <= WATCHED:
                self.shadows[i] = Shadow(size, self.warps, "global", self.hazards)
            part = Access(
                access.at[here] - self.start[i],
                access.size,
                access.owner[here],
                access.epoch[here],
                access.place,
            )
            yield self.shadows.get(i), part, here


def _put(view, at, values, access: Access, shadow: Shadow | None, hazards: Counter) -> None:
    if shadow is not None:
        shadow.store(access, (view[at] != values).any(1))
    view[at] = values
    if (view[at] != values).any():
        hazards[f"{access.place}: threads store different numbers to one place at once"] += 1
