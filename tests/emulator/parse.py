"""PTX as statements."""

import re
from functools import lru_cache
from typing import NamedTuple


class Statement(NamedTuple):
    """One instruction.

    guard: the predicate that it waits for, "!" before it where negated, or "".
    name: "add" of "add.s32", whose modifiers are ("s32",).
    place: line and column of the kernel's source.
    """

    guard: str
    name: str
    modifiers: tuple[str, ...]
    operands: tuple[str, ...]
    place: str

    def __str__(self) -> str:
        operation = ".".join((self.name, *self.modifiers))
        return f"{operation} {', '.join(self.operands)} [{self.place}]"


class Program(NamedTuple):
    """An entry point.

    kinds: of registers by the beginning of their names: {"%rd": "b64", ...}.
    labels: the statement that each stands before.
    """

    name: str
    parameters: tuple[str, ...]
    threads: int
    kinds: dict[str, str]
    statements: list[Statement]
    labels: dict[str, int]


@lru_cache(32)
def parse(text: str) -> Program:
    """The one entry point of PTX as Triton writes it."""
    head, body = text[text.index(".visible .entry") :].split("\n{\n", 1)
    statements, labels, place, rest = [], {}, "", ""
    for line in body.split("\n}\n", 1)[0].splitlines():
        if where := re.match(r"\s*\.loc\s.*//\s*(\S+)", line):
            place = where[1]
        code = line.split("//")[0].strip()
        if label := re.fullmatch(r"(\$\w+):", code):
            labels[label[1]] = len(statements)
        elif code and not code.startswith("."):
            *whole, rest = f"{rest} {code}".split(";")
            statements += [_statement(one.strip(), place) for one in whole]
    assert not rest.strip(), f"PTX that was not understood: {rest}"
    return Program(
        re.search(r"\.entry (\w+)", head)[1],
        tuple(re.findall(r"(\w+_param_\d+)", head)),
        int(re.search(r"\.reqntid (\d+)", head)[1]),
        {name: kind for kind, name in re.findall(r"\.reg \.(\w+)\s+(%[a-z]+)<", body)},
        statements,
        labels,
    )


def _statement(text: str, place: str) -> Statement:
    guard, operation, operands = re.match(r"(?:@(!?%p\d+)\s+)?([\w.:]+)\s*(.*)", text).groups()
    name, *modifiers = operation.removesuffix("::cta").replace("::cta.", ".").split(".")
    # At commas that are in no braces: registers of a vector stay together.
    parts = re.findall(r"\s*(\{[^}]*\}|[^,]+)", operands)
    return Statement(guard or "", name, tuple(modifiers), tuple(p.strip() for p in parts), place)


def names(operand: str) -> list[str]:
    """The registers of a vector, or the one."""
    return [name.strip() for name in operand.strip("{} ").split(",")]
