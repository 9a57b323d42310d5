"""A whole run in one call: what `grant-fast train` does, for a data set in memory."""

from pathlib import Path
from typing import Any

from ..data.dataset import Dataset
from ..errors import InputError
from .answers import write_parts
from .config import RunConfig
from .defaults import config_of
from .folder import check_free
from .observers import Observer
from .records import RunResult
from .trainer import Trainer


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

    The folder gets the weights (`load_predictor` loads them), the metrics, and what each graph was
    there for (split.csv, test.csv). PyTorch's random state is left as it was.

    Args:
        dataset: from `load_dataset`; `dataclasses.replace(dataset, split=…)` gives it another
            split.
        out: the folder; made if it is not there.
        resume: go on with the run of the same settings that was interrupted there, if there is one.
        overwrite: replace the run there.
        observer: who is told how it goes on.
        settings: fields of `RunConfig`, the options of the command: `arm="full"`, `epochs=100`,
            `hidden_channels=[64]`. What is left out suits the data.

    Raises:
        InputError: there is no such setting, a value is out of range or does not fit the data, the
            folder is not empty, or the training diverges.
    """
    out = Path(out)
    unknown = settings.keys() - RunConfig.__dataclass_fields__.keys()
    if unknown:
        raise InputError(
            f"there is no setting {', '.join(sorted(unknown))}: help(RunConfig), of "
            "grant_fast.training.config, names all"
        )
    check_free(out, resume, overwrite)
    config = config_of({"source": dataset.name, **settings}, dataset)
    result = Trainer(dataset, config, out, resume=resume).fit(observer)
    write_parts(out, dataset)
    return result
