"""A whole run in one call: what `grant-fast train` does, for a data set in memory."""

from collections.abc import Iterable
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import torch

from ..data.dataset import Dataset
from ..devices import usual_tensors
from ..errors import InputError
from ..files import alone_in, closest
from .answers import write_tables
from .config import DATA, MEMORY, RunConfig
from .defaults import check_heeded, config_of
from .folder import PICTURE_FILE, check_free, check_length, make_folder
from .model import RANDOM
from .observers import Observer
from .picture import draw_run
from .records import Run, RunResult
from .trainer import Trainer


@usual_tensors
@torch.inference_mode(False)
@torch.enable_grad()
def train(
    dataset: Dataset,
    out: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    observer: Observer | None = None,
    **settings: Any,
) -> RunResult:
    """Train one network and test it, as `grant-fast train` does, and leave a run's folder.

    The folder gets the weights (`load_predictor` loads them), the metrics, which part each graph
    was in (split.csv, skipped.csv, test.csv), and a picture (run.png). PyTorch's random state and
    its number of threads are left alone. Calls in several threads of one process wait for each
    other: to train at the same time, use processes.

    Args:
        dataset: from `load_dataset`; `dataclasses.replace(dataset, split=…, splitting="given")`
            gives it another split.
        out: the folder; made if it is not there.
        resume: go on with the run of the same settings that was interrupted there, if there is one;
            or, of all graphs, with one that ended, for more `epochs` or with more `patience`.
        overwrite: replace the run there.
        observer: is told of every epoch; see `grant_fast.training.observers.Observer`.
        settings: fields of `RunConfig`, the options of the command but those that choose the data:
            `arm="grant-b"`, `epochs=100`, `hidden_channels=[64]`. Those left out
            are chosen to suit the data.

    Raises:
        InputError: there is no such setting, a value is out of range or does not fit the data, the
            folder is not empty or another process writes to it, or the training diverges.
    """
    if not isinstance(dataset, Dataset):
        kind = type(dataset).__name__
        raise InputError(
            f"train takes what load_dataset returns, not a {kind}: load_dataset takes a file, a "
            "name or a PackedGraphs"
        )
    out = Path(out)
    settings = {name: _plain(name, value) for name, value in settings.items()}
    check_free(out, resume, overwrite)
    config = config_of({"source": MEMORY + dataset.name, **settings}, dataset)
    check_heeded(config, settings)
    trainer = Trainer(dataset, config, out, resume=resume)
    return train_to_the_end(trainer, dataset, observer, resume, overwrite)


def train_to_the_end(
    trainer: Trainer, dataset: Dataset, observer: Observer | None, resume: bool, overwrite: bool
) -> RunResult:
    """Train, test, and leave all files of a run, in a folder that nobody else writes to meanwhile.

    Raises:
        InputError: as `Trainer.fit`; or another process writes to the folder, or has written a run
            there since it was looked at.
    """
    make_folder(trainer.run_dir)
    with alone_in(trainer.run_dir), RANDOM:  # which predictions put back as they found it
        check_free(trainer.run_dir, resume, overwrite, source=trainer.config.source)
        if resume:
            check_length(trainer.run_dir, trainer.config)
        result = trainer.fit(observer)
        answers = write_tables(trainer.run_dir, dataset)
        run = Run(result, tuple(trainer.history))
        draw_run(trainer.run_dir / PICTURE_FILE, run, dataset, answers)
    return result


def _plain(name: str, value: Any) -> Any:
    """A setting's value as `RunConfig` holds it: one value for a list of one, Python's own ints."""
    specs = RunConfig.__dataclass_fields__
    if name in ("source", "num_graphs", *DATA):
        called = {"graphs": " as num_graphs", "data_seed": " as seed"}.get(name, "")
        raise InputError(
            f"{name} is for reading data: give it to load_dataset{called} instead of train"
        )
    if name not in specs:
        longer = (other for other in specs if other.startswith(name))
        near = closest(name, specs) or next(longer, None)
        hint = f"did you mean {near}?" if near else "`grant-fast train --help` lists them"
        raise InputError(f"there is no setting {name}: {hint}")
    is_list = isinstance(specs[name].default, tuple)
    if is_list and isinstance(value, Iterable) and not isinstance(value, str):
        return tuple(map(_python, value))
    return (_python(value),) if is_list else _python(value)


def _python(value: Any) -> Any:
    """A number or a string as Python's own: of others a checkpoint could not be read."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else value
