"""A run's state on disk: tensors and plain values only, whole or not at all, nothing executable."""

import io
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import InputError, is_out_of_memory
from ..files import atomic_path

FORMAT = "grant_fast checkpoint"
VERSION = 1
REMEDY = "restore it, or remove the run's folder and train again"
_FOLDER = 0x10  # what marks a folder among a zip archive's attributes


def save_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Write `state` (nested dicts and lists of tensors, numbers, strings) to `path`, atomically.

    Raises:
        InputError: the file cannot be written (folder, permissions, full disk); it names `path`.
    """
    content = io.BytesIO()  # torch's own file writer hides the OSError of a full disk
    torch.save({"format": FORMAT, "version": VERSION, **state}, content)
    with atomic_path(path) as temporary:
        temporary.write_bytes(content.getvalue())


def load_checkpoint(path: Path, remedy: str = REMEDY) -> dict[str, Any]:
    """Read what `save_checkpoint` wrote, to the CPU; no code in it is run (`weights_only=True`).

    Raises:
        InputError: the file is missing, truncated, damaged, of another program (it then ends with
            the remedy) or of a newer version.
    """
    try:
        with open(path, "rb") as file:
            whole = zipfile.is_zipfile(file)
            if whole and (member := _damaged(zipfile.ZipFile(file))):
                raise ValueError(f"{member} is not what was written")
        state = torch.load(path, map_location="cpu", weights_only=True) if whole else None
    except FileNotFoundError as error:
        raise InputError(f"{path}: there is no such file; {remedy}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}); {remedy}") from error
    except Exception as error:  # a damaged archive makes torch raise almost anything
        raise InputError(f"{path}: damaged, or not a checkpoint; {remedy}") from error
    if not whole:
        raise InputError(f"{path}: truncated, or not a checkpoint; {remedy}")
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise InputError(f"{path}: not a checkpoint of grant-fast; {remedy}")
    version = state.get("version")
    if version != VERSION:
        raise InputError(
            f"{path}: checkpoint version {version}, but this grant_fast reads {VERSION}; "
            "upgrade grant_fast, or train again"
        )
    return state


def copied(state: Any) -> Any:
    """A copy of nested dicts, lists and tensors, made in every epoch; `copy.deepcopy` would take
    several times as long."""
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, dict):
        return {name: copied(value) for name, value in state.items()}
    return [copied(value) for value in state] if isinstance(state, list) else state


@contextmanager
def taken_from(path: Path) -> Iterator[None]:
    """For a `with` in which the state that `load_checkpoint` read is taken apart: what is missing
    in it, or of another kind, is an InputError that names the file."""
    try:
        yield
    except InputError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        what = " ".join(str(error).split())
        raise InputError(f"{path}: not what grant-fast writes ({what}); {REMEDY}") from error


def load_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Restore an AdamW's state, whose moments torch writes to without asking how large they are.

    Raises:
        ValueError: the moments are not those of its parameters.
    """
    optimizer.load_state_dict(state)
    for parameter, kept in optimizer.state.items():
        sizes = {"step": torch.Size(), "exp_avg": parameter.shape, "exp_avg_sq": parameter.shape}
        if {name: getattr(value, "shape", None) for name, value in kept.items()} != sizes:
            raise ValueError("the optimizer's moments are of other parameters")


def _damaged(archive: zipfile.ZipFile) -> str | None:
    """A member that is not what was written, which torch does not ask; None where all are.

    Python's checksums do not heed the mark of a folder. Torch's reader does: of a member with one
    it reads nothing, and hands out memory as it finds it.
    """
    marked = (info.filename for info in archive.infolist() if info.external_attr & _FOLDER)
    return archive.testzip() or next(marked, None)


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], origin: Path | str) -> None:
    """Copy `weights` into `model`, or say where the two first differ and leave `model` as it was.

    Raises:
        InputError: a parameter is missing, unknown or of another shape: a checkpoint of another
            model. Names the file, the parameter and both shapes.
    """
    check_shapes(model.state_dict(), weights, origin)
    model.load_state_dict(dict(weights))


def check_shapes(
    own: Mapping[str, Tensor], weights: Mapping[str, Tensor], origin: Path | str
) -> None:
    """What `load_weights` refuses, by a model's own state alone."""
    for name in [*own, *weights]:
        here = tuple(own[name].shape) if name in own else "absent"
        there = tuple(weights[name].shape) if name in weights else "absent"
        if here != there:
            raise InputError(
                f"{origin}: checkpoint of another model: {name} is {there} in the file and {here} "
                "in the model; build the model with the run's own config.json"
            )
