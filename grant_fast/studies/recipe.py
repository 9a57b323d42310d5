"""The paper's six benchmarks as data: one JSON file each in `recipes/`, checked when it is read.

JSON because Python 3.10 reads it without help, a person reads it too, and a config is JSON already.
"""

import dataclasses
import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import cannot_read, closest
from ..training.config import DATA, RunConfig, is_number
from .conventions import CONVENTIONS

NAMES = ("QM9", "ZINC", "ogbg-molhiv", "ogbg-molpcba", "gen-reg", "gen-cls")
PUBLISHED_ARMS = ("full", "grant-b", "grant-s")


@dataclass(frozen=True)
class Figures:
    """Published figures of one method.

    Args:
        seconds: wall time of training, selection and validation.
        metric, spread: test metric in the published convention, and its deviation.
        loss: test loss.
    """

    seconds: float
    metric: float
    loss: float | None = None
    spread: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            absent = value is None and name in ("loss", "spread")
            if not absent and not (is_number(value) and value >= 0):
                raise InputError(f"{name}={value} is not a published figure: give a number from 0")


@dataclass(frozen=True)
class Recipe:
    """One benchmark of the paper.

    Args:
        name: the paper's name of the data set.
        source: what `load_dataset` takes for it.
        splits: how many graphs the paper trains, validates and tests on.
        config: every setting of a run; its arm, seed and source are the caller's.
        convention: how the published metric was averaged, one of `conventions.CONVENTIONS`.
        unit: of the metric, "" where it has none.
        published: Table 1 of the paper, by arm.
        cited: figures of other methods as the paper gives them, by name; not run here.
        differences: what is known to differ between the published runs and ours, for people.
    """

    name: str
    source: str
    splits: tuple[int, int, int]
    config: RunConfig
    convention: str
    unit: str
    published: dict[str, Figures]
    cited: dict[str, Figures]
    differences: tuple[str, ...]


def load_recipe(name: str) -> Recipe:
    """The recipe of a name in `NAMES` (in any case), or of a JSON file of the same form.

    Raises:
        InputError: no such name or file, or something in the file that is missing, unknown or out
            of range; the message names the file and the key.
    """
    known = {own.lower(): own for own in NAMES}
    if name.lower() in known:
        path = files(__package__) / "recipes" / f"{name.lower()}.json"
        return parse_recipe(path.read_text(encoding="utf-8"), f"recipes/{name.lower()}.json")
    if not name.lower().endswith(".json"):
        hint = f"; did you mean {near}?" if (near := closest(name, NAMES)) else ""
        raise InputError(
            f"unknown recipe {name!r}: give one of {', '.join(NAMES)}, or a *.json{hint}"
        )
    try:
        return parse_recipe(Path(name).read_text(encoding="utf-8"), name)
    except OSError as error:
        raise cannot_read(name, error) from error
    except UnicodeDecodeError as error:
        raise InputError(f"the recipe {name} is not UTF-8 text: save it as JSON") from error


def parse_recipe(text: str, origin: str) -> Recipe:
    """A recipe from JSON text; `origin` names it in messages. Errors as in `load_recipe`."""
    try:
        values = json.loads(text)
    except ValueError as error:  # also a number of thousands of digits
        raise InputError(f"{origin}: not JSON ({error}); correct it") from error
    expected = {spec.name for spec in dataclasses.fields(Recipe)} - {"config"} | {"settings"}
    _check_keys(values, expected, origin)
    try:
        return Recipe(
            name=_text(values, "name"),
            source=_text(values, "source"),
            splits=_splits(values["splits"]),
            config=_config(values["settings"]),
            convention=_convention(values["convention"]),
            unit=_text(values, "unit"),
            published=_published(values["published"]),
            cited={_text(row, "name"): _figures(row, "cited") for row in values["cited"]},
            differences=tuple(map(str, values["differences"])),
        )
    except InputError as error:
        raise InputError(f"{origin}: {error}") from error
    except (TypeError, KeyError, ValueError) as error:
        raise InputError(f"{origin}: a value has the wrong form ({error}); correct it") from error


def _config(settings: Any) -> RunConfig:
    """A recipe says everything that decides a result, and nothing that depends on the user."""
    theirs = {"source", *DATA, "arm", "patience", "visits", "seed", "device"}
    optional = {"network", "head", "embedding", "norm", "lr_schedule", "lr_restart", "pass_size"}
    own = {spec.name for spec in dataclasses.fields(RunConfig)} - theirs
    _check_keys(settings, own - optional, "settings", optional)
    if settings["metric"] == "auto":
        raise InputError("metric=auto cannot be used in a recipe: name the one to judge by")
    return RunConfig(**settings)


def _check_keys(
    values: Any,
    required: set[str],
    origin: str,
    optional: frozenset[str] | set[str] = frozenset(),
) -> None:
    if not isinstance(values, dict):
        raise InputError(f"{origin}: not a recipe: give a JSON object")
    unknown, missing = values.keys() - required - optional, required - values.keys()
    for complaint, keys in (("unknown", unknown), ("missing", missing)):
        if keys:
            raise InputError(
                f"{origin}: {complaint} in a recipe: {', '.join(sorted(keys))}; correct it"
            )


def _text(values: dict[str, Any], name: str) -> str:
    if not isinstance(values[name], str):
        raise InputError(f"{name}={values[name]} cannot be used: give text")
    return values[name]


def _splits(values: Any) -> tuple[int, int, int]:
    train, valid, test = values
    for size in values:
        if not isinstance(size, int) or size < 1:
            raise InputError(f"splits={values} cannot be used: give three whole numbers from 1")
    return train, valid, test


def _convention(name: Any) -> str:
    if name not in CONVENTIONS:
        raise InputError(f"convention={name} cannot be used: give one of {', '.join(CONVENTIONS)}")
    return str(name)


def _published(rows: Any) -> dict[str, Figures]:
    _check_keys(rows, set(PUBLISHED_ARMS), "published")
    return {arm: _figures(rows[arm], arm) for arm in PUBLISHED_ARMS}


def _figures(row: Any, origin: str) -> Figures:
    """The figures of a row, beside its name."""
    fields = {spec.name: spec.default for spec in dataclasses.fields(Figures)}
    required = {name for name, default in fields.items() if default is dataclasses.MISSING}
    _check_keys(row, required, origin, {"name", *fields} - required)
    return Figures(**{name: row[name] for name in fields if name in row})
