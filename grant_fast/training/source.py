"""The data set of a run, by its config."""

from ..data.dataset import Dataset
from ..data.load import load_dataset
from ..errors import InputError
from .config import MEMORY, RunConfig


def dataset_of(config: RunConfig, *, workers: int | None = None, progress: bool = False) -> Dataset:
    """The data set that a config names, read or generated anew.

    Args:
        config: a run's.
        workers, progress: as `load_dataset` takes them.

    Raises:
        InputError: as `load_dataset`; or the run learned from a data set in memory.
    """
    if config.source.startswith(MEMORY):
        raise InputError(
            f"the run learned from {config.source.removeprefix(MEMORY)!r}, a data set that "
            "train(…) was given in memory, and does not know its file: in Python, use that data "
            "set; train(…, resume=True) goes on with the run"
        )
    return load_dataset(
        config.source,
        smiles_column=config.smiles_column,
        target=list(config.target) or None,
        task=None if config.task == "auto" else config.task,  # type: ignore[arg-type]
        split=config.split,  # type: ignore[arg-type]
        split_column=config.split_column,
        num_graphs=config.graphs,
        seed=config.data_seed,
        strict=config.strict,
        workers=workers,
        progress=progress,
    )
