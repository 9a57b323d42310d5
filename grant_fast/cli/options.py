"""The fields of `RunConfig` as options of a command, and back."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, get_args, get_origin

import typer

from ..training.config import RunConfig
from ..training.defaults import defaults_for

#: The help's headings: the first field under each, in the order of the fields. The last few are
#: listed with the command's own options.
_HEADINGS = {
    "source": "Data",
    "network": "Network",
    "epochs": "Training",
    "arm": "Which graphs to train on",
    "metric": "Validation",
    "visits": None,
}


def with_settings(
    *, only: Sequence[str] = (), without: Sequence[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one option for each field of `RunConfig`; it gets those that the user gave."""
    specs = {spec.name: spec for spec in dataclasses.fields(RunConfig)}
    names = only or [name for name in specs if name not in ("source", "visits", *without)]
    headings = _headings(specs)

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command).parameters.values() if p.kind != p.VAR_KEYWORD]
        options = [_option(specs[name], headings[name]) for name in names]

        @functools.wraps(command)
        def run(**values: Any) -> None:
            given = {name: _parsed(specs[name], values.pop(name)) for name in names}
            command(**values, **{name: v for name, v in given.items() if v is not None})

        signature = inspect.Signature([*own, *options])
        run.__signature__ = signature  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        return run

    return wrap


def _headings(names: Iterable[str]) -> dict[str, str | None]:
    """Under which heading each field is listed."""
    headings, heading = {}, None
    for name in names:
        headings[name] = heading = _HEADINGS.get(name, heading)
    return headings


def _option(spec: "dataclasses.Field[Any]", heading: str | None) -> inspect.Parameter:
    """A field as an option; None unless given, so that defaults can follow the data."""
    flag = f"--{spec.name.replace('_', '-')}"
    kind: Any = str  # also of numbers: the config is who refuses, in one way
    if isinstance(spec.default, bool):
        kind, flag = bool, f"{flag}/--no-{spec.name.replace('_', '-')}"
    text, _, default = spec.metadata["help"].partition(". Default: ")
    limit = spec.metadata["limit"].words
    if isinstance(spec.default, tuple):
        kind, text = list[str], f"{text}; repeat the option, or separate values with commas"
    if limit.startswith(("one of", "above", "at least")):
        text = f"{text}; {limit}"
    if spec.name in {**defaults_for("gen-reg"), **defaults_for("*.csv")}:
        default = "what suits the data"
    elif spec.default not in (None, ()):
        default = str(spec.default).lower()
    if default:
        text = f"{text}. Default: {default}"
    option = typer.Option(
        flag,
        help=f"{text[0].upper()}{text[1:]}.",
        show_default=False,
        metavar=_shown(spec.type),
        rich_help_panel=heading,
    )
    return inspect.Parameter(
        spec.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, option],
    )


def as_options(given: dict[str, Any]) -> list[str]:
    """The words that give these fields to a command."""
    words = []
    for name, value in given.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif name == "target":  # a column's name may hold a comma
            words += [word for column in value for word in ("--target", column)]
        else:
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            words += [f"--{flag}", text]
    return words


def _shown(kind: Any) -> str | None:
    """How the help names what an option takes; None where its own way will do."""
    if get_origin(kind) is tuple:
        return f"<{get_args(kind)[0].__name__},…>"
    return {int: "<int>", float: "<float>", int | str: "<int|str>"}.get(_bare(kind))


def _bare(kind: Any) -> Any:
    """`int` for `int | None`; a true union stays what it is."""
    members = [member for member in get_args(kind) if member is not type(None)]
    return members[0] if len(members) == 1 else kind


def _parsed(spec: "dataclasses.Field[Any]", value: Any) -> Any:
    """What the config holds for what the user typed; None where nothing was typed."""
    if isinstance(value, list):
        if spec.name == "target":
            return tuple(value)  # a column's name may hold a comma
        words = [word.strip() for text in value for word in text.split(",") if word.strip()]
        return tuple(map(_number, words))
    is_number = spec.name == "interval" or _bare(spec.type) in (int, float)
    return _number(value) if is_number and value is not None else value


def _number(text: str) -> int | float | str:
    """A number where it is one; else the text, which the config will refuse by name."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
